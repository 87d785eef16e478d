//! The Debian mirrors of this machine's apt sources.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::host_tool;

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

/// Returns the addresses of the Debian mirrors that `apt_directory`, mostly `/etc/apt`, names, in
/// the order of its sources.
pub(crate) fn debian_mirrors(apt_directory: &Path) -> Result<Vec<String>> {
    let mut apt = Command::new("apt-get");
    apt.arg("indextargets").arg("-o").arg(format!("Dir::Etc={}", apt_directory.display()));
    // It would pass over a source of which no list has been fetched.
    apt.args(["-o", "APT::Get::IndexTargets::ReleaseInfo=false"]);
    apt.args(["--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]);
    let targets = host_tool::output(&mut apt)?;
    Ok(mirrors_among(&String::from_utf8_lossy(&targets)))
}

fn mirrors_among(targets: &str) -> Vec<String> {
    let mut mirrors: Vec<String> = Vec::new();
    for target in targets.lines() {
        let mut words = target.splitn(3, ' ');
        let (suite, component, mirror) = (words.next(), words.next(), words.next());
        let is_debian = suite.is_some_and(|suite| DEBIAN_SUITES.contains(&suite));
        // apt adds the slash, with which it would not find a mirror list (`mirror+file:`).
        let mirror = mirror.unwrap_or_default().trim_end_matches('/');
        if is_debian && component == Some("main") && !mirrors.iter().any(|known| known == mirror) {
            mirrors.push(mirror.to_owned());
        }
    }
    mirrors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debian_itself_is_a_mirror() {
        let directory = tempfile::tempdir().unwrap();
        let lines = "# deb http://old/debian bullseye main\n\
            deb http://vendor/linux/debian bookworm stable\n\
            deb http://one/debian-security bookworm-security main\n\
            deb [ arch=amd64 signed-by=/usr/share/keyrings/a.gpg ] http://one/debian bookworm main # usual\n\
            deb http://one/debian trixie main contrib\n\
            deb-src http://src/debian bookworm main\n\
            deb mirror+file:/etc/apt/mirrors/debian.list stable main\n\
            deb http://two/debian/ sid contrib main\n";
        std::fs::write(directory.path().join("sources.list"), lines).unwrap();
        let mirrors = debian_mirrors(directory.path()).unwrap();
        assert_eq!(
            mirrors,
            ["http://one/debian", "mirror+file:/etc/apt/mirrors/debian.list", "http://two/debian"]
        );
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
        let paragraphs = "Types: deb deb-src\n\
            # a comment inside\n\
            URIs: http://paragraph http://second\n\
            Suites: stable stable-updates\n\
            Components: main\n\
            \n\
            Types: deb\nURIs: http://off\nSuites: bookworm\nComponents: main\nEnabled: no\n\
            \n\
            Types: deb-src\nURIs: http://src\nSuites: bookworm\nComponents: main\n";
        std::fs::write(parts.join("c.sources"), paragraphs).unwrap();
        let mirrors = debian_mirrors(directory.path()).unwrap();
        assert_eq!(mirrors, ["http://list", "http://part", "http://paragraph", "http://second"]);
    }
}
