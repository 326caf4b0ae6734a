//! The real HTTP client: it checks the address of every connection and bounds every response.
//!
//! It sends one request and reads one response. It follows no redirects, uses no proxy and no cookies, repeats no sent
//! request, and connects only to checked addresses. Source: docs/protocols/a2e-workflows.md §7, SSRF.

mod connect;
mod resolve;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use a2abus_models::a2e_workflow::operation::Method;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, HeaderMap, USER_AGENT};
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::environment::{HttpClient, HttpError, HttpRequest, HttpResponse, Reach};
use connect::{ConnectError, Connector};
pub use resolve::{Resolve, SystemResolver};

/// An [`HttpClient`] over HTTP/1.1 and TLS. Its connections belong to the tokio runtime in which it is used.
/// Connections that may reach any address are kept separate from the others.
pub struct Client {
    connector: Connector,
    registered: Pool,
    global: Pool,
    failures: FailureLog,
}

/// Logs why requests got no response. Agents and their peers can cause any number of such failures.
#[derive(Default)]
struct FailureLog(Mutex<LastLine>);

#[derive(Default)]
struct LastLine {
    written: Option<Instant>,
    /// The failures since then.
    suppressed: u64,
}

/// The options of a [`Client`]. The default trusts the certificates of the system.
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// Additional trusted certificates, each entry with one or more in PEM.
    pub root_certificates: Vec<Vec<u8>>,
    /// Resolves names; the default is the system's resolver.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// How many idle connections are kept per host; the default is 8.
    pub idle_per_host: Option<usize>,
}

/// Why [`Client::open`] has no response. `Display` writes the innermost cause: the message of the system or the peer.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct NoResponse {
    /// Whether the peer may have received any of the request.
    pub may_be_sent: bool,
    why: String,
}

/// Why the client cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// One of the additional certificates cannot be read; its index, from 0.
    #[error("root certificate {0} is not a certificate in PEM")]
    Certificate(usize),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

type Pool = legacy::Client<Connector, Full<Bytes>>;

/// The default number of idle connections per host.
const MAX_IDLE_PER_HOST: usize = 8;
/// How long idle connections are kept. Many servers close a connection after 5 s (Node.js and uvicorn by default). A
/// request that is sent at that moment fails, and cannot be repeated, because the server may have read it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// The pause between two log lines about failed requests.
const LOG_PAUSE: Duration = Duration::from_secs(1);
/// How much of an unsuccessful response is read. It is only shown to people.
const MAX_FAILURE_BYTES: usize = 64 << 10;

// === impl Client ===

impl Client {
    /// A client that has no connection yet. It reads the certificates of the system.
    ///
    /// # Errors
    /// If a certificate cannot be read or TLS cannot be set up.
    pub fn new(options: &ClientOptions) -> Result<Self, ClientError> {
        let tls = Arc::new(tls(&options.root_certificates)?);
        let resolver = match &options.resolver {
            Some(resolver) => Arc::clone(resolver),
            None => Arc::new(SystemResolver),
        };
        let connector = |reach| Connector::new(reach, Arc::clone(&resolver), Arc::clone(&tls));
        let pool = |reach| {
            legacy::Client::builder(TokioExecutor::new())
                .timer(TokioTimer::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(options.idle_per_host.unwrap_or(MAX_IDLE_PER_HOST))
                .build(connector(reach))
        };
        Ok(Self {
            connector: connector(Reach::Registered),
            registered: pool(Reach::Registered),
            global: pool(Reach::Global),
            failures: FailureLog::default(),
        })
    }

    /// Sends a request to a URL from the operator's configuration, and returns the response as soon as its head
    /// arrives. The response is not bounded: the caller reads the body, and decides how much and for how long. It
    /// follows no redirects, uses no proxy, and never resends a request once a byte of it was sent.
    ///
    /// # Errors
    /// Why there is no response.
    ///
    /// # Cancel safety
    /// The future may be dropped; the request may then have been sent or not.
    pub async fn open(&self, request: Request<Bytes>) -> Result<Response<Incoming>, NoResponse> {
        let request = request.map(Full::new);
        let sent = self.registered.request(request).await;
        sent.map_err(|error| NoResponse {
            may_be_sent: !error.is_connect(),
            why: innermost(&error).to_string(),
        })
    }

    /// Connects to a URL from the operator's configuration, with TLS for `https`, and closes the connection.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn reach(&self, url: Uri) -> Result<(), NoResponse> {
        let connected = self.connector.clone().connect(url).await;
        connected.map(drop).map_err(|error| NoResponse {
            may_be_sent: false,
            why: innermost(&error).to_string(),
        })
    }

    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let pool = match request.reach {
            Reach::Registered => &self.registered,
            Reach::Global => &self.global,
        };
        let max = request.max_response_bytes;
        let host = request.target.host().unwrap_or_default().to_owned();
        // An invalid URL or header is not sent.
        let request = to_http(request).map_err(|error| {
            self.failures.note(&host, &error);
            HttpError::Connect
        })?;
        let response = pool.request(request).await.map_err(|error| {
            self.failures.note(&host, innermost(&error));
            reason(&error)
        })?;
        read(response, max)
            .await
            .map_err(|unread| unread.reason(&self.failures, &host))
    }
}

