//! Programs that print credentials for the API server: the `exec` of a kubeconfig's user.
//!
//! Their interface is `client.authentication.k8s.io` (`ExecCredential` in client-go's
//! pkg/apis/clientauthentication/v1/types.go). What such a program prints and has in its environment are
//! credentials, so no message has any of it.

mod process;

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use data_encoding::BASE64;
use jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use serde::Deserialize;

use process::NotFinished;
pub(super) use process::{KillOnDrop, ProcessGroup};

/// Time that a program may take. It asks a server of its own.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reason that a program has given no credentials.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecPluginError {
    #[error("the kubeconfig's user has exec without a command")]
    NoCommand,
    #[error(
        "{0} needs a terminal to print credentials (interactiveMode: Always), and kube-ipvs has \
         none"
    )]
    Interactive(String),
    #[error("{0}, which prints credentials, is not installed here")]
    NotFound(String),
    #[error("{program}, which prints credentials, cannot be run: {error}")]
    Failed { program: String, error: io::Error },
    #[error("{0}, which prints credentials, did not end within {PATIENCE:?} and was killed")]
    Hung(String),
    #[error(
        "{0}, which prints credentials, printed more than 1 MiB, which no ExecCredential has, and was killed: \
         run it by hand, with the environment of the kubeconfig"
    )]
    TooLong(String),
    #[error("{0}, which prints credentials, was killed: they are no longer needed")]
    Unwanted(String),
    #[error(
        "{program}, which prints credentials, ended with {status}; what it said may hold some and is left out: \
         run it by hand, with the environment of the kubeconfig"
    )]
    Ended { program: String, status: ExitStatus },
    #[error(
        "{0} has not printed an ExecCredential with a token, or with a certificate and its key"
    )]
    NoCredentials(String),
}

/// Output of a program, as far as it matters here.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    /// PEM, as is the key.
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Has the user's program print credentials, if it has one, and puts them in its place. Returns the time at
/// which they expire, if they do. `folder`: that of the kubeconfig, which a relative path begins at. `group`: by
/// which the program can be killed meanwhile. To be called where it may take as long as [`PATIENCE`].
pub(super) fn resolve(
    user: &mut AuthInfo,
    folder: &Path,
    group: &ProcessGroup,
) -> Result<Option<Timestamp>, ExecPluginError> {
    let Some(exec) = user.exec.take() else { return Ok(None) };
    let (credentials, program) = run(&exec, folder, group)?;
    let is_filled = |text: &String| !text.is_empty();
    let token = credentials.token.filter(is_filled);
    let certificate = credentials.client_certificate_data.filter(is_filled);
    let key = credentials.client_key_data.filter(is_filled);
    if certificate.is_some() != key.is_some() || token.is_none() && certificate.is_none() {
        return Err(ExecPluginError::NoCredentials(program));
    }
    if let Some(token) = token {
        user.token = Some(token.into());
    }
    if let (Some(certificate), Some(key)) = (certificate, key) {
        user.client_certificate_data = Some(BASE64.encode(certificate.as_bytes()));
        user.client_key_data = Some(BASE64.encode(key.as_bytes()).into());
    }
    let expires = credentials.expiration_timestamp.map(|text| text.parse());
    expires.transpose().map_err(|_| ExecPluginError::NoCredentials(program))
}

/// Runs the program. Returns what it printed, and its name.
fn run(
    exec: &ExecConfig,
    folder: &Path,
    group: &ProcessGroup,
) -> Result<(ExecCredentialStatus, String), ExecPluginError> {
    let command = exec.command.as_deref().filter(|it| !it.is_empty());
    let name = command.ok_or(ExecPluginError::NoCommand)?;
    let program = name.escape_debug().to_string();
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err(ExecPluginError::Interactive(program));
    }
    // A name without a slash is looked for in PATH (`exec.LookPath`), any other is relative to the file.
    let mut command =
        if name.contains('/') { Command::new(folder.join(name)) } else { Command::new(name) };
    command.args(exec.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", information(exec));
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let finished = match process::run(&mut command, group, PATIENCE) {
        Ok(finished) => finished,
        Err(NotFinished::NotFound) => return Err(ExecPluginError::NotFound(program)),
        Err(NotFinished::Failed(error)) => return Err(ExecPluginError::Failed { program, error }),
        Err(NotFinished::Hung) => return Err(ExecPluginError::Hung(program)),
        Err(NotFinished::TooLong) => return Err(ExecPluginError::TooLong(program)),
        Err(NotFinished::Unwanted) => return Err(ExecPluginError::Unwanted(program)),
    };
    if !finished.status.success() {
        return Err(ExecPluginError::Ended { program, status: finished.status });
    }
    // Some print YAML, which client-go takes as well. A decoder's message would quote it.
    let printed = serde_saphyr::from_str::<ExecCredential>(&finished.stdout).ok();
    match printed.and_then(|credential| credential.status) {
        Some(credentials) => Ok((credentials, program)),
        None => Err(ExecPluginError::NoCredentials(program)),
    }
}

