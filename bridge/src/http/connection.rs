//! One connection: served until its client closes it, or until it has held its place for nothing for too long.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
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

use super::open_connections::{ConnectionGuard, OpenConnections};
use super::stall::Stalling;
use super::streams::{ConnectionActivity, Stream, Streams};
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::shares::Share;

/// Bounds on the connections of one listener.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionBounds {
    /// How long a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// How long a connection may be open without a request.
    pub idle_timeout: Duration,
    /// How long a client may ask for nothing of a response that is there for it.
    pub response_patience: Duration,
    /// Most connections at a time; more wait in the kernel.
    pub max_connections: usize,
    /// Most connections of one client; one more is closed.
    pub max_per_client: usize,
}

/// How a listener ends.
#[derive(Debug, Clone)]
pub struct Ending {
    /// From now on every response says `connection: close`, so that clients connect elsewhere.
    pub farewell: CancellationToken,
    /// From now on nothing is accepted.
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
    /// Of connections that the bridge closed.
    pub(super) closed: Arc<LogLimit>,
    /// Of clients that wait for a connection to end.
    pub(super) full: Arc<LogLimit>,
    pub(super) seats: Arc<OpenConnections>,
}

/// The slot of one connection, given back when it ends.
pub(super) struct Slot {
    open: IntGauge,
    _permit: Option<OwnedSemaphorePermit>,
    _share: Option<Share<IpAddr>>,
}

/// The address of the client, noted in each request.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The address as text.
    pub(crate) name: Text,
}

/// Why and how the bridge ends a connection.
enum End {
    /// At once.
    Now(&'static str),
    /// After the requests that may be on their way.
    Politely(&'static str),
    /// At once: it was asked to end and did not.
    CutOff,
}

/// Checks whether a connection is idle, stalled or asked to close.
struct ConnectionMonitor {
    streams: Arc<Streams>,
    seated: ConnectionGuard,
    bounds: ConnectionBounds,
    looks: Interval,
    /// Until when the first request must have begun.
    first_head: Instant,
    /// From when a connection that was asked to end is cut off.
    cut_off: Option<Instant>,
}

/// How long a client may take nothing of what is sent to it.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// Largest head of a request, in bytes. Source: docs/design.md §8.
const MAX_HEAD_BYTES: u32 = 64 << 10;
/// Most requests at a time on one HTTP/2 connection.
const MAX_STREAMS: u32 = 32;
/// What an HTTP/2 client may send before anybody has read it, in bytes: of one request, and of all of a connection.
const WINDOWS: (u32, u32) = (128 << 10, 512 << 10);
/// Most bytes of one response of HTTP/2 that wait to be sent.
const SEND_BUFFER: usize = 64 << 10;
/// The shortest and the longest time between two looks at what a connection does.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// How often an HTTP/2 connection is asked whether it is still there, and how long the answer may take.
const PING: Duration = Duration::from_secs(20);
/// How long a connection without a request stays open at shutdown: one may be on its way, and to close now would reset it.
const LAST_REQUESTS: Duration = Duration::from_millis(250);
/// How long a connection that makes room for another may take to close.
const MAKING_ROOM: Duration = Duration::from_millis(250);

/// Serves a connection to its end. Dropping the future ends it.
pub(super) async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    shared: Shared,
    _slot: Slot,
) {
    // Parts of a stream are small and must not wait for each other.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection failed before it was served");
        return;
    }
    let streams = Streams::new();
    let mut watch = ConnectionMonitor::new(&streams, shared.seats.take(&streams), shared.bounds);
    let address = peer.ip().to_canonical();
    let name = address.to_string().into();
    let from = Peer { address, name };
    let (ending, router) = (&shared.ending, &shared.router);
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        answer(
            router.clone(),
            from.clone(),
            ending.clone(),
            streams.begin(),
            request,
        )
    });
    let builder = builder(shared.bounds);
    let io = TokioIo::new(Stalling::new(stream, WRITE_PATIENCE));
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut last_requests = pin!(async {
        shared.ending.shutdown.cancelled().await;
        sleep(LAST_REQUESTS).await;
    });
    let mut open = true;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(error = &*error, "a connection ended early");
                }
                return;
            }
            () = last_requests.as_mut(), if open => {
                open = false;
                connection.as_mut().graceful_shutdown();
            }
            end = watch.end() => match end {
                End::Now(why) => {
                    shared.note_closed(peer, why);
                    return;
                }
                End::Politely(why) => {
                    shared.note_closed(peer, why);
                    connection.as_mut().graceful_shutdown();
                }
                End::CutOff => return,
            },
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Notes a connection that is closed for what it does.
    pub(super) fn note_closed(&self, peer: SocketAddr, why: &'static str) {
        self.metrics.connection_closed(self.name, why);
        if let Some(suppressed) = self.closed.allow() {
            tracing::warn!(door = self.name, %peer, why, suppressed, "a connection was closed");
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
    fn new(streams: &Arc<Streams>, seated: ConnectionGuard, bounds: ConnectionBounds) -> Self {
        let mut looks = interval((bounds.idle_timeout / 4).clamp(LOOKS.0, LOOKS.1));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            streams: Arc::clone(streams),
            seated,
            bounds,
            looks,
            // Telling HTTP/1 from HTTP/2 is not under hyper's own timeout.
            first_head: Instant::now() + bounds.header_timeout,
            cut_off: None,
        }
    }

    /// Waits until the connection should end. Cancel-safe.
    async fn end(&mut self) -> End {
        loop {
            let is_new = !self.streams.have_begun();
            let cut_off = self.cut_off.unwrap_or(self.first_head);
            tokio::select! {
                () = sleep_until(self.first_head), if is_new => {
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
                () = self.seated.room_requested() => {
                    if self.streams.idle_for().is_none() {
                        continue;
                    }
                    if is_new {
                        return End::Now("made_room");
                    }
                    self.cut_off = Some(Instant::now() + MAKING_ROOM);
                    return End::Politely("made_room");
                }
                _ = self.looks.tick() => {
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
            .doing(bounds.idle_timeout, bounds.response_patience)
        {
            ConnectionActivity::Stalled => Some(End::Now("stalled")),
            ConnectionActivity::Nothing if self.streams.have_begun() && self.cut_off.is_none() => {
                self.cut_off = Some(Instant::now() + bounds.header_timeout);
                Some(End::Politely("idle"))
            }
            ConnectionActivity::Nothing | ConnectionActivity::Work => None,
        }
    }
}

async fn answer(
    router: Router,
    peer: Peer,
    ending: Ending,
    stream: Stream,
    mut request: http::Request<Incoming>,
) -> Result<Response, Infallible> {
    request.extensions_mut().insert(peer);
    // HTTP/2 has frames of its own for this, and forbids the header.
    let has_header = request.version() <= Version::HTTP_11;
    let mut response = router.oneshot(request.map(Body::new)).await?;
    if has_header && (ending.farewell.is_cancelled() || ending.shutdown.is_cancelled()) {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(response.map(|body| stream.watch(body)))
}

fn builder(bounds: ConnectionBounds) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
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
