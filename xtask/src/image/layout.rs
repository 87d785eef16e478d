//! The image layout of the Open Container Initiative, version 1.0, as one archive:
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr as _;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, DescriptorBuilder, History, HistoryBuilder,
    ImageConfigurationBuilder, ImageIndexBuilder, ImageManifestBuilder, MediaType,
    OciLayoutBuilder, Os, PlatformBuilder, RootFsBuilder, SCHEMA_VERSION, Sha256Digest,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::root::{Root, compress};
use super::source::Source;
use crate::architecture::Architecture;

/// By this annotation containerd names an image that it imports.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// By this one others do.
const REFERENCE_NAME: &str = "org.opencontainers.image.ref.name";

/// An image of one architecture.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) architecture: Architecture,
    /// The lowest first.
    pub(crate) layers: Vec<Layer>,
}

/// Files that an image adds to those of the layer below.
#[derive(Debug)]
pub(crate) struct Layer {
    what: String,
    /// Digest of the archive before it was compressed.
    digest: String,
    compressed: Vec<u8>,
}

/// Blobs by their digests.
#[derive(Debug, Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

/// Writes the archive of an image for several architectures, by this name.
pub(crate) fn archive(source: &Source, name: &str, images: &[Image]) -> Result<Vec<u8>> {
    let mut blobs = Blobs::default();
    let manifests = images.iter().map(|image| image.add(source, &mut blobs));
    let manifests = manifests.collect::<Result<Vec<_>>>()?;
    let of_architectures = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests(manifests)
        .build()?;
    let mut list = blobs.add_json(MediaType::ImageIndex, &of_architectures)?;
    let (_, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
    list.set_annotations(Some(HashMap::from([
        (CONTAINERD_NAME.to_owned(), name.to_owned()),
        (REFERENCE_NAME.to_owned(), tag.to_owned()),
    ])));
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests(vec![list])
        .build()?;
    let layout = OciLayoutBuilder::default().image_layout_version("1.0.0").build()?;
    let mut root = Root::new();
    root.file("oci-layout", 0o644, canonical(&layout)?)?;
    root.file("index.json", 0o644, canonical(&index)?)?;
    for (digest, blob) in blobs.0 {
        root.file(&format!("blobs/sha256/{digest}"), 0o644, blob)?;
    }
    root.archive(source.time)
}

impl Image {
    /// Adds its blobs. Returns what an index has of it.
    fn add(&self, source: &Source, blobs: &mut Blobs) -> Result<Descriptor> {
        let architecture = match self.architecture {
            Architecture::Amd64 => Arch::Amd64,
            Architecture::Arm64 => Arch::ARM64,
        };
        let created = Timestamp::from_second(source.time.try_into()?)?.to_string();
        let labels = [
            ("title", "kube-ipvs"),
            ("description", "kube-proxy's IPVS mode as a program of its own"),
            ("licenses", "Apache-2.0"),
            ("version", &source.version),
            ("revision", &source.commit),
            ("created", &created),
        ];
        let labels: HashMap<String, String> = labels
            .map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned()))
            .into();
        let config = ConfigBuilder::default()
            .entrypoint(vec!["/usr/local/bin/kube-ipvs".to_owned()])
            .env(vec!["PATH=/usr/local/bin:/usr/sbin:/usr/bin".to_owned()])
            .labels(labels)
            .build()?;
        let history = self.layers.iter().map(|layer| layer.history(&created));
        let digests = self.layers.iter().map(|layer| format!("sha256:{}", layer.digest));
        let configuration = ImageConfigurationBuilder::default()
            .created(created.clone())
            .architecture(architecture.clone())
            .os(Os::Linux)
            .config(config)
            .history(history.collect::<Result<Vec<_>>>()?)
            .rootfs(
                RootFsBuilder::default()
                    .typ("layers")
                    .diff_ids(digests.collect::<Vec<_>>())
                    .build()?,
            )
            .build()?;
        let configuration = blobs.add_json(MediaType::ImageConfig, &configuration)?;
        let layers = self
            .layers
            .iter()
            .map(|layer| blobs.add(MediaType::ImageLayerGzip, layer.compressed.clone()));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(configuration)
            .layers(layers)
            .build()?;
        let mut descriptor = blobs.add_json(MediaType::ImageManifest, &manifest)?;
        let platform =
            PlatformBuilder::default().architecture(architecture).os(Os::Linux).build()?;
        descriptor.set_platform(Some(platform));
        Ok(descriptor)
    }
}

impl Layer {
    /// The layer of these files, which have this time.
    pub(crate) fn new(what: &str, root: &Root, time: u64) -> Result<Self> {
        let archive = root.archive(time)?;
        let digest = HEXLOWER.encode(&Sha256::digest(&archive));
        Ok(Self { what: what.to_owned(), digest, compressed: compress(&archive)? })
    }

    fn history(&self, created: &str) -> Result<History> {
        let history = HistoryBuilder::default().created(created).created_by(self.what.as_str());
        history.build().context("cannot build the history of a layer")
    }
}

impl Blobs {
    fn add_json(&mut self, media_type: MediaType, of: &impl Serialize) -> Result<Descriptor> {
        self.add(media_type, canonical(of)?)
    }

    fn add(&mut self, media_type: MediaType, blob: Vec<u8>) -> Result<Descriptor> {
        let digest = HEXLOWER.encode(&Sha256::digest(&blob));
        let descriptor = DescriptorBuilder::default()
            .media_type(media_type)
            .size(blob.len() as u64)
            .digest(Sha256Digest::from_str(&digest)?)
            .build()?;
        self.0.insert(digest, blob);
        Ok(descriptor)
    }
}

/// As JSON with the keys in order: maps of the library have none.
fn canonical(value: &impl Serialize) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(&serde_json::to_value(value)?)?)
}
