//! Starting the host's own tools, with errors that say what was tried and what came back.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command to its end and returns its standard output. Fails with the end of its standard
/// error when it cannot be started or does not succeed.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = output_whatever_status(command)?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", shown(command), output.status, last_lines(&errors, 8));
    }
    Ok(output.stdout)
}

/// Returns the output as [`output`] does, for tools whose exit status says something other than
/// success or failure.
pub(crate) fn output_whatever_status(command: &mut Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))
}

/// Sends `input` through a command and returns what comes out.
pub(crate) fn filter(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    let stdin = child.stdin.take();
    // Written from another thread: the child's output would otherwise fill its pipe meanwhile. A
    // write error means that the child gave up, which its exit status tells in better words.
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", shown(command), output.status, last_lines(&errors, 8));
    }
    Ok(output.stdout)
}

/// The last `count` non-empty lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_carries_more_than_a_pipe_holds() {
        let input: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        assert_eq!(filter(&mut Command::new("cat"), &input).unwrap(), input);
    }

    #[test]
    fn a_failure_names_the_command_and_its_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such thing >&2; exit 3"]);
        let error = output(&mut command).unwrap_err().to_string();
        assert!(error.contains("sh -c") && error.contains("no such thing"), "{error}");
    }

    #[test]
    fn last_lines_leave_out_empty_ones() {
        assert_eq!(last_lines("a\n\nb\n\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 5), "a");
    }
}
