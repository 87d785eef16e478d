//! Reading what netfilter tells as an option of a socket.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::error::Error;
use crate::home::Home;

/// A socket that is only asked for options.
///
/// Before netlink, parts of netfilter were spoken to by `getsockopt` on any socket of a family, and
/// some things are told there only: how many virtual servers IPVS has, and the rules of x_tables.
/// It belongs to one network namespace for good, and sends and receives nothing. When it fails, it
/// is opened again.
#[derive(Debug)]
pub struct OptionSocket {
    socket: RefCell<OwnedFd>,
    family: AddressFamily,
    home: Home,
    level: libc::c_int,
}

impl OptionSocket {
    /// For the options of IPv4, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When there can be no such socket.
    pub fn ipv4() -> Result<Self, Error> {
        Self::open(AddressFamily::INET, libc::IPPROTO_IP)
    }

    /// For the options of IPv6, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When there can be no such socket: where IPv6 is switched off, for example.
    pub fn ipv6() -> Result<Self, Error> {
        Self::open(AddressFamily::INET6, libc::IPPROTO_IPV6)
    }

    /// Reads an option into `buffer`, which can hold what the subsystem is to be told, too, and
    /// returns how many bytes of it the kernel has written.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn get(&self, option: i32, buffer: &mut [u8]) -> Result<usize, Error> {
        let former = match self.try_get(option, buffer) {
            Err(error) if is_lost(&error) => {
                self.home.must_be_here()?;
                let opened = Self::open(self.family, self.level)?;
                tracing::warn!("a socket failed ({error}) and was opened again");
                self.socket.replace(opened.socket.into_inner())
            }
            result => return result,
        };
        // Other code may own the descriptor's number by now: a drop would close it.
        std::mem::forget(former);
        self.try_get(option, buffer)
    }

    fn try_get(&self, option: i32, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut length = libc::socklen_t::try_from(buffer.len()).unwrap_or(libc::socklen_t::MAX);
        #[expect(unsafe_code, reason = "no crate has a safe form for options of its callers' own")]
        // SAFETY: the descriptor is open as long as `self` is. The kernel writes at most `length`
        // bytes to the buffer, which has as many and is borrowed for the call, and any bytes are
        // valid there; `length` is a live variable of the type that the call wants.
        let result = unsafe {
            libc::getsockopt(
                self.socket.borrow().as_raw_fd(),
                self.level,
                option,
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        match result {
            0 => Ok(buffer.len().min(length as usize)),
            _ => Err(Error::system("getsockopt", std::io::Error::last_os_error())),
        }
    }

    fn open(family: AddressFamily, level: libc::c_int) -> Result<Self, Error> {
        // Datagram sockets pass options of netfilter on, and need no capability of their own.
        rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map(|socket| Self { socket: RefCell::new(socket), family, home: Home::here(), level })
            .map_err(|error| Error::system("open a socket", error))
    }
}

/// True if the error says that there is no socket any more. Any other is the subsystem's answer.
fn is_lost(error: &Error) -> bool {
    [Errno::BADF, Errno::NOTSOCK]
        .iter()
        .any(|errno| Some(errno.raw_os_error()) == error.raw_os_error())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::mem::ManuallyDrop;
    use std::os::fd::{AsFd, FromRawFd as _};

    use super::*;

    /// Puts something else in the place of a socket.
    pub(crate) fn replace(socket: &impl AsFd, by: impl AsFd) {
        let descriptor = socket.as_fd().as_raw_fd();
        #[expect(unsafe_code, reason = "what is tested is a descriptor that is not what it was")]
        // SAFETY: the descriptor is open as long as `socket` is borrowed, and nothing closes it
        // here: what owns it a second time is never dropped.
        let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor) });
        rustix::io::dup2(by, &mut place).unwrap();
    }

    /// `IP_TTL` (include/uapi/linux/in.h)
    const TTL: i32 = 2;

    #[test]
    fn an_option_is_read_into_what_there_is_of_a_buffer() {
        let socket = OptionSocket::ipv4().unwrap();
        let mut buffer = [0xff; 8];
        assert_eq!(socket.get(TTL, &mut buffer).unwrap(), 4);
        assert_eq!(buffer[4..], [0xff; 4]);
        let ttl = i32::from_ne_bytes(buffer[..4].try_into().unwrap());
        assert!((1..=255).contains(&ttl), "{ttl}");
        assert_eq!(socket.get(TTL, &mut []).unwrap(), 0);
    }

    #[test]
    fn a_socket_that_is_one_no_more_is_opened_again() {
        let socket = OptionSocket::ipv4().unwrap();
        let nothing = std::fs::File::open("/dev/null").unwrap();
        rustix::io::dup2(nothing, &mut socket.socket.borrow_mut()).unwrap();
        assert_eq!(socket.get(TTL, &mut [0; 4]).unwrap(), 4);
    }

    #[test]
    fn what_the_kernel_does_not_know_is_refused() {
        let error = OptionSocket::ipv4().unwrap().get(9_999, &mut [0; 4]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOPROTOOPT.raw_os_error()), "{error}");
    }
}
