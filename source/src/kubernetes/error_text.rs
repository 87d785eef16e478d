//! Errors of the client, and a server's words, as text.

use std::error::Error;
use std::fmt::{self, Write as _};

use tower::BoxError;

use syntax::quoted::shortened;

/// Most bytes of a server's words that are kept: a proxy's error page has no place in a log.
const LONGEST_WORDS: usize = 300;

/// A text on one line: characters that are not printed are escaped.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '"' | '\'' | '\\' => f.write_char(character),
            other => write!(f, "{}", other.escape_debug()),
        })
    }
}

/// Returns the beginning of a server's words, on one line.
pub(super) fn in_short(words: &str) -> String {
    shortened(&OneLine(words), LONGEST_WORDS).into()
}

/// The error inside those that each layer of the client has put around it.
pub(super) fn innermost(error: kube::Error) -> BoxError {
    match error {
        kube::Error::Service(error) => match error.downcast() {
            Ok(error) => innermost(*error),
            Err(error) => error,
        },
        error => error.into(),
    }
}

/// Returns an error and its sources as text, without repetitions.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let further = error.to_string();
        if !text.contains(&further) {
            text = format!("{text}: {further}");
        }
        source = error.source();
    }
    text
}
