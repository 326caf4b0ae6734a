//! What every door has: the state of the HTTP listener, and the checks of a request before a door reads it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, ORIGIN, TRANSFER_ENCODING};
use axum::http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tracing::Level;

use super::public_url::PublicUrl;
use crate::budget::{BudgetExhausted, Charge, ClientBudget};
use crate::bus::headers::PassedHeaders;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::{CallError, Calls};
use crate::config::McpConfig;
use crate::http::body::{self, BodyError};
use crate::http::respond::refusal;
use crate::http::{Hosts, Peer, hosts, negotiate};
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{HttpPath, Metrics};
use crate::readiness::Readiness;
use crate::registry::Registry;
use crate::results::Results;
use crate::state::StateError;

/// The state of the HTTP listener.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    /// Makes the calls.
    pub calls: Arc<Calls>,
    /// Counts the requests.
    pub metrics: Arc<Metrics>,
    /// Whether the bridge is draining; then it refuses new calls.
    pub readiness: Arc<Readiness>,
    /// The origins of web pages that may send requests.
    pub allowed_origins: Vec<HeaderValue>,
    /// The names that clients may send in `Host`.
    pub hosts: Hosts,
    /// The agents.
    pub(crate) registry: Arc<Registry>,
    /// The request headers that are passed to the agent.
    pub passed: PassedHeaders,
    /// The URL for clients.
    pub public_url: PublicUrl,
    /// How long the whole body may take to arrive.
    pub body_timeout: Duration,
    /// The answers to requests with an idempotency key.
    pub(crate) results: Arc<Results>,
    /// The log lines about requests that fail because of the state.
    pub(crate) state_lines: StateLines,
}

/// The settings of the HTTP listener that other parts of the bridge do not need.
#[derive(Debug)]
pub(crate) struct DoorSettings {
    /// The request headers that are passed to the agent.
    pub passed: PassedHeaders,
    /// The URL for clients.
    pub public_url: PublicUrl,
    /// Those of the MCP interface.
    pub mcp: McpConfig,
}

/// The limits of the log lines about requests that fail because of the state.
#[derive(Debug, Clone)]
pub(crate) struct StateLines {
    /// A log did not store a record.
    pub(crate) unstored: LogLimit,
    /// A log was not read.
    unread: LogLimit,
    /// The memory is full.
    pub(crate) full: LogLimit,
}

/// The header that makes the bridge execute a request only once.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A request that is refused at the HTTP level.
pub(super) type Refusal = (StatusCode, Failure);

/// The future response to a request. Boxed, because the futures that await it are moved before they are polled.
pub(super) type Answering = BoxFuture<'static, Result<Response, Refusal>>;

// === impl StateLines ===

impl StateLines {
    pub(crate) fn new(log: &LogLimits) -> Self {
        Self {
            unstored: log.limit(
                Level::ERROR,
                "more requests could not store a record of the state",
            ),
            unread: log.limit(
                Level::WARN,
                "more requests could not read a log of the state",
            ),
            full: log.limit(
                Level::WARN,
                "more requests were refused because the memory of a state is full",
            ),
        }
    }
}

// === impl Door ===

impl Door {
    /// Largest request body, in bytes.
    pub(crate) fn largest_body(&self) -> usize {
        self.calls.rules().limits.max_bytes
    }

    /// The sender's share of the memory for requests.
    pub(crate) fn client_budget(&self, extensions: &Extensions) -> ClientBudget {
        let budget = self.calls.budget();
        match extensions.get::<Peer>() {
            Some(peer) => peer.budget_in(budget).clone(),
            None => budget.for_client(None),
        }
    }

    /// A new call id for a request. Other replicas follow the answer if a client can request it from them.
    pub(super) fn new_call(
        &self,
        path: HttpPath,
        headers: &HeaderMap,
    ) -> Result<CallId, getrandom::Error> {
        let mut call = self.calls.channels().new_call()?;
        let is_kept = path.has_tasks() || headers.contains_key(IDEMPOTENCY_KEY);
        if is_kept && self.results.is_shared() {
            call = call.followed();
        }
        if path.has_tasks() {
            call = call.following_task();
        }
        Ok(call)
    }

    /// Checks the host of a request. Returns the charge for its head, which is held while the request is in progress.
    pub(super) fn check_in(&self, request: &Request<Body>) -> Result<Charge, Refusal> {
        self.check_in_with(request, &self.client_budget(request.extensions()))
    }

