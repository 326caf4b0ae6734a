//! The listener: accepts connections within the limits, and shuts down without losing requests.
//!
//! axum's own `serve` has no limit on connections and no timeout for the head of a request, hence this loop.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::Level;

use super::connection::{ConnectionBounds, Ending, Shared, Slot, serve_connection};
use crate::log_limit::LogLimits;
use crate::metrics::Metrics;
use crate::shares::{Share, Shares, client};

/// A listener that is about to serve.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// The router that it serves.
    pub router: Router,
    /// The limits of connections.
    pub bounds: ConnectionBounds,
    /// How it ends.
    pub ending: Ending,
    /// Its name in metrics and logs.
    pub name: &'static str,
    /// Counts its connections.
    pub metrics: Arc<Metrics>,
    /// The rate limits of log lines.
    pub log: LogLimits,
}

/// File descriptors that are reserved for brokers, files and the admin listener.
const RESERVED_DESCRIPTORS: u64 = 256;
/// How long accepting pauses when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of waiting connections that are accepted at shutdown: the default backlog of a listener.
const MAX_WAITING: usize = 1_024;

/// How many of the wanted connections the process can have: each one needs a file descriptor.
#[must_use]
pub(crate) fn affordable(desired: usize) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return desired;
    };
    let free = limit.saturating_sub(RESERVED_DESCRIPTORS).max(limit / 4);
    let affordable = usize::try_from(free).unwrap_or(usize::MAX).min(desired);
    if affordable < desired {
        tracing::warn!(
            descriptors = limit,
            desired,
            affordable,
            "accepting fewer connections than http.max_connections, because the limit of open files is too low: raise it (ulimit -n)"
        );
    }
    affordable
}

/// Serves a router until `shutdown`. Then it accepts the connections that are waiting, but no later ones, and returns
/// when every request is answered and every connection is closed. The caller decides how long that may take: dropping
/// the future ends the rest.
///
/// Only a connection that is made at the very moment when the listener closes is reset. Nothing of its request has been
/// read then.
pub(crate) async fn serve(listener: Listener) {
    let Listener {
        socket,
        router,
        bounds,
        ending,
        name,
        metrics,
        log,
    } = listener;
    let max_connections = bounds.max_connections.min(Semaphore::MAX_PERMITS);
    let permits = Arc::new(Semaphore::new(max_connections));
    let clients = Shares::new(bounds.max_per_client);
    let shared = Shared {
        router,
        bounds,
        ending,
        name,
        metrics,
        connections: Arc::default(),
        closed: Arc::new(log.limit(Level::WARN, "more connections were closed")),
        full: Arc::new(log.limit(Level::WARN, "more clients had to wait for a connection")),
    };
    let mut connections = JoinSet::new();
    // A client that is accepted, and waits for a free slot.
    let mut next: Option<(TcpStream, SocketAddr, Share<IpAddr>)> = None;
    loop {
        tokio::select! {
            biased;
            () = shared.ending.shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => note_panic(ended),
            permit = Arc::clone(&permits).acquire_owned(), if next.is_some() => {
                // The semaphore is never closed, so acquiring a permit always succeeds in the end.
                if let (Some((stream, peer, share)), Ok(permit)) = (next.take(), permit) {
                    let slot = Slot::new(&shared, Some(permit), Some(share));
                    connections.spawn(serve_connection(stream, peer, shared.clone(), slot));
                }
            }
            () = make_room(&shared), if next.is_some() => {}
            (stream, peer) = accept(&socket), if next.is_none() => match clients.take(&client(peer.ip())) {
                Some(share) => next = Some((stream, peer, share)),
                None => shared.note_closed(peer, "too_many", None),
            },
        }
    }
    let accepted = next.map(|(stream, peer, _)| (stream, peer));
    for (stream, peer) in accepted.into_iter().chain(waiting(socket)) {
        let slot = Slot::new(&shared, None, None);
        connections.spawn(serve_connection(stream, peer, shared.clone(), slot));
    }
    while let Some(ended) = connections.join_next().await {
        note_panic(ended);
    }
}

