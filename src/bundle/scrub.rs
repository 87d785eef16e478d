//! Secrets out of texts.
//!
//! Nothing is read for a bundle that is made of secrets: no kubeconfig, no environment, no certificate.
//! What is read all the same goes through here: values whose name says that they are secret, passwords
//! in URLs, tokens by their form, and blocks of PEM.

use serde_json::Value;

/// Stands for a secret.
pub const LEFT_OUT: &str = "(left out)";

/// Parts of names whose values are secret, in small letters and without `-` and `_`.
const SECRET_NAMES: [&str; 12] = [
    "authorization",
    "token",
    "password",
    "passwd",
    "secret",
    "credential",
    "privatekey",
    "clientkey",
    "keydata",
    "certificatedata",
    "clientcertificate",
    "apikey",
];

/// Shortest token of three parts, as JSON Web Tokens have.
const SHORTEST_TOKEN: usize = 40;

/// The word after which a token follows.
const BEARER: &str = "bearer";

const PEM_BEGINS: &str = "-----BEGIN ";
const PEM_ENDS: &str = "-----END ";

/// True if a value of this name is secret.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let name: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|it| it.to_ascii_lowercase())
        .collect();
    SECRET_NAMES.iter().any(|secret| name.contains(secret))
}

/// Returns a JSON value with its secrets left out, at any depth.
#[must_use]
pub fn scrubbed_value(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let scrubbed = fields.iter().map(|(name, value)| {
                let is_empty = value.is_null() || value.as_str().is_some_and(str::is_empty);
                let value = if is_secret(name) && !is_empty {
                    Value::String(LEFT_OUT.to_owned())
                } else {
                    scrubbed_value(value)
                };
                (name.clone(), value)
            });
            Value::Object(scrubbed.collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(scrubbed_value).collect()),
        Value::String(text) => Value::String(scrubbed(text)),
        other => other.clone(),
    }
}

/// Returns a text with its secrets left out.
#[must_use]
pub fn scrubbed(text: &str) -> String {
    let mut scrubbed = String::with_capacity(text.len());
    let mut is_in_pem = false;
    for line in text.split_inclusive('\n') {
        if is_in_pem {
            is_in_pem = !line.contains(PEM_ENDS);
        } else if let Some((before, block)) = line.split_once(PEM_BEGINS) {
            scrubbed += &scrubbed_line(before);
            scrubbed += LEFT_OUT;
            scrubbed.push('\n');
            is_in_pem = !block.contains(PEM_ENDS);
        } else {
            scrubbed += &scrubbed_line(line);
        }
    }
    scrubbed
}

/// Consequence of the words so far for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Nothing.
    Open,
    /// It is the value of a secret if it is a colon or an equals sign, or begins with one.
    AfterName,
    /// It is secret.
    Secret,
}

/// Goes through the words of a line; whatever is between them stays as it is.
fn scrubbed_line(line: &str) -> String {
    let mut scrubbed = String::with_capacity(line.len());
    let mut next = Next::Open;
    for piece in line.split_inclusive(is_between) {
        let (word, between) = piece.split_at(piece.trim_end_matches(is_between).len());
        if !word.is_empty() {
            let (text, state) = scrubbed_next(word, next);
            scrubbed += &text;
            next = state;
        }
        scrubbed += between;
    }
    scrubbed
}

fn scrubbed_next(word: &str, next: Next) -> (String, Next) {
    let signs = [':', '='];
    match next {
        Next::Secret if is_scheme(word) => return (word.to_owned(), Next::Secret),
        Next::Secret => return (LEFT_OUT.to_owned(), Next::Open),
        Next::AfterName if word.len() == 1 && word.starts_with(signs) => {
            return (word.to_owned(), Next::Secret);
        }
        Next::AfterName if word.starts_with(signs) => return (LEFT_OUT.to_owned(), Next::Open),
        _ => {}
    }
    let state = if word.eq_ignore_ascii_case(BEARER) || names_a_secret(word) {
        Next::Secret
    } else if is_secret(word) {
        Next::AfterName
    } else {
        Next::Open
    };
    (scrubbed_word(word), state)
}

fn is_between(character: char) -> bool {
    character.is_whitespace() || matches!(character, '"' | '\'' | ',' | ';' | '{' | '}' | '[' | ']')
}

