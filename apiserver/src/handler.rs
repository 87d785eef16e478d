//! From a request to a response.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName,
    RETRY_AFTER, USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use hyper::body::{Body as _, Bytes, Incoming};
use parking_lot::Mutex;
use serde_json::Value;

use crate::access::Access;
use crate::body::{Body, Writer};
use crate::connection::Peer;
use crate::faults::{Fault, Faults};
use crate::negotiation::{self, Encoding};
use crate::object::{self, Identity};
use crate::options::{Release, WatchList};
use crate::parameters::{Parameters, Version};
use crate::requests::{Authorization, Log, LoggedRequest};
use crate::resource::{Resource, Target, Verb};
use crate::selector::Selection;
use crate::status::Status;
use crate::store::Store;
use crate::tls::Authority;
use crate::usage::Meter;
use crate::watch::{Running, Watch};
use crate::{list, table, write};

/// The real server takes no larger bodies either (3 MiB).
const BODY_LIMIT: usize = 3 << 20;

/// Everything that a request meets.
pub(crate) struct Handler {
    pub(crate) store: Arc<Store>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) access: Access,
    pub(crate) authority: Authority,
    pub(crate) log: Log,
    pub(crate) meter: Arc<Meter>,
    pub(crate) watches: [Arc<AtomicUsize>; Resource::ALL.len()],
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) bookmark_period: Duration,
    pub(crate) has_protobuf: bool,
    pub(crate) has_content_type: bool,
    pub(crate) release: Mutex<Release>,
}

/// Answer to a request.
enum Answer {
    Json(StatusCode, Value),
    Text(StatusCode, &'static str),
    Watch(Box<Watch>),
}

/// A request, read.
struct Asked<'a> {
    method: &'a Method,
    target: Target,
    query: &'a str,
    verb: Verb,
    content_type: &'a str,
    accept: &'a str,
    encoding: Encoding,
}

