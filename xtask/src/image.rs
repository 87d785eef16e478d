//! `cargo xtask image`: the program's image for container runtimes, made without one.
//!
//! ```text
//!   Debian's packages ──root──▶ lower layer ─┐
//!                                            ├──layout──▶ kube-ipvs-VERSION.oci.tar
//!   static program    ──root──▶ upper layer ─┘
//! ```
//!
//! The same commit gives the same bytes: it names the packages (`pins`), files are sorted, and have the
//! time of the commit.

mod layout;
mod pins;
pub(crate) mod program;
pub(crate) mod root;
pub(crate) mod sbom;
pub(crate) mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum as _};

use crate::architecture::Architecture;
use crate::build;
use crate::vm::debian::Package;
use crate::vm::{debian, host_packages, host_tool, progress};
use layout::{Image, Layer};
use root::Root;
use source::Source;

/// Name that the image has for those who load it from its file.
const NAME: &str = "localhost/kube-ipvs";
/// Packages of the image. The program runs iptables' programs of both kinds, and modprobe.
const PACKAGES: [&str; 2] = ["iptables", "kmod"];
/// Certificates, without the program that manages them.
const CERTIFICATES: &str = "ca-certificates";
/// Program for those that the image has by a link: nf_tables is what a node has unless it shows otherwise.
const IPTABLES: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// Choice of architectures, and of programs that are there already.
#[derive(Debug, Args)]
pub(crate) struct ImageArguments {
    /// Architectures of the image. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    arch: Vec<Architecture>,
    /// Name of the image once it is imported. Default: localhost/kube-ipvs with the version as tag.
    #[arg(long)]
    name: Option<String>,
    /// Folder with kube-ipvs-amd64 and kube-ipvs-arm64, built and stripped. Default: build them.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Allow files that differ from the commit.
    #[arg(long)]
    allow_dirty: bool,
    /// Make no image: write the versions of packages that Debian has now to deploy/image/packages.
    #[arg(long)]
    pin: bool,
}

/// An image in its file, and what is in it.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) file: PathBuf,
    /// Components of each architecture's image, in CycloneDX.
    pub(crate) sboms: Vec<(Architecture, Vec<u8>)>,
    /// The program of each architecture.
    pub(crate) programs: Vec<(Architecture, PathBuf)>,
}

/// Makes the image, and says where it is.
#[expect(clippy::print_stdout, reason = "the file is what was asked for")]
pub(crate) fn run(arguments: &ImageArguments) -> Result<()> {
    let folder = build::workspace().join("target/image");
    if arguments.pin {
        println!("{}", pin(&folder)?);
        return Ok(());
    }
    let source = Source::of_checkout(arguments.allow_dirty)?;
    let name = arguments.name.clone().unwrap_or_else(|| name(&source));
    let architectures = architectures(&arguments.arch);
    let built = make(&source, &name, &architectures, arguments.programs.as_deref(), &folder)?;
    let size = fs::metadata(&built.file)?.len();
    println!("{} ({} MiB)", built.file.display(), size.div_ceil(1 << 20));
    println!(
        "to import it on a node: ctr --namespace k8s.io images import {}",
        built.file.display()
    );
    Ok(())
}

/// Writes down what Debian has now, and says what was written otherwise before.
fn pin(folder: &Path) -> Result<String> {
    let mut lines = BTreeSet::new();
    for architecture in architectures(&[]) {
        lines.extend(pins::of(architecture, &packages(architecture, folder)?)?);
    }
    pins::write(&lines)
}

pub(crate) fn architectures(chosen: &[Architecture]) -> Vec<Architecture> {
    match chosen {
        [] => Architecture::value_variants().to_vec(),
        chosen => chosen.to_vec(),
    }
}

/// The name that an image has unless another is chosen.
pub(crate) fn name(source: &Source) -> String {
    format!("{NAME}:{}", source.version)
}

/// Makes an image in `folder`, by this name, of the programs in the folder `programs`, or else of such as
/// are built.
pub(crate) fn make(
    source: &Source,
    name: &str,
    architectures: &[Architecture],
    programs: Option<&Path>,
    folder: &Path,
) -> Result<Built> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    if programs.is_none() {
        for architecture in architectures {
            architecture.ensure_target()?;
        }
    }
    // Before programs, which take minutes to build.
    let mut all_packages = Vec::new();
    for architecture in architectures {
        progress!("image for {architecture}: downloading Debian's packages");
        let packages = packages(*architecture, folder)?;
        pins::compare(*architecture, &pins::of(*architecture, &packages)?)?;
        all_packages.push((*architecture, packages));
    }
    let (mut images, mut sboms, mut used) = (Vec::new(), Vec::new(), Vec::new());
    for (architecture, packages) in all_packages {
        let program = match programs {
            Some(folder) => folder.join(format!("kube-ipvs-{architecture}")),
            None => program::build(architecture, source)?,
        };
        let contents =
            fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
        // Its labels name the commit. A program that was given may be of another one.
        ensure!(
            contain(&contents, source.short_commit().as_bytes()),
            "{} does not contain the commit {}. Build it from this commit with KUBE_IPVS_COMMIT set, or leave out \
             --programs",
            program.display(),
            source.short_commit()
        );
        let mut lower = Root::new();
        for package in &packages {
            lower.unpack(package)?;
        }
        complete(&mut lower)?;
        let sbom = sbom::of(source, architecture, &packages)?;
        let upper = of_program(&contents, &sbom)?;
        images.push(image(source, architecture, &lower, &upper)?);
        sboms.push((architecture, sbom));
        used.push((architecture, program));
    }
    let file = folder.join(format!("kube-ipvs-{}.oci.tar", source.version));
    fs::write(&file, layout::archive(source, name, &images)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(Built { file, sboms, programs: used })
}

