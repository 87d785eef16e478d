//! Replaces a set by one that holds twice as many entries, without a moment in which a packet finds
//! fewer of them:
//!
//!     cargo run -p ipset-netlink --example grow -- NAME
//!
//! Root is needed.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use ipset::{Batch, Client, Name};

/// The kernel's choice for a set that was created without `maxelem`.
const DEFAULT_MAX_ELEMENTS: u32 = 65_536;

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
    let name = Name::new(std::env::args().nth(1).ok_or("which set? Give its name")?)?;
    let mut client = Client::open()?;
    let set = client.list(name)?;
    if set.undecoded > 0 {
        return Err(format!("{name} has entries that could not be copied").into());
    }
    let mut spec = set.header.spec();
    let larger = spec.options.max_elements.unwrap_or(DEFAULT_MAX_ELEMENTS).saturating_mul(2);
    spec.options.max_elements = Some(larger);

    let temporary = Name::new("GROWING")?;
    client.create(temporary, spec)?;
    let mut batch = Batch::new();
    for line in set.entries {
        batch.add_with(temporary, line.entry, line.options.map(|o| *o).unwrap_or_default());
    }
    // Only a complete copy may take the set's place.
    let copied: Result<Vec<()>, _> = client.send(&batch)?.into_iter().collect();
    let outcome = copied.map(drop).and_then(|()| client.swap(temporary, name));
    client.destroy(temporary)?;
    outcome?;
    writeln!(std::io::stdout(), "{name} holds up to {larger} entries now")?;
    Ok(())
}
