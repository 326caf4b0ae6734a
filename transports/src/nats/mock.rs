//! Tests against a minimal mock server, which fails on demand. Tests against real servers are in `tests/brokers`.

use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::coop::unconstrained;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::error::TransportErrorKind as Kind;

/// The server's answer to a request of the JetStream API. A publication to any other subject has no responders.
#[derive(Debug, Clone, Copy)]
enum Api {
    Answer(&'static str),
    NoResponders,
    Silent,
}

/// A server of one connection.
#[derive(Debug)]
struct Mock {
    address: String,
    /// Requests of the API it got.
    api_requests: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

// === impl Mock ===

impl Mock {
    /// Serves the first connection that comes, or has come, to the listener.
    fn serve(listener: TcpListener, api: Api) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let api_requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&api_requests);
        let task = tokio::spawn(async move {
            let (connection, _) = listener.accept().await.unwrap();
            serve_connection(connection, api, &count).await;
        });
        Self {
            address,
            api_requests,
            _task: AbortOnDropHandle::new(task),
        }
    }

    async fn start(api: Api) -> Self {
        Self::serve(listener().await, api)
    }

    async fn connect(&self) -> Nats {
        connect(&self.address).await
    }

    fn api_requests(&self) -> usize {
        self.api_requests.load(Ordering::Relaxed)
    }
}

/// Until the client goes.
async fn serve_connection(connection: TcpStream, api: Api, api_requests: &AtomicUsize) {
    let (read, mut write) = connection.into_split();
    let mut lines = BufReader::new(read);
    let info = r#"{"server_id":"M","server_name":"m","version":"2.11.0","go":"","host":"","port":1,"headers":true,"max_payload":1048576,"proto":1,"client_id":1,"client_ip":""}"#;
    send(&mut write, &format!("INFO {info}\r\n")).await;
    let mut subscriptions: Vec<(String, String)> = Vec::new();
    let mut line = String::new();
    while lines.read_line(&mut line).await.is_ok_and(|read| read > 0) {
        let tokens: Vec<&str> = line.split_whitespace().collect();
        match tokens.as_slice() {
            ["PING"] => send(&mut write, "PONG\r\n").await,
            ["SUB", subject, .., id] => subscriptions.push(((*subject).into(), (*id).into())),
            ["PUB" | "HPUB", subject, rest @ .., length] => {
                let mut body = vec![0; length.parse::<usize>().unwrap() + 2];
                lines.read_exact(&mut body).await.unwrap();
                let is_api = subject.starts_with("$JS.API.");
                api_requests.fetch_add(usize::from(is_api), Ordering::Relaxed);
                // The length of the headers is a number, an inbox is not.
                let reply = rest.iter().find(|word| word.parse::<usize>().is_err());
                let id = reply.and_then(|reply| subscriber(&subscriptions, reply));
                let (Some(reply), Some(id)) = (reply, id) else {
                    line.clear();
                    continue;
                };
                let answer = match (is_api, api) {
                    (true, Api::Silent) => String::new(),
                    (true, Api::Answer(json)) => {
                        format!("MSG {reply} {id} {}\r\n{json}\r\n", json.len())
                    }
                    (false, _) | (true, Api::NoResponders) => {
                        format!("HMSG {reply} {id} 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
                    }
                };
                send(&mut write, &answer).await;
            }
            _ => {}
        }
        line.clear();
    }
}

/// The id of the subscription to `INBOX.*` that a reply goes to.
fn subscriber<'a>(subscriptions: &'a [(String, String)], reply: &str) -> Option<&'a str> {
    let inbox = reply.rsplit_once('.')?.0;
    subscriptions
        .iter()
        .find(|(subject, _)| subject.strip_suffix(".*") == Some(inbox))
        .map(|(_, id)| id.as_str())
}