fn packages(architecture: Architecture, folder: &Path) -> Result<Vec<Package>> {
    debian::fetch(debian::STABLE, architecture, &PACKAGES, &[CERTIFICATES], folder)
}

/// True if bytes are somewhere in others.
fn contain(all: &[u8], bytes: &[u8]) -> bool {
    all.windows(bytes.len()).any(|window| window == bytes)
}

/// Adds what packages' scripts would have made.
fn complete(root: &mut Root) -> Result<()> {
    for name in IPTABLES {
        root.link(&format!("usr/sbin/{name}"), "xtables-nft-multi")?;
    }
    let certificates = root.take_all("usr/share/ca-certificates/mozilla/");
    ensure!(
        certificates.len() > 50,
        "ca-certificates has only {} certificates in usr/share/ca-certificates/mozilla",
        certificates.len()
    );
    root.file("etc/ssl/certs/ca-certificates.crt", 0o644, certificates.concat())?;
    root.file("etc/passwd", 0o644, b"root:x:0:0:root:/:/usr/sbin/nologin\n".to_vec())?;
    root.file("etc/group", 0o644, b"root:x:0:\n".to_vec())?;
    for folder in ["dev", "proc", "run", "sys"] {
        root.folder(folder, 0o755)?;
    }
    root.folder("tmp", 0o1777)
}

/// The layer with the program, under kube-proxy's name as well: DaemonSets of kube-proxy start that.
fn of_program(program: &[u8], sbom: &[u8]) -> Result<Root> {
    let mut root = Root::new();
    root.file("usr/local/bin/kube-ipvs", 0o755, program.to_vec())?;
    root.link("usr/local/bin/kube-proxy", "kube-ipvs")?;
    root.file("usr/share/doc/kube-ipvs/sbom.cdx.json", 0o644, sbom.to_vec())?;
    let license = fs::read(build::workspace().join("LICENSE")).context("cannot read LICENSE")?;
    root.file("usr/share/doc/kube-ipvs/copyright", 0o644, license)?;
    Ok(root)
}

fn image(source: &Source, architecture: Architecture, lower: &Root, upper: &Root) -> Result<Image> {
    let layers = vec![
        Layer::new("Debian's packages of iptables and modprobe", lower, source.time)?,
        Layer::new("kube-ipvs", upper, source.time)?,
    ];
    Ok(Image { architecture, layers })
}

/// Makes an image of stand-ins twice, and has another program look at it: without a release build and
/// without a download.
pub(crate) fn check() -> Result<()> {
    let source = Source { version: "0.0.0".into(), commit: "0".repeat(40), time: 1_700_000_000 };
    let folder = tempfile::tempdir()?;
    let make = || {
        let images = architectures(&[]).into_iter().map(|architecture| {
            let mut lower = Root::new();
            lower.file("usr/lib/nothing", 0o644, b"of a test".to_vec())?;
            lower.link("lib", "usr/lib")?;
            image(&source, architecture, &lower, &of_program(b"not a program", b"{}")?)
        });
        layout::archive(&source, NAME, &images.collect::<Result<Vec<_>>>()?)
    };
    let archive = make()?;
    ensure!(archive == make()?, "two images of the same files differ");
    let file = folder.path().join("image.oci.tar");
    fs::write(&file, archive)?;
    host_packages::install_missing(&["skopeo"])?;
    for architecture in architectures(&[]) {
        let unpacked = folder.path().join(architecture.to_string());
        let mut skopeo = Command::new(host_packages::find_program("skopeo")?);
        // Reads every blob, and compares its digest.
        skopeo.args(["copy", "--insecure-policy", "--override-os=linux", "--override-arch"]);
        skopeo.arg(architecture.to_string()).arg(format!("oci-archive:{}", file.display()));
        host_tool::output(skopeo.arg(format!("dir:{}", unpacked.display())))?;
        let layers = fs::read_dir(&unpacked)?.count();
        // The manifest, the configuration, two layers, and the version of the folder's format.
        ensure!(
            layers == 5,
            "skopeo copied {layers} files of the image for {architecture} instead of 5"
        );
    }
    Ok(())
}
