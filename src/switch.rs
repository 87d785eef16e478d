//! Switching a running process to another mode.
//!
//! | Signal | Order |
//! | --- | --- |
//! | SIGUSR1 | serve in mode iptables |
//! | SIGUSR2 | serve in mode ipvs |
//! | SIGURG | serve in mode userspace |
//!
//! They have signals with a name, since the call that sends a signal is unsafe to Rust for any other
//! number. SIGURG is the last one left that neither the kernel nor a terminal sends unasked: only the
//! owner of a socket gets it (fcntl(2), `F_SETOWN`), and there is none here.

use plan::mode::Mode;
use rustix::process::Signal;

/// Returns the signal that orders a mode.
#[must_use]
pub fn signal_of(mode: Mode) -> Signal {
    match mode {
        Mode::Iptables => Signal::USR1,
        Mode::Ipvs => Signal::USR2,
        Mode::Userspace => Signal::URG,
    }
}