/// Waits for a connection. Cancel-safe.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
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

/// Asks idle connections to close while a client waits for room. Cancel-safe.
async fn make_room(shared: &Shared) {
    if let Some(suppressed) = shared.full.allow() {
        tracing::warn!(
            door = shared.name,
            connections = shared.bounds.max_connections,
            suppressed,
            "connection limit reached: closing the connection that has been idle longest; new clients wait"
        );
    }
    shared.connections.make_room().await;
}

/// Closes the listener. Returns the connections that wait to be accepted, which would otherwise be reset.
fn waiting(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let mut waiting = Vec::new();
    // The kernel may have connections that the runtime does not know yet.
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
            // There are no more, or the process is out of file descriptors.
            Err(_) => break,
        }
    }
    waiting
}

/// Whether an error concerns only the client that was about to connect.
fn is_of_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
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
    use std::convert::Infallible;
    use std::time::Instant;

    use super::*;
    use crate::http::connection::{IDLE_GRACE, Peer};
    use axum::body::Body;
    use axum::routing::{get, post};
    use futures_util::stream;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;

    const BOUNDS: ConnectionBounds = ConnectionBounds {
        header_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_secs(60),
        response_timeout: Duration::from_secs(60),
        max_connections: 32,
        max_per_client: 32,
    };
    const SOON: Duration = Duration::from_secs(60);
    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    /// At most this many connections, which may be idle for longer than a test takes.
    fn patient(max_connections: usize) -> ConnectionBounds {
        ConnectionBounds {
            header_timeout: Duration::from_secs(600),
            idle_timeout: Duration::from_secs(600),
            max_connections,
            ..BOUNDS
        }
    }

    struct Server {
        address: SocketAddr,
        farewell: CancellationToken,
        shutdown: CancellationToken,
        serving: JoinHandle<()>,
        metrics: Arc<Metrics>,
    }

    async fn start(router: Router, bounds: ConnectionBounds) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (farewell, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let ending = Ending {
            farewell: farewell.clone(),
            shutdown: shutdown.clone(),
        };
        let metrics = Arc::new(Metrics::new().unwrap());
        let serving = tokio::spawn(serve(Listener {
            socket: listener,
            router,
            bounds,
            ending,
            name: "test",
            metrics: Arc::clone(&metrics),
            log: LogLimits::default(),
        }));
        Server {
            address,
            farewell,
            shutdown,
            serving,
            metrics,
        }
    }

    async fn send(server: &Server, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        stream
    }

    /// Everything that arrives until the server closes.
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

    /// A route that waits forever and reports when its request begins and when it is dropped.
    fn hanging() -> (Router, mpsc::Receiver<&'static str>) {
        struct Reporter(mpsc::Sender<&'static str>);
        impl Drop for Reporter {
            fn drop(&mut self) {
                let _ = self.0.try_send("dropped");
            }
        }
        let (sender, reports) = mpsc::channel(8);
        let stream_sender = sender.clone();
        let wait = move |_body: Body| async move {
            let reports = Reporter(sender);
            reports.0.send("begun").await.unwrap();
            std::future::pending::<String>().await
        };
        let streaming = move || async move {
            let reports = Reporter(stream_sender);
            reports.0.send("begun").await.unwrap();
            let parts = stream::unfold(reports, |reports| async {
                sleep(Duration::from_millis(10)).await;
                Some((Ok::<_, Infallible>(": keep-alive\n\n"), reports))
            });
            Body::from_stream(parts)
        };
        let router = Router::new()
            .route("/wait", post(wait))
            .route("/stream", get(streaming));
        (router, reports)
    }

    async fn next(reports: &mut mpsc::Receiver<&'static str>) -> &'static str {
        timeout(SOON, reports.recv()).await.unwrap().unwrap()
    }

    /// A client whose request waits in a hanging route.
    async fn waiting(server: &Server, reports: &mut mpsc::Receiver<&'static str>) -> TcpStream {
        let request = b"POST /wait HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        let client = send(server, request).await;
        assert_eq!(next(reports).await, "begun");
        client
    }

    #[tokio::test]
    async fn a_client_that_goes_away_drops_its_waiting_request() {
        let (router, mut reports) = hanging();
        let server = start(router, BOUNDS).await;
        let request = b"POST /wait HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
        let client = send(&server, request).await;
        assert_eq!(next(&mut reports).await, "begun");
        drop(client);
        assert_eq!(next(&mut reports).await, "dropped");
    }

    #[tokio::test]
    async fn a_client_that_goes_away_drops_its_stream() {
        let (router, mut reports) = hanging();
        let server = start(router, BOUNDS).await;
        let mut client = send(&server, b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(next(&mut reports).await, "begun");
        assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"));
        drop(client);
        assert_eq!(next(&mut reports).await, "dropped");
    }

    #[tokio::test]
    async fn a_client_that_does_not_finish_its_head_is_closed() {
        let server = start(Router::new(), BOUNDS).await;
        // Nothing at all; bytes that may become HTTP/1 or HTTP/2; an HTTP/1 head without its end.
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

    #[expect(
        clippy::disallowed_methods,
        reason = "the whole process stands still, not only a task"
    )]
    fn stand_still(period: Duration) {
        std::thread::sleep(period);
    }

    /// A process that stood still finds the requests that have arrived and its deadlines at the same moment.
    #[tokio::test]
    async fn requests_that_arrive_while_the_process_stands_still_are_served() {
        // Long enough for a slow machine to connect all clients.
        let header_timeout = Duration::from_secs(3);
        let bounds = ConnectionBounds {
            header_timeout,
            ..BOUNDS
        };
        let router = Router::new().route("/", get(|| async { "served" }));
        let server = start(router, bounds).await;
        let mut clients = Vec::new();
        for _ in 0..BOUNDS.max_connections {
            clients.push(send(&server, b"").await);
        }
        let open = server.metrics.connections("test");
        let accepted = async {
            while open.get() < i64::try_from(clients.len()).unwrap() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, accepted).await.unwrap();
        // The task of the last one begins.
        tokio::task::yield_now().await;
        for client in &mut clients {
            client.write_all(GET).await.unwrap();
        }
        stand_still(header_timeout + Duration::from_secs(1));
        for client in &mut clients {
            assert!(read_head(client).await.starts_with("HTTP/1.1 200"));
        }
    }

    #[tokio::test]
    async fn no_more_connections_than_allowed_are_served() {
        let (router, mut reports) = hanging();
        let router = router.route("/", get(|| async { "served" }));
        let bounds = ConnectionBounds {
            max_connections: 1,
            ..BOUNDS
        };
        let server = start(router, bounds).await;
        let first = waiting(&server, &mut reports).await;
        let mut second = send(&server, GET).await;
        let early = timeout(Duration::from_millis(200), second.read_u8()).await;
        assert!(early.is_err(), "the second connection waits for the first");
        drop(first);
        assert!(read_head(&mut second).await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_connection_without_a_request_makes_room_for_one_that_waits() {
        let (router, mut reports) = hanging();
        let router = router.route("/", get(|| async { "served" }));
        let server = start(router, patient(3)).await;
        let busy = waiting(&server, &mut reports).await;
        let silent = send(&server, b"").await;
        let mut idle = send(&server, GET).await;
        read_head(&mut idle).await;
        // The silent one has been idle for longest, followed by the one that had a request.
        let mut served = Vec::new();
        for mut last in [silent, idle] {
            let mut new = send(&server, GET).await;
            assert!(read_head(&mut new).await.starts_with("HTTP/1.1 200"));
            served.push(new);
            read_all(&mut last).await;
        }
        // Both new clients are served, so both old connections have been chosen.
        let ended = reports.try_recv();
        assert!(
            ended.is_err(),
            "a connection with a request is left alone: {ended:?}"
        );
        drop(busy);
        assert_eq!(next(&mut reports).await, "dropped");
    }

    #[tokio::test]
    async fn a_connection_with_an_unfinished_body_makes_room_for_a_request() {
        let router = Router::new()
            .route("/", get(|| async { "served" }))
            .route("/read", post(|body: String| async { body }));
        let server = start(router, patient(1)).await;
        let request = b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbo";
        let mut unfinished = send(&server, request).await;
        let mut new = send(&server, GET).await;
        assert!(read_head(&mut new).await.starts_with("HTTP/1.1 200"));
        // The rest of the body has not been read, so this may be a reset.
        let mut rest = Vec::new();
        let _ = timeout(SOON, unfinished.read_to_end(&mut rest))
            .await
            .unwrap();
        assert_eq!(rest, b"");
    }

    #[tokio::test]
    async fn shutdown_finishes_requests_in_progress_and_accepts_no_more() {
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
        for _ in 0..20 {
            let server = start(Router::new().route("/", get(|| async { "served" })), BOUNDS).await;
            let mut client = send(&server, GET).await;
            let head = read_head(&mut client).await;
            assert!(!head.contains("connection: close"), "{head}");
            let begun = Instant::now();
            server.shutdown.cancel();
            // The server has closed its listener, but not yet this connection.
            while TcpStream::connect(server.address).await.is_ok() {
                tokio::task::yield_now().await;
            }
            client.write_all(GET).await.unwrap();
            if begun.elapsed() > IDLE_GRACE / 2 {
                // Too slow: the server may have closed this connection too.
                continue;
            }
            let answers = read_all(&mut client).await;
            assert!(answers.starts_with("served"), "{answers}");
            assert!(answers.contains("connection: close\r\n"), "{answers}");
            assert!(answers.ends_with("served"), "{answers}");
            return;
        }
        panic!("the listener closes late");
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
    async fn an_answer_before_the_end_of_the_body_announces_that_the_connection_closes() {
        let router = Router::new()
            .route("/unread", post(|| async { "refused" }))
            .route("/read", post(|body: String| async { body }));
        let server = start(router, BOUNDS).await;
        let request =
            |path: &str| format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n");
        let mut client = send(&server, request("/unread").as_bytes()).await;
        let answer = read_all(&mut client).await;
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        // A body that is read, or that has no bytes, leaves it open.
        let mut client = send(&server, request("/read").as_bytes()).await;
        client.write_all(b"body").await.unwrap();
        let chunked = b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
        client.write_all(chunked).await.unwrap();
        let empty = b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        client.write_all(empty).await.unwrap();
        for rest in ["", "body", "body"] {
            let head = read_head(&mut client).await;
            assert!(head.starts_with(&format!("{rest}HTTP/1.1 200")), "{head}");
            assert!(!head.contains("connection: close"), "{head}");
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
        // More than the buffers of both sides can hold, so the server has to read it while it closes.
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
    async fn dropping_the_server_ends_the_remaining_connections() {
        let (router, mut reports) = hanging();
        let server = start(router, BOUNDS).await;
        let mut client = waiting(&server, &mut reports).await;
        server.shutdown.cancel();
        server.serving.abort();
        assert_eq!(next(&mut reports).await, "dropped");
        assert_eq!(read_all(&mut client).await, "");
    }

    #[tokio::test]
    async fn requests_have_the_address_of_their_client() {
        let show =
            |axum::Extension(peer): axum::Extension<Peer>| async move { peer.name.to_string() };
        let server = start(Router::new().route("/", get(show)), BOUNDS).await;
        let mut client = send(
            &server,
            b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert!(read_all(&mut client).await.ends_with("127.0.0.1"));
    }
}
