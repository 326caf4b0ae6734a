//! Who may connect, for how long, and how does it end?
//!
//! axum's own `serve` has no limit on connections and no timeout for the head of a request, hence this loop.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use prometheus::IntGauge;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::Level;

use super::stall::Stalling;
use super::streams::{Doing, Stream, Streams};
use crate::metrics::Metrics;
use crate::seldom::{LogLimits, Seldom};
use crate::shares::{Share, Shares, client};

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

/// A door that is about to open.
#[derive(Debug)]
pub struct Listener {
    /// Where it listens.
    pub socket: TcpListener,
    /// What it serves.
    pub router: Router,
    /// Who may connect, and for how long.
    pub bounds: ConnectionBounds,
    /// How it ends.
    pub ending: Ending,
    /// What to call it in metrics and logs.
    pub name: &'static str,
    /// Where its connections are counted.
    pub metrics: Arc<Metrics>,
    /// The rate-limited lines of the bridge.
    pub log: LogLimits,
}

/// What all connections of a listener share.
#[derive(Debug, Clone)]
struct Shared {
    router: Router,
    bounds: ConnectionBounds,
    ending: Ending,
    name: &'static str,
    metrics: Arc<Metrics>,
    noted: Arc<Seldom>,
}

/// The place of one connection, given back when it ends.
struct Place {
    open: IntGauge,
    _permit: Option<OwnedSemaphorePermit>,
    _share: Option<Share<IpAddr>>,
}

/// The address of the client, noted in each request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

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
/// File descriptors that are not for connections of callers: those of brokers, files and the operators' door.
const RESERVED_DESCRIPTORS: u64 = 256;
/// The shortest and the longest time between two looks at what a connection does.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// How often an HTTP/2 connection is asked whether it is still there, and how long the answer may take.
const PING: Duration = Duration::from_secs(20);
/// How long accepting pauses when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How long a connection without a request stays open at shutdown: one may be on its way, and to close now would reset it.
const LAST_REQUESTS: Duration = Duration::from_millis(250);
/// Most connections that are taken at shutdown because they wait to be accepted: what a listener holds at most by default.
const MAX_WAITING: usize = 1_024;

/// How a listener ends.
#[derive(Debug, Clone)]
pub struct Ending {
    /// From now on every answer tells its client to close the connection and to go elsewhere.
    pub farewell: CancellationToken,
    /// From now on nothing is accepted.
    pub shutdown: CancellationToken,
}

/// How many connections the process can afford of those that are wanted: every one takes a file descriptor.
#[must_use]
pub fn affordable(wanted: usize) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return wanted;
    };
    let free = limit.saturating_sub(RESERVED_DESCRIPTORS).max(limit / 4);
    let affordable = usize::try_from(free).unwrap_or(usize::MAX).min(wanted);
    if affordable < wanted {
        tracing::warn!(
            descriptors = limit,
            wanted,
            affordable,
            "fewer connections than http.max_connections: the process may not open more files; raise its limit (ulimit -n)"
        );
    }
    affordable
}

/// Serves a router until `shutdown`; then takes the connections that wait, accepts nothing more, and returns when every
/// request is answered and every connection closed. The caller decides how long that may take: dropping the future ends
/// what is left.
///
/// Only a connection that is made in the very moment in which the listener closes is reset, before anything of its
/// request was read.
pub async fn serve(listener: Listener) {
    let Listener {
        socket,
        router,
        bounds,
        ending,
        name,
        metrics,
        log,
    } = listener;
    let most = bounds.max_connections.min(Semaphore::MAX_PERMITS);
    let permits = Arc::new(Semaphore::new(most));
    let clients = Shares::new(bounds.max_per_client);
    let shared = Shared {
        router,
        bounds,
        ending,
        name,
        metrics,
        noted: Arc::new(log.seldom(Level::WARN, "more connections were closed or had to wait")),
    };
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer, permit) = tokio::select! {
            biased;
            () = shared.ending.shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => {
                note_panic(ended);
                continue;
            }
            accepted = accept(&socket, &permits, &shared) => accepted,
        };
        let Some(share) = clients.take(&client(peer.ip())) else {
            shared.closed(peer, "too_many");
            continue;
        };
        let place = Place::new(&shared, permit, Some(share));
        connections.spawn(serve_connection(stream, peer, shared.clone(), place));
    }
    for (stream, peer) in waiting(socket) {
        let place = Place::new(&shared, None, None);
        connections.spawn(serve_connection(stream, peer, shared.clone(), place));
    }
    while let Some(ended) = connections.join_next().await {
        note_panic(ended);
    }
}

