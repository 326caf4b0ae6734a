//! One connection: served until its client closes it, or until it has been idle or stalled for too long.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::iter::successors;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use a2abus_plugin::Text;
use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use prometheus::IntGauge;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::late;
use super::open_connections::{ConnectionGuard, OpenConnections};
use super::stall::{Stalling, is_stall};
use super::streams::{ConnectionActivity, Stream, Streams};
use crate::budget::{Budget, ClientBudget};
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::restart::chain;
use crate::shares::Share;

/// Bounds on the connections of one listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionBounds {
    /// How long a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// How long an HTTP/2 connection may be open without a request. On HTTP/1, `header_timeout` counts from the last
    /// response on.
    pub idle_timeout: Duration,
    /// How long a client may leave all responses of a connection unread. One of them may be unread for five times as
    /// long, while the client reads or waits for others.
    pub response_timeout: Duration,
    /// Maximum number of concurrent connections; further ones wait in the kernel.
    pub max_connections: usize,
    /// Maximum number of connections of one client; further ones are closed.
    pub max_per_client: usize,
}

/// How a listener ends.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    /// When cancelled, every response has `connection: close`, so that clients connect elsewhere.
    pub farewell: CancellationToken,
    /// When cancelled, no more connections are accepted.
    pub shutdown: CancellationToken,
}

/// The state that all connections of a listener share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) router: Router,
    pub(super) bounds: ConnectionBounds,
    pub(super) ending: Ending,
    pub(super) name: &'static str,
    pub(super) metrics: Arc<Metrics>,
    /// The log line for connections that the bridge closed.
    pub(super) closed: Arc<LogLimit>,
    /// The log line for clients that wait for a connection to end.
    pub(super) full: Arc<LogLimit>,
    pub(super) connections: Arc<OpenConnections>,
}

/// The slot of one connection, released when it ends.
pub(super) struct Slot {
    open: IntGauge,
    _permit: Option<OwnedSemaphorePermit>,
    _share: Option<Share<IpAddr>>,
}

/// The address of the client, as an extension of each request.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The address as text.
    pub(crate) name: Text,
    /// What its requests may use, looked up once for the connection.
    budget: Arc<OnceLock<ClientBudget>>,
}

