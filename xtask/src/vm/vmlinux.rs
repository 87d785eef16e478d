//! Unpacking the ELF kernel from a bzImage.
//!
//! qemu starts an ELF kernel at its PVH entry point, with nothing left to decompress; a bzImage
//! would decompress itself under emulation, which is slow.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::host_tool;

// Offsets into the header of a bzImage: the kernel's Documentation/arch/x86/boot.rst.
const SETUP_SECTORS: usize = 0x1f1;
const HEADER_MAGIC: usize = 0x202;
const PROTOCOL_VERSION: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// The first protocol version with a payload offset.
const PROTOCOL_WITH_PAYLOAD: u16 = 0x0208;
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// A compression the kernel's build can be set to, with the tool that undoes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Gzip,
    Xz,
    Zstd,
    Lz4Legacy,
}

/// The kernel as ELF, from the bytes of a bzImage.
pub(crate) fn extract(image: &[u8]) -> Result<Vec<u8>> {
    let payload = payload(image)?;
    let compression = Compression::of(payload)?;
    let kernel = host_tool::filter(&mut compression.decompressor(), compression.stream(payload))
        .context("cannot decompress the kernel")?;
    ensure!(kernel.starts_with(ELF_MAGIC), "the decompressed kernel is no ELF file");
    Ok(kernel)
}

impl Compression {
    fn of(payload: &[u8]) -> Result<Self> {
        let known: [(&[u8], Self); 4] = [
            (b"\x1f\x8b", Self::Gzip),
            (b"\xfd7zXZ\0", Self::Xz),
            (b"\x28\xb5\x2f\xfd", Self::Zstd),
            (b"\x02\x21\x4c\x18", Self::Lz4Legacy),
        ];
        let found = known.into_iter().find(|(magic, _)| payload.starts_with(magic));
        let (_, compression) = found.with_context(|| {
            format!(
                "unknown compression of the kernel: its payload starts with {:02x?}",
                payload.get(..6)
            )
        })?;
        Ok(compression)
    }

    fn decompressor(self) -> Command {
        let (program, arguments): (_, &[&str]) = match self {
            Self::Gzip => ("gzip", &["-dc"]),
            Self::Xz => ("xz", &["-dc"]),
            Self::Zstd => ("zstd", &["-dcq"]),
            Self::Lz4Legacy => ("lz4", &["-dcq"]),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }

    /// The compressed stream alone: the kernel's build appends the size of the content to every
    /// format but gzip, which ends with it by itself (scripts/Makefile.lib, `size_append`).
    fn stream(self, payload: &[u8]) -> &[u8] {
        match self {
            Self::Gzip => payload,
            Self::Xz | Self::Zstd | Self::Lz4Legacy => {
                payload.get(..payload.len().saturating_sub(4)).unwrap_or_default()
            }
        }
    }
}

/// The compressed kernel inside a bzImage.
fn payload(image: &[u8]) -> Result<&[u8]> {
    let magic = image.get(HEADER_MAGIC..HEADER_MAGIC + 4);
    ensure!(magic == Some(b"HdrS"), "the kernel is no bzImage: its boot header is missing");
    let version = u16::from_le_bytes(read(image, PROTOCOL_VERSION)?);
    if version < PROTOCOL_WITH_PAYLOAD {
        bail!(
            "the kernel has boot protocol {version:#06x}, whose header has no position of the payload"
        );
    }
    let [setup_sectors] = read(image, SETUP_SECTORS)?;
    // Zero stands for four, from before the field existed (boot.rst). The boot sector comes first.
    let setup_sectors = if setup_sectors == 0 { 4 } else { usize::from(setup_sectors) };
    let protected_mode = (setup_sectors + 1) * 512;
    let offset = u32::from_le_bytes(read(image, PAYLOAD_OFFSET)?) as usize;
    let length = u32::from_le_bytes(read(image, PAYLOAD_LENGTH)?) as usize;
    let start = protected_mode.saturating_add(offset);
    image
        .get(start..start.saturating_add(length))
        .with_context(|| format!("the kernel's payload ({length} bytes at {start}) is cut off"))
}

fn read<const N: usize>(image: &[u8], offset: usize) -> Result<[u8; N]> {
    let bytes = image.get(offset..offset + N).context("the kernel's boot header is cut off")?;
    Ok(bytes.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage of one setup sector whose payload starts 16 bytes into its second part.
    fn mk_image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024 + 16];
        image[SETUP_SECTORS] = 1;
        image[HEADER_MAGIC..HEADER_MAGIC + 4].copy_from_slice(b"HdrS");
        image[PROTOCOL_VERSION..PROTOCOL_VERSION + 2].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16_u32.to_le_bytes());
        let length = u32::try_from(payload.len()).unwrap();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(b"what follows the payload");
        image
    }

    #[test]
    fn the_payload_is_where_the_header_says() {
        assert_eq!(payload(&mk_image(b"payload")).unwrap(), b"payload");
    }

    #[test]
    fn a_broken_image_is_refused() {
        assert!(payload(b"too short").is_err());
        let mut no_header = mk_image(b"payload");
        no_header[HEADER_MAGIC] = b'x';
        assert!(payload(&no_header).unwrap_err().to_string().contains("no bzImage"));
        let mut old = mk_image(b"payload");
        old[PROTOCOL_VERSION] = 0;
        assert!(payload(&old).unwrap_err().to_string().contains("0x0200"));
        let mut cut = mk_image(b"payload");
        cut.truncate(1024 + 18);
        assert!(payload(&cut).unwrap_err().to_string().contains("cut off"));
    }

    #[test]
    fn a_gzip_kernel_comes_out_whole() {
        let kernel = [ELF_MAGIC, &[7; 100_000]].concat();
        let packed = host_tool::filter(Command::new("gzip").arg("-c"), &kernel).unwrap();
        assert_eq!(extract(&mk_image(&packed)).unwrap(), kernel);
    }

    #[test]
    fn other_formats_leave_out_the_appended_size() {
        let payload = b"\xfd7zXZ\0stream1234";
        let compression = Compression::of(payload).unwrap();
        assert_eq!(compression, Compression::Xz);
        assert_eq!(compression.stream(payload), b"\xfd7zXZ\0stream");
        assert!(Compression::of(b"nothing known").is_err());
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let packed = host_tool::filter(Command::new("gzip").arg("-c"), b"text").unwrap();
        assert!(extract(&mk_image(&packed)).unwrap_err().to_string().contains("no ELF"));
    }
}
