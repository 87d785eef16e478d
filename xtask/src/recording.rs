//! `cargo xtask record`: the demo's output as a moving picture for the documents.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::demo::{self, DemoArguments};
use crate::vm::verdict::Verdict;

mod svg;

/// The picture, from the project's root.
const PICTURE: &str = "docs/pictures/demo.svg";
/// Command of which it is a picture.
const COMMAND: &str = "cargo xtask demo";

/// Line of a terminal, and the time since the start at which it was complete.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    after: Duration,
    text: String,
}

/// Output that is passed on, and kept with the time of each line.
struct Recorder<W> {
    started: Instant,
    output: W,
    lines: Vec<Line>,
    /// Bytes of a line that is not complete.
    rest: Vec<u8>,
}

/// Runs the demo and draws what it says. A demo that fails leaves the picture as it is.
pub(crate) fn record() -> Result<()> {
    let mut recorder = Recorder::new(std::io::stdout());
    let verdict = demo::show(&DemoArguments::default(), &mut recorder)?;
    ensure!(verdict == Verdict::Exited(0), "the demo failed, so nothing was drawn: {verdict}");
    let path = build::workspace().join(PICTURE);
    std::fs::write(&path, svg::draw(COMMAND, &recorder.lines))
        .with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("record: wrote {}", path.display());
    Ok(())
}

impl<W> Recorder<W> {
    fn new(output: W) -> Self {
        Self { started: Instant::now(), output, lines: Vec::new(), rest: Vec::new() }
    }

    fn keep(&mut self, bytes: &[u8], after: Duration) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                self.lines.push(Line { after, text });
            }
        }
    }
}

impl<W: Write> Write for Recorder<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.output.write_all(bytes)?;
        self.keep(bytes, self.started.elapsed());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_time_of_its_end() {
        let mut recorder = Recorder::new(Vec::new());
        recorder.write_all(b"").unwrap();
        recorder.keep(b"one\r\ntw", Duration::from_secs(1));
        recorder.keep(b"o\n", Duration::from_secs(2));
        let line =
            |after, text: &str| Line { after: Duration::from_secs(after), text: text.into() };
        assert_eq!(recorder.lines, [line(1, "one"), line(2, "two")]);
    }
}
