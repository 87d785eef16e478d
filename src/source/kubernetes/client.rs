//! Who the API server is, and who we are: by kube-proxy's rules.

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use http::header::USER_AGENT;
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use kube::config::{Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Error as KubeError};
use tracing::info;

use super::failure::chain;
use super::transport;

/// How to reach the API server. Neither a kubeconfig nor a master: as a pod in its cluster.
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
    /// What is sent as `User-Agent`.
    pub user_agent: String,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ClientError(#[from] Problem);

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(
        "no way to the API server as a pod of its cluster: {}; \
         outside of a pod, name a kubeconfig (--kubeconfig, clientConnection.kubeconfig)",
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
    #[error("{0:?} cannot be a User-Agent")]
    UserAgent(String),
    #[error("cannot use the credentials for the API server at {server}: {}", chain(error.as_ref()))]
    Credentials { server: Uri, error: Box<KubeError> },
}

/// A client for the API server. It does not connect before it is used.
///
/// A token file is read again for every request, so a token may be replaced at any time; the
/// certificate authority of a pod's account is read again every minute; a token that a program
/// printed is asked for again before it expires. A client certificate is read once.
///
/// # Errors
/// When the files that say who the API server is and who we are cannot be used.
pub async fn client(options: &ClientOptions) -> Result<Client, ClientError> {
    let mut config = config(options).await?;
    let user_agent = HeaderValue::from_str(&options.user_agent);
    let user_agent = user_agent.map_err(|_| Problem::UserAgent(options.user_agent.clone()))?;
    config.headers.push((USER_AGENT, user_agent));
    // Following is tried again for ever, with its own pauses, and says so.
    config.default_retry = false;
    let token_file = token_file(&mut config)?;
    let rate = transport::Rate::new(options.qps, options.burst);
    let server = config.cluster_url.clone();
    // Failures to connect do not say where to.
    let port = server.port().map(|port| format!(":{port}")).unwrap_or_default();
    info!("the API server is {}{port}", server.host().unwrap_or_default());
    let client = transport::client(config, token_file, rate);
    Ok(client.map_err(|error| Problem::Credentials { server, error: Box::new(error) })?)
}

async fn config(options: &ClientOptions) -> Result<Config, Problem> {
    let path = options.kubeconfig.as_deref().filter(|path| !path.as_os_str().is_empty());
    let master = options.master.as_deref().filter(|master| !master.is_empty());
    match (path, master) {
        (None, None) => Config::incluster().map_err(Problem::InCluster),
        // Nobody says who we are: this is for a port that asks nobody, as of `kubectl proxy`.
        (None, Some(master)) => Ok(Config::new(url(master, &Scheme::HTTP)?)),
        (Some(path), master) => from_kubeconfig(path, master).await,
    }
}

async fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<Config, Problem> {
    let problem = |error| Problem::Kubeconfig { path: path.to_owned(), error };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(problem)?;
    if let Some(master) = master {
        // A cluster without a server is an error, unless the server is said elsewhere.
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(url(master, &Scheme::HTTPS)?.to_string());
        }
    }
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(problem)
}

/// A URL that may leave out its scheme.
fn url(text: &str, scheme: &Scheme) -> Result<Uri, Problem> {
    let full = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let problem = || Problem::Master(text.to_owned());
    let url: Uri = full.parse().map_err(|_| problem())?;
    let is_web = url.scheme() == Some(&Scheme::HTTP) || url.scheme() == Some(&Scheme::HTTPS);
    if is_web && url.host().is_some_and(|host| !host.is_empty()) { Ok(url) } else { Err(problem()) }
}

/// Takes the token file out of the configuration, so that it is ours to read. A token beside it is
/// what is used if it cannot be read.
fn token_file(config: &mut Config) -> Result<Option<transport::TokenFile>, Problem> {
    let Some(path) = config.auth_info.token_file.take() else { return Ok(None) };
    let path = PathBuf::from(path);
    config.auth_info.token = None;
    match transport::TokenFile::open(path.clone()) {
        Ok(file) => Ok(Some(file)),
        Err(error) => Err(Problem::TokenFile { path, error }),
    }
}
