//! Finds out why no server accepts the connection. The client reports only the kind of failure, and not the server. So
//! this connects to each server once more, up to its greeting and TLS.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ServerAddr;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as TlsError, RootCertStore,
};

use super::config::{NatsConfig, NatsTls};
use crate::error::TransportError;

/// How long a server may take for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest greeting that is read.
const MAX_GREETING_BYTES: u64 = 16 << 10;

/// The settings for testing the servers.
#[derive(Debug)]
pub(super) struct Probe {
    servers: Vec<ServerAddr>,
    tls: NatsTls,
    requires_tls: bool,
}

/// The first message of a server, after the word `INFO`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServerInfo {
    tls_required: bool,
    tls_available: bool,
}

// === impl Probe ===

impl Probe {
    pub(super) fn new(config: &NatsConfig) -> Result<Self, TransportError> {
        Ok(Self {
            servers: config.addresses()?,
            tls: config.tls.clone(),
            requires_tls: config.requires_tls(),
        })
    }

    /// The problem of each server that fails, for example `127.0.0.1:4222: connection refused`. `was_connected`: the
    /// client has been connected before, so its settings are probably right.
    pub(super) async fn diagnose(&self, was_connected: bool) -> Option<String> {
        let mut found = Vec::new();
        for server in &self.servers {
            if let Err(trouble) = self.attempt(server, was_connected).await {
                found.push(format!("{}:{}: {trouble}", server.host(), server.port()));
            }
        }
        (!found.is_empty()).then(|| found.join("; "))
    }

    async fn attempt(&self, server: &ServerAddr, was_connected: bool) -> Result<(), String> {
        let connecting = TcpStream::connect((server.host(), server.port()));
        let stream = timeout(STEP_TIMEOUT, connecting).await;
        let stream = stream.map_err(|_| "no answer")?;
        let stream = stream.map_err(|error| error_text(&error))?;
        if self.tls.first {
            return self.handshake(server, stream).await;
        }
        let (greeting, stream) = greet(stream, was_connected).await?;
        let demands_tls = self.requires_tls || server.tls_required();
        if demands_tls && !greeting.tls_required && !greeting.tls_available {
            let demand = match server.tls_required() {
                true => "its address begins with tls://",
                false if self.tls.required == Some(true) => "tls.required is true",
                false => "auth sends a password or token",
            };
            return Err(format!(
                "the server has no TLS, and {demand}: turn TLS on in the server"
            ));
        }
        if demands_tls || greeting.tls_required {
            self.handshake(server, stream).await?;
        }
        Ok(())
    }