impl HttpClient for Client {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let timeout = request.timeout;
            let answer = tokio::time::timeout(timeout, self.exchange(request)).await;
            answer.unwrap_or(Err(HttpError::Timeout))
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("root_certificates", &self.root_certificates.len())
            .finish_non_exhaustive()
    }
}

// === impl FailureLog ===

impl FailureLog {
    /// The cause of a failed request contains no secret.
    fn note(&self, host: &str, cause: &dyn std::error::Error) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.written.is_some_and(|time| time.elapsed() < LOG_PAUSE) {
            last.suppressed += 1;
            return;
        }
        last.written = Some(Instant::now());
        let suppressed = std::mem::take(&mut last.suppressed);
        drop(last);
        tracing::warn!(host, %cause, suppressed, "an HTTP request got no response");
    }
}

/// TLS that trusts the system's certificates, if there are any, and these.
fn tls(certificates: &[Vec<u8>]) -> Result<ClientConfig, ClientError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    for (index, pem) in certificates.iter().enumerate() {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let added = certificate.map(|certificate| roots.add(certificate));
            if !matches!(added, Ok(Ok(()))) {
                return Err(ClientError::Certificate(index));
            }
        }
        if roots.len() == before {
            return Err(ClientError::Certificate(index));
        }
    }
    if roots.is_empty() {
        // Only some clients use HTTPS, and a request that fails for this logs its own reason.
        tracing::info!(errors = ?found.errors, "no certificate authority was found: no HTTPS server is trusted");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ClientError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

// === requests ===

fn to_http(request: HttpRequest) -> Result<Request<Full<Bytes>>, http::Error> {
    let method = match request.method {
        Method::Get => http::Method::GET,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
        Method::Delete => http::Method::DELETE,
        Method::Patch => http::Method::PATCH,
    };
    let mut headers = HeaderMap::try_with_capacity(request.headers.len() + 4)?;
    for (name, value) in &request.headers {
        let name = HeaderName::from_bytes(name.as_bytes())?;
        headers.try_append(name, HeaderValue::from_bytes(value.as_bytes())?)?;
    }
    let defaults = [
        (ACCEPT, "*/*"),
        // Without compression, the declared size is the real size.
        (ACCEPT_ENCODING, "identity"),
        (USER_AGENT, concat!("a2abus/", env!("CARGO_PKG_VERSION"))),
    ];
    for (name, value) in defaults {
        headers
            .entry(name)
            .or_insert_with(|| HeaderValue::from_static(value));
    }
    let mut built = Request::builder()
        .method(method)
        .uri(request.target.as_str())
        .body(Full::new(request.body.unwrap_or_default()))?;
    *built.headers_mut() = headers;
    Ok(built)
}

/// Why there is no response. Only without a connection is it certain that nothing was sent.
fn reason(error: &legacy::Error) -> HttpError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(ConnectError::Forbidden) = error.downcast_ref() {
            return HttpError::Forbidden;
        }
        cause = error.source();
    }
    if error.is_connect() {
        HttpError::Connect
    } else {
        HttpError::Broken
    }
}

fn innermost<'e>(error: &'e (dyn std::error::Error + 'static)) -> &'e dyn std::error::Error {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}

// === answers ===

/// Why a response cannot be read.
enum Unread {
    TooLarge,
    Broken(hyper::Error),
}

// === impl Unread ===

impl Unread {
    fn reason(self, failures: &FailureLog, host: &str) -> HttpError {
        match self {
            Self::TooLarge => HttpError::TooLarge,
            Self::Broken(error) => {
                failures.note(host, innermost(&error));
                HttpError::Broken
            }
        }
    }
}

async fn read(response: Response<Incoming>, max: usize) -> Result<HttpResponse, Unread> {
    let (head, body) = response.into_parts();
    let body = if max == 0 {
        // It may never end.
        drop(body);
        Bytes::new()
    } else if head.status.is_success() {
        if announced(&head.headers).is_some_and(|bytes| bytes > max as u64) {
            return Err(Unread::TooLarge);
        }
        read_body(body, max, OversizePolicy::Refuse).await?
    } else {
        read_body(body, max.min(MAX_FAILURE_BYTES), OversizePolicy::Cut).await?
    };
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    };
    Ok(HttpResponse {
        status: head.status.as_u16(),
        headers: head.headers.iter().map(header).collect(),
        body,
    })
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// How to handle a body that is too large.
#[derive(Clone, Copy)]
enum OversizePolicy {
    Refuse,
    Cut,
}

async fn read_body(
    mut body: Incoming,
    max: usize,
    when_larger: OversizePolicy,
) -> Result<Bytes, Unread> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Unread::Broken)?;
        let Ok(mut chunk) = frame.into_data() else {
            continue;
        };
        let room = max - read.len();
        if chunk.len() > room {
            match when_larger {
                OversizePolicy::Refuse => return Err(Unread::TooLarge),
                OversizePolicy::Cut => {
                    chunk.truncate(room);
                    read.extend_from_slice(&chunk);
                    break;
                }
            }
        }
        read.extend_from_slice(&chunk);
    }
    Ok(read.freeze())
}
