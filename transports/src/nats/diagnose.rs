//! Why does no server let us in? The client says only of what kind the failure was, and not of which server, so that each
//! is tried once more here, as far as its greeting.

use std::time::Duration;

use async_nats::ServerAddr;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a server may take to accept the connection, and then to greet.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest greeting that is read.
const MOST_BYTES: u64 = 16 << 10;

/// The greeting of a server, after the word `INFO`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Greeting {
    tls_required: bool,
    tls_available: bool,
}

/// What is wrong with each server that has something wrong with it, as `127.0.0.1:4222: connection refused`.
pub(super) async fn diagnose(servers: &[ServerAddr], requires_tls: bool) -> Option<String> {
    let mut found = Vec::new();
    for server in servers {
        if let Some(trouble) = trouble(server, requires_tls).await {
            found.push(format!("{}:{}: {trouble}", server.host(), server.port()));
        }
    }
    (!found.is_empty()).then(|| found.join("; "))
}

async fn trouble(server: &ServerAddr, requires_tls: bool) -> Option<String> {
    let connecting = TcpStream::connect((server.host(), server.port()));
    let stream = match timeout(PATIENCE, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Some(words(&error)),
        Err(_) => return Some("no answer".to_owned()),
    };
    let mut line = String::new();
    let mut greeting = BufReader::new(stream).take(MOST_BYTES);
    let read = timeout(PATIENCE, greeting.read_line(&mut line)).await;
    let Some(text) = line.strip_prefix("INFO ") else {
        // A server that waits for TLS first says nothing.
        let silent = read.is_err() && line.is_empty();
        return (!silent).then(|| "this is not a NATS server".to_owned());
    };
    let greeting: Greeting = serde_json::from_str(text).unwrap_or_default();
    let lacks_tls = requires_tls && !greeting.tls_required && !greeting.tls_available;
    lacks_tls.then(|| {
        "the server has no TLS, and tls.required is true or a password or token is sent".to_owned()
    })
}

/// What the system says, without its number.
fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    let words = text.split_once(" (os error");
    words.map_or_else(|| text.clone(), |(words, _)| words.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// What is found of a server that greets so.
    async fn found(greeting: &'static str, requires_tls: bool) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server: ServerAddr = format!("nats://{address}").parse().unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(greeting.as_bytes()).await.unwrap();
        };
        let servers = [server];
        let (found, ()) = tokio::join!(diagnose(&servers, requires_tls), serve);
        found.map(|found| found.replace(&address, "A"))
    }

    #[tokio::test]
    async fn each_server_is_named_with_what_is_wrong_with_it() {
        let nobody: ServerAddr = "nats://127.0.0.1:1".parse().unwrap();
        let refused = Some("127.0.0.1:1: connection refused".to_owned());
        assert_eq!(diagnose(&[nobody], false).await, refused);
        let plain = "INFO {\"tls_required\":false}\r\n";
        assert_eq!(found(plain, false).await, None);
        let lacks =
            "A: the server has no TLS, and tls.required is true or a password or token is sent";
        assert_eq!(found(plain, true).await.as_deref(), Some(lacks));
        assert_eq!(found("INFO {\"tls_available\":true}\r\n", true).await, None);
        let other = Some("A: this is not a NATS server");
        assert_eq!(found("SSH-2.0-x\r\n", false).await.as_deref(), other);
    }
}
