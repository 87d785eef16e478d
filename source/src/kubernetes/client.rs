//! Clients of the API server: its address and our credentials, by kube-proxy's rules.

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use futures::FutureExt as _;
use http::header::USER_AGENT;
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Intercept;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::config::{
    Cluster, Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError,
};
use tokio::task::{JoinSet, spawn_blocking};
use tower::BoxError;
use tracing::warn;

use super::error_text::chain;
use super::exec_plugin::{self, ExecPluginError, KillOnDrop, ProcessGroup};
use super::{proxy, transport};

/// Way to the API server. Neither a kubeconfig nor a master: as a pod in its cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientOptions {
    /// A kubeconfig file, whose current context counts.
    pub kubeconfig: Option<PathBuf>,
    /// The API server's URL, whatever the kubeconfig says.
    pub master: Option<String>,
    /// Requests per second, on average. 0: 5 of them. Less than 0: no limit.
    pub qps: f32,
    /// Requests that may be made at once after a time without. 0 or less: 10 of them.
    pub burst: i32,
    /// Value of the header `User-Agent`.
    pub user_agent: String,
    /// True if lists and watches ask for JSON alone. Otherwise for Protobuf, and for JSON from a server without it.
    pub only_json: bool,
}

/// Reason for which there is no client.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ClientError(#[from] ClientProblem);

#[derive(Debug, thiserror::Error)]
pub(super) enum ClientProblem {
    #[error(
        "cannot connect to the API server with a pod's service account: {}; outside of a pod, set \
         a kubeconfig (--kubeconfig, clientConnection.kubeconfig)",
        chain(.0)
    )]
    InCluster(InClusterError),
    #[error(
        "cannot use the kubeconfig {}: {}; it needs a current-context with a cluster and a user, \
         and every file that it names", path.display(), chain(error)
    )]
    Kubeconfig { path: PathBuf, error: KubeconfigError },
    #[error("cannot read the token file {}: {error}; the kubeconfig or the pod names it", path.display())]
    TokenFile { path: PathBuf, error: io::Error },
    #[error("{0:?} is not an API server's URL, as in https://10.0.0.1:6443 (--master)")]
    Master(String),
    #[error(
        "the kubeconfig {} has an invalid proxy-url; write it like http://proxy:3128, or with \
         https://, socks5:// or socks5h://", .0.display()
    )]
    Proxy(PathBuf),
    #[error("{0:?} cannot be a User-Agent")]
    UserAgent(String),
    #[error(
        "cannot use the credentials for the API server at {server}: {}; a client's key is RSA, ECDSA \
         with P-256 or P-384, or Ed25519", chain(error.as_ref())
    )]
    Credentials { server: String, error: BoxError },
}

/// Time before its end at which what a program has printed is replaced: it may take half a minute, and
/// requests are under way.
const EARLY: SignedDuration = SignedDuration::from_secs(45);

/// Takes the place of a cluster's proxy while kube reads it. It never asks it for anything.
const UNUSED_PROXY: &str = "http://unused.invalid";

/// Origin of a client's credentials, beside a token in a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CredentialsOrigin {
    /// Files of the certificate authority, and of the client's certificate and key, with what they
    /// held just before the client was made. None: the file could not be read.
    files: Vec<(PathBuf, Option<Vec<u8>>)>,
    /// Time at which what a program has printed expires; none inside: it does not. None: there is no program.
    printed: Option<Option<Timestamp>>,
}

/// A client, and what else is known once it is made.
pub(super) struct Made {
    pub(super) client: Client,
    pub(super) origin: CredentialsOrigin,
    pub(super) server: Uri,
    pub(super) proxy: Option<Uri>,
}

/// Reads the files that a client would be made of. No program is asked, and no server.
pub fn check(options: &ClientOptions) -> Result<(), ClientError> {
    // Reading files waits for nothing.
    let Some(found) = find(options).now_or_never() else { return Ok(()) };
    token_file(&mut found?.config)?;
    Ok(())
}