/// Why and how the bridge ends a connection.
enum End {
    /// At once.
    Now(&'static str),
    /// After the requests that may be in transit.
    Gracefully(&'static str),
    /// At once, because it was asked to end and did not.
    CutOff,
}

/// The first bytes of a connection.
#[derive(Debug, Clone, Copy)]
struct FirstBytes {
    bytes: [u8; PEEKED],
    length: usize,
}

/// Checks whether a connection is idle, stalled or asked to close.
struct ConnectionMonitor {
    streams: Arc<Streams>,
    guard: ConnectionGuard,
    bounds: ConnectionBounds,
    checks: Interval,
    /// The deadline for the start of the first request.
    first_head: Pin<Box<late::Deadline>>,
    /// When a connection that was asked to end is cut off.
    cut_off: Option<Instant>,
}

/// How long a write may make no progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest request head, in bytes. Source: docs/design.md §8.
const MAX_HEAD_BYTES: u32 = 64 << 10;
/// The first bytes of an HTTP/2 connection. No HTTP/1 request begins with them. Source: RFC 9113 section 3.4.
const HTTP_2: &[u8] = b"PRI ";
/// The first bytes of a TLS handshake. Source: RFC 8446 section 5.1.
const TLS: &[u8] = &[22, 3];
/// The first bytes of the PROXY protocol, versions 1 and 2.
const PROXY: [&[u8; PEEKED]; 2] = [b"PROXY", b"\r\n\r\n\0"];
/// How many bytes show what a client speaks.
const PEEKED: usize = 5;
/// Why a connection is closed whose requests hyper cannot read.
const MALFORMED: &str = "malformed";
/// Maximum number of concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 32;
/// The HTTP/2 flow-control windows of one request and of a connection, in bytes.
const WINDOWS: (u32, u32) = (128 << 10, 512 << 10);
/// Maximum number of bytes of one HTTP/2 response that wait to be sent.
const SEND_BUFFER: usize = 64 << 10;
/// The shortest and the longest interval between two checks of a connection.
const CHECK_INTERVALS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// The interval of HTTP/2 pings, and how long the answer may take.
const PING: Duration = Duration::from_secs(20);
/// How long an idle connection stays open at shutdown. A request may be in transit, and closing at once would reset it.
pub(super) const IDLE_GRACE: Duration = Duration::from_millis(250);
/// How long a connection that makes room for another one may take to close.
const MAKE_ROOM_TIMEOUT: Duration = Duration::from_millis(250);

/// Serves a connection until it ends. Dropping the future ends it.
pub(super) async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    shared: Shared,
    _slot: Slot,
) {
    // The parts of a stream are small, and must not be delayed by Nagle's algorithm.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection failed before it was served");
        return;
    }
    let streams = Streams::new();
    let mut watch =
        ConnectionMonitor::new(&streams, shared.connections.take(&streams), shared.bounds);
    let (from, has_unsent) = (Peer::at(peer.ip()), streams.has_unsent());
    let (ending, router) = (Arc::new(shared.ending.of_connection()), &shared.router);
    let mut idle_grace = pin!(Arc::clone(&ending).idle_grace());
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        answer(
            router.clone(),
            from.clone(),
            Arc::clone(&ending),
            streams.begin(),
            request,
        )
    });
    // Bytes that have arrived count before a deadline: after the process stood still, both are ready.
    let first = tokio::select! {
        biased;
        first = FirstBytes::of(&stream) => first,
        () = idle_grace.as_mut() => return,
        end = watch.end() => return shared.note_end(peer, &end),
    };
    let builder = first.builder(shared.bounds);
    let io = TokioIo::new(Stalling::new(stream, WRITE_TIMEOUT, has_unsent));
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut open = true;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                return ended.unwrap_or_else(|error| shared.note_error(peer, &*error, first));
            }
            () = idle_grace.as_mut(), if open => {
                open = false;
                connection.as_mut().graceful_shutdown();
            }
            end = watch.end() => {
                shared.note_end(peer, &end);
                match end {
                    End::Now(_) | End::CutOff => return,
                    End::Gracefully(_) => connection.as_mut().graceful_shutdown(),
                }
            }
        }
    }
}

// === impl Peer ===

impl Peer {
    fn at(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self {
            address,
            name: address.to_string().into(),
            budget: Arc::default(),
        }
    }

    /// Its share of this budget. A connection asks for one budget only.
    pub(crate) fn budget_in(&self, budget: &Arc<Budget>) -> &ClientBudget {
        let found = || budget.for_client(Some(self.address));
        self.budget.get_or_init(found)
    }
}

// === impl Ending ===

impl Ending {
    /// The same for one connection. Checking a token takes its lock, and every request checks it. So each connection
    /// has child tokens.
    fn of_connection(&self) -> Self {
        Self {
            farewell: self.farewell.child_token(),
            shutdown: self.shutdown.child_token(),
        }
    }

    /// Whether clients should connect elsewhere.
    fn has_begun(&self) -> bool {
        self.farewell.is_cancelled() || self.shutdown.is_cancelled()
    }

    /// Completes when idle connections are to be closed at shutdown.
    async fn idle_grace(self: Arc<Self>) {
        self.shutdown.cancelled().await;
        sleep(IDLE_GRACE).await;
    }
}

// === impl Shared ===

impl Shared {
    /// Counts and logs why the bridge ends a connection. One that is cut off was counted when it was asked to end.
    fn note_end(&self, peer: SocketAddr, end: &End) {
        match end {
            End::Now(why) => self.note_closed(peer, why, None),
            // An idle client has done nothing wrong.
            End::Gracefully(why) => {
                self.metrics.connection_closed(self.name, why);
                tracing::debug!(door = self.name, %peer, why, "an idle connection was closed");
            }
            End::CutOff => {}
        }
    }

