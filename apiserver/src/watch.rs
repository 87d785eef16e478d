//! Watches ("Efficient detection of changes", "Watch bookmarks", "Streaming lists").

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::body::{Gone, Writer};
use crate::faults::{Fault, Faults};
use crate::negotiation::Encoding;
use crate::object;
use crate::parameters::{Parameters, Version};
use crate::resource::{Resource, Verb};
use crate::selector::Selection;
use crate::status::Status;
use crate::store::{Change, Store};

/// Time that a watch lasts if its request gives no `timeoutSeconds`.
const TIMEOUT: Duration = Duration::from_secs(1_800);

/// A watch that has been accepted.
pub(crate) struct Watch {
    store: Arc<Store>,
    faults: Arc<Faults>,
    resource: Resource,
    selection: Selection,
    encoding: Encoding,
    start: Start,
    bookmark_period: Option<Duration>,
    timeout: Duration,
}

/// Counts the watches that run, one by one.
pub(crate) struct Running(Arc<AtomicUsize>);

/// Events that a watch begins with.
enum Start {
    /// Every object there is, as ADDED; a streaming list then says that these were all.
    State { streaming: bool },
    /// The changes after this version.
    After(u64),
    /// Nothing but an ERROR event.
    Expired(Status),
}

impl Watch {
    /// Decides how a watch starts, by the table of "Resource versions" for watch.
    pub(crate) async fn accept(
        store: &Arc<Store>,
        faults: &Arc<Faults>,
        (resource, selection, encoding): (Resource, Selection, Encoding),
        parameters: &Parameters,
        bookmark_period: Duration,
    ) -> Result<Self, Status> {
        let start = match (parameters.resource_version, parameters.send_initial_events) {
            (Version::At(version), Some(true)) => {
                let late = |current| Status::too_large(version, current);
                store.wait_for(version).await.map_err(late)?;
                Start::State { streaming: true }
            }
            (Version::At(version), _) => match store.check(version) {
                Err(expired) => Start::Expired(Status::watch_expired(version, expired.oldest)),
                Ok(()) if faults.strikes(Some(resource), Verb::Watch, &Fault::Expired) => {
                    Start::Expired(Status::watch_expired(version, store.version()))
                }
                Ok(()) => Start::After(version),
            },
            (_, Some(true)) => Start::State { streaming: true },
            // Without initial events the watch starts at the present.
            (_, Some(false)) => Start::After(store.version()),
            (_, None) => Start::State { streaming: false },
        };
        Ok(Self {
            store: Arc::clone(store),
            faults: Arc::clone(faults),
            resource,
            selection,
            encoding,
            start,
            bookmark_period: parameters.allow_watch_bookmarks.then_some(bookmark_period),
            timeout: parameters.timeout.unwrap_or(TIMEOUT),
        })
    }

    /// Writes events until the watch ends, which ends the response.
    pub(crate) async fn run(self, mut writer: Writer, _running: Running) {
        let deadline = Instant::now() + self.timeout;
        let over = async {
            match self.begin(&mut writer).await? {
                Some(version) => self.follow(&mut writer, version, deadline).await,
                None => Ok(()),
            }
        };
        if let Err(Gone) = over.await {
            tracing::debug!(resource = %self.resource, "the client of a watch has gone");
        }
    }

    /// Writes what comes before the changes; returns the version to go on from.
    async fn begin(&self, writer: &mut Writer) -> Result<Option<u64>, Gone> {
        let streaming = match &self.start {
            Start::After(version) => return Ok(Some(*version)),
            Start::Expired(status) => {
                writer.write(self.encoding.event("ERROR", &status.to_value())).await?;
                return Ok(None);
            }
            Start::State { streaming } => *streaming,
        };
        self.be_silent(writer).await?;
        let Ok(snapshot) = self.store.snapshot(self.resource, None) else { return Ok(None) };
        for object in snapshot.objects.values().filter(|object| self.selection.matches(object)) {
            self.write(writer, "ADDED", object::typed(self.resource, object)).await?;
        }
        if streaming && self.bookmark_period.is_some() {
            let bookmark = object::bookmark(self.resource, snapshot.version, true);
            writer.write(self.encoding.event("BOOKMARK", &bookmark)).await?;
        }
        Ok(Some(snapshot.version))
    }

