//! Secrets out of texts: of every line of the log, and of all that gets into a support bundle.
//!
//! Nothing is read for these that is made of secrets: no kubeconfig, no environment, no certificate. What a
//! library or another program says all the same goes through here: values whose name says that they are
//! secret, passwords in URLs, tokens by their form, and blocks of PEM.

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
    let mut skipped = Skipped::Nothing;
    for line in text.split_inclusive('\n') {
        match skipped {
            Skipped::Pem => {
                if line.contains(PEM_ENDS) {
                    skipped = Skipped::Nothing;
                }
                continue;
            }
            Skipped::Below(column) if column < indent(line) || line.trim().is_empty() => continue,
            _ => skipped = Skipped::Nothing,
        }
        let (before, block) = match line.split_once(PEM_BEGINS) {
            Some((before, block)) => (before, Some(block)),
            None => (line, None),
        };
        let is_open = scrub_line(before, &mut scrubbed);
        if let Some(block) = block {
            scrubbed += LEFT_OUT;
            scrubbed.push('\n');
            if !block.contains(PEM_ENDS) {
                skipped = Skipped::Pem;
            }
        } else if is_open {
            skipped = Skipped::Below(indent(line));
        }
    }
    scrubbed
}

/// Lines that are left out whole.
#[derive(Debug, Clone, Copy)]
enum Skipped {
    Nothing,
    /// Those up to the end of a block of PEM.
    Pem,
    /// Those that begin behind this column: YAML's block of a secret value.
    Below(usize),
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
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

/// Goes through the words of a line; whatever is between them stays as it is. Returns true if a secret value
/// goes on in the lines below.
fn scrub_line(line: &str, scrubbed: &mut String) -> bool {
    let mut next = Next::Open;
    let mut is_open = false;
    let mut rest = line;
    while let Some(start) = rest.find(|character| !is_between(character)) {
        let (between, behind) = rest.split_at(start);
        scrubbed.push_str(between);
        if let Some(end) = quoted_end(between, behind).filter(|_| next == Next::Secret) {
            // A quoted secret may have anything in it.
            scrubbed.push_str(LEFT_OUT);
            (next, is_open) = (Next::Open, false);
            rest = behind.get(end..).unwrap_or_default();
            continue;
        }
        let (word, behind) = behind.split_at(behind.find(is_between).unwrap_or(behind.len()));
        is_open = next == Next::Secret && is_block(word);
        let (text, state) = scrubbed_next(word, next);
        scrubbed.push_str(&text);
        next = state;
        rest = behind;
    }
    scrubbed.push_str(rest);
    is_open || next == Next::Secret
}

/// Returns the end of what stands in the quotation marks that `between` ends with: those with as many
/// backslashes before them, as text in a text has. The whole line if there is none.
fn quoted_end(between: &str, behind: &str) -> Option<usize> {
    let mark = between.chars().next_back().filter(|it| matches!(it, '"' | '\'' | '`'))?;
    let n_backslashes = |text: &str| text.len() - text.trim_end_matches('\\').len();
    let opened = n_backslashes(between.strip_suffix(mark)?);
    let ends = behind.match_indices(mark).filter_map(|(place, _)| {
        let before = n_backslashes(behind.get(..place)?);
        (before <= opened).then_some(place - before)
    });
    Some({ ends }.next().unwrap_or(behind.trim_end().len()))
}

/// True for the signs of YAML after which a text follows in the lines below.
fn is_block(word: &str) -> bool {
    ["|", ">", "|-", ">-", "|+", ">+"].contains(&word)
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
    } else if is_secret(word) && !word.contains('/') {
        Next::AfterName
    } else {
        Next::Open
    };
    (scrubbed_word(word), state)
}

fn is_between(character: char) -> bool {
    character.is_whitespace() || r#""'`,;{}[]()&?\"#.contains(character)
}

