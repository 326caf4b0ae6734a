//! Callers of a bridge that shuts down while they send as much as they can.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::battery::within;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, sleep};

use crate::http::{CONFIG, Front, request};

const CLIENTS: usize = 32;
/// How long the bridge leaves an idle connection open while it stops.
const IDLE_GRACE: Duration = Duration::from_millis(250);

/// What came of all requests.
#[derive(Debug, Default)]
struct Tally {
    answered: AtomicUsize,
    refused: AtomicUsize,
}

/// A client of HTTP/1.1 that sees every byte.
struct Client {
    address: String,
    stream: Option<TcpStream>,
    tally: Arc<Tally>,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The answer announced that the connection ends.
    Closes,
    Stays,
    /// Not a byte came.
    Nothing,
}

// === impl Client ===

impl Client {
    /// Sends requests one after another until the listener has closed.
    async fn flood(mut self) {
        let mut last_request = Instant::now();
        loop {
            let was_served = self.stream.is_some();
            let stream = match self.stream.take() {
                Some(stream) => Ok(stream),
                None => TcpStream::connect(&self.address).await,
            };
            // Nobody listens any more, or the listener closed in the moment of the connection.
            let Ok(mut stream) = stream else { break };
            let sent = Instant::now();
            let next = self.exchange(&mut stream).await;
            // Checked after the exchange: if the client is slow, the bridge may have closed its idle connection.
            let was_idle = last_request.elapsed() >= IDLE_GRACE;
            last_request = sent;
            match next {
                Next::Stays => self.stream = Some(stream),
                Next::Closes => {}
                Next::Nothing => {
                    assert!(
                        !was_served || was_idle,
                        "a connection that was served was closed under a request"
                    );
                    let again = TcpStream::connect(&self.address).await;
                    assert!(
                        again.is_err(),
                        "a connection was reset while others are taken"
                    );
                    break;
                }
            }
        }
    }

    async fn exchange(&self, stream: &mut TcpStream) -> Next {
        let body = request("1", "echo", serde_json::json!({ "_agentId": "weather" }));
        let message = format!(
            "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let sent = stream.write_all(message.as_bytes()).await;
        let head = read_head(stream).await;
        let head = match (sent, head) {
            (_, Ok(head)) if !head.is_empty() => head,
            _ => return Next::Nothing,
        };
        let length = header(&head, "content-length").expect("a length");
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.expect("a whole answer");
        let tally = match &head[..12] {
            "HTTP/1.1 200" => &self.tally.answered,
            "HTTP/1.1 503" => &self.tally.refused,
            other => panic!("{other}"),
        };
        tally.fetch_add(1, Ordering::Relaxed);
        match header(&head, "connection") {
            Some("close") => Next::Closes,
            _ => Next::Stays,
        }
    }
}

/// The head of an answer; empty when the connection ended before it.
async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if head.is_empty() => return Err(error),
            Err(error) => panic!("an answer was torn: {error}"),
        }
    }
    Ok(String::from_utf8(head).unwrap())
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

#[tokio::test(flavor = "multi_thread")]
async fn connected_callers_are_answered_while_the_bridge_stops() {
    let mut front = Front::open_with(&CONFIG.replace("drain_grace: 5s", "drain_grace: 60s")).await;
    // The agent reports each request to the test.
    front.requests.close();
    let tally = Arc::new(Tally::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client = Client {
                address: front.base.strip_prefix("http://").unwrap().to_owned(),
                stream: None,
                tally: Arc::clone(&tally),
            };
            tokio::spawn(client.flood())
        })
        .collect();
    within("requests are answered", async {
        while tally.answered.load(Ordering::Relaxed) < 10 * CLIENTS {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    // A call in flight keeps the drain going.
    let parameters = serde_json::json!({ "_agentId": "weather", "held": true });
    let slow = tokio::spawn(front.to("/rpc", request("2", "echo", parameters)).send());
    front.meet_agent().await;
    front.stop.cancel();
    within("requests are refused", async {
        while tally.refused.load(Ordering::Relaxed) < CLIENTS {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    front.meet_agent().await;
    within("the bridge ends", &mut front.running).await.unwrap();
    for client in clients {
        within("a client ends", client).await.unwrap();
    }
    assert_eq!(slow.await.unwrap().unwrap().status(), 200);
}