    async fn follow(
        &self,
        writer: &mut Writer,
        mut version: u64,
        deadline: Instant,
    ) -> Result<(), Gone> {
        let mut changed = self.store.subscribe();
        let mut faults = self.faults.subscribe();
        let far = deadline + Duration::from_secs(1);
        let next = |now: Instant| self.bookmark_period.map_or(far, |period| now + period);
        let mut bookmark = next(Instant::now());
        loop {
            changed.borrow_and_update();
            faults.borrow_and_update();
            self.be_silent(writer).await?;
            if self.strikes(&Fault::End) {
                return Ok(());
            }
            match self.catch_up(writer, version).await? {
                Some(reached) => version = reached,
                None => return Ok(()),
            }
            if bookmark <= Instant::now() {
                let object = object::bookmark(self.resource, version, false);
                writer.write(self.encoding.event("BOOKMARK", &object)).await?;
                bookmark = next(Instant::now());
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = faults.changed() => {}
                () = tokio::time::sleep_until(bookmark.min(far)) => {}
                () = tokio::time::sleep_until(deadline) => return Ok(()),
                () = writer.gone() => return Err(Gone),
            }
        }
    }

    /// Writes the changes after a version; returns the version that they lead to, or nothing when
    /// they are no longer known and the watch is over.
    async fn catch_up(&self, writer: &mut Writer, version: u64) -> Result<Option<u64>, Gone> {
        let (reached, changes) = match self.store.changes(self.resource, version) {
            Ok(changes) => changes,
            Err(expired) => {
                let status = Status::watch_expired(version, expired.oldest);
                writer.write(self.encoding.event("ERROR", &status.to_value())).await?;
                return Ok(None);
            }
        };
        for change in changes {
            if let Some((kind, object)) = self.seen(&change) {
                self.write(writer, kind, object::typed(self.resource, &object)).await?;
            }
        }
        Ok(Some(reached))
    }

    /// Returns the event that a change is for this watch, if it is one: an object that stops
    /// matching the selectors is deleted for it, and one that begins to match is added. A deleted
    /// object is told in its last state with the version of its deletion.
    fn seen(&self, change: &Change) -> Option<(&'static str, Value)> {
        let matches = |object: &&object::Object| self.selection.matches(object);
        let before = change.before.as_ref().filter(matches);
        let after = change.after.as_ref().filter(matches);
        match (before, after) {
            (None, None) => None,
            (None, Some(after)) => Some(("ADDED", Value::clone(after))),
            (Some(_), Some(after)) => Some(("MODIFIED", Value::clone(after))),
            (Some(before), None) => Some(("DELETED", object::at_version(before, change.version))),
        }
    }

    async fn write(&self, writer: &mut Writer, kind: &str, mut object: Value) -> Result<(), Gone> {
        if self.strikes(&Fault::WrongSchema) {
            object::damage(self.resource, &mut object);
        }
        let event = self.encoding.event(kind, &object);
        if self.strikes(&Fault::Duplicate) {
            writer.write(event.clone()).await?;
        }
        writer.write(event).await
    }

    /// Waits as long as the watch is to be silent.
    async fn be_silent(&self, writer: &Writer) -> Result<(), Gone> {
        let wanted = |fault: &Fault| (*fault == Fault::Silence).then_some(());
        let struck = self.faults.strike(Some(self.resource), Verb::Watch, wanted);
        let Some(((), silence)) = struck else { return Ok(()) };
        let mut faults = self.faults.subscribe();
        loop {
            faults.borrow_and_update();
            if silence.is_lifted() {
                return Ok(());
            }
            tokio::select! {
                _ = faults.changed() => {}
                () = writer.gone() => return Err(Gone),
            }
        }
    }

    fn strikes(&self, fault: &Fault) -> bool {
        self.faults.strikes(Some(self.resource), Verb::Watch, fault)
    }
}

impl Running {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
