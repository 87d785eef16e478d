//! Lists the sets of this network namespace in the form of `ipset save`:
//!
//!     cargo run -p ipset-netlink --example list
//!     cargo run -p ipset-netlink --example list -- NAME
//!
//! Root is needed.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use ipset::{Client, Name};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut client = Client::open()?;
    let sets = match std::env::args().nth(1) {
        Some(name) => vec![client.list(Name::new(name)?)?],
        None => client.list_all()?,
    };
    let mut out = std::io::stdout().lock();
    for set in sets {
        let (name, spec) = (set.header.identity.name, set.header.spec());
        writeln!(out, "create {name} {spec}")?;
        for line in set.entries {
            writeln!(out, "add {name} {}{}", line.entry, line.options.unwrap_or_default())?;
        }
        if set.undecoded > 0 {
            writeln!(out, "# {} entries of another shape in {name}", set.undecoded)?;
        }
    }
    Ok(())
}
