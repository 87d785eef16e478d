//! A network namespace for a test, and the `nft` tool in it.

use std::net::Ipv4Addr;
use std::process::Command;

use nftables::{Client, Data, DataType, Element, Family, Field, Name, SetSpec, TableId};
use rustix::thread::UnshareFlags;

/// The calling thread's own network namespace. Programs that the thread starts are in it, too, and
/// it goes when the thread ends.
pub(crate) struct Sandbox(());

impl Sandbox {
    pub(crate) fn new() -> Self {
        #[expect(unsafe_code, reason = "the crate has no safe form of this system call")]
        // SAFETY: a network namespace of its own takes nothing from the thread that Rust or libc
        // rely on: no file descriptor, memory or signal handler changes.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
            .expect("unshare the network namespace: these tests need root");
        Self(())
    }

    pub(crate) fn client(&self) -> Client {
        Client::open().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs the tool with this command, and returns what it prints.
    pub(crate) fn nft(&self, command: &str) -> String {
        self.try_nft(command).unwrap_or_else(|error| panic!("nft {command}: {error}"))
    }

    /// Runs the tool, and returns what it prints: on success to its output, else to its errors.
    pub(crate) fn try_nft(&self, command: &str) -> Result<String, String> {
        // Priorities as numbers.
        let mut tool = Command::new("nft");
        let output =
            tool.args(["-y", command]).output().expect("run nft: these tests need the tool");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn table() -> TableId {
    TableId::new(Family::Ipv4, name("zz"))
}

/// A set of addresses, protocols and ports.
pub(crate) fn of_frontends() -> SetSpec {
    SetSpec::set(DataType::new(&[Field::Ipv4Address, Field::Protocol, Field::Port]))
}

/// A TCP frontend at port 80 of an address of its own.
pub(crate) fn frontend(number: u32) -> Element {
    let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number);
    Element::new(Data::default().with_address(address.into()).with_protocol(6).with_port(80))
}

/// Release of the running kernel: the first two numbers.
pub(crate) fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_str().unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
