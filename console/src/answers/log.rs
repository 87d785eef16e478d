//! `/v1/log`: the last lines of the program's log, for support bundles.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::{Answer, Content};
use crate::Desk;
use crate::secrets::scrubbed;

/// The last lines of the program's log, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Log {
    /// The lines, the oldest first.
    pub lines: Vec<String>,
    /// Number of lines before, which are not kept.
    pub omitted: u64,
}

impl Content for Log {
    const KIND: &'static str = "Log";
}

pub(super) async fn answer(State(desk): State<Arc<Desk>>) -> Answer<Log> {
    let (lines, omitted) = desk.log.all();
    Answer::new(Log::scrubbed(&lines, omitted))
}

impl Log {
    /// Returns lines without their secrets. A secret may go on over several of them.
    fn scrubbed(lines: &[String], omitted: u64) -> Self {
        let lines = scrubbed(&lines.join("\n"));
        Self { lines: lines.lines().map(ToOwned::to_owned).collect(), omitted }
    }

    /// Returns the lines as a file has them.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = match self.omitted {
            0 => String::new(),
            number => format!("… {number} lines before are not kept\n"),
        };
        for line in &self.lines {
            text += line;
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_that_got_into_a_line_are_left_out() {
        let lines = [
            "WARN cannot reach https://admin:hunter2hunter2@192.0.2.1:6443".to_owned(),
            "DEBUG Authorization: Bearer hunter2hunter2".to_owned(),
            "-----BEGIN PRIVATE KEY-----".to_owned(),
            "hunter2hunter2".to_owned(),
            "-----END PRIVATE KEY-----".to_owned(),
            "INFO in sync".to_owned(),
        ];
        let text = Log::scrubbed(&lines, 3).text();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.starts_with("… 3 lines before are not kept\n"), "{text}");
        assert!(text.ends_with("INFO in sync\n") && text.contains("192.0.2.1:6443"), "{text}");
    }
}
