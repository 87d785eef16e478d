use proptest::prelude::*;
use serde_json::json;

use super::*;

const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW06bm9kZSJ9.c2lnbmF0dXJl-c2lnbmF0dXJl";

/// Texts with secrets, and what becomes of them, by the kinds of ways to write one.
const LEFT_OUT_OF: &[(&str, &str)] = &[
    // Flags, environment variables and parameters.
    ("--token=abc --v=2", "--token=(left out) --v=2"),
    ("--token abc --v=2", "--token (left out) --v=2"),
    ("-token abc -v 2", "-token (left out) -v 2"),
    ("--token=\"abc\" --v=2", "--token=\"(left out)\" --v=2"),
    ("[\"--token\", \"a b\", \"-v\"]", "[\"--token\", \"(left out)\", \"-v\"]"),
    ("- --token\n- x\n- --v=2", "- --token\n- (left out)\n- --v=2"),
    ("  \"--token\",\n  \"x\",\n  \"-v\"", "  \"--token\",\n  \"(left out)\",\n  \"-v\""),
    ("--from-literal=password=x -n y", "--from-literal=password=(left out) -n y"),
    ("--env=TOKEN=x", "--env=TOKEN=(left out)"),
    ("AZURE_CLIENT_SECRET=\"abc\" aws", "AZURE_CLIENT_SECRET=\"(left out)\" aws"),
    ("token=abc level=info", "token=(left out) level=info"),
    ("GET /x?sig=y&token=abc&z=1 HTTP", "GET /x?sig=(left out)&token=(left out)&z=1 HTTP"),
    ("https://h/x?access_token=abc", "https://h/x?access_token=(left out)"),
    ("/x?a=1#token=x", "/x?a=1#token=(left out)"),
    ("to=%2Fx%3Ftoken%3Dabc", "to=%2Fx%3Ftoken%3D(left out)"),
    // Headers.
    ("Authorization: Bearer abc", "Authorization: Bearer (left out)"),
    ("authorization: basic abc", "authorization: basic (left out)"),
    ("Authorization:Bearer x", "Authorization:Bearer (left out)"),
    ("authorization=Bearer x y=2", "authorization=Bearer (left out) y=2"),
    ("Authorization: Token x", "Authorization: Token (left out)"),
    ("Authorization: Negotiate x", "Authorization: Negotiate (left out)"),
    ("Authorization: AWS4-X a=1, b=2", "Authorization: (left out)"),
    ("\"authorization\": \"Bearer abc\"", "\"authorization\": \"(left out)\""),
    ("map[Authorization:[Bearer x] Accept:[y]]", "map[Authorization:[(left out)] Accept:[y]]"),
    ("(Bearer abc)", "(Bearer (left out))"),
    (r#""\tBearer x" is"#, r#""\tBearer (left out)" is"#),
    ("bearer: x", "bearer: (left out)"),
    ("Set-Cookie: a=b; c=d", "Set-Cookie: (left out)"),
    // Names and separators.
    ("token = abc", "token = (left out)"),
    ("token := \"x\"", "token := \"(left out)\""),
    ("\"token\" => \"x\", \"y\" => 1", "\"token\" => \"(left out)\", \"y\" => 1"),
    ("token \"x\" is", "token \"(left out)\" is"),
    ("error:token:x", "error:token:(left out)"),
    ("shop/token:password=x", "shop/token:password=(left out)"),
    ("**token**: x", "**token**: (left out)"),
    ("tokens[0]=x", "tokens[0]=(left out)"),
    ("TOKEN+=x", "TOKEN+=(left out)"),
    ("//token: x", "//token: (left out)"),
    ("pwd=x", "pwd=(left out)"),
    ("passphrase: x", "passphrase: (left out)"),
    ("private key: x", "private key: (left out)"),
    ("AccountName=a;AccountKey=x==;B=c", "AccountName=a;AccountKey=(left out)"),
    (r"a\nsig=x", r"a\nsig=(left out)"),
    // Words behind a name.
    ("password hunter2", "password (left out)"),
    ("login with the password hunter2, and", "login with the password (left out) and"),
    ("got token a8f5f167f44f from x", "got token (left out) from x"),
    ("clientSecret p4ss.w0rd! x", "clientSecret (left out) x"),
    ("(token abc123) x", "(token (left out)) x"),
    // XML.
    ("<a><password>x y</password></a>", "<a><password>(left out)</password></a>"),
    ("<wsse:Password>\"x\" y</wsse:Password>", "<wsse:Password>(left out)</wsse:Password>"),
    ("<Token></Token><b>x</b>", "<Token></Token><b>x</b>"),
    // Other letters.
    ("tokenÄ=x", "tokenÄ=(left out)"),
    ("ключ_token: x", "ключ_token: (left out)"),
    (r"\ätoken=x", r"\ätoken=(left out)"),
    // Whole values.
    ("password: hunter2", "password: (left out)"),
    ("password: two words", "password: (left out)"),
    ("password=two words --v=2", "password=(left out) --v=2"),
    ("password=a,b", "password=(left out)"),
    ("password=a\"b c", "password=(left out)"),
    ("token=\"abc\"", "token=\"(left out)\""),
    ("password='a b'; x", "password='(left out)'; x"),
    ("password='it''s x' y", "password='(left out)' y"),
    (r"password='it'\''s x' y", "password='(left out)' y"),
    ("TOKEN=\"a\"b\nc", "TOKEN=(left out)\nc"),
    ("token \"x\": expired", "token \"(left out)\": expired"),
    ("TOKEN=\"a", "TOKEN=(left out)"),
    ("TOKEN=\"a\"'b c' d", "TOKEN=(left out)"),
    ("password=\"a\\\"b c\" x", "password=\"(left out)\" x"),
    ("password=\"a\\\\\" x", "password=\"(left out)\" x"),
    ("password=\"a\nb\"\nx", "password=(left out)\nx"),
    ("msg=\"token: a b\" x=1", "msg=\"token: (left out)\" x=1"),
    ("{\"m\":\"token=a b\",\"x\":1}", "{\"m\":\"token=(left out)\",\"x\":1}"),
    ("run \"x --token=\"a b\"\" y", "run \"x --token=\"(left out)\"\" y"),
    // Documents.
    ("client-key-data: LS0t\nserver: x", "client-key-data: (left out)\nserver: x"),
    ("{\"bearerToken\":\"abc\"}", "{\"bearerToken\":\"(left out)\"}"),
    (r#""{\"token\":\"a b\",\"x\":1}""#, r#""{\"token\":\"(left out)\",\"x\":1}""#),
    (r#"\\\"token\\\":\\\"a b\\\""#, r#"\\\"token\\\":\\\"(left out)\\\""#),
    ("{\"tokens\": [\"a\",\"x\"], \"b\": 1}", "{\"tokens\": [(left out)], \"b\": 1}"),
    ("tokens:\n- a\n- x\nserver: y", "tokens:\nserver: y"),
    ("token: |\n  abc\n\n  def\nserver: x", "token: (left out)\nserver: x"),
    ("token: abc\n  def\nserver: x", "token: (left out)\nserver: x"),
    (" token:\n   abc\n server: x", " token:\n server: x"),
    (
        "- name: DB_PASSWORD\n  value: x\n- name: A",
        "- name: DB_PASSWORD\n  value: (left out)\n- name: A",
    ),
    ("{\"name\": \"TOKEN\", \"value\": \"x\"}", "{\"name\": \"TOKEN\", \"value\": \"(left out)\"}"),
    ("{\"value\": \"x\", \"name\": \"TOKEN\"}", "{\"value\": \"(left out)\", \"name\": \"TOKEN\"}"),
    // Rust's Debug.
    ("token: Some(\"x\")", "token: (left out)"),
    ("A { token: Some(\"x}\"), b: 1 } y", "A { token: (left out) } y"),
    ("token=Some(\"a b\") c=1", "token=(left out) c=1"),
    ("token: Some(\n    \"x\",\n), y", "token: (left out)\n), y"),
    ("Token(\"x\") y", "Token(left out) y"),
    ("[(\"cookie\", \"x\"), y]", "[(\"cookie\", \"(left out)\"), y]"),
    ("Secret { value: \"x\" } y", "Secret {(left out)} y"),
    ("token=b'x' y", "token=b'(left out)' y"),
    ("token=r#\"x\"# y", "token=r#\"(left out)\"# y"),
    // URLs.
    ("https://me:pw@10.0.0.1:6443/x", "https://(left out)@10.0.0.1:6443/x"),
    ("https://u:a&b@proxy", "https://(left out)@proxy"),
    ("https://u:a,b;c'd(e@proxy/@x", "https://(left out)@proxy/@x"),
    ("https://u:a/b@proxy/x", "https://(left out)@proxy/x"),
    ("http://a/x,http://u:p@b", "http://a/x,http://(left out)@b"),
    // PEM.
    ("a\n-----BEGIN X-----\nMI\n-----END X-----\nb\n", "a\n(left out)\nb\n"),
    ("-----BEGIN X-----\\nMI\\n-----END X-----\\nb", "(left out)\\nb"),
    (
        "-----BEGIN X-----MI-----END X----------BEGIN Y-----key-----END Y-----b",
        "(left out)(left out)b",
    ),
    ("-----BEGIN X-----MI-----END X-----BEGIN Y-----key-----END Y-----b", "(left out)(left out)b"),
    // What has no end is left out to the end.
    ("-----BEGIN CERTIFICATE-----\nMIIE\n", "(left out)\n"),
];

#[test]
fn secrets_are_left_out_wherever_they_stand() {
    for (text, expected) in LEFT_OUT_OF {
        assert_eq!(scrubbed(text), *expected, "{text}");
        assert_eq!(scrubbed(expected), *expected, "again: {text}");
    }
}

#[test]
fn json_web_tokens_are_left_out_wherever_they_stand() {
    let encrypted = "eyJhbGciOiJSU0EtT0FFUCJ9..aXYtaXYtaXY.Y2lwaGVydGV4dA.dGFnLXRhZw";
    for token in [TOKEN, encrypted, "eyJhbGciOiJSUzI1NiJ9.eyJzdW"] {
        for (form, expected) in [
            ("got %, refused", "got (left out), refused"),
            ("x=%", "x=(left out)"),
            ("token %: expired", "token (left out): expired"),
            ("refused %....", "refused (left out)...."),
            ("cut %…", "cut (left out)…"),
            ("jwt:%", "jwt:(left out)"),
            (r#""\n%" x"#, r#""\n(left out)" x"#),
            (r#"{\"jwt\":\"%\"}"#, r#"{\"jwt\":\"(left out)\"}"#),
        ] {
            assert_eq!(scrubbed(&form.replace('%', token)), expected, "{form} {token}");
        }
    }
}

#[test]
fn what_is_no_secret_stays() {
    for text in [
        "-A KUBE-SVC-ABC -m comment --comment \"ns/token-service:http -> 10.0.0.1:80\" -j KUBE-SEP-X\n",
        "TCP 10.96.0.1:443 rr persistent 10800\n",
        "net.ipv4.tcp_keepalive_time = 7200",
        "net.ipv4.tcp_syncookies = 1\nnet.netfilter.nf_conntrack_sctp_timeout_cookie_wait = 3\n",
        "kubeconfig: /etc/kube.conf",
        "--kubeconfig=/path --config=/x --v=2",
        "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token\nserver: x",
        "cannot read /var/run/secrets/kubernetes.io/serviceaccount/token: no such file (os error 2)",
        "Service shop/token: spec.ports[0] is left out; shop/secret:80 stays",
        "https://token-service:8443/x and token.shop:443",
        "INFO kube_ipvs::secrets: in sync with the kernel",
        "tokens: 3 refused",
        "imagePullSecrets: []\n  x: y",
        "token: None, server: \"x\"",
        "{\"token\":null,\"automountServiceAccountToken\":false,\"password\":\"\",\"x\":1}",
        "credentials for the API server reloaded; the token has expired",
        "a bearer token is needed",
        "{\"message\":\"no token: \",\"x\":1}",
        "https://registry/npm/@scope/x is at 10.0.0.1:80",
        "- name: MODE\n  value: ipvs\n- name: TOKEN_FILE\n  value: /x\n",
        "shop   token   ClusterIP   10.96.0.10",
        "the token expired 10s ago; no password was given, and the secret is gone",
        "get a token https://idp.example1.com/x, secret fd00::10:1 and /run/secret1/token /run/x1",
        "usage: --token-file <token>, Option<Secret> is none",
        "",
    ] {
        assert_eq!(scrubbed(text), text);
    }
}

#[test]
fn values_of_a_document_are_left_out_by_their_names() {
    let document = json!({
        "clientConnection": {"kubeconfig": "/etc/k", "token": "abc", "password": ""},
        "list": [{"clientKeyData": {"deep": "abc"}}, "https://u:p@h/"],
        "args": ["--token", "abc", "--v", "2"],
        "env": [{"name": "TOKEN", "value": "abc"}, {"name": "MODE", "value": "x"}],
        "hasToken": true,
        "tcpTimeout": "0s",
    });
    assert_eq!(
        scrubbed_value(&document),
        json!({
            "clientConnection": {"kubeconfig": "/etc/k", "token": LEFT_OUT, "password": ""},
            "list": [{"clientKeyData": LEFT_OUT}, "https://(left out)@h/"],
            "args": ["--token", LEFT_OUT, "--v", "2"],
            "env": [{"name": "TOKEN", "value": LEFT_OUT}, {"name": "MODE", "value": "x"}],
            "hasToken": true,
            "tcpTimeout": "0s",
        })
    );
}

proptest! {
    /// In any text, and in each way of writing it. Nothing of it, if there is punctuation in it.
    #[test]
    fn no_secret_is_left(
        before in "[ -~\n]{0,40}",
        first in "[A-Za-z0-9]{8,12}",
        punctuation in "[ -/:-@\\[-`{-~]{0,4}",
        second in "[A-Za-z0-9]{8,12}",
        (form, never) in proptest::sample::select(FORMS),
    ) {
        prop_assume!(!before.contains(&first) && !before.contains(&second));
        let punctuation: String = punctuation.chars().filter(|it| !never.contains(*it)).collect();
        let secret = format!("{first}{punctuation}{second}");
        let text = format!("{before}\n{}\nafter", form.replace('%', &secret));
        let scrubbed = scrubbed(&text);
        prop_assert!(!scrubbed.contains(&first), "{text}\n{scrubbed}");
        prop_assert!(!scrubbed.contains(&second), "{text}\n{scrubbed}");
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

/// Ways to write a secret, which the first `%` stands for, and punctuation that it cannot have there.
const FORMS: &[(&str, &str)] = &[
    ("--token=% ", " "),
    ("--token=\"%\"", "\"\\"),
    ("--token %", " "),
    ("- --token\n- %", ""),
    ("--from-literal=password=%", " "),
    ("password: %", ""),
    ("password = %", ""),
    ("password='a %'", "'\\"),
    ("x: 'password: %'", "'\\"),
    ("TOKEN=\"x\"%", "\"\\"),
    ("password=\"x\n%\"", "\"\\"),
    ("token \"%\"", "\"\\"),
    ("https://user:%@host/", " /?#\"<>`\\"),
    ("https://host/?x=1&token=%&y=2", " &#"),
    ("{\"clientSecret\": \"%\"}", "\"\\"),
    (r#"{\"token\":\"%\"}"#, "\"\\"),
    ("AWS_SECRET_ACCESS_KEY=\"%\" aws eks", "\"\\"),
    ("authorization: Bearer %", ""),
    ("got Bearer %", " "),
    ("the password 1a%", " "),
    ("<password>%</password>", "<"),
    ("jeton_été_token: %", ""),
    ("token: Some(\"%\")", ""),
    ("A { token: Some(\"%\") }", "\"\\"),
    ("Token(\"%\")", "\"\\"),
    ("token: >-\n  %", ""),
    ("- name: DB_PASSWORD\n  value: %", ""),
    ("-----BEGIN PRIVATE KEY-----\n%\n-----END PRIVATE KEY-----", "-"),
];
