//! A server that sends scripted bytes.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Sends the same bytes in response to every request. Ends when it is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    requests: Vec<String>,
}

/// What happens after the response.
#[derive(Clone, Copy)]
pub(crate) enum AfterResponse {
    /// The next request on the same connection.
    Listen,
    /// The end of the connection.
    Close,
    /// Nothing, for ever.
    Hang,
}

impl Server {
    pub(crate) async fn start(answer: impl Into<Vec<u8>>, after: AfterResponse) -> Self {
        Self::start_with(answer, after, None).await
    }

    pub(crate) async fn start_with(
        answer: impl Into<Vec<u8>>,
        after: AfterResponse,
        tls: Option<TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, answer) = (Arc::<Mutex<Seen>>::default(), Arc::new(answer.into()));
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                let (seen, answer, tls) = (Arc::clone(&shared), Arc::clone(&answer), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, &seen, &answer, after).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &seen, &answer, after).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        Self {
            port,
            seen,
            _tasks: tasks,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().requests.clone()
    }
}

/// Ends when the peer does.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    seen: &Mutex<Seen>,
    answer: &[u8],
    after: AfterResponse,
) -> Option<()> {
    loop {
        let request = read_request(&mut stream).await?;
        seen.lock().unwrap().requests.push(request);
        stream.write_all(answer).await.ok()?;
        stream.flush().await.ok()?;
        match after {
            AfterResponse::Listen => {}
            AfterResponse::Close => {
                stream.shutdown().await.ok()?;
                return Some(());
            }
            AfterResponse::Hang => {
                let mut byte = [0];
                while stream.read(&mut byte).await.ok()? > 0 {}
                return Some(());
            }
        }
    }
}

async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> Option<String> {
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        request.push(char::from(stream.read_u8().await.ok()?));
    }
    let lower = request.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    for _ in 0..length.map_or(0, |length| length.parse().unwrap()) {
        request.push(char::from(stream.read_u8().await.ok()?));
    }
    Some(request)
}

/// A response with its length.
pub(crate) fn ok(content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