    /// Counts and logs a connection that ended with an error, if the bridge ended it.
    fn note_error(&self, peer: SocketAddr, error: &(dyn Error + 'static), first: FirstBytes) {
        match error.downcast_ref().map(end_of) {
            Some(Some(End::Now(why))) => {
                let error = match first.hint().filter(|_| why == MALFORMED) {
                    Some(hint) => hint.to_owned(),
                    None => chain(error),
                };
                self.note_closed(peer, why, Some(&error));
            }
            Some(Some(end)) => self.note_end(peer, &end),
            _ => tracing::debug!(error, "a connection ended early"),
        }
    }

    /// Counts and logs a connection that the bridge closes, with what is wrong with its requests.
    pub(super) fn note_closed(&self, peer: SocketAddr, why: &'static str, error: Option<&str>) {
        self.metrics.connection_closed(self.name, why);
        if let Some(suppressed) = self.closed.allow() {
            tracing::warn!(door = self.name, %peer, why, error, suppressed, "a connection was closed");
        }
    }
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(
        shared: &Shared,
        permit: Option<OwnedSemaphorePermit>,
        share: Option<Share<IpAddr>>,
    ) -> Self {
        let open = shared.metrics.connections(shared.name);
        open.inc();
        Self {
            open,
            _permit: permit,
            _share: share,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.dec();
    }
}

// === impl ConnectionMonitor ===

impl ConnectionMonitor {
    fn new(streams: &Arc<Streams>, guard: ConnectionGuard, bounds: ConnectionBounds) -> Self {
        let mut checks =
            interval((bounds.idle_timeout / 4).clamp(CHECK_INTERVALS.0, CHECK_INTERVALS.1));
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            streams: Arc::clone(streams),
            guard,
            bounds,
            checks,
            // Hyper's own timeout does not cover the detection of the HTTP version.
            first_head: Box::pin(late::passed(Instant::now() + bounds.header_timeout)),
            cut_off: None,
        }
    }

    /// Waits until the connection should end. Cancel-safe.
    async fn end(&mut self) -> End {
        loop {
            let is_new = !self.streams.have_begun();
            let cut_off = self.cut_off.unwrap_or_else(Instant::now);
            tokio::select! {
                () = self.first_head.as_mut(), if is_new => {
                    if !self.streams.have_begun() {
                        return End::Now("no_request");
                    }
                }
                () = sleep_until(cut_off), if self.cut_off.is_some() => {
                    self.cut_off = None;
                    if self.streams.idle_for().is_some() {
                        return End::CutOff;
                    }
                }
                () = self.guard.room_requested() => {
                    if self.streams.receiving_for().is_some() {
                        return End::Now("made_room");
                    }
                    if self.streams.idle_for().is_none() {
                        continue;
                    }
                    if is_new {
                        return End::Now("made_room");
                    }
                    self.cut_off = Some(Instant::now() + MAKE_ROOM_TIMEOUT);
                    return End::Gracefully("made_room");
                }
                _ = self.checks.tick() => {
                    if let Some(end) = self.check_activity() {
                        return end;
                    }
                }
            }
        }
    }

    fn check_activity(&mut self) -> Option<End> {
        let bounds = &self.bounds;
        match self
            .streams
            .activity(bounds.idle_timeout, bounds.response_timeout)
        {
            ConnectionActivity::Stalled => Some(End::Now("stalled")),
            ConnectionActivity::Idle if self.streams.have_begun() && self.cut_off.is_none() => {
                self.cut_off = Some(Instant::now() + bounds.header_timeout);
                Some(End::Gracefully("idle"))
            }
            ConnectionActivity::Idle | ConnectionActivity::Active => None,
        }
    }
}

/// Why hyper ended a connection with this error. Hyper answers such a request without the router, with 431, 414 or 400,
/// or not at all. `None` if the client or the network ended the connection.
fn end_of(error: &hyper::Error) -> Option<End> {
    if error.is_parse_too_large() {
        return Some(End::Now("head_too_large"));
    }
    if error.is_parse() {
        return Some(End::Now(MALFORMED));
    }
    let mut causes = successors(error.source(), |&cause| cause.source());
    if causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_stall)) {
        return Some(End::Now("stalled"));
    }
    // On HTTP/1 no request came within the header timeout; on HTTP/2 no answer to a ping.
    if error.is_timeout() {
        return Some(End::Gracefully("idle"));
    }
    let cause = error.source()?.downcast_ref::<h2::Error>()?;
    match cause.reason() {
        _ if !cause.is_library() => None,
        Some(h2::Reason::ENHANCE_YOUR_CALM) => Some(End::Now("flood")),
        _ => Some(End::Now(MALFORMED)),
    }
}

