//! Reading the machine's own apt sources, to learn which Debian mirror it uses.
//!
//! Both formats of sources.list(5): one line per source, and deb822 paragraphs.

use std::path::Path;

/// The names under which Debian publishes whole suites. An entry for anything else (a security
/// archive, a private repository) does not tell where Debian itself is mirrored.
const DEBIAN_SUITES: [&str; 9] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
];

/// One enabled source of binary packages: an archive's address and one of its suites.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    uri: String,
    suite: String,
    components: Vec<String>,
}

/// The addresses of Debian mirrors this machine is configured with, in the order of its sources.
pub(crate) fn debian_mirrors(apt_directory: &Path) -> Vec<String> {
    let mut files = vec![apt_directory.join("sources.list")];
    let parts = std::fs::read_dir(apt_directory.join("sources.list.d"));
    let mut parts: Vec<_> =
        parts.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    parts.sort();
    files.append(&mut parts);
    let mut sources = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => sources.extend(parse_lines(&text)),
            Some("sources") => sources.extend(parse_paragraphs(&text)),
            _ => {}
        }
    }
    mirrors_among(&sources)
}

fn mirrors_among(sources: &[Source]) -> Vec<String> {
    let mut mirrors: Vec<String> = Vec::new();
    for source in sources {
        let is_debian = DEBIAN_SUITES.contains(&source.suite.as_str())
            && source.components.iter().any(|component| component == "main");
        if is_debian && !mirrors.contains(&source.uri) {
            mirrors.push(source.uri.clone());
        }
    }
    mirrors
}

/// `deb [options] uri suite component…`, one a line.
fn parse_lines(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let rest = line.strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t', '[']) {
        return None;
    }
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix('[') {
        Some(options) => options.split_once(']')?.1,
        None => rest,
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source { uri: words.next()?, suite: words.next()?, components: words.collect() })
}

/// Paragraphs of `Field: value` with continuation lines, divided by empty lines.
fn parse_paragraphs(text: &str) -> Vec<Source> {
    let without_comments: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    without_comments.split(|line| line.trim().is_empty()).flat_map(sources_of_paragraph).collect()
}

fn sources_of_paragraph(lines: &[&str]) -> Vec<Source> {
    let enabled = !field(lines, "Enabled").iter().any(|word| word.eq_ignore_ascii_case("no"));
    if !enabled || !field(lines, "Types").iter().any(|word| word == "deb") {
        return Vec::new();
    }
    let (suites, components) = (field(lines, "Suites"), field(lines, "Components"));
    let mut sources = Vec::new();
    for uri in field(lines, "URIs") {
        sources.extend(suites.iter().map(|suite| Source {
            uri: uri.clone(),
            suite: suite.clone(),
            components: components.clone(),
        }));
    }
    sources
}

/// The words of a field, continuation lines included.
fn field(lines: &[&str], name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut inside = false;
    for line in lines {
        let value = if line.starts_with([' ', '\t']) {
            *line
        } else {
            let Some((key, value)) = line.split_once(':') else { continue };
            inside = key.trim().eq_ignore_ascii_case(name);
            value
        };
        if inside {
            words.extend(value.split_whitespace().map(str::to_owned));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(uri: &str, suite: &str, components: &[&str]) -> Source {
        let components = components.iter().map(|&component| component.to_owned()).collect();
        Source { uri: uri.to_owned(), suite: suite.to_owned(), components }
    }

    #[test]
    fn one_line_sources() {
        let text = "# deb http://old/debian bullseye main\n\
            deb http://one/debian bookworm main contrib # the usual\n\
            deb [ arch=amd64 signed-by=/usr/share/keyrings/a.gpg ] http://two/debian trixie main\n\
            deb-src http://one/debian bookworm main\n\
            deb\n\n";
        assert_eq!(
            parse_lines(text),
            [
                source("http://one/debian", "bookworm", &["main", "contrib"]),
                source("http://two/debian", "trixie", &["main"]),
            ]
        );
    }

    #[test]
    fn deb822_sources() {
        let text = "Types: deb deb-src\n\
            # a comment inside\n\
            URIs: http://one/debian\n http://two/debian\n\
            Suites: bookworm bookworm-updates\n\
            Components: main\n\
            Signed-By: /usr/share/keyrings/a.gpg\n\
            \n\
            Types: deb\nURIs: http://off/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\
            \n\
            Types: deb-src\nURIs: http://src/debian\nSuites: bookworm\nComponents: main\n";
        assert_eq!(
            parse_paragraphs(text),
            [
                source("http://one/debian", "bookworm", &["main"]),
                source("http://one/debian", "bookworm-updates", &["main"]),
                source("http://two/debian", "bookworm", &["main"]),
                source("http://two/debian", "bookworm-updates", &["main"]),
            ]
        );
    }

    #[test]
    fn only_debian_itself_is_a_mirror() {
        let sources = [
            source("http://vendor/linux/debian", "bookworm", &["stable"]),
            source("http://one/debian-security", "bookworm-security", &["main"]),
            source("http://one/debian", "bookworm", &["main"]),
            source("http://one/debian", "trixie", &["main"]),
            source("http://two/debian", "sid", &["main"]),
        ];
        assert_eq!(mirrors_among(&sources), ["http://one/debian", "http://two/debian"]);
    }

    #[test]
    fn both_kinds_of_files_are_read_and_others_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let parts = directory.path().join("sources.list.d");
        std::fs::create_dir(&parts).unwrap();
        let line = |uri: &str| format!("deb {uri} bookworm main\n");
        std::fs::write(directory.path().join("sources.list"), line("http://list")).unwrap();
        std::fs::write(parts.join("a.list"), line("http://part")).unwrap();
        std::fs::write(parts.join("b.list.save"), line("http://saved")).unwrap();
        std::fs::write(
            parts.join("c.sources"),
            "Types: deb\nURIs: http://paragraph\nSuites: stable\nComponents: main\n",
        )
        .unwrap();
        assert_eq!(
            debian_mirrors(directory.path()),
            ["http://list", "http://part", "http://paragraph"]
        );
    }
}
