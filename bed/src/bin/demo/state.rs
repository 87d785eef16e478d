//! Summary of what kube-ipvs has made of a node.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use bed::Namespace;

/// Prints virtual servers, sets that have entries, rules by chain, and bound addresses.
pub(crate) fn print(node: &Namespace, program: &Path) -> Result<()> {
    print!("{}", node.command("ipvsadm", &["-Ln"])?);
    let saved = node.command(&program.to_string_lossy(), &["sets"])?;
    let sets = sets(&saved);
    let filled: Vec<String> = sets
        .iter()
        .filter(|(_, entries)| **entries > 0)
        .map(|(name, entries)| format!("{name} {entries}"))
        .collect();
    println!("sets with entries: {}", filled.join(", "));
    println!("  and {} empty ones", sets.len() - filled.len());
    for (family, program) in [("IPv4", "iptables-save"), ("IPv6", "ip6tables-save")] {
        if !Path::new("/usr/sbin").join(program).exists() {
            println!("rules, {family}: in nf_tables, and this host has no program that lists them");
            continue;
        }
        let rules = rules(&node.command(program, &[])?);
        let chains: Vec<String> =
            rules.iter().map(|(chain, count)| format!("{chain} {count}")).collect();
        println!("rules by chain, {family}: {}", chains.join(", "));
    }
    let addresses = node.command("ip", &["-brief", "address", "show", "dev", "kube-ipvs0"])?;
    // After the link's name and state.
    let addresses: Vec<&str> = addresses.split_whitespace().skip(2).collect();
    println!("addresses on kube-ipvs0: {}", addresses.join(", "));
    Ok(())
}

/// The number of entries by set, from what `ipset save` prints.
fn sets(saved: &str) -> BTreeMap<&str, usize> {
    let mut sets = BTreeMap::new();
    for line in saved.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next()) {
            (Some("create"), Some(name)) => *sets.entry(name).or_default() += 0,
            (Some("add"), Some(name)) => *sets.entry(name).or_default() += 1,
            _ => {}
        }
    }
    sets
}

/// The number of rules by table and chain: `nat KUBE-SERVICES`.
fn rules(saved: &str) -> BTreeMap<String, usize> {
    let mut rules = BTreeMap::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap_or_default();
            *rules.entry(format!("{table} {chain}")).or_default() += 1;
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_by_set() {
        let saved =
            "create A hash:ip family inet\nadd A 10.0.0.1\nadd A 10.0.0.2\ncreate B hash:ip\n";
        assert_eq!(sets(saved), BTreeMap::from([("A", 2), ("B", 0)]));
    }

    #[test]
    fn rules_are_counted_by_table_and_chain() {
        let saved = "# comment\n*nat\n:A - [0:0]\n-A A -j B\n-A A -p tcp -j C\nCOMMIT\n\
                     *filter\n-A A -j DROP\nCOMMIT\n";
        let expected = BTreeMap::from([("nat A".to_owned(), 2), ("filter A".to_owned(), 1)]);
        assert_eq!(rules(saved), expected);
    }
}