async fn send(write: &mut OwnedWriteHalf, line: &str) {
    // A client that has gone is no failure of the server.
    let _ = write.write_all(line.as_bytes()).await;
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

async fn connect(address: &str) -> Nats {
    let config = NatsConfig {
        request_timeout: Duration::from_millis(300),
        ack_timeout: Duration::from_secs(20),
        ..NatsConfig::new([format!("nats://{address}")])
    };
    Nats::connect(config).await.unwrap()
}

fn to(topic: &str, guarantee: Guarantee) -> Address {
    Address {
        guarantee,
        ..Address::topic(Topic::new(topic).unwrap())
    }
}

/// The kind of error a stored publication ends with.
async fn store(nats: &Nats, topic: &str) -> Kind {
    let stored = Guarantee::Stored { message_id: None };
    let confirmation = nats.send(&to(topic, stored), Message::plain("x")).await;
    confirmation.unwrap().await.unwrap_err().kind()
}

#[tokio::test]
async fn a_publication_that_waited_for_the_connection_is_confirmed() {
    let listener = listener().await;
    let nats = connect(&listener.local_addr().unwrap().to_string()).await;
    let to = to("a.b", Guarantee::Default);
    let mut sending = std::pin::pin!(nats.send(&to, Message::plain("x")));
    let early = tokio::time::timeout(Duration::from_millis(100), &mut sending).await;
    assert!(early.is_err(), "nobody has answered yet: {early:?}");
    let _server = Mock::serve(listener, Api::Silent);
    let receipt = sending.await.unwrap().await;
    assert!(receipt.is_ok(), "{receipt:?}");
}

#[tokio::test]
async fn a_subject_is_unknown_only_if_the_api_confirms_it() {
    for (api, expected) in [
        (
            Api::Answer(r#"{"total":0,"streams":null}"#),
            Kind::UnknownTopic,
        ),
        (
            Api::Answer(r#"{"total":1,"streams":["S"]}"#),
            Kind::Disconnected,
        ),
        (
            Api::Answer(r#"{"error":{"code":503,"err_code":10008,"description":"unavailable"}}"#),
            Kind::Disconnected,
        ),
        (Api::Answer("{}"), Kind::Disconnected),
        (Api::Answer("?"), Kind::Disconnected),
        (Api::NoResponders, Kind::Disconnected),
        (Api::Silent, Kind::Disconnected),
    ] {
        let server = Mock::start(api).await;
        let nats = server.connect().await;
        assert_eq!(store(&nats, "a.b").await, expected, "{api:?}");
        assert_eq!(server.api_requests(), 1);
    }
}

#[tokio::test]
async fn the_api_is_asked_once_for_many_publications() {
    let server = Mock::start(Api::Answer(r#"{"streams":["S"]}"#)).await;
    let nats = server.connect().await;
    let all = (0..100).map(|_| store(&nats, "a.b"));
    let kinds = futures_util::future::join_all(all).await;
    assert_eq!(kinds, [Kind::Disconnected; 100]);
    for _ in 0..3 {
        assert_eq!(store(&nats, "a.b").await, Kind::Disconnected);
    }
    assert_eq!(server.api_requests(), 1);
    store(&nats, "c.d").await;
    assert_eq!(server.api_requests(), 2);
}

#[tokio::test]
async fn an_unsent_publication_holds_no_permit() {
    let server = Mock::start(Api::Answer(r#"{"streams":["S"]}"#)).await;
    let config = NatsConfig {
        max_ack_pending: 1,
        ack_timeout: Duration::from_secs(120),
        ..NatsConfig::new([format!("nats://{}", server.address)])
    };
    let nats = Nats::connect(config).await.unwrap();
    // So that the connection is up.
    store(&nats, "a.b").await;
    let stored = to("a.b", Guarantee::Stored { message_id: None });
    let is_free = async || {
        let free = Arc::clone(&nats.inner.unanswered).acquire_many_owned(1);
        let free = tokio::time::timeout(Duration::from_secs(60), free).await;
        assert!(free.is_ok(), "the place is held");
    };

    let too_large = Message::plain(vec![b'x'; 2 << 20]);
    let refused = nats.send(&stored, too_large).await.map(drop);
    assert_eq!(refused.unwrap_err().kind(), Kind::TooLarge);
    is_free().await;

    // Nothing is taken out of the queue of the client until this task waits.
    let fill = || nats.inner.client.publish("c.d", "x".into());
    while unconstrained(fill()).now_or_never().is_some() {}
    let sending = Box::pin(nats.send(&stored, Message::plain("x")));
    assert!(unconstrained(sending).now_or_never().is_none());
    is_free().await;
}