/// `ExecCredential` for the program: the version that it is to answer in, and the cluster if it wants that.
fn information(exec: &ExecConfig) -> String {
    let cluster = exec.cluster.as_ref().filter(|_| exec.provide_cluster_info);
    serde_json::json!({
        "apiVersion": exec.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": false, "cluster": cluster},
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script as the user's program, with a secret in its environment.
    fn resolved(script: &str) -> Result<(AuthInfo, Option<Timestamp>), String> {
        let exec = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "env": [{"name": "CLIENT_SECRET", "value": "hunter2"}],
            "interactiveMode": "IfAvailable",
        });
        let exec = serde_json::from_value(exec).unwrap();
        let mut user = AuthInfo { exec: Some(exec), ..AuthInfo::default() };
        let expires = resolve(&mut user, Path::new("/"), &ProcessGroup::default());
        let expires = expires.map_err(|error| error.to_string())?;
        assert!(user.exec.is_none(), "nothing runs it once more");
        Ok((user, expires))
    }

    fn printing(status: &str) -> String {
        format!("echo '{{\"kind\": \"ExecCredential\", \"status\": {status}}}'")
    }

    #[test]
    fn tokens_and_certificates_take_the_programs_place() {
        let (user, expires) = resolved(&printing(r#"{"token": "t"}"#)).unwrap();
        assert!(user.token.is_some() && user.client_certificate_data.is_none());
        assert_eq!(expires, None);
        let certificate = r#"{"clientCertificateData": "c", "clientKeyData": "k",
            "expirationTimestamp": "2030-01-01T00:00:00Z"}"#;
        let (user, expires) = resolved(&printing(certificate)).unwrap();
        assert_eq!(user.client_certificate_data.as_deref(), Some("Yw=="));
        assert!(user.client_key_data.is_some() && user.token.is_none());
        assert_eq!(expires, Some("2030-01-01T00:00:00Z".parse().unwrap()));
        let yaml = "printf 'kind: ExecCredential\\nstatus:\\n  token: t\\n'";
        assert!(resolved(yaml).unwrap().0.token.is_some());
    }

    #[test]
    fn a_program_is_told_what_it_is_asked_for() {
        for part in [
            r#""apiVersion":"client.authentication.k8s.io/v1""#,
            r#""kind":"ExecCredential""#,
            r#""interactive":false"#,
        ] {
            let script = format!("case $KUBERNETES_EXEC_INFO in *'{part}'*) ;; *) exit 1;; esac; ");
            resolved(&(script + &printing(r#"{"token": "t"}"#))).unwrap();
        }
    }

    #[test]
    fn what_a_program_prints_and_has_in_its_environment_is_in_no_message() {
        for (script, expected) in [
            ("echo hunter2; echo hunter2 $CLIENT_SECRET >&2; exit 3", "ended with exit status: 3"),
            (
                "echo '{\"status\": {\"token\": [\"hunter2\"]}}'",
                "has not printed an ExecCredential",
            ),
            ("yes hunter2", "printed more than 1 MiB"),
            ("echo 'hunter2: {'", "has not printed an ExecCredential"),
            (&*printing(r#"{"clientCertificateData": "hunter2"}"#), "has not printed"),
            (&*printing(r#"{"token": ""}"#), "has not printed"),
            (&*printing(r#"{"token": "t", "expirationTimestamp": "hunter2"}"#), "has not printed"),
        ] {
            let error = resolved(script).unwrap_err();
            assert!(error.contains(expected), "{script}: {error}");
            assert!(!error.contains("hunter2"), "{script}: {error}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_or_wants_answers_is_named() {
        let with = |exec: serde_json::Value| {
            let exec = Some(serde_json::from_value(exec).unwrap());
            let mut user = AuthInfo { exec, ..AuthInfo::default() };
            let resolved = resolve(&mut user, Path::new("/nowhere"), &ProcessGroup::default());
            resolved.unwrap_err().to_string()
        };
        let missing = with(serde_json::json!({"command": "no-such-plugin"}));
        assert!(
            missing.starts_with("no-such-plugin, which prints credentials, is not"),
            "{missing}"
        );
        let relative = with(serde_json::json!({"command": "./plugin"}));
        assert!(relative.contains("is not installed"), "{relative}");
        let asking = with(serde_json::json!({"command": "sh", "interactiveMode": "Always"}));
        assert!(asking.contains("interactiveMode: Always"), "{asking}");
        assert!(with(serde_json::json!({})).contains("without a command"));
    }
}