    /// The same for a client whose budget is known.
    pub(super) fn check_in_with(
        &self,
        request: &Request<Body>,
        budget: &ClientBudget,
    ) -> Result<Charge, Refusal> {
        let (version, uri, headers) = (request.version(), request.uri(), request.headers());
        let named = self
            .hosts
            .check(version, uri, headers, "http.allowed_hosts");
        named.map_err(|wrong| {
            let failure = Failure::new(Reason::InvalidRequest, wrong.to_string());
            (wrong.status(), failure)
        })?;
        let each = headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + LINE);
        let charge = budget.charge(each.sum());
        charge.map_err(|spent| {
            let failure = Failure::call(&CallError::Exhausted(spent.into()));
            (StatusCode::TOO_MANY_REQUESTS, failure)
        })
    }

    /// Whether a request comes from no web page, from a page of a listed origin, or from a page of this server: its
    /// origin is that of the public URL, or has the host of the request. If only `*` admits the host, the host may be
    /// the DNS name that a hostile page uses for this address, so it does not count as this server.
    fn allows_origin(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let is_own = |origin: &HeaderValue| {
            let (scheme, host) = origin.to_str().ok()?.split_once("://")?;
            if self.public_url.has_origin(scheme, host) {
                return Some(true);
            }
            let authority = hosts::authority(uri, headers).ok()??;
            let bare = |authority| hosts::without_default_port(scheme, authority);
            let is_same = bare(host).eq_ignore_ascii_case(bare(authority.as_str()));
            Some(is_same && self.hosts.names(authority.host()))
        };
        let mut origins = headers.get_all(ORIGIN).iter();
        origins
            .all(|origin| self.allowed_origins.contains(origin) || is_own(origin).unwrap_or(false))
    }

    /// Checks that a request may change something: it does not come from a page of another site, and the bridge is not
    /// draining.
    pub(super) fn check_change(&self, request: &Request<Body>) -> Result<(), Refusal> {
        self.check_origin(request.uri(), request.headers())?;
        self.check_running()
    }

    /// Checks that a request does not come from a page of another site. Such pages, also those whose DNS name points
    /// here, must not use their visitors' position in the network.
    pub(super) fn check_origin(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.allows_origin(uri, headers) {
            return Ok(());
        }
        let message = "web pages of this origin may not send requests: list it in http.allowed_origins, or, if it is the origin of this server behind a proxy, in a2a.public_url";
        let failure = Failure::new(Reason::InvalidRequest, message);
        Err((StatusCode::FORBIDDEN, failure))
    }

    /// Checks that the bridge is not draining.
    pub(super) fn check_running(&self) -> Result<(), Refusal> {
        if !self.readiness.is_draining() {
            return Ok(());
        }
        let failure = Failure::call(&CallError::Draining);
        Err((StatusCode::SERVICE_UNAVAILABLE, failure))
    }

    /// Reads the body of a request.
    pub(super) async fn body(&self, request: Request<Body>) -> Result<Bytes, Refusal> {
        let budget = self.client_budget(request.extensions());
        let (head, body) = request.into_parts();
        self.read_body(&head.headers, body, &budget).await
    }

    /// The same for a request that was taken apart, and whose budget is known.
    pub(super) async fn read_body(
        &self,
        headers: &HeaderMap,
        body: Body,
        budget: &ClientBudget,
    ) -> Result<Bytes, Refusal> {
        let mut codings = headers.get_all(CONTENT_ENCODING).iter();
        let is_encoded =
            |coding: &&HeaderValue| !coding.as_bytes().eq_ignore_ascii_case(b"identity");
        if let Some(coding) = codings.find(is_encoded) {
            let coding = String::from_utf8_lossy(coding.as_bytes());
            let message =
                format!("Content-Encoding {coding:?} is not supported: send the body as it is");
            let failure = Failure::new(Reason::ContentType, message);
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, failure));
        }
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            let message = "the only Transfer-Encoding that is supported is chunked";
            let failure = Failure::new(Reason::ContentType, message);
            return Err((StatusCode::NOT_IMPLEMENTED, failure));
        }
        let limit = self.largest_body();
        let read = body::read(headers, body, limit, self.body_timeout, budget).await;
        read.map_err(|error| self.unread(error, headers))
    }

    /// The refusal of a request whose body could not be read.
    fn unread(&self, error: BodyError, headers: &HeaderMap) -> Refusal {
        match error {
            BodyError::TooLarge => {
                let limit = self.largest_body();
                let announced = headers.get(CONTENT_LENGTH);
                let message = match announced.and_then(|length| length.to_str().ok()) {
                    Some(length) => format!(
                        "the body has {length} bytes, but only {limit} are allowed (limits.max_bytes); send less at a time"
                    ),
                    None => format!(
                        "the body is larger than {limit} bytes (limits.max_bytes); send less at a time"
                    ),
                };
                (StatusCode::PAYLOAD_TOO_LARGE, Failure::too_large(message))
            }
            BodyError::NoRoom => {
                let failure = Failure::call(&CallError::Exhausted(BudgetExhausted.into()));
                (StatusCode::TOO_MANY_REQUESTS, failure)
            }
            BodyError::TooSlow => {
                let millis = self.body_timeout.as_millis();
                let message =
                    format!("the body did not arrive within {millis} ms (http.header_timeout)");
                let failure = Failure::new(Reason::Timeout, message);
                (StatusCode::REQUEST_TIMEOUT, failure)
            }
            BodyError::Broken => {
                let message = "the body was cut off, or its framing is not valid";
                let failure = Failure::new(Reason::Parse, message);
                (StatusCode::BAD_REQUEST, failure)
            }
        }
    }

    /// The error for a request that could not store a record; `what` is a plural noun.
    pub(super) fn not_stored(&self, what: &str, error: &StateError) -> Failure {
        if let StateError::Full { .. } = error {
            self.metrics.budget_refused.inc();
            if let Some(suppressed) = self.state_lines.full.allow() {
                tracing::warn!(what, %error, suppressed, "a request is refused: the memory of this state is full (state.memory), and none of it can be removed");
            }
            let message = format!(
                "no more {what} can be stored, because the memory for them is full and none can be removed: try again later, when some have ended (the operator can raise state.memory)"
            );
            return Failure::new(Reason::Exhausted, message);
        }
        if let Some(suppressed) = self.state_lines.unstored.allow() {
            tracing::error!(what, %error, suppressed, "the log of the state did not store a record: the caller gets an error");
        }
        let message = format!("{what} cannot be stored now: try again later");
        Failure::new(Reason::AgentUnavailable, message)
    }

    /// The error for a request that could not read a log.
    pub(super) fn not_read(&self, what: &str, error: &StateError) -> Failure {
        if let Some(suppressed) = self.state_lines.unread.allow() {
            // If an operator has to repair the log, its view or its bus reports that.
            tracing::warn!(what, %error, suppressed, "a log of the state was not read: the caller gets an error");
        }
        let message = format!("the log of {what} cannot be read now: try again later");
        Failure::new(Reason::AgentUnavailable, message)
    }

    /// Like [`Door::check_in`], but returns the response to a refused request.
    #[expect(clippy::result_large_err, reason = "the response is what is sent")]
    pub(crate) fn admit(&self, request: &Request<Body>) -> Result<Charge, Response> {
        self.check_in(request).map_err(|(status, failure)| {
            let recipient = Recipient::unknown(negotiate::dialect(request.headers()));
            refusal(status, &failure, &recipient)
        })
    }
}