    async fn handshake(&self, server: &ServerAddr, stream: TcpStream) -> Result<(), String> {
        let tls = self.tls.clone();
        let config = tokio::task::spawn_blocking(move || client(&tls)).await;
        let config = config.map_err(|error| error.to_string())??;
        let name = ServerName::try_from(server.host().to_owned())
            .map_err(|_| "TLS needs a host name or an IP address")?;
        let connector = TlsConnector::from(Arc::new(config));
        let connecting = timeout(STEP_TIMEOUT, connector.connect(name, stream)).await;
        let connected = connecting
            .map_err(|_| "no answer to the start of TLS: the server may be frozen or overloaded")?;
        let mut stream = connected.map_err(|error| self.refusal(&error))?;
        // With TLS 1.3 a server checks our certificate after the handshake. If it accepts the certificate, it waits for
        // us.
        match timeout(STEP_TIMEOUT, stream.read_u8()).await {
            Ok(Err(error)) => Err(self.refusal(&error)),
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
    }

    /// Why TLS fails, and the fix.
    fn refusal(&self, error: &std::io::Error) -> String {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        match cause {
            Some(TlsError::InvalidCertificate(fault)) => self.distrust(fault),
            Some(TlsError::AlertReceived(alert)) => self.alert(*alert),
            Some(TlsError::InvalidMessage(_)) if self.tls.first => {
                "the server does not begin with TLS: set tls.first to false, or handshake_first in the server".to_owned()
            }
            Some(other) => format!("TLS failed: {other}"),
            None if error.kind() == ErrorKind::UnexpectedEof => {
                "the server ended the connection during TLS: its log says why".to_owned()
            }
            None => format!("TLS failed: {}", error_text(error)),
        }
    }

    /// The problem of the server's certificate.
    fn distrust(&self, fault: &CertificateError) -> String {
        let date = |time: &UnixTime| {
            let time = std::time::UNIX_EPOCH + Duration::from_secs(time.as_secs());
            humantime::format_rfc3339_seconds(time)
        };
        match fault {
            // A bad signature comes from another authority of the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => match &self.tls.ca_file {
                Some(file) => format!(
                    "no authority in tls.ca_file {} has signed the certificate of the server: add the one that has",
                    file.display()
                ),
                None => "this system does not know the authority that signed the certificate of the server: set \
                    tls.ca_file to that authority's certificate"
                    .to_owned(),
            },
            CertificateError::NotValidForNameContext { presented, .. } => format!(
                "the certificate of the server is for {}: use such a name in servers, or a certificate with this one",
                names(presented)
            ),
            CertificateError::ExpiredContext { not_after, .. } => format!(
                "the certificate of the server expired on {}: renew it there",
                date(not_after)
            ),
            CertificateError::NotValidYetContext { not_before, .. } => format!(
                "the certificate of the server is not valid before {}: check the clocks",
                date(not_before)
            ),
            other => format!("the certificate of the server is not accepted: {other}"),
        }
    }

    /// The meaning of a TLS alert from the server.
    fn alert(&self, alert: AlertDescription) -> String {
        let fault = match (&self.tls.cert_file, alert) {
            (
                None,
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::HandshakeFailure,
            ) => {
                return "the server asks for a client certificate: set tls.cert_file and tls.key_file"
                    .to_owned();
            }
            (_, AlertDescription::UnknownCA) => {
                "it does not know the authority that signed it, so use one whose authority is in the server's ca_file"
            }
            (_, AlertDescription::CertificateExpired) => "it has expired, so renew it",
            (_, AlertDescription::BadCertificate | AlertDescription::UnsupportedCertificate) => {
                "it is not one for clients or does not fit the server's settings, and the server's log says why"
            }
            (_, other) => {
                return format!("the server ended TLS with the alert {other:?}: its log says why");
            }
        };
        let file = self.tls.cert_file.as_deref().unwrap_or(Path::new(""));
        format!(
            "the server refuses the client certificate {}: {fault}",
            file.display()
        )
    }
}

/// Reads the greeting, and returns the connection.
async fn greet<S: AsyncRead + Unpin>(
    stream: S,
    was_connected: bool,
) -> Result<(ServerInfo, S), String> {
    let (mut line, mut stream) = (String::new(), BufReader::new(stream));
    let mut start = (&mut stream).take(MAX_GREETING_BYTES);
    // Only the bytes read before a failure count.
    let is_silent = timeout(STEP_TIMEOUT, start.read_line(&mut line))
        .await
        .is_err();
    if let Some(text) = line.strip_prefix("INFO ") {
        let greeting = serde_json::from_str(text).unwrap_or_default();
        return Ok((greeting, stream.into_inner()));
    }
    Err(match (line.is_empty(), is_silent) {
        (true, true) if was_connected => {
            "no greeting: the server accepts connections and sends nothing, so it may be frozen or overloaded: check its process and its load. If handshake_first has been turned on since, set tls.first to true"
        }
        (true, true) => {
            "no greeting: is this a NATS server? If it has handshake_first, set tls.first to true; otherwise it may be frozen or overloaded"
        }
        (true, false) => {
            "no greeting: is this a NATS server? If it has handshake_first, set tls.first to true"
        }
        (false, _) => "this is not a NATS server",
    }
    .to_owned())
}

