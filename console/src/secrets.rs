//! Secrets out of texts: of every line of the log, and of all that gets into a support bundle.
//!
//! kube-ipvs puts no kubeconfig, environment or certificate into either. A message of a library or of another
//! process may quote one. The scrubber removes from every text:
//!
//! 1. from the whole text: blocks of PEM, JSON Web Tokens, and the user part of URLs;
//! 2. from its lines: values whose name says that they are secret.
//!
//! A value goes up to its closing quotation mark or bracket. A value without any goes up to that of the text
//! around it, or to the end of the line. The scrubber removes too much rather than a part of a secret.

mod nesting;
mod scrubber;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::Value;

use scrubber::Scrubber;

/// Stands for a secret.
pub const LEFT_OUT: &str = "(left out)";

/// Parts of names whose values are secret, in small letters and without `-` and `_`.
const SECRET_NAMES: [&str; 18] = [
    "authorization",
    "token",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "credential",
    "signature",
    "privatekey",
    "clientkey",
    "tlskey",
    "accountkey",
    "accesskey",
    "keydata",
    "certificatedata",
    "clientcertificate",
    "apikey",
];

/// Last words of names whose values are secret. They are parts of harmless names, too: `config`, `syncookies`.
const SECRET_WORDS: [&str; 5] = ["sig", "cookie", "cookies", "jwt", "bearer"];

/// Ends of names whose values only say where a secret is, or for how long: `tokenFile`, `secretName`.
const HARMLESS_ENDS: [&str; 6] = ["file", "path", "dir", "name", "seconds", "ttl"];

/// Beginnings of JSON in base64, as JSON Web Tokens have it, of the same in base64 once more, and of PEM in base64.
const TOKEN_BEGINNINGS: [&str; 3] = ["eyJ", "ZXlK", "LS0tLS1CRUdJTi"];

/// Shortest token, in bytes: the first part of a JSON Web Token, which has no secret, may be as long.
const SHORTEST_TOKEN: usize = 20;

const PEM_BEGINS: &str = "-----BEGIN ";
const PEM_ENDS: &str = "-----END ";

/// True if a value of this name is secret.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let letters = small_letters(name);
    let is_harmless = HARMLESS_ENDS.iter().any(|end| letters.ends_with(end));
    !is_harmless
        && (SECRET_NAMES.iter().any(|part| letters.contains(part))
            || SECRET_WORDS.contains(&small_letters(last_word(name)).as_str()))
}

/// Returns a JSON value with its secrets left out, at any depth.
#[must_use]
pub fn scrubbed_value(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            // An environment variable, as kubeconfigs have it: {"name": …, "value": …}.
            let given = fields.get("name").and_then(Value::as_str);
            let is_named = given.is_some_and(is_secret);
            let scrubbed = fields.iter().map(|(name, value)| {
                let is_empty = value.is_null() || value.as_str().is_some_and(str::is_empty);
                let is_secret = is_secret(name) || (is_named && name == "value");
                let value = if is_secret && !is_empty && !value.is_boolean() {
                    Value::String(LEFT_OUT.to_owned())
                } else {
                    scrubbed_value(value)
                };
                (name.clone(), value)
            });
            Value::Object(scrubbed.collect())
        }
        Value::Array(values) => {
            let mut is_argument = false;
            let scrubbed = values.iter().map(|value| {
                let text = value.as_str().unwrap_or_default();
                let follows = text.starts_with('-') && !text.contains('=') && is_secret(text);
                if std::mem::replace(&mut is_argument, follows) {
                    return Value::String(LEFT_OUT.to_owned());
                }
                scrubbed_value(value)
            });
            Value::Array(scrubbed.collect())
        }
        Value::String(text) => Value::String(scrubbed(text)),
        other => other.clone(),
    }
}

/// Returns a text with its secrets left out.
#[must_use]
pub fn scrubbed(text: &str) -> String {
    let mut text = without_pem(text);
    for beginning in TOKEN_BEGINNINGS {
        if text.contains(beginning) {
            text = without_tokens(&text, beginning).into();
        }
    }
    if text.contains("://") {
        text = without_users(&text).into();
    }
    let mut scrubber = Scrubber::new(text.len());
    for line in text.split_inclusive('\n') {
        scrubber.add(line);
    }
    scrubber.finish(text.ends_with('\n'))
}