// === impl Shared ===

impl Shared {
    /// Notes a connection that is closed for what it does.
    fn closed(&self, peer: SocketAddr, why: &'static str) {
        self.metrics.connection_closed(self.name, why);
        if let Some(suppressed) = self.noted.allow() {
            tracing::warn!(door = self.name, %peer, why, suppressed, "a connection was closed");
        }
    }
}

// === impl Place ===

impl Place {
    fn new(
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

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// Waits for room, then for a client. Cancel-safe.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    shared: &Shared,
) -> (TcpStream, SocketAddr, Option<OwnedSemaphorePermit>) {
    if permits.available_permits() == 0
        && let Some(suppressed) = shared.noted.allow()
    {
        tracing::warn!(
            door = shared.name,
            connections = shared.bounds.max_connections,
            suppressed,
            "as many connections as may be are open: others wait"
        );
    }
    // The semaphore is never closed, so that there is always a permit in the end.
    let permit = Arc::clone(permits).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, permit),
            Err(error) if is_of_one_client(&error) => {}
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot accept connections"
                );
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The connections that are made and not accepted, for which closing the listener would be a reset. Closes it.
fn waiting(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let mut waiting = Vec::new();
    // The system knows of connections that the runtime was not told of yet.
    let Ok(listener) = listener.into_std() else {
        return waiting;
    };
    while waiting.len() < MAX_WAITING {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream = stream.set_nonblocking(true).map(|()| stream);
                waiting.extend(stream.and_then(TcpStream::from_std).map(|s| (s, peer)));
            }
            Err(error) if is_of_one_client(&error) => {}
            // None waits, or the process is out of file descriptors.
            Err(_) => break,
        }
    }
    waiting
}

/// Whether only the client that was about to connect is concerned.
fn is_of_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

async fn serve_connection(stream: TcpStream, peer: SocketAddr, shared: Shared, _place: Place) {
    // Parts of a stream are small and must not wait for each other.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection broke before it was served");
        return;
    }
    let bounds = shared.bounds;
    let streams = Streams::new();
    let from = Peer(peer.ip().to_canonical());
    let (begun, ending, router) = (Arc::clone(&streams), &shared.ending, &shared.router);
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        answer(router.clone(), from, ending.clone(), begun.begin(), request)
    });
    let builder = builder(bounds);
    let io = TokioIo::new(Stalling::new(stream, WRITE_PATIENCE));
    let mut connection = pin!(builder.serve_connection(io, service));
    // Telling HTTP/1 from HTTP/2 is not under hyper's own timeout.
    let mut first_head = pin!(sleep(bounds.header_timeout));
    let mut last_requests = pin!(async {
        shared.ending.shutdown.cancelled().await;
        sleep(LAST_REQUESTS).await;
    });
    let mut looks = interval((bounds.idle_timeout / 4).clamp(LOOKS.0, LOOKS.1));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut waiting, mut open) = (true, true);
    // From when a connection that was asked to end is cut off.
    let mut cut_off: Option<Instant> = None;
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
            () = first_head.as_mut(), if waiting => {
                waiting = false;
                if !streams.have_begun() {
                    shared.closed(peer, "no_request");
                    return;
                }
            }
            _ = looks.tick() => match streams.doing(bounds.idle_timeout, bounds.response_patience) {
                Doing::Work => {}
                Doing::Stalled => {
                    shared.closed(peer, "stalled");
                    return;
                }
                Doing::Nothing if !streams.have_begun() => {}
                Doing::Nothing => match cut_off {
                    None => {
                        shared.closed(peer, "idle");
                        cut_off = Some(Instant::now() + bounds.header_timeout);
                        connection.as_mut().graceful_shutdown();
                    }
                    Some(at) if Instant::now() >= at => return,
                    Some(_) => {}
                },
            },
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

