//! Limits of concurrent requests per client, and of active tasks per conversation.
//!
//! Source: docs/protocols/a2a.md §9.

use std::sync::Arc;

use a2abus_plugin::Text;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::calls::failure::{Failure, Reason, SOON};
use crate::config::A2aConfig;
use crate::doors::door::Refusal;
use crate::http::sse;
use crate::metrics::{LimitScope, Metrics};
use crate::shares::{Share, Shares, client_of};

/// The limits and their usage.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    clients: Arc<Shares<Text>>,
    /// Messages that may still create a task, by context.
    beginning: Arc<Shares<Text>>,
}

pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const WINDOW: HeaderName = HeaderName::from_static("x-ratelimit-window");

// === impl Limits ===

impl Limits {
    /// The limits of a configuration.
    pub(crate) fn new(config: &A2aConfig) -> Self {
        Self {
            clients: Shares::new(config.max_requests_per_client as usize),
            beginning: Shares::new(config.max_tasks_per_context as usize),
        }
    }

    /// Replaces the limits after a reload.
    pub(super) fn replace(&self, config: &A2aConfig) {
        self.clients
            .set_limit(config.max_requests_per_client as usize);
        self.beginning
            .set_limit(config.max_tasks_per_context as usize);
    }

    /// How many requests a client may have in progress.
    pub(super) fn per_client(&self) -> usize {
        self.clients.limit()
    }

    /// Reserves this number of requests within the limit of their client.
    pub(in crate::doors) fn request(
        &self,
        caller: &Text,
        requests: usize,
        metrics: &Metrics,
    ) -> Result<Share<Text>, Refusal> {
        let mut share = self.clients.begin(&client_of(caller));
        if share.grow(requests) {
            return Ok(share);
        }
        metrics.limited(LimitScope::Client);
        let limit = self.clients.limit();
        let message = format!(
            "this client has more than {limit} requests in progress, which is the limit (a2a.max_requests_per_client): wait for some to end"
        );
        let failure = Failure::new(Reason::RateLimited, message);
        let failure = failure.detail("retryAfterSeconds", SOON);
        Err((StatusCode::TOO_MANY_REQUESTS, failure))
    }

    /// Reserves a task within the limit of its context, which has `active` unfinished tasks. It is released once the
    /// message has created a task.
    pub(super) fn task(
        &self,
        context: &Text,
        active: usize,
        metrics: &Metrics,
    ) -> Result<Share<Text>, Failure> {
        let mut share = self.beginning.begin(context);
        let is_room =
            share.grow(1) && active + self.beginning.held_by(context) <= self.beginning.limit();
        if is_room {
            return Ok(share);
        }
        metrics.limited(LimitScope::Context);
        let limit = self.beginning.limit();
        let message = format!(
            "the context {context:?} has {limit} tasks in progress, which is the limit (a2a.max_tasks_per_context): wait for one to end, or cancel it"
        );
        let failure = Failure::new(Reason::RateLimited, message);
        Err(failure.detail("retryAfterSeconds", SOON))
    }

    /// Adds headers with the client's limit and usage. It is unknown when a concurrent request will end, so the reset
    /// is the shortest possible time.
    pub(super) fn show(&self, caller: &Text, headers: &mut HeaderMap) {
        let limit = self.clients.limit();
        let left = limit.saturating_sub(self.clients.held_by(&client_of(caller)));
        let reset = crate::clock::milliseconds(crate::clock::now()) / 1_000 + u64::from(SOON);
        headers.insert(LIMIT, HeaderValue::from(limit));
        headers.insert(REMAINING, HeaderValue::from(left));
        headers.insert(RESET, HeaderValue::from(reset));
        headers.insert(WINDOW, HeaderValue::from(SOON));
    }
}

/// A response that holds its reservation until its last byte.
pub(in crate::doors) fn holding(share: Option<Share<Text>>, response: Response) -> Response {
    if !sse::is_stream(response.headers()) {
        return response;
    }
    response.map(|body| {
        let pieces = body.into_data_stream().map(move |piece| {
            let _held = &share;
            piece
        });
        Body::from_stream(pieces)
    })
}

/// A body that holds its reservation until its last byte is sent.
pub(in crate::doors) fn holding_bytes(share: Option<Share<Text>>, bytes: Bytes) -> Bytes {
    struct HoldingBytes {
        bytes: Bytes,
        _share: Share<Text>,
    }
    impl AsRef<[u8]> for HoldingBytes {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    match share {
        Some(share) => Bytes::from_owner(HoldingBytes {
            bytes,
            _share: share,
        }),
        None => bytes,
    }
}