/// Reads files, and asks programs, for a client.
pub(super) async fn make(options: &ClientOptions) -> Result<Made, ClientProblem> {
    let ServerAccess { mut config, proxy, authority } = find(options).await?;
    let user_agent = HeaderValue::from_str(&options.user_agent);
    let user_agent =
        user_agent.map_err(|_| ClientProblem::UserAgent(options.user_agent.clone()))?;
    config.headers.push((USER_AGENT, user_agent));
    // Following is tried again for ever, with its own pauses, and says so.
    config.default_retry = false;
    let token_file = token_file(&mut config)?;
    let server = config.cluster_url.clone();
    let is_program = config.auth_info.exec.is_some();
    let (config, expires) = with_credentials(config, options).await?;
    let user = &config.auth_info;
    let files = [&user.client_certificate, &user.client_key].into_iter().flatten();
    let files = files.map(PathBuf::from).chain(authority);
    let origin = CredentialsOrigin::new(files, is_program.then_some(expires));
    let client = transport::client(config, proxy.as_ref(), token_file)
        .map_err(|error| ClientProblem::Credentials { server: host_and_port(&server), error })?;
    Ok(Made { client, origin, server, proxy: proxy.map(|proxy| proxy.uri().clone()) })
}

/// Has a program print credentials, if the user has one. Returns the time at which they expire, if they do. The
/// program is killed when this is dropped.
async fn with_credentials(
    mut config: Config,
    options: &ClientOptions,
) -> Result<(Config, Option<Timestamp>), ClientProblem> {
    if config.auth_info.exec.is_none() {
        return Ok((config, None));
    }
    let server = host_and_port(&config.cluster_url);
    let problem = |error: BoxError| ClientProblem::Credentials { server, error };
    let folder = options.kubeconfig.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
    let folder = folder.to_owned();
    let group = ProcessGroup::default();
    let waiting = KillOnDrop(group.clone());
    // Dropped with this, and when the runtime ends: what waits for it on another thread is not.
    let mut task = JoinSet::new();
    task.spawn(async move {
        let _waiting = waiting;
        let resolved = spawn_blocking(move || {
            let expires = exec_plugin::resolve(&mut config.auth_info, &folder, &group)?;
            Ok((config, expires))
        });
        resolved.await
    });
    match task.join_next().await {
        Some(Ok(Ok(resolved))) => resolved.map_err(|error: ExecPluginError| problem(error.into())),
        Some(Ok(Err(error)) | Err(error)) => Err(problem(error.into())),
        None => Err(problem("the task that gets the credentials has ended; this is a bug".into())),
    }
}

/// Address and credentials of the API server, and the proxy on the way.
struct ServerAccess {
    config: Config,
    proxy: Option<Intercept>,
    /// File of the certificate authority, unless kube reads it again itself.
    authority: Option<PathBuf>,
}

async fn find(options: &ClientOptions) -> Result<ServerAccess, ClientProblem> {
    let path = options.kubeconfig.as_deref().filter(|path| !path.as_os_str().is_empty());
    let master = options.master.as_deref().filter(|master| !master.is_empty());
    let config = match (path, master) {
        (None, None) => Config::incluster().map_err(ClientProblem::InCluster)?,
        // No credentials: this is for a port that needs none, like that of `kubectl proxy`.
        (None, Some(master)) => Config::new(url(master, &Scheme::HTTP)?),
        (Some(path), master) => return from_kubeconfig(path, master).await,
    };
    let proxy = from_environment(&config);
    Ok(ServerAccess { config, proxy, authority: None })
}

async fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<ServerAccess, ClientProblem> {
    let problem = |error| ClientProblem::Kubeconfig { path: path.to_owned(), error };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(problem)?;
    if let Some(master) = master {
        // A cluster without a server is an error, unless `--master` has the server.
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(url(master, &Scheme::HTTPS)?.to_string());
        }
    }
    // kube does not tell a proxy of the file from one of the environment.
    let cluster = current_cluster(&kubeconfig);
    let proxy_url = cluster.and_then(|it| it.proxy_url.clone()).filter(|text| !text.is_empty());
    let authority = cluster.filter(|it| it.certificate_authority_data.is_none());
    let authority = authority.and_then(|it| it.certificate_authority.clone()).map(PathBuf::from);
    let config = match read(&kubeconfig).await {
        // Of the environment: warned of below, and unused if the file has a proxy.
        Err(KubeconfigError::ParseProxyUrl(_)) => {
            let clusters = kubeconfig.clusters.iter_mut();
            for cluster in clusters.filter_map(|named| named.cluster.as_mut()) {
                cluster.proxy_url = Some(UNUSED_PROXY.to_owned());
            }
            read(&kubeconfig).await
        }
        config => config,
    };
    let config = config.map_err(problem)?;
    let proxy = match proxy_url {
        None => from_environment(&config),
        Some(text) => {
            let proxy = proxy::named(&text, &config.cluster_url);
            Some(proxy.ok_or_else(|| ClientProblem::Proxy(path.to_owned()))?)
        }
    };
    Ok(ServerAccess { config, proxy, authority })
}

async fn read(kubeconfig: &Kubeconfig) -> Result<Config, KubeconfigError> {
    Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default()).await
}

/// Without what a URL may have of credentials.
pub(super) fn host_and_port(server: &Uri) -> String {
    let port = server.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", server.host().unwrap_or_default())
}

/// The current context's cluster.
fn current_cluster(kubeconfig: &Kubeconfig) -> Option<&Cluster> {
    let name = kubeconfig.current_context.as_deref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == name)?;
    let name = context.context.as_ref()?.cluster.as_str();
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == name)?;
    cluster.cluster.as_ref()
}

fn from_environment(config: &Config) -> Option<Intercept> {
    let variable = |name: &str| std::env::var(name).ok();
    proxy::from_environment(&config.cluster_url, variable).unwrap_or_else(|name| {
        warn!(
            "environment variable {name} is not the URL of a proxy; connections to the API server \
             use none"
        );
        None
    })
}

/// A URL that may leave out its scheme.
fn url(text: &str, scheme: &Scheme) -> Result<Uri, ClientProblem> {
    let full = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let problem = || ClientProblem::Master(text.to_owned());
    let url: Uri = full.parse().map_err(|_| problem())?;
    let is_web = url.scheme() == Some(&Scheme::HTTP) || url.scheme() == Some(&Scheme::HTTPS);
    if is_web && url.host().is_some_and(|host| !host.is_empty()) { Ok(url) } else { Err(problem()) }
}

/// Takes the token file out of the configuration, so that it is ours to read. A token beside it is
/// what is used if it cannot be read.
fn token_file(config: &mut Config) -> Result<Option<transport::TokenFile>, ClientProblem> {
    let Some(path) = config.auth_info.token_file.take() else { return Ok(None) };
    let path = PathBuf::from(path);
    config.auth_info.token = None;
    match transport::TokenFile::open(path.clone()) {
        Ok(file) => Ok(Some(file)),
        Err(error) => Err(ClientProblem::TokenFile { path, error }),
    }
}

impl CredentialsOrigin {
    /// Reads the files. To be called before a client is made of them: what is replaced in between
    /// is then seen as a change.
    pub(super) fn new(
        files: impl Iterator<Item = PathBuf>,
        printed: Option<Option<Timestamp>>,
    ) -> Self {
        let read = |file: PathBuf| {
            let content = std::fs::read(&file).ok();
            (file, content)
        };
        Self { files: files.map(read).collect(), printed }
    }

    /// True if a program has printed them.
    pub(super) fn is_printed(&self) -> bool {
        self.printed.is_some()
    }

    /// True if what a program has printed expires soon, or has expired.
    pub(super) fn is_expiring(&self, now: Timestamp) -> bool {
        let expires = self.printed.flatten();
        expires.is_some_and(|expires| expires.duration_since(now) < EARLY)
    }

    pub(super) fn has_changed(&self) -> bool {
        self.files.iter().any(|(file, content)| std::fs::read(file).ok() != *content)
    }
}