/// A TLS client with the files of the configuration, like that of the NATS client.
fn client(tls: &NatsTls) -> Result<ClientConfig, String> {
    let findings = tls.findings();
    if let Some(problem) = findings.unusable.iter().chain(&findings.invalid).next() {
        return Err(problem.to_string());
    }
    let mut roots = RootCertStore::empty();
    match &tls.ca_file {
        Some(file) => roots.add_parsable_certificates(certificates(file)?),
        None => roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    };
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let (Some(cert), Some(key)) = (&tls.cert_file, &tls.key_file) else {
        return Ok(builder.with_no_client_auth());
    };
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|error| format!("tls.key_file: {error}"))?;
    builder
        .with_client_auth_cert(certificates(cert)?, key)
        .map_err(|error| format!("tls.cert_file: {error}"))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    read.map_err(|error| format!("{}: {error}", file.display()))
}

/// The names of a certificate: `a, 127.0.0.1` of `DnsName("a")` and `IpAddress(127.0.0.1)`.
fn names(presented: &[String]) -> String {
    let names = presented.iter().map(|shown| {
        let inner = shown.split_once('(').map_or(&**shown, |(_, inner)| inner);
        inner.trim_end_matches(')').trim_matches('"')
    });
    match names.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "no host name".to_owned(),
        names => names,
    }
}

/// The system's error text, without its number.
fn error_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let parts = text.split_once(" (os error");
    parts.map_or_else(|| text.clone(), |(parts, _)| parts.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// The diagnosis of an address, with these keys.
    async fn diagnose(address: &str, keys: &str) -> Option<String> {
        let config = format!(r#"{{"servers":["{address}"]{keys}}}"#);
        let config = serde_json::from_str(&config).unwrap();
        Probe::new(&config).unwrap().diagnose(false).await
    }

    /// The diagnosis of a server with this greeting.
    async fn found(greeting: &'static str, keys: &str) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(greeting.as_bytes()).await.unwrap();
        };
        let server = format!("nats://{address}");
        let (found, ()) = tokio::join!(diagnose(&server, keys), serve);
        found.map(|found| found.replace(&address, "A"))
    }

    #[tokio::test]
    async fn each_server_is_named_with_its_problem() {
        let refused = diagnose("nats://127.0.0.1:1", "").await;
        assert_eq!(refused.as_deref(), Some("127.0.0.1:1: connection refused"));
        let (plain, tls) = (
            "INFO {\"tls_required\":false}\r\n",
            r#","tls":{"required":true}"#,
        );
        assert_eq!(found(plain, "").await, None);
        for (greeting, keys, trouble) in [
            (
                plain,
                tls,
                "A: the server has no TLS, and tls.required is true: turn TLS on in the server",
            ),
            ("SSH-2.0-x\r\n", "", "A: this is not a NATS server"),
            (
                "",
                "",
                "A: no greeting: is this a NATS server? If it has handshake_first, set tls.first to true",
            ),
            (
                plain,
                r#","tls":{"first":true}"#,
                "A: the server does not begin with TLS: set tls.first to false, or handshake_first in the server",
            ),
        ] {
            assert_eq!(found(greeting, keys).await.as_deref(), Some(trouble));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_may_be_frozen() {
        for (was_connected, begin) in [
            (true, "no greeting: the server accepts connections"),
            (false, "no greeting: is this a NATS server?"),
        ] {
            let (ours, _servers) = tokio::io::duplex(1);
            let trouble = greet(ours, was_connected).await.err().unwrap();
            assert!(trouble.starts_with(begin), "{trouble}");
            assert!(trouble.contains("frozen or overloaded"), "{trouble}");
        }
    }

    #[test]
    fn names_of_a_certificate_are_shown_plainly() {
        let presented = [r#"DnsName("a.example")"#, "IpAddress(127.0.0.1)"].map(str::to_owned);
        assert_eq!(names(&presented), "a.example, 127.0.0.1");
        assert_eq!(names(&[]), "no host name");
    }
}
