//! From a host to a connection, through checked addresses.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use a2abus_models::a2e_workflow::target::{is_forbidden_address, is_forbidden_host};
use futures_util::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::client::resolve::Resolve;
use crate::environment::Reach;

/// Connects only to addresses that the request may reach.
#[derive(Clone)]
pub(super) struct Connector {
    reach: Reach,
    resolver: Arc<dyn Resolve>,
    tls: TlsConnector,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("an address that is not globally reachable")]
    Forbidden,
    #[error("no host to connect to")]
    NoHost,
    #[error("no connection")]
    Io(#[from] io::Error),
}

/// A connection, with TLS or without.
pub(super) struct Stream(TokioIo<Box<dyn Io>>);

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for S {}

/// How long one of several addresses is tried, and how long the TLS handshake may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent before the system probes it, the pause between probes, and how many probes must
/// fail until the connection counts as broken.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_PAUSE: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

// === impl Connector ===

impl Connector {
    pub(super) fn new(reach: Reach, resolver: Arc<dyn Resolve>, tls: Arc<ClientConfig>) -> Self {
        let tls = TlsConnector::from(tls);
        Self {
            reach,
            resolver,
            tls,
        }
    }

    pub(super) async fn connect(self, uri: Uri) -> Result<Stream, ConnectError> {
        let host = uri.host().ok_or(ConnectError::NoHost)?;
        let has_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if has_tls { 443 } else { 80 });
        let addresses = self.addresses(host).await?;
        let stream = open(&addresses, port).await?;
        // Small requests should be sent at once (no Nagle delay).
        stream.set_nodelay(true)?;
        if !has_tls {
            return Ok(Stream(TokioIo::new(Box::new(stream))));
        }
        let name = ServerName::try_from(bare(host).to_owned()).map_err(|_| ConnectError::NoHost)?;
        let shaking = tokio::time::timeout(ATTEMPT_TIMEOUT, self.tls.connect(name, stream));
        let stream = shaking
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Stream(TokioIo::new(Box::new(stream))))
    }

    /// The addresses of a host, all of them permitted. One forbidden address forbids all, because it is a sign of an
    /// attack.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, ConnectError> {
        if self.reach == Reach::Global && is_forbidden_host(host) {
            return Err(ConnectError::Forbidden);
        }
        let addresses = match bare(host).parse() {
            Ok(address) => vec![address],
            Err(_) => self.resolver.resolve(host).await?,
        };
        match self.reach {
            Reach::Global if addresses.iter().copied().any(is_forbidden_address) => {
                Err(ConnectError::Forbidden)
            }
            Reach::Global | Reach::Registered => Ok(addresses),
        }
    }
}

/// The first address that answers.
async fn open(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        let connecting = TcpStream::connect((*address, port));
        match tokio::time::timeout(ATTEMPT_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => {
                // Errors do not matter: without probes, a broken connection is noticed later.
                let _ = set_probes(&stream);
                return Ok(stream);
            }
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

/// Lets the system find out that the peer is gone while nothing is sent, as on an idle stream of events.
fn set_probes(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_PAUSE)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(())
}

/// The text of an IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host)
}

impl tower_service::Service<Uri> for Connector {
    type Response = Stream;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Stream, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

// === impl Stream ===

impl Stream {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut TokioIo<Box<dyn Io>>> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner().poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_silent_connection_is_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = open(&[address.ip()], address.port()).await.unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), PROBE_AFTER);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), PROBE_PAUSE);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), PROBES);
    }
}
