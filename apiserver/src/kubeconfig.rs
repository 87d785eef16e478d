//! Kubeconfig files ("Organizing Cluster Access Using kubeconfig Files").

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::tls::ClientCertificate;

/// Credentials of a kubeconfig's user.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// Nothing.
    Anonymous,
    /// A bearer token.
    Token(String),
    /// A file with a bearer token.
    TokenFile(PathBuf),
    /// A client certificate, within the file.
    Certificate(ClientCertificate),
    /// A `user` of the test's own, such as one with `exec`.
    User(Value),
}

/// The text of a kubeconfig with one cluster, one user, and the context of both.
pub(crate) fn text(url: &str, authority: &str, credentials: &Credentials) -> String {
    let user = match credentials {
        Credentials::Anonymous => json!({}),
        Credentials::Token(token) => json!({"token": token}),
        Credentials::TokenFile(path) => json!({"tokenFile": path}),
        Credentials::Certificate(client) => json!({
            "client-certificate-data": STANDARD.encode(&client.certificate),
            "client-key-data": STANDARD.encode(&client.key),
        }),
        Credentials::User(user) => user.clone(),
    };
    let authority = STANDARD.encode(authority);
    format!(
        "\
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster:
    server: {url}
    certificate-authority-data: {authority}
users:
- name: test
  user: {user}
contexts:
- name: test
  context:
    cluster: test
    user: test
current-context: test
"
    )
}
