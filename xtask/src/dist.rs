//! `cargo xtask dist`: all that a release has, in one folder. The same commit gives the same files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::architecture::Architecture;
use crate::build;
use crate::image;
use crate::image::root::Root;
use crate::image::source::Source;
use crate::test::package;
use crate::vm::{host_tool, progress};

/// The Helm chart.
const CHART: &str = "deploy/helm/kube-ipvs";
/// Folders with manifests for those who install without Helm.
const MANIFESTS: [&str; 4] =
    ["deploy/kustomize", "deploy/kubeadm-patch", "deploy/examples", "deploy/grafana"];
/// Shells that the program has completion for.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];
/// File with the digests of all others, as `sha256sum --check` reads it.
const SUMS: &str = "SHA256SUMS";

/// Choice of architectures.
#[derive(Debug, Args)]
pub(crate) struct DistArguments {
    /// Architectures of programs and image. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    arch: Vec<Architecture>,
    /// Folder with kube-ipvs-amd64 and kube-ipvs-arm64, built and stripped. Default: build them.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Allow files that differ from the commit.
    #[arg(long)]
    allow_dirty: bool,
}

/// Makes the folder, and lists what is in it.
#[expect(clippy::print_stdout, reason = "the list is what was asked for")]
pub(crate) fn run(arguments: &DistArguments) -> Result<()> {
    let source = Source::of_checkout(arguments.allow_dirty)?;
    let folder = build::workspace().join("target/dist").join(format!("v{}", source.version));
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let architectures = image::architectures(&arguments.arch);
    let (name, programs) = (image::name(&source), arguments.programs.as_deref());
    let built = image::make(&source, &name, &architectures, programs, &work())?;
    let mut files = with_programs(&source, &built.programs)?;
    let Source { version, time, .. } = &source;
    for (architecture, sbom) in built.sboms {
        files.insert(format!("kube-ipvs-{version}-{architecture}.cdx.json"), sbom);
    }
    let image =
        fs::read(&built.file).with_context(|| format!("cannot read {}", built.file.display()))?;
    files.insert(format!("kube-ipvs-{version}.oci.tar"), image);
    files.insert(format!("kube-ipvs-{version}-manifests.tar.gz"), manifests(version, *time)?);
    files.insert(format!("kube-ipvs-{version}.tgz"), chart(version, *time)?);
    files.extend(crates()?);
    files.insert("CHANGES".to_owned(), changes(&read("CHANGELOG.md")?, version)?.into_bytes());
    files.insert("LICENSE".to_owned(), read("LICENSE")?.into_bytes());
    files.insert(SUMS.to_owned(), sums(&files).into_bytes());
    fs::create_dir_all(&folder)?;
    for (name, contents) in &files {
        fs::write(folder.join(name), contents).with_context(|| format!("cannot write {name}"))?;
        println!("{:>10} {name}", contents.len());
    }
    println!("in {}; RELEASING.md has the steps to sign and publish it", folder.display());
    Ok(())
}

/// Place of what is made on the way.
fn work() -> PathBuf {
    build::workspace().join("target/image")
}