/// True for the words of HTTP between `Authorization:` and the secret.
fn is_scheme(word: &str) -> bool {
    [BEARER, "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// True for `--token`, `token:` and `Authorization:`, whose value follows.
fn names_a_secret(word: &str) -> bool {
    let of_flag = word.strip_prefix("--").filter(|name| !name.contains(['=', ':']));
    word.strip_suffix(':').or(of_flag).is_some_and(is_secret)
}

fn scrubbed_word(word: &str) -> String {
    if let Some((name, value)) = word.split_once('=')
        && is_secret(name)
        && !value.is_empty()
    {
        return format!("{name}={LEFT_OUT}");
    }
    if let Some((name, value)) = word.split_once(':')
        && is_secret(name)
        && !value.is_empty()
    {
        return format!("{name}:{LEFT_OUT}");
    }
    if is_token(word) {
        return LEFT_OUT.to_owned();
    }
    without_password(word)
}

/// True for three parts of base64 with dots between them, of which the first is a JSON object.
fn is_token(word: &str) -> bool {
    let word = word.split_once('=').map_or(word, |(_, value)| value);
    let is_base64 = |part: &str| {
        part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'='))
    };
    let parts: Vec<&str> = word.split('.').collect();
    parts.len() == 3
        && word.len() >= SHORTEST_TOKEN
        && word.starts_with("eyJ")
        && parts.iter().all(|part| is_base64(part))
}

/// Takes `user:password@` out of a URL.
fn without_password(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let authority = rest.split('/').next().unwrap_or_default();
    let Some((_, host)) = authority.rsplit_once('@') else { return word.to_owned() };
    let behind = rest.get(authority.len()..).unwrap_or_default();
    format!("{scheme}://{LEFT_OUT}@{host}{behind}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const TOKEN: &str =
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW06bm9kZSJ9.c2lnbmF0dXJl-c2lnbmF0dXJl";

    #[test]
    fn secrets_are_left_out_wherever_they_stand() {
        for (text, expected) in [
            ("--token=abc --v=2", "--token=(left out) --v=2"),
            ("--token abc --v=2", "--token (left out) --v=2"),
            ("Authorization: Bearer abc", "Authorization: Bearer (left out)"),
            ("authorization: basic abc", "authorization: basic (left out)"),
            ("token = abc", "token = (left out)"),
            ("password: hunter2", "password: (left out)"),
            ("client-key-data: LS0t\nserver: x", "client-key-data: (left out)\nserver: x"),
            ("https://me:pw@10.0.0.1:6443/x", "https://(left out)@10.0.0.1:6443/x"),
            ("{\"bearerToken\":\"abc\"}", "{\"bearerToken\":\"(left out)\"}"),
        ] {
            assert_eq!(scrubbed(text), expected, "{text}");
        }
        assert_eq!(scrubbed(&format!("got {TOKEN}, refused")), "got (left out), refused");
        assert_eq!(scrubbed(&format!("x={TOKEN}")), "(left out)");
        let pem =
            "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nAAAA\n-----END RSA PRIVATE KEY-----\nb\n";
        assert_eq!(scrubbed(pem), "a\n(left out)\nb\n");
        // What has no end is left out to the end.
        assert_eq!(scrubbed("-----BEGIN CERTIFICATE-----\nMIIE\n"), "(left out)\n");
    }

    #[test]
    fn what_is_no_secret_stays() {
        let rule = "-A KUBE-SVC-ABC -m comment --comment \"ns/token-service:http -> 10.0.0.1:80\" -j KUBE-SEP-X\n";
        assert_eq!(
            scrubbed("TCP 10.96.0.1:443 rr persistent 10800\n"),
            "TCP 10.96.0.1:443 rr persistent 10800\n"
        );
        assert_eq!(
            scrubbed("net.ipv4.tcp_keepalive_time = 7200"),
            "net.ipv4.tcp_keepalive_time = 7200"
        );
        assert_eq!(scrubbed("kubeconfig: /etc/kube.conf"), "kubeconfig: /etc/kube.conf");
        // The name of a Service may look like one: the rest of the line stays.
        assert!(scrubbed(rule).ends_with("-j KUBE-SEP-X\n"));
    }

    #[test]
    fn values_of_a_document_are_left_out_by_their_names() {
        let document = json!({
            "clientConnection": {"kubeconfig": "/etc/k", "token": "abc", "password": ""},
            "list": [{"clientKeyData": {"deep": "abc"}}, "https://u:p@h/"],
            "tcpTimeout": "0s",
        });
        assert_eq!(
            scrubbed_value(&document),
            json!({
                "clientConnection": {"kubeconfig": "/etc/k", "token": LEFT_OUT, "password": ""},
                "list": [{"clientKeyData": LEFT_OUT}, "https://(left out)@h/"],
                "tcpTimeout": "0s",
            })
        );
    }

    proptest! {
        /// In any text, and in each way of writing it.
        #[test]
        fn no_secret_is_left(before in "[ -~\n]{0,40}", secret in "[A-Za-z0-9]{12,20}", kind in 0..5_u8) {
            let written = match kind {
                0 => format!("\n--token={secret} "),
                1 => format!("\npassword: {secret}\n"),
                2 => format!("\nhttps://user:{secret}@host/\n"),
                3 => format!("\n\"clientSecret\": \"{secret}\"\n"),
                _ => format!("\n-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n"),
            };
            prop_assume!(!before.contains(&secret));
            let text = format!("{before}{written}after");
            let scrubbed = scrubbed(&text);
            prop_assert!(!scrubbed.contains(&secret), "{}", scrubbed);
        }
    }
}