impl Handler {
    pub(crate) async fn handle(
        self: &Arc<Self>,
        peer: Peer,
        request: http::Request<Incoming>,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        let query = head.uri.query().unwrap_or("");
        let target = Target::of(head.uri.path());
        let verb = verb(&head.method, &target, query);
        let authorization = match bearer(&head.headers) {
            Some(token) => Authorization::Token(token),
            None => peer.authorization.clone(),
        };
        let content_type = text(&head.headers, CONTENT_TYPE);
        let resource = target.resource();
        let takes_gzip = text(&head.headers, ACCEPT_ENCODING).contains("gzip");
        let accept = text(&head.headers, ACCEPT);
        let encoding = Encoding::negotiate(accept, resource, self.has_protobuf);
        let answer = match &encoding {
            _ if !self.access.admits(&authorization) => Err(Status::unauthorized()),
            Err(refusal) => Err(refusal.clone()),
            Ok(encoding) => {
                let (method, encoding) = (&head.method, *encoding);
                let asked = Asked { method, target, query, verb, content_type, accept, encoding };
                self.answer(&asked, body).await
            }
        };
        let (status, retry_after) = match &answer {
            Ok(Answer::Json(status, _) | Answer::Text(status, _)) => (*status, None),
            Ok(Answer::Watch(_)) => (StatusCode::OK, None),
            Err(refusal) => {
                let status = StatusCode::from_u16(refusal.code);
                (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), refusal.retry_after)
            }
        };
        let encoding = encoding.unwrap_or(Encoding::Json);
        self.log.push(LoggedRequest {
            path: head.uri.path().to_owned(),
            query: query.to_owned(),
            resource,
            verb,
            authorization,
            user_agent: text(&head.headers, USER_AGENT).to_owned(),
            takes_gzip,
            accept: accept.to_owned(),
            status: status.as_u16(),
            is_protobuf: encoding == Encoding::Protobuf,
        });
        let gzip = takes_gzip && verb == Verb::List;
        let (content_type, body) = self.body(&peer, (resource, verb), encoding, answer);
        let (body, is_gzipped) = if gzip { body.gzipped() } else { (body, false) };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if self.has_content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if is_gzipped {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// Returns the counter of a resource's running watches.
    pub(crate) fn running(&self, resource: Resource) -> Option<&Arc<AtomicUsize>> {
        let position = Resource::ALL.iter().position(|each| *each == resource)?;
        self.watches.get(position)
    }

    /// Returns the release that it answers as now.
    pub(crate) fn release(&self) -> Release {
        *self.release.lock()
    }

    async fn answer(&self, asked: &Asked<'_>, body: Incoming) -> Result<Answer, Status> {
        if let Some(answer) = self.fail(asked)? {
            return Ok(answer);
        }
        match (&asked.target, asked.verb) {
            (Target::Unknown, _) => Ok(Answer::Text(StatusCode::NOT_FOUND, "404 page not found\n")),
            (Target::Collection { resource: Resource::ServiceCidrs, .. }, _)
                if !self.release().serves_service_cidrs() =>
            {
                Ok(Answer::Text(StatusCode::NOT_FOUND, "404 page not found\n"))
            }
            (Target::Collection { resource, namespace }, Verb::List | Verb::Watch) => {
                let parameters = Parameters::parse(asked.query)?;
                let is_watch = asked.verb == Verb::Watch;
                if is_watch {
                    parameters.validate_watch(self.release().watch_list())?;
                } else {
                    parameters.validate_list()?;
                }
                let selectors = (&*parameters.label_selector, &*parameters.field_selector);
                let what = (self.release(), *resource);
                let selection = Selection::new(what, namespace.as_deref(), selectors)?;
                if is_watch {
                    self.watch(*resource, selection, parameters, asked.encoding).await
                } else {
                    self.list(*resource, &selection, &parameters, asked.accept).await
                }
            }
            (Target::Collection { resource, namespace }, Verb::Create) => {
                let body = collect(body).await?;
                let created = write::create(&self.store, *resource, namespace.as_deref(), &body)?;
                Ok(Answer::Json(StatusCode::CREATED, created))
            }
            (Target::Object { resource, namespace, name }, Verb::Get) => {
                if let Version::At(version) = Parameters::parse(asked.query)?.resource_version {
                    let late = |current| Status::too_large(version, current);
                    self.store.wait_for(version).await.map_err(late)?;
                }
                let key = object::key(namespace.as_deref(), name);
                let found = self.store.get(*resource, &key);
                let found = found.ok_or_else(|| Status::not_found(*resource, name))?;
                Ok(Answer::Json(StatusCode::OK, object::typed(*resource, &found)))
            }
            (Target::Object { resource, namespace, name }, Verb::Patch) => {
                let identity = Identity {
                    resource: *resource,
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                let body = collect(body).await?;
                let patched = write::patch(&self.store, &identity, asked.content_type, &body)?;
                Ok(Answer::Json(StatusCode::OK, patched))
            }
            (Target::Collection { .. } | Target::Object { .. }, _) => Err(Status::new(
                405,
                "MethodNotAllowed",
                format!("the server does not allow this method: {}", asked.method),
            )),
        }
    }

    /// The faults that strike a request as a whole.
    fn fail(&self, asked: &Asked<'_>) -> Result<Option<Answer>, Status> {
        let resource = asked.target.resource();
        let wanted = |fault: &Fault| match fault {
            Fault::Status { .. } | Fault::Forbidden | Fault::NotServed | Fault::NotJson => {
                Some(fault.clone())
            }
            Fault::ProtobufRefused { .. } if negotiation::accepts_protobuf(asked.accept) => {
                Some(fault.clone())
            }
            _ => None,
        };
        let Some((fault, _)) = self.faults.strike(resource, asked.verb, wanted) else {
            return Ok(None);
        };
        match fault {
            Fault::Status { code, retry_after } => {
                let mut status = Status::of_code(code);
                status.retry_after = retry_after;
                Err(status)
            }
            Fault::ProtobufRefused { code } => {
                let code = StatusCode::from_u16(code).unwrap_or(StatusCode::NOT_ACCEPTABLE);
                Ok(Some(Answer::Text(code, "binary bodies are not allowed\n")))
            }
            Fault::Forbidden => Err(match &asked.target {
                Target::Collection { resource, namespace }
                | Target::Object { resource, namespace, .. } => {
                    Status::forbidden(asked.verb, *resource, namespace.as_deref())
                }
                Target::Unknown => Status::of_code(403),
            }),
            Fault::NotServed => {
                Ok(Some(Answer::Text(StatusCode::NOT_FOUND, "404 page not found\n")))
            }
            _ => Ok(Some(Answer::Text(StatusCode::OK, "<html><body>Welcome!</body></html>\n"))),
        }
    }

    async fn list(
        &self,
        resource: Resource,
        selection: &Selection,
        parameters: &Parameters,
        accept: &str,
    ) -> Result<Answer, Status> {
        let strikes = |fault| self.faults.strikes(Some(resource), Verb::List, fault);
        let expired = || strikes(&Fault::Expired);
        let mut page = list::list(&self.store, resource, parameters, selection, expired).await?;
        let first = page.items.first_mut().filter(|_| strikes(&Fault::WrongSchema));
        if let Some(first) = first {
            object::damage(resource, Arc::make_mut(first));
        }
        let answer = if table::is_wanted(resource, accept) {
            table::table(&page, parameters.include)
        } else {
            page.into_list(resource)
        };
        Ok(Answer::Json(StatusCode::OK, answer))
    }

    async fn watch(
        &self,
        resource: Resource,
        selection: Selection,
        mut parameters: Parameters,
        encoding: Encoding,
    ) -> Result<Answer, Status> {
        if self.release().watch_list() == WatchList::Unknown {
            parameters.send_initial_events = None;
        }
        let what = (resource, selection, encoding);
        let watch =
            Watch::accept(&self.store, &self.faults, what, &parameters, self.bookmark_period)
                .await?;
        Ok(Answer::Watch(Box::new(watch)))
    }

    /// The content type and the body of an answer.
    fn body(
        self: &Arc<Self>,
        peer: &Peer,
        (resource, verb): (Option<Resource>, Verb),
        encoding: Encoding,
        answer: Result<Answer, Status>,
    ) -> (&'static str, Body) {
        let faults = || Arc::clone(&self.faults);
        let stream = || Writer::new(faults(), resource, verb, Arc::clone(&peer.reset));
        let value = match answer {
            Ok(Answer::Watch(watch)) => {
                let (writer, body) = stream();
                if let Some(count) = resource.and_then(|resource| self.running(resource)) {
                    tokio::spawn(watch.run(writer, Running::new(count)));
                }
                return (encoding.content_type(true), body);
            }
            Ok(Answer::Text(_, text)) => {
                let content_type = "text/plain; charset=utf-8";
                return (content_type, Body::Whole(Some(Bytes::from_static(text.as_bytes()))));
            }
            Ok(Answer::Json(_, value)) => value,
            Err(refusal) => refusal.to_value(),
        };
        let (content_type, bytes) = encoding.object(&value);
        let (mut writer, body) = stream();
        let body = if writer.is_struck() {
            tokio::spawn(async move { writer.write(bytes).await });
            body
        } else {
            Body::Whole(Some(bytes))
        };
        (content_type, body)
    }
}

fn verb(method: &Method, target: &Target, query: &str) -> Verb {
    match (method, target) {
        (&Method::GET, Target::Collection { .. }) => match Parameters::parse(query) {
            Ok(parameters) if parameters.watch => Verb::Watch,
            _ => Verb::List,
        },
        (&Method::GET, _) => Verb::Get,
        (&Method::POST, _) => Verb::Create,
        (&Method::PATCH, _) => Verb::Patch,
        _ => Verb::Other,
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = text(headers, AUTHORIZATION);
    value.strip_prefix("Bearer ").map(str::to_owned)
}

/// The body of a request, within the limit of the real server and of some patience.
async fn collect(mut body: Incoming) -> Result<Vec<u8>, Status> {
    let read = async {
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| Status::bad_request(format!("body: {error}")))?;
            if let Ok(data) = frame.into_data() {
                bytes.extend_from_slice(&data);
            }
            if bytes.len() > BODY_LIMIT {
                let message = "Request entity too large: limit is 3145728";
                return Err(Status::new(413, "RequestEntityTooLarge", message));
            }
        }
        Ok(bytes)
    };
    let late = |_| Status::bad_request("the body did not come within a minute");
    tokio::time::timeout(Duration::from_secs(60), read).await.map_err(late)?
}