async fn answer(
    router: Router,
    peer: Peer,
    ending: Arc<Ending>,
    stream: Stream,
    mut request: http::Request<Incoming>,
) -> Result<Response, Infallible> {
    request.extensions_mut().insert(peer);
    // HTTP/2 uses frames for this, and forbids the header.
    let is_http_1 = request.version() <= Version::HTTP_11;
    let request = request.map(|body| match is_http_1 {
        true => stream.receive(body),
        false => Body::new(body),
    });
    let mut response = router.oneshot(request).await?;
    // Hyper closes the connection after an unread body, so the client must not send its next request on it.
    if is_http_1 && (ending.has_begun() || stream.has_unread_body()) {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(response.map(|body| stream.watch(body)))
}

// === impl FirstBytes ===

impl FirstBytes {
    /// Waits for them.
    async fn of(stream: &TcpStream) -> Self {
        let mut bytes = [0; PEEKED];
        // An error occurs again when the connection is read.
        let length = stream.peek(&mut bytes).await.unwrap_or_default();
        Self { bytes, length }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// The builder for the HTTP version of the client.
    ///
    /// Hyper can also detect the version, but then it reads the first bytes into a separate buffer, and takes 16 KiB
    /// instead of 8 KiB to read the rest.
    fn builder(&self, bounds: ConnectionBounds) -> Builder<TokioExecutor> {
        let builder = builder(bounds);
        if self.bytes().starts_with(HTTP_2) {
            builder.http2_only()
        } else if HTTP_2.starts_with(self.bytes()) {
            builder
        } else {
            builder.http1_only()
        }
    }

    /// Why hyper cannot read the requests, if the client speaks another protocol.
    fn hint(&self) -> Option<&'static str> {
        if self.bytes().starts_with(TLS) {
            return Some(
                "the client speaks TLS, but this listener has no TLS: let the client use http",
            );
        }
        let is_proxy = PROXY.iter().any(|version| self.bytes() == *version);
        is_proxy.then_some(
            "the client sends the PROXY protocol, which this listener does not support: switch it off in the proxy",
        )
    }
}

fn builder(bounds: ConnectionBounds) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(late::Timer)
        .header_read_timeout(bounds.header_timeout)
        .max_buf_size(MAX_HEAD_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEAD_BYTES);
    builder
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    #[test]
    fn a_client_of_another_protocol_is_recognised() {
        let hint = |bytes: &[u8]| {
            let mut first = FirstBytes {
                bytes: [0; PEEKED],
                length: bytes.len(),
            };
            first.bytes[..bytes.len()].copy_from_slice(bytes);
            first.hint().unwrap_or_default()
        };
        assert!(hint(&[22, 3, 1, 2, 0]).contains("TLS"));
        assert!(hint(b"PROXY").contains("PROXY"));
        assert!(hint(b"\r\n\r\n\0").contains("PROXY"));
        for http in [&b""[..], b"\r\n\r\nG", b"PRI *", b"POST ", b"PROX"] {
            assert_eq!(hint(http), "", "{http:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_peer_stops_reading_ends_as_stalled() {
        let bounds = ConnectionBounds {
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            response_timeout: Duration::from_secs(60),
            max_connections: 1,
            max_per_client: 1,
        };
        let (ours, mut theirs) = duplex(64);
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        theirs.write_all(request).await.unwrap();
        let io = TokioIo::new(Stalling::new(ours, WRITE_TIMEOUT, Arc::default()));
        let service = hyper::service::service_fn(|_: http::Request<Incoming>| async {
            Ok::<_, Infallible>(Response::new(Body::from(vec![b' '; 1 << 20])))
        });
        let builder = builder(bounds).http1_only();
        let ended = builder.serve_connection(io, service).await;
        let error = ended.unwrap_err();
        let end = end_of(error.downcast_ref().unwrap());
        assert!(matches!(end, Some(End::Now("stalled"))), "{error}");
    }
}