/// True for the words of HTTP between `Authorization:` and the secret.
fn is_scheme(word: &str) -> bool {
    [BEARER, "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// True for `--token`, `token:`, `token=` and `Authorization:`, whose value follows. Not for the name of a
/// Service before a colon, as a log has it: `shop/token:`.
fn names_a_secret(word: &str) -> bool {
    let of_flag = word.strip_prefix("--").filter(|name| !name.contains(['=', ':']));
    let before_colon = word.strip_suffix(':').filter(|name| !name.contains('/'));
    before_colon.or_else(|| word.strip_suffix('=')).or(of_flag).is_some_and(is_secret)
}

fn scrubbed_word(word: &str) -> String {
    for sign in ['=', ':'] {
        if let Some((name, value)) = word.split_once(sign)
            && is_secret(name)
            && !(sign == ':' && name.contains('/'))
            && !value.is_empty()
        {
            return format!("{name}{sign}{LEFT_OUT}");
        }
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
            ("AZURE_CLIENT_SECRET=\"abc\" aws", "AZURE_CLIENT_SECRET=\"(left out)\" aws"),
            ("--token=\"abc\" --v=2", "--token=\"(left out)\" --v=2"),
            ("token=\"abc\"", "token=\"(left out)\""),
            ("password='a b'; x", "password='(left out)'; x"),
            ("password=\"a\\\"b c\" x", "password=\"(left out)\" x"),
            ("[\"--token\", \"a b\", \"-v\"]", "[\"--token\", \"(left out)\", \"-v\"]"),
            (r#""{\"token\":\"a b\",\"x\":1}""#, r#""{\"token\":\"(left out)\",\"x\":1}""#),
            (r#"\\\"token\\\":\\\"a b\\\""#, r#"\\\"token\\\":\\\"(left out)\\\""#),
            ("GET /x?sig=y&token=abc&z=1", "GET /x?sig=y&token=(left out)&z=1"),
            ("https://h/x?access_token=abc", "https://h/x?access_token=(left out)"),
            ("\"authorization\": \"Bearer abc\"", "\"authorization\": \"(left out)\""),
            ("(Bearer abc)", "(Bearer (left out))"),
            ("token: |\n  abc\n\n  def\nserver: x", "token: (left out)\nserver: x"),
            (" token:\n   abc\n server: x", " token:\n server: x"),
        ] {
            assert_eq!(scrubbed(text), expected, "{text}");
        }
        assert_eq!(scrubbed(&format!("got {TOKEN}, refused")), "got (left out), refused");
        assert_eq!(scrubbed(&format!("x={TOKEN}")), "(left out)");
        assert_eq!(
            scrubbed(&format!("{{\\\"jwt\\\":\\\"{TOKEN}\\\"}}")),
            r#"{\"jwt\":\"(left out)\"}"#
        );
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
        let of_service = "Service shop/token: spec.ports[0] is left out; shop/secret:80 stays";
        assert_eq!(scrubbed(of_service), of_service);
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
        fn no_secret_is_left(
            before in "[ -~\n]{0,40}",
            secret in "[A-Za-z0-9]{12,20}",
            form in proptest::sample::select(FORMS),
        ) {
            prop_assume!(!before.contains(&secret));
            let text = format!("{before}\n{}\nafter", form.replace('%', &secret));
            let scrubbed = scrubbed(&text);
            prop_assert!(!scrubbed.contains(&secret), "{}", scrubbed);
        }

        /// Any text comes out, without a beginning of PEM.
        #[test]
        fn every_text_comes_out(text in any::<String>(), ascii in "[ -~\n]{0,200}") {
            for text in [text, ascii] {
                let once = scrubbed(&text);
                prop_assert_eq!(scrubbed(&once).contains(PEM_BEGINS), false);
            }
        }
    }

    /// Ways to write a secret, which `%` stands for.
    const FORMS: &[&str] = &[
        "--token=% ",
        "--token=\"%\"",
        "--token %",
        "password: %",
        "password='a %'",
        "https://user:%@host/",
        "https://host/?x=1&token=%",
        "\"clientSecret\": \"%\"",
        r#"{\"token\":\"%\"}"#,
        "AWS_SECRET_ACCESS_KEY=\"%\" aws eks",
        "authorization: Bearer %",
        "token: >-\n  %",
        "-----BEGIN PRIVATE KEY-----\n%\n-----END PRIVATE KEY-----",
    ];
}
