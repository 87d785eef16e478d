//! The generic netlink controller: which number a family has here and now.
//!
//! Source: include/uapi/linux/genetlink.h.

use crate::attribute::attributes;
use crate::batch::{Batch, MessageWriter};
use crate::error::{Error, Refusal};
use crate::socket::Socket;

/// `GENL_ID_CTRL`: the controller's own message type.
const CONTROLLER: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`.
const FAMILY_ID: u16 = 1;
/// `CTRL_ATTR_FAMILY_NAME`.
const FAMILY_NAME: u16 = 2;
/// `struct genlmsghdr` in bytes.
pub const HEADER_LENGTH: usize = 4;

/// Writes `struct genlmsghdr`: command, version, and two reserved bytes.
pub fn write_header(message: &mut MessageWriter<'_>, command: u8, version: u8) {
    message.body().extend_from_slice(&[command, version, 0, 0]);
}

/// Asks the kernel for a family's message type. The kernel loads the family's module if it can.
///
/// # Errors
/// `ENOENT` when the kernel has no such family and could not load it.
pub fn family(socket: &mut Socket, name: &str) -> Result<u16, Error> {
    let mut batch = Batch::new();
    batch.push(CONTROLLER, 0, |message| {
        write_header(message, GET_FAMILY, 1);
        message.attributes().string(FAMILY_NAME, name);
    });
    let answers = socket.request(&batch, |body| {
        for attribute in attributes(body.get(HEADER_LENGTH..).unwrap_or_default()) {
            let attribute = attribute?;
            if attribute.kind == FAMILY_ID {
                return Ok(Some(attribute.u16()?));
            }
        }
        Ok(None)
    })?;
    answers.into_iter().next().ok_or_else(|| {
        let errno = rustix::io::Errno::NOENT.raw_os_error();
        Refusal::new(errno).into()
    })
}