fn note_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "serving a connection failed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use futures_util::stream;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    const BOUNDS: ConnectionBounds = ConnectionBounds {
        header_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_secs(60),
        response_patience: Duration::from_secs(60),
        max_connections: 32,
        max_per_client: 32,
    };
    const SOON: Duration = Duration::from_secs(10);
    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    struct Server {
        address: SocketAddr,
        farewell: CancellationToken,
        shutdown: CancellationToken,
        serving: JoinHandle<()>,
    }

    async fn start(router: Router, bounds: ConnectionBounds) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (farewell, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let ending = Ending {
            farewell: farewell.clone(),
            shutdown: shutdown.clone(),
        };
        let serving = tokio::spawn(serve(Listener {
            socket: listener,
            router,
            bounds,
            ending,
            name: "test",
            metrics: Arc::new(Metrics::new().unwrap()),
            log: LogLimits::default(),
        }));
        Server {
            address,
            farewell,
            shutdown,
            serving,
        }
    }

    async fn send(server: &Server, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        stream
    }

    /// What comes until the server closes.
    async fn read_all(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        timeout(SOON, stream.read_to_end(&mut bytes))
            .await
            .unwrap()
            .unwrap();
        String::from_utf8(bytes).unwrap()
    }

    async fn read_head(stream: &mut TcpStream) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(
                timeout(SOON, stream.read_u8())
                    .await
                    .unwrap()
                    .unwrap()
                    .into(),
            );
        }
        head
    }

    /// A route that waits for ever and tells when its request begins and when it is dropped.
    fn hanging() -> (Router, mpsc::Receiver<&'static str>) {
        struct Told(mpsc::Sender<&'static str>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.try_send("dropped");
            }
        }
        let (tell, told) = mpsc::channel(8);
        let tell_stream = tell.clone();
        let wait = move |_body: Body| async move {
            let told = Told(tell);
            told.0.send("begun").await.unwrap();
            std::future::pending::<String>().await
        };
        let streaming = move || async move {
            let told = Told(tell_stream);
            told.0.send("begun").await.unwrap();
            let parts = stream::unfold(told, |told| async {
                sleep(Duration::from_millis(10)).await;
                Some((Ok::<_, Infallible>(": keep-alive\n\n"), told))
            });
            Body::from_stream(parts)
        };
        let router = Router::new()
            .route("/wait", post(wait))
            .route("/stream", get(streaming));
        (router, told)
    }

    async fn next(told: &mut mpsc::Receiver<&'static str>) -> &'static str {
        timeout(SOON, told.recv()).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn a_client_that_goes_away_drops_its_waiting_request() {
        let (router, mut told) = hanging();
        let server = start(router, BOUNDS).await;
        let request = b"POST /wait HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
        let client = send(&server, request).await;
        assert_eq!(next(&mut told).await, "begun");
        drop(client);
        assert_eq!(next(&mut told).await, "dropped");
    }

    #[tokio::test]
    async fn a_client_that_goes_away_drops_its_stream() {
        let (router, mut told) = hanging();
        let server = start(router, BOUNDS).await;
        let mut client = send(&server, b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(next(&mut told).await, "begun");
        assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"));
        drop(client);
        assert_eq!(next(&mut told).await, "dropped");
    }

    #[tokio::test]
    async fn a_client_that_does_not_finish_its_head_is_closed() {
        let server = start(Router::new(), BOUNDS).await;
        // Nothing at all; what may become HTTP/1 or HTTP/2; an HTTP/1 head without its end.
        for beginning in [&b""[..], b"P", b"POST /rpc HTTP/1.1\r\nhost:"] {
            let begun = Instant::now();
            let mut client = send(&server, beginning).await;
            read_all(&mut client).await;
            let took = begun.elapsed();
            assert!(
                took >= Duration::from_millis(250),
                "{beginning:?} took {took:?}"
            );
        }
    }

    #[tokio::test]
    async fn no_more_connections_than_allowed_are_served() {
        let (router, mut told) = hanging();
        let router = router.route("/", get(|| async { "served" }));
        let bounds = ConnectionBounds {
            max_connections: 1,
            ..BOUNDS
        };
        let server = start(router, bounds).await;
        let request = b"POST /wait HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        let first = send(&server, request).await;
        assert_eq!(next(&mut told).await, "begun");
        let mut second = send(&server, GET).await;
        let early = timeout(Duration::from_millis(200), second.read_u8()).await;
        assert!(early.is_err(), "the second connection waits for the first");
        drop(first);
        assert!(read_head(&mut second).await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn shutdown_finishes_what_is_in_flight_and_accepts_nothing_more() {
        let (begin, mut begun) = mpsc::channel(1);
        let slow = move || async move {
            begin.send(()).await.unwrap();
            sleep(Duration::from_millis(200)).await;
            "done"
        };
        let server = start(Router::new().route("/", get(slow)), BOUNDS).await;
        // Connections are accepted in order: once the second is served, the first is as well.
        let mut idle = send(&server, b"").await;
        let mut busy = send(&server, GET).await;
        begun.recv().await.unwrap();
        server.shutdown.cancel();
        let answer = read_all(&mut busy).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"),
            "{answer}"
        );
        assert_eq!(read_all(&mut idle).await, "");
        timeout(SOON, server.serving).await.unwrap().unwrap();
        assert!(TcpStream::connect(server.address).await.is_err());
    }

    #[tokio::test]
    async fn connections_that_wait_to_be_accepted_are_answered_at_shutdown() {
        let (release, released) = tokio::sync::watch::channel(());
        let (begin, mut begun) = mpsc::channel(1);
        let wait = move || {
            let (begin, mut released) = (begin.clone(), released.clone());
            async move {
                begin.send(()).await.unwrap();
                released.changed().await.unwrap();
                "waited"
            }
        };
        let router = Router::new()
            .route("/wait", get(wait))
            .route("/", get(|| async { "served" }));
        let bounds = ConnectionBounds {
            max_connections: 1,
            ..BOUNDS
        };
        let server = start(router, bounds).await;
        let mut first = send(&server, b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await;
        begun.recv().await.unwrap();
        let mut others = Vec::new();
        for _ in 0..20 {
            others.push(send(&server, GET).await);
        }
        server.shutdown.cancel();
        for other in &mut others {
            let answer = read_all(other).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(answer.contains("connection: close\r\n"), "{answer}");
            assert!(answer.ends_with("served"), "{answer}");
        }
        release.send(()).unwrap();
        assert!(read_all(&mut first).await.ends_with("waited"));
        timeout(SOON, server.serving).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_request_on_its_way_to_an_idle_connection_is_answered_at_shutdown() {
        let server = start(Router::new().route("/", get(|| async { "served" })), BOUNDS).await;
        let mut client = send(&server, GET).await;
        let head = read_head(&mut client).await;
        assert!(!head.contains("connection: close"), "{head}");
        server.shutdown.cancel();
        // The server has seen the order and not yet closed: it has closed its listener.
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        client.write_all(GET).await.unwrap();
        let answers = read_all(&mut client).await;
        assert!(answers.starts_with("served"), "{answers}");
        assert!(answers.contains("connection: close\r\n"), "{answers}");
        assert!(answers.ends_with("served"), "{answers}");
    }

    #[tokio::test]
    async fn after_the_farewell_answers_close_their_connection() {
        let server = start(Router::new().route("/", get(|| async { "served" })), BOUNDS).await;
        server.farewell.cancel();
        for _ in 0..2 {
            let mut client = send(&server, GET).await;
            let answer = read_all(&mut client).await;
            assert!(answer.contains("connection: close\r\n"), "{answer}");
        }
    }

    #[tokio::test]
    async fn an_answer_before_the_end_of_the_body_arrives_whole() {
        let server = start(
            Router::new().route("/", post(|| async { "not read" })),
            BOUNDS,
        )
        .await;
        server.farewell.cancel();
        // More than the buffers of both sides hold: the server has to take it while it closes.
        let body = vec![b' '; 32 << 20];
        let head = format!(
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut client = send(&server, head.as_bytes()).await;
        client.write_all(&body).await.unwrap();
        let answer = read_all(&mut client).await;
        assert!(answer.ends_with("not read"), "{answer}");
    }

    #[tokio::test]
    async fn dropping_the_server_ends_what_is_left() {
        let (router, mut told) = hanging();
        let server = start(router, BOUNDS).await;
        let request = b"POST /wait HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        let mut client = send(&server, request).await;
        assert_eq!(next(&mut told).await, "begun");
        server.shutdown.cancel();
        server.serving.abort();
        assert_eq!(next(&mut told).await, "dropped");
        assert_eq!(read_all(&mut client).await, "");
    }

    #[tokio::test]
    async fn requests_know_where_they_come_from() {
        let show = |axum::Extension(Peer(address)): axum::Extension<Peer>| async move {
            address.to_string()
        };
        let server = start(Router::new().route("/", get(show)), BOUNDS).await;
        let mut client = send(
            &server,
            b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert!(read_all(&mut client).await.ends_with("127.0.0.1"));
    }
}