fn small_letters(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|it| it.to_ascii_lowercase()).collect()
}

/// Returns the last word of a name: `sig` of `x-sig`, `Cookie` of `setCookie`.
fn last_word(name: &str) -> &str {
    let name = name.trim_end_matches(|it: char| !it.is_ascii_alphanumeric());
    let word = name.rsplit(|it: char| !it.is_ascii_alphanumeric()).next().unwrap_or_default();
    let is_small = |place: usize| {
        let before = word.get(..place).and_then(|before| before.chars().next_back());
        before.is_some_and(|it| it.is_ascii_lowercase())
    };
    let capitals = word.match_indices(|it: char| it.is_ascii_uppercase());
    let start = capitals.map(|(place, _)| place).rfind(|place| is_small(*place));
    word.get(start.unwrap_or_default()..).unwrap_or_default()
}

/// Takes blocks of PEM out of a text. A block without an end goes to the end of the text.
fn without_pem(text: &str) -> Cow<'_, str> {
    let Some((before, mut rest)) = text.split_once(PEM_BEGINS) else { return text.into() };
    let mut scrubbed = before.to_owned();
    loop {
        scrubbed += LEFT_OUT;
        let Some((_, end)) = rest.split_once(PEM_ENDS) else {
            scrubbed += if text.ends_with('\n') { "\n" } else { "" };
            return scrubbed.into();
        };
        // The label, up to its dashes, which the next block's may follow at once, or share.
        let label = end.find(['-', '\n']).unwrap_or(end.len());
        let behind = end.get(label..).unwrap_or_default().trim_start_matches('-');
        if let Some(next) = behind.strip_prefix("BEGIN ") {
            rest = next;
            continue;
        }
        let Some((between, next)) = behind.split_once(PEM_BEGINS) else {
            scrubbed += behind;
            return scrubbed.into();
        };
        scrubbed += between;
        rest = next;
    }
}

/// Takes out what begins like this and is base64, in parts with dots between them, wherever it begins in a word.
/// A token that was cut is left out as well.
fn without_tokens(text: &str, beginning: &str) -> String {
    let is_of_token =
        |character: char| character.is_ascii_alphanumeric() || "-_=+/.".contains(character);
    let mut scrubbed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, token)) = rest.find(beginning).and_then(|it| rest.split_at_checked(it))
    {
        let end = token.find(|it| !is_of_token(it)).unwrap_or(token.len());
        let (token, behind) = token.split_at(end);
        let (token, dots) = token.split_at(token.trim_end_matches('.').len());
        scrubbed += before;
        scrubbed += if token.len() < SHORTEST_TOKEN { token } else { LEFT_OUT };
        scrubbed += dots;
        rest = behind;
    }
    scrubbed + rest
}

/// Takes `user:password@` out of URLs.
fn without_users(text: &str) -> String {
    let mut scrubbed = String::with_capacity(text.len());
    let mut parts = text.split("://");
    scrubbed += parts.next().unwrap_or_default();
    for part in parts {
        scrubbed += "://";
        let url = part.split(|it: char| it.is_whitespace() || r#""<>`\"#.contains(it)).next();
        let url = url.unwrap_or_default();
        let authority = url.split(['/', '?', '#']).next().unwrap_or_default();
        // A password with a slash in it, if what stands before the slash has no port.
        let is_broken = authority.rsplit_once(':').is_some_and(|(host, port)| {
            !host.starts_with('[') && !port.bytes().all(|it| it.is_ascii_digit())
        });
        let place = authority.rfind('@').or_else(|| url.rfind('@').filter(|_| is_broken));
        if let Some(place) = place {
            scrubbed += LEFT_OUT;
            scrubbed += part.get(place..).unwrap_or_default();
        } else {
            scrubbed += part;
        }
    }
    scrubbed
}