/// Charges a document that the bridge makes itself, until it is sent.
pub(super) fn charged(budget: &ClientBudget, document: Bytes) -> Result<Bytes, Failure> {
    let charged = budget.hold(document);
    charged.map_err(|spent| Failure::call(&CallError::Exhausted(spent.into())))
}

/// The same for a document that cannot be read in parts: one that exceeds the share of its client is charged too, if
/// the client has no other one, see [`ClientBudget::hold_large`].
pub(super) fn charged_large(budget: &ClientBudget, document: Bytes) -> Result<Bytes, Failure> {
    let charged = budget.hold_large(document);
    charged.map_err(|spent| Failure::call(&CallError::Exhausted(spent.into())))
}

/// The same for the result of a message that the agent has, or for an event of a stream that has begun: only a large
/// one needs room, see [`SMALL`].
pub(super) fn charged_if_large(budget: &ClientBudget, document: Bytes) -> Result<Bytes, Failure> {
    match document.len() <= SMALL {
        true => Ok(budget.replace(document)),
        false => charged_large(budget, document),
    }
}

/// The largest result or event, in bytes, that is sent even if the budget has no room for it, so that others cannot end
/// streams by using up the budget. A single message of an agent is rarely larger; a whole task or list may be.
const SMALL: usize = 1 << 20;
/// The memory overhead of a header line besides its text, in bytes.
const LINE: usize = 64;
