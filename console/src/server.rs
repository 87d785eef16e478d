//! The console's socket: who may ask, and how much at once.
//!
//! A Unix socket is reached by who may open its file, and the kernel says who that is: root, or the
//! user that the program runs as. Connections are limited as those of the other servers are
//! (`serve::listen`): the oldest makes room, and one that takes its time ends.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::{Desk, answers};
use serve::listen;

/// Most connections at a time.
const CONNECTIONS: usize = 16;

/// Pause before another attempt to listen.
const RETRY: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// A listener whose file goes with it.
#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
}

/// Answers at the socket until it is dropped. As long as it cannot listen, it says so and tries again:
/// Services do not depend on it.
pub async fn serve(path: &Path, desk: Arc<Desk>) -> Infallible {
    let router = answers::router(desk);
    let mut said = None;
    let socket = loop {
        match Socket::bind(path) {
            Ok(socket) => break socket,
            Err(error) => {
                let error = error.to_string();
                if said.as_ref() != Some(&error) {
                    warn!(
                        "the console cannot listen on {}: {error}; `kube-ipvs status` and other \
                         commands do not work until it can; retried every {} s",
                        path.display(),
                        RETRY.as_secs()
                    );
                    said = Some(error);
                }
                sleep(RETRY).await;
            }
        }
    };
    info!("console: listening on {}", path.display());
    socket.serve(router).await
}

impl Socket {
    /// Listens. The file of a program that has ended is replaced, and that of a living one is not.
    fn bind(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        remove_stale(path)?;
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Self { listener, path: path.to_owned(), identity: identity(path)? })
    }

    async fn serve(self, router: Router) -> Infallible {
        let mut connections = JoinSet::new();
        // In the order in which they came.
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) if may_ask(&stream) => {
                        open.retain(|connection| !connection.is_finished());
                        if open.len() >= CONNECTIONS && let Some(oldest) = open.pop_front() {
                            oldest.abort();
                        }
                        open.push_back(connections.spawn(listen::converse(stream, router.clone())));
                    }
                    Ok((stream, _)) => {
                        let user = stream.peer_cred().map(|peer| peer.uid());
                        debug!("console: rejected user {user:?}: only root and the user of \
                                kube-ipvs may connect");
                    }
                    Err(error) => {
                        warn!("console: cannot accept a connection: {error}; retried in {ACCEPT_PAUSE:?}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another program may listen at the same place by now.
        if identity(&self.path).is_ok_and(|it| it == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn may_ask(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file with this name exists and is not a socket; remove it, or choose another path \
             (consoleSocket)",
        ));
    }
    // It would wait for a listener that does not accept.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&stream, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, listens_already(&stream)))
        }
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(error) => Err(error.into()),
    }
}

fn listens_already(stream: &OwnedFd) -> String {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    let who = peer.map_or_else(
        |_| "another program".to_owned(),
        |peer| format!("process {}", peer.pid.as_raw_nonzero()),
    );
    format!("{who} listens there; stop it, or choose another path (consoleSocket)")
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn the_socket_is_for_its_owner_and_goes_with_the_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/console.sock");
        let socket = Socket::bind(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_file_of_a_dead_program_is_replaced_and_that_of_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let said = Socket::bind(&path).unwrap_err().to_string();
        assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
        drop(listener);
        assert!(path.exists());
        let socket = Socket::bind(&path).unwrap();
        // A later program has the place.
        fs::remove_file(&path).unwrap();
        let later = Socket::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
        drop(later);
    }

    /// One whose backlog is full.
    #[tokio::test]
    async fn a_listener_that_does_not_accept_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.sock");
        let listening =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let listening = listening.unwrap();
        rustix::net::bind(&listening, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listening, 0).unwrap();
        let _waits = std::os::unix::net::UnixStream::connect(&path).unwrap();
        for _ in 0..2 {
            let said = Socket::bind(&path).unwrap_err().to_string();
            assert!(said.contains("listens there"), "{said}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.sock");
        fs::write(&path, "kept").unwrap();
        let said = Socket::bind(&path).unwrap_err().to_string();
        assert!(said.contains("not a socket"), "{said}");
        assert_eq!(fs::read(&path).unwrap(), b"kept");
    }

    /// Sends a request, and returns the answer's first line.
    async fn ask(stream: &mut UnixStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: console\r\n\r\n").await.unwrap();
        let mut line = [0; 15];
        stream.read_exact(&mut line).await.unwrap();
        String::from_utf8_lossy(&line).into_owned()
    }

    #[tokio::test]
    async fn of_more_than_16_connections_the_oldest_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.sock");
        let socket = Socket::bind(&path).unwrap();
        let server = tokio::spawn(socket.serve(Router::new().route("/", get(|| async { "yes" }))));
        let mut open = Vec::new();
        for _ in 0..=CONNECTIONS {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            assert_eq!(ask(&mut stream).await, "HTTP/1.1 200 OK");
            open.push(stream);
        }
        let mut oldest = open.remove(0);
        let mut rest = Vec::new();
        // It ends: with the answer that it had, and no more.
        let _ = oldest.read_to_end(&mut rest).await;
        for stream in &mut open {
            let mut rest = vec![0; 4_096];
            let length = stream.read(&mut rest).await.unwrap();
            assert!(length > 0, "the others live");
        }
        server.abort();
    }
}