fn read(path: &str) -> Result<String> {
    let path = build::workspace().join(path);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// An archive for each architecture: the program, completion, the license.
fn with_programs(
    source: &Source,
    programs: &[(Architecture, PathBuf)],
) -> Result<BTreeMap<String, Vec<u8>>> {
    // The scripts ask the program, whatever its architecture.
    let native = build::daemon("dev", Architecture::default())?;
    let scripts = SHELLS.map(|shell| {
        host_tool::output(Command::new(&native).args(["completion", shell]))
            .map(|script| (shell, script))
    });
    let scripts = scripts.into_iter().collect::<Result<Vec<_>>>()?;
    let mut files = BTreeMap::new();
    for (architecture, program) in programs {
        let name = format!("kube-ipvs-{}-linux-{architecture}", source.version);
        let mut root = Root::new();
        root.file(&format!("{name}/kube-ipvs"), 0o755, fs::read(program)?)?;
        root.file(&format!("{name}/LICENSE"), 0o644, read("LICENSE")?.into_bytes())?;
        for (shell, script) in &scripts {
            let path = format!("{name}/completion/kube-ipvs.{shell}");
            root.file(&path, 0o644, script.clone())?;
        }
        files.insert(format!("{name}.tar.gz"), root.compressed(source.time)?);
    }
    Ok(files)
}

fn manifests(version: &str, time: u64) -> Result<Vec<u8>> {
    let mut root = Root::new();
    for folder in MANIFESTS {
        let path = format!("kube-ipvs-{version}-manifests/{folder}");
        root.add_folder(&build::workspace().join(folder), &path)?;
    }
    root.compressed(time)
}

/// The chart as Helm packages it: a folder of the chart's name.
fn chart(version: &str, time: u64) -> Result<Vec<u8>> {
    let description = read(&format!("{CHART}/Chart.yaml"))?;
    for field in ["version", "appVersion"] {
        let line = format!("{field}: {version}");
        let is_it = |it: &str| it.replace('"', "") == line;
        ensure!(
            description.lines().any(is_it),
            "{CHART}/Chart.yaml has no line `{line}`: set it to the version of Cargo.toml"
        );
    }
    let mut root = Root::new();
    root.add_folder(&build::workspace().join(CHART), "kube-ipvs")?;
    root.file("kube-ipvs/LICENSE", 0o644, read("LICENSE")?.into_bytes())?;
    root.compressed(time)
}

/// The packages of the libraries, as cargo publishes them.
fn crates() -> Result<BTreeMap<String, Vec<u8>>> {
    progress!("packaging the libraries");
    let files = package::make()?;
    let read = |file: &PathBuf| {
        let name = file.file_name().with_context(|| format!("{} names no file", file.display()))?;
        let contents = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok((name.to_string_lossy().into_owned(), contents))
    };
    files.iter().map(read).collect()
}

/// The part of the changelog that is about a version; before it is released, what is unreleased.
fn changes(changelog: &str, version: &str) -> Result<String> {
    let heading = |line: &str| line.starts_with("## ");
    let of_version = format!("## {version}");
    let is_of_version =
        |line: &&str| heading(line) && line.replace(['[', ']'], "").starts_with(&of_version);
    let first = changelog.lines().find(is_of_version).unwrap_or("## Unreleased");
    let from = changelog.lines().skip_while(|line| *line != first);
    let part: Vec<&str> = from.skip(1).take_while(|line| !heading(line)).collect();
    ensure!(
        !part.is_empty(),
        "CHANGELOG.md has no section `{of_version}` or `## Unreleased`, or it is empty"
    );
    Ok(format!("{}\n", part.join("\n").trim()))
}

fn sums(files: &BTreeMap<String, Vec<u8>>) -> String {
    let sum = |(name, contents): (&String, &Vec<u8>)| {
        format!("{}  {name}\n", HEXLOWER.encode(&Sha256::digest(contents)))
    };
    files.iter().map(sum).collect()
}

/// Makes what takes no release build, twice: manifests, the chart, the changes.
pub(crate) fn check() -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    for make in [manifests, chart] {
        ensure!(make(version, 7)? == make(version, 7)?, "two archives of the same files differ");
    }
    changes(&read("CHANGELOG.md")?, version)?;
    ensure!(Path::new(&build::workspace().join("RELEASING.md")).exists());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_the_version_or_unreleased() {
        let text = "# Changelog\n\n## Unreleased\n\n- new\n\n## [0.2.0] - 2026-12-01\n\n- old\n";
        assert_eq!(changes(text, "0.2.0").unwrap(), "- old\n");
        assert_eq!(changes(text, "0.3.0").unwrap(), "- new\n");
        assert!(changes("# Changelog\n", "0.3.0").is_err());
    }

    #[test]
    fn the_chart_has_its_files_and_the_license() {
        let archive = chart(env!("CARGO_PKG_VERSION"), 7).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&archive[..]));
        let paths = archive.entries().unwrap().map(|it| it.unwrap().path().unwrap().into_owned());
        let paths: Vec<PathBuf> = paths.collect();
        for file in ["Chart.yaml", "LICENSE", "README.md", "files/kube-ipvs.json"] {
            assert!(paths.contains(&Path::new("kube-ipvs").join(file)), "{file}: {paths:?}");
        }
    }

    #[test]
    fn sums_are_what_sha256sum_reads() {
        let files = BTreeMap::from([("a".to_owned(), b"x".to_vec())]);
        let digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
        assert_eq!(sums(&files), format!("{digest}  a\n"));
    }
}
