//! Tests against a minimal mock server, which fails on demand. Tests against real servers are in `tests/brokers`.

use std::collections::HashSet;
use std::sync::Mutex;

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::coop::unconstrained;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::error::TransportErrorKind as Kind;

/// The server's answer to a request of the JetStream API. A publication to any other subject has no responders, unless
/// somebody subscribes to it. A publication to `refuse.SUBJECT` takes the permission to subscribe to `SUBJECT` away,
/// one to `forbid.SUBJECT` the permission to publish there, and one to `permit.SUBJECT` gives that back.
#[derive(Debug, Clone, Copy)]
pub(super) enum Api {
    Answer(&'static str),
    /// The answers to requests whose subject contains a word, also to those that are not of the API. Others get none.
    Answers(&'static [(&'static str, &'static str)]),
    NoResponders,
    Silent,
    /// None to the first request.
    Late(&'static str),
    /// Only to the first request. The others have no responders.
    Once(&'static str),
    /// These messages come on the reply subject of each publication to another subject.
    Stored(&'static [&'static str]),
    /// A message with a carriage return within a header.
    Broken,
}

/// The answer of a cluster that elects its leader.
const UNAVAILABLE: &str = r#"{"error":{"code":503,"err_code":10008,"description":"unavailable"}}"#;

/// The subject and the body of requests of the API.
type Requests = Mutex<Vec<(String, Vec<u8>)>>;

/// A server of one connection after another.
#[derive(Debug)]
pub(super) struct Mock {
    address: String,
    /// The requests of the API it got.
    api_requests: Arc<Requests>,
    _task: AbortOnDropHandle<()>,
}

// === impl Mock ===

impl Mock {
    /// Serves the first connection that comes, or has come, to the listener.
    pub(super) fn serve(listener: TcpListener, api: Api) -> Self {
        Self::serve_in_turn(listener, vec![api])
    }

    /// The same for as many connections as there are ways to answer.
    fn serve_in_turn(listener: TcpListener, apis: Vec<Api>) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let api_requests = Arc::new(Requests::default());
        let requests = Arc::clone(&api_requests);
        let task = tokio::spawn(async move {
            for api in apis {
                let (connection, _) = listener.accept().await.unwrap();
                serve_connection(connection, api, &requests).await;
            }
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

    /// A connection that may create streams and consumers.
    async fn connect_managing(&self) -> Nats {
        let config = NatsConfig {
            jetstream: JetStreamConfig {
                manage: true,
                ..JetStreamConfig::default()
            },
            ..NatsConfig::new([format!("nats://{}", self.address)])
        };
        let nats = Nats::connect(config).await.unwrap();
        up(&nats).await;
        nats
    }

    fn api_requests(&self) -> usize {
        self.api_requests.lock().unwrap().len()
    }

    /// The body of the only request whose subject contains a word.
    fn api_request(&self, word: &str) -> Value {
        let requests = self.api_requests.lock().unwrap();
        let mut found = requests.iter().filter(|(to, _)| to.contains(word));
        let (_, body) = found.next().unwrap();
        assert!(found.next().is_none());
        serde_json::from_slice(body).unwrap()
    }
}

/// Until the client goes.
async fn serve_connection(connection: TcpStream, api: Api, requests: &Requests) {
    let (read, mut write) = connection.into_split();
    let mut lines = BufReader::new(read);
    let info = r#"{"server_id":"M","server_name":"m","version":"2.11.0","go":"","host":"","port":1,"headers":true,"max_payload":1048576,"proto":1,"client_id":1,"client_ip":""}"#;
    send(&mut write, &format!("INFO {info}\r\n")).await;
    let mut subscriptions: Vec<(String, String)> = Vec::new();
    let mut refused: Vec<String> = Vec::new();
    let mut forbidden: HashSet<String> = HashSet::new();
    let mut line = String::new();
    while lines.read_line(&mut line).await.is_ok_and(|read| read > 0) {
        let tokens: Vec<&str> = line.split_whitespace().collect();
        match tokens.as_slice() {
            ["PING"] => send(&mut write, "PONG\r\n").await,
            ["SUB", subject, queue @ .., _] if refused.iter().any(|it| it == subject) => {
                send(&mut write, &refusal(subject, queue.first())).await;
            }
            ["SUB", subject, .., id] => subscriptions.push(((*subject).into(), (*id).into())),
            ["PUB" | "HPUB", subject, rest @ .., length] => {
                let mut body = vec![0; length.parse::<usize>().unwrap() + 2];
                lines.read_exact(&mut body).await.unwrap();
                if let Some(subject) = subject.strip_prefix("forbid.") {
                    forbidden.insert(subject.to_owned());
                } else if let Some(subject) = subject.strip_prefix("permit.") {
                    forbidden.remove(subject);
                } else if forbidden.contains(*subject) {
                    let error = format!("Permissions Violation for Publish to \"{subject}\"");
                    send(&mut write, &format!("-ERR '{error}'\r\n")).await;
                }
                if let Some(subject) = subject.strip_prefix("refuse.") {
                    refused.push(subject.to_owned());
                    send(&mut write, &refusal(subject, None)).await;
                }
                // A client that publishes to its own inbox.
                if let Some(id) = subscriber(&subscriptions, subject) {
                    send(&mut write, &format!("MSG {subject} {id} 0\r\n\r\n")).await;
                }
                // The length of the headers is a number, an inbox is not.
                let reply = rest.iter().find(|word| word.parse::<usize>().is_err());
                let id = reply.and_then(|reply| subscriber(&subscriptions, reply));
                let mut earlier = None;
                if subject.starts_with("$JS.API.") {
                    let mut requests = requests.lock().unwrap();
                    earlier = Some(requests.len());
                    requests.push(((*subject).into(), body));
                }
                if let (Some(reply), Some(id)) = (reply, id) {
                    send(&mut write, &api.answer(subject, (*reply, id), earlier)).await;
                }
            }
            _ => {}
        }
        line.clear();
    }
}

/// The error for a refused subscription.
fn refusal(subject: &str, queue: Option<&&str>) -> String {
    let queue = queue.map_or_else(String::new, |queue| format!(" using queue \"{queue}\""));
    format!("-ERR 'Permissions Violation for Subscription to \"{subject}\"{queue}'\r\n")
}

impl Api {
    /// What the server sends for a publication with this reply subject and the id of its subscription: `earlier` is
    /// the number of earlier requests of the API, if it is one.
    fn answer(self, subject: &str, (reply, id): (&str, &str), earlier: Option<usize>) -> String {
        let message = |json: &str| format!("MSG {reply} {id} {}\r\n{json}\r\n", json.len());
        let nobody = || format!("HMSG {reply} {id} 16 16\r\nNATS/1.0 503\r\n\r\n\r\n");
        if let (Self::Stored(answers), None) = (self, earlier) {
            return answers.iter().map(|json| message(json)).collect();
        }
        if let Self::Answers(answers) = self
            && let Some((_, json)) = answers.iter().find(|(word, _)| subject.contains(*word))
        {
            return message(json);
        }
        let Some(earlier) = earlier else {
            return nobody();
        };
        match self {
            Self::Silent | Self::Answers(_) => String::new(),
            Self::Late(_) if earlier == 0 => String::new(),
            Self::Once(_) if earlier > 0 => nobody(),
            Self::Broken => {
                let headers = "NATS/1.0\r\na: b\rc\r\n\r\n";
                format!("HMSG {reply} {id} 20 20\r\n{headers}\r\n")
            }
            Self::Answer(json) | Self::Late(json) | Self::Once(json) => message(json),
            Self::NoResponders | Self::Stored(_) => nobody(),
        }
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

pub(super) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

pub(super) async fn connect(address: &str) -> Nats {
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

/// A durable consumer `c` of the stream `S`. The binding names other subjects than its messages have.
pub(super) fn consumer(nats: &Nats) -> ConsumerRef {
    ConsumerRef {
        api: nats.inner().api.clone(),
        stream: "S".into(),
        name: "c".into(),
        topics: Arc::from([TopicFilter::new("other").unwrap()]),
        max_ack_pending: 1,
    }
}

/// Waits for the connection.
pub(super) async fn up(nats: &Nats) {
    let deadline = Instant::now() + Duration::from_secs(60);
    nats.inner().link.up(deadline).await.unwrap();
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

async fn subscribe(nats: &Nats, topic: &str, reading: Reading) -> Result<Consumer, TransportError> {
    let subscription = Subscription {
        topics: vec![TopicFilter::new(topic).unwrap()],
        reading,
        budget_bytes: 1000,
        budget_messages: 10,
    };
    nats.subscribe(subscription).await
}

/// Waits until the consumer ends.
async fn ended(consumer: &mut Consumer) {
    let next = tokio::time::timeout(Duration::from_secs(60), consumer.recv()).await;
    assert!(next.unwrap().is_none());
}

#[tokio::test]
async fn a_core_subscription_that_the_server_refuses_later_ends_and_cannot_be_made_again() {
    let server = Mock::start(Api::Silent).await;
    let config = NatsConfig {
        request_timeout: Duration::from_secs(60),
        ..NatsConfig::new([format!("nats://{}", server.address)])
    };
    let nats = Nats::connect(config).await.unwrap();
    let live = || Reading::Live { partition: None };
    let group = || Reading::Group("g".into());
    let mut first = subscribe(&nats, "in.a", live()).await.unwrap();
    let mut shared = subscribe(&nats, "in.a", group()).await.unwrap();
    let mut other = subscribe(&nats, "in.b", live()).await.unwrap();
    let refuse = to("refuse.in.a", Guarantee::Default);
    let sent = nats.send(&refuse, Message::plain("x")).await.unwrap();
    sent.await.unwrap();
    ended(&mut first).await;
    assert!(first.lost().now_or_never().is_some());
    // Those in a queue group have a permission of their own.
    assert!(shared.recv().now_or_never().is_none());
    for reading in [live(), group()] {
        let refused = subscribe(&nats, "in.a", reading).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Unauthorised);
    }
    ended(&mut shared).await;
    assert!(other.recv().now_or_never().is_none());
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
        (Api::Answer(UNAVAILABLE), Kind::Disconnected),
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
async fn only_a_stream_confirms_a_stored_message() {
    let server = Mock::start(Api::Stored(&[
        // Subscribers get the reply subject too.
        r#"{"jsonrpc":"2.0","result":{}}"#,
        "ok",
        r#"{"stream":"S","seq":7}"#,
    ]))
    .await;
    let nats = server.connect().await;
    let to = to("a.b", Guarantee::Stored { message_id: None });
    let sent = nats.send(&to, Message::plain("x")).await.unwrap();
    let receipt = tokio::time::timeout(Duration::from_secs(60), sent).await;
    assert_eq!(receipt.unwrap().unwrap().position.as_deref(), Some("j:S/7"));
}

#[tokio::test]
async fn a_message_on_a_refused_subject_is_confirmed_only_once_the_server_permits_it() {
    let server = Mock::start(Api::Silent).await;
    let nats = server.connect().await;
    up(&nats).await;
    let mut health = nats.health();
    let publish = async |topic: &str| {
        let to = to(topic, Guarantee::Default);
        let sent = nats.send(&to, Message::plain("x")).await.unwrap();
        let sent = tokio::time::timeout(Duration::from_secs(60), sent).await;
        sent.unwrap().map_err(|error| error.kind())
    };
    publish("forbid.a.b").await.unwrap();
    // It may be confirmed before the refusal comes.
    let _first = publish("a.b").await;
    let is_named = |now: &Health| matches!(now, Health::Impaired(cause) if cause.contains("publishing to a.b"));
    has_health(&mut health, is_named).await;
    for _ in 0..2 {
        assert_eq!(publish("a.b").await.unwrap_err(), Kind::Unauthorised);
        publish("a.c").await.unwrap();
    }
    publish("permit.a.b").await.unwrap();
    publish("a.b").await.unwrap();
    has_health(&mut health, |now| *now == Health::Up).await;
}

#[tokio::test]
async fn a_refused_acknowledgement_is_reported() {
    let server = Mock::start(Api::Silent).await;
    let nats = server.connect().await;
    up(&nats).await;
    let client = nats.inner().client.clone();
    let acknowledge = "$JS.ACK.S.c.1.1.1.1.0";
    for subject in [format!("forbid.{acknowledge}"), acknowledge.to_owned()] {
        client.publish(subject, "".into()).await.unwrap();
    }
    let is_named = |now: &Health| {
        matches!(now, Health::Impaired(cause)
            if cause.contains("$JS.ACK.>") && cause.contains("again and again"))
    };
    has_health(&mut nats.health(), is_named).await;
}

#[tokio::test]
async fn a_duplicate_of_a_message_that_is_not_stored_yet_is_no_refusal() {
    let server = Mock::start(Api::Stored(&[
        r#"{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"S","seq":0}"#,
    ]))
    .await;
    let nats = server.connect().await;
    let message_id = Some("1".into());
    let to = to("a.b", Guarantee::Stored { message_id });
    let sent = nats.send(&to, Message::plain("x")).await.unwrap();
    let error = tokio::time::timeout(Duration::from_secs(60), sent).await;
    let error = error.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
    assert!(error.leaves_open());
    assert!(error.to_string().contains("first attempt"), "{error}");
}

#[tokio::test]
async fn a_consumer_that_leaves_out_all_subjects_of_the_binding_is_reported() {
    const OTHER: &str = r#"{"config":{"ack_policy":"explicit","filter_subject":"req.zzz"},"delivered":{"consumer_seq":0,"stream_seq":0},"ack_floor":{"stream_seq":0},"num_pending":1,"num_ack_pending":0}"#;
    let server = Mock::start(Api::Answers(&[("CONSUMER.INFO", OTHER)])).await;
    let nats = server.connect().await;
    up(&nats).await;
    let reading = Reading::Durable {
        stream: "S".into(),
        name: "c".into(),
    };
    let _consumer = subscribe(&nats, "req.a.>", reading).await.unwrap();
    let is_named = |now: &Health| {
        matches!(now, Health::Impaired(cause)
            if cause.contains("req.zzz") && cause.contains("req.a.>"))
    };
    has_health(&mut nats.health(), is_named).await;
}

#[tokio::test]
async fn a_filter_that_was_corrected_is_reported_no_longer_if_the_stream_may_not_be_examined() {
    let server = Mock::start(Api::Silent).await;
    let nats = server.connect().await;
    up(&nats).await;
    let client = nats.inner().client.clone();
    let forbid = "forbid.$JS.API.STREAM.INFO.S";
    client.publish(forbid, "".into()).await.unwrap();
    let (consumer, mut health) = (consumer(&nats), nats.health());
    let (mut is_starved, mut may_ask) = (false, true);
    for (filter, is_named) in [("req.zzz", true), ("other", false), ("req.zzz", true)] {
        let info = serde_json::json!({ "config": { "filter_subject": filter } });
        consumer
            .watch_subjects(&info, &mut is_starved, &mut may_ask)
            .await;
        assert_eq!(is_starved, is_named);
        let names =
            |now: &Health| matches!(now, Health::Impaired(cause) if cause.contains("req.zzz"));
        has_health(&mut health, |now| names(now) == is_named).await;
    }
    assert!(!may_ask);
}

#[tokio::test]
async fn only_an_answer_of_the_api_means_that_no_stream_takes_a_subject() {
    for (api, expected) in [
        (Api::Answer(r#"{"total":0,"streams":null}"#), None),
        (
            Api::Answer(r#"{"error":{"code":503,"err_code":10076,"description":"not enabled"}}"#),
            None,
        ),
        (Api::NoResponders, None),
        // The message waits, whatever the API says instead: no other kind is used, or it could become a dead letter.
        (Api::Answer(UNAVAILABLE), Some(Kind::Disconnected)),
        (
            Api::Answer(r#"{"error":{"code":404,"err_code":10059,"description":"no stream"}}"#),
            Some(Kind::Disconnected),
        ),
        (
            Api::Answer(r#"{"error":{"code":503,"err_code":10077,"description":"full"}}"#),
            Some(Kind::Disconnected),
        ),
        (Api::Answer("{}"), Some(Kind::Disconnected)),
        (Api::Silent, Some(Kind::TimedOut)),
    ] {
        let server = Mock::start(api).await;
        let nats = server.connect().await;
        up(&nats).await;
        let sent = store_if_any(&nats, "a.b").await;
        assert_eq!(sent.err(), expected, "{api:?}");
    }
}

/// A publication whose subject has not been looked up.
async fn store_if_any(nats: &Nats, topic: &str) -> Result<(), Kind> {
    let message_id = "1".into();
    let to = to(topic, Guarantee::StoredIfAny { message_id });
    let sent = nats.send(&to, Message::plain("x")).await;
    sent.map(drop).map_err(|error| error.kind())
}

#[tokio::test]
async fn an_api_that_fails_is_asked_few_questions_about_many_subjects() {
    for (api, kind) in [
        (Api::Silent, Kind::TimedOut),
        (Api::Answer(UNAVAILABLE), Kind::Disconnected),
    ] {
        let server = Mock::start(api).await;
        let nats = server.connect().await;
        up(&nats).await;
        let started = Instant::now();
        let topics = Vec::from_iter((0..200).map(|n| format!("inbox.{n}")));
        let all = topics.iter().map(|topic| store_if_any(&nats, topic));
        let sent = futures_util::future::join_all(all).await;
        assert_eq!(sent, [Err(kind); 200]);
        // After a failure none is asked for a second, which may be over early on a busy machine.
        let most = 100 * (1 + started.elapsed().as_secs());
        let asked = server.api_requests() as u64;
        assert!(asked < most, "{api:?}: {asked} in {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_silent_api_is_reported_until_it_answers() {
    let server = Mock::start(Api::Late(r#"{"total":0,"streams":null}"#)).await;
    let nats = server.connect().await;
    up(&nats).await;
    let health = nats.health();
    let sent = store_if_any(&nats, "a.b").await;
    assert_eq!(sent, Err(Kind::TimedOut));
    assert!(matches!(&*health.borrow(), Health::Impaired(cause) if cause.starts_with("JetStream")));
    assert_eq!(store_if_any(&nats, "c.d").await, Ok(()));
    assert_eq!(*health.borrow(), Health::Up);
}

#[tokio::test]
async fn an_api_that_answers_with_an_error_is_reported() {
    let server = Mock::start(Api::Answer(UNAVAILABLE)).await;
    let nats = server.connect().await;
    up(&nats).await;
    assert_eq!(store_if_any(&nats, "a.b").await, Err(Kind::Disconnected));
    let health = nats.health().borrow().clone();
    assert!(
        matches!(&health, Health::Impaired(cause) if cause.contains("10008")),
        "{health:?}"
    );
}

/// As while the servers of JetStream restart, or without the link of a leaf node.
#[tokio::test]
async fn an_api_that_has_answered_and_has_no_server_any_more_is_not_off() {
    let server = Mock::start(Api::Once(r#"{"total":0,"streams":null}"#)).await;
    let nats = server.connect().await;
    up(&nats).await;
    assert_eq!(store_if_any(&nats, "a.b").await, Ok(()));
    assert_eq!(store_if_any(&nats, "c.d").await, Err(Kind::Disconnected));
    let health = nats.health().borrow().clone();
    assert!(
        matches!(&health, Health::Impaired(cause) if cause.contains("no server has JetStream")),
        "{health:?}"
    );
}

/// Only some requests may get no answer, such as those that an import of the account leaves out.
#[tokio::test]
async fn the_state_of_a_durable_does_not_show_that_the_api_knows_the_streams() {
    let server = Mock::start(Api::Answers(&[("CONSUMER.INFO", "{}")])).await;
    let nats = server.connect().await;
    up(&nats).await;
    assert_eq!(store_if_any(&nats, "a.b").await, Err(Kind::TimedOut));
    let info = nats.inner().api.consumer_info("S", "c").await;
    assert!(info.unwrap().is_some());
    let health = nats.health().borrow().clone();
    assert!(matches!(&health, Health::Impaired(_)), "{health:?}");
}

#[tokio::test]
async fn a_new_durable_begins_after_the_settled_messages() {
    const NONE: &str = r#"{"error":{"code":404,"err_code":10014,"description":"not found"}}"#;
    const STREAM: &str = r#"{"created":"2026-01-02T00:00:00.5Z","state":{"last_seq":9}}"#;
    const CREATED: &str = r#"{"config":{"ack_policy":"explicit"}}"#;
    for (settled, before, policy, first) in [
        (0, None, "all", None),
        (7, None, "by_start_sequence", Some(8)),
        (
            9,
            Some("2026-01-03T00:00:00Z"),
            "by_start_sequence",
            Some(10),
        ),
        // The clocks of the servers differ.
        (
            9,
            Some("2026-01-02T00:00:00Z"),
            "by_start_sequence",
            Some(10),
        ),
        // The stream is another one, of the same name.
        (10, None, "all", None),
        (9, Some("2026-01-01T00:00:00Z"), "all", None),
    ] {
        let server = Mock::start(Api::Answers(&[
            ("CONSUMER.INFO", NONE),
            ("STREAM.INFO", STREAM),
            ("CONSUMER.DURABLE.CREATE", CREATED),
        ]))
        .await;
        let nats = server.connect_managing().await;
        let before = before.map(|time| humantime::parse_rfc3339(time).unwrap());
        consumer(&nats).ensure(settled, before).await.unwrap();
        let created = server.api_request("CONSUMER.DURABLE.CREATE");
        assert_eq!(created["config"]["deliver_policy"], policy);
        assert_eq!(created["config"]["opt_start_seq"].as_u64(), first);
    }
}

#[tokio::test]
async fn a_durable_of_a_deleted_stream_is_not_created_again_without_it() {
    const NO_CONSUMER: &str =
        r#"{"error":{"code":404,"err_code":10014,"description":"not found"}}"#;
    const NO_STREAM: &str = r#"{"error":{"code":404,"err_code":10059,"description":"not found"}}"#;
    let server = Mock::start(Api::Answers(&[
        ("CONSUMER.INFO", NO_CONSUMER),
        ("STREAM.INFO", NO_STREAM),
    ]))
    .await;
    let nats = server.connect_managing().await;
    let error = consumer(&nats).ensure(7, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::UnknownTopic, "{error}");
    assert!(error.to_string().contains("stream not found"), "{error}");
}

#[tokio::test]
async fn a_consumer_of_subjects_that_its_stream_does_not_store_is_refused_unless_messages_wait() {
    const MINE: &str = r#"{"config":{"subjects":["mine"]}}"#;
    const OTHER: &str = r#"{"config":{"subjects":["mine","other"]}}"#;
    const EMPTY: &str = r#"{"config":{"ack_policy":"explicit","filter_subject":"other"},"num_pending":0,"num_ack_pending":0}"#;
    const WAITING: &str = r#"{"config":{"ack_policy":"explicit","filter_subject":"other"},"num_pending":0,"num_ack_pending":1}"#;
    for (answers, refused) in [
        (&[("CONSUMER.INFO", EMPTY), ("STREAM.INFO", MINE)], true),
        (&[("CONSUMER.INFO", WAITING), ("STREAM.INFO", MINE)], false),
        (&[("CONSUMER.INFO", EMPTY), ("STREAM.INFO", OTHER)], false),
    ] {
        let server = Mock::start(Api::Answers(answers)).await;
        let nats = server.connect().await;
        up(&nats).await;
        let found = consumer(&nats).ensure(0, None).await;
        let kind = found.err().map(|error| error.kind());
        assert_eq!(kind, refused.then_some(Kind::BadConfig), "{answers:?}");
    }
}

#[tokio::test]
async fn every_managed_stream_that_cannot_be_created_is_reported() {
    const NONE: &str = r#"{"error":{"code":404,"err_code":10059,"description":"not found"}}"#;
    const OVERLAP: &str =
        r#"{"error":{"code":400,"err_code":10065,"description":"subjects overlap"}}"#;
    let server = Mock::start(Api::Answers(&[
        ("STREAM.INFO", NONE),
        ("STREAM.CREATE", OVERLAP),
    ]))
    .await;
    let streams = [
        r#"{"name":"S","subjects":["a.>"]}"#,
        r#"{"name":"T","subjects":["b"]}"#,
    ];
    let config = NatsConfig {
        jetstream: JetStreamConfig {
            manage: true,
            streams: streams
                .iter()
                .map(|it| serde_json::from_str(it).unwrap())
                .collect(),
            ..JetStreamConfig::default()
        },
        ..NatsConfig::new([format!("nats://{}", server.address)])
    };
    let nats = Nats::connect(config).await.unwrap();
    let mut health = nats.health();
    let reported = health.wait_for(|now| {
        matches!(now, Health::Impaired(cause)
            if cause.starts_with("managed stream S: ") && cause.contains("; managed stream T: ")
                && cause.matches("subjects overlap").count() == 2)
    });
    let reported = tokio::time::timeout(Duration::from_secs(60), reported).await;
    assert!(reported.is_ok(), "it is not reported");
}

#[tokio::test]
async fn a_lookup_ends_also_if_the_stream_is_not_created() {
    const NONE: &str = r#"{"total":0,"streams":null}"#;
    let server = Mock::start(Api::Answers(&[("STREAM.NAMES", NONE)])).await;
    let stream = r#"{"name":"S","subjects":["a.>"]}"#;
    let config = NatsConfig {
        request_timeout: Duration::from_secs(60),
        jetstream: JetStreamConfig {
            manage: true,
            streams: vec![serde_json::from_str(stream).unwrap()],
            ..JetStreamConfig::default()
        },
        ..NatsConfig::new([format!("nats://{}", server.address)])
    };
    let nats = Nats::connect(config).await.unwrap();
    let topic = Topic::new("a.b").unwrap();
    let looked = lookup::look_up(nats.inner().api.clone(), topic);
    let looked = tokio::time::timeout(Duration::from_secs(30), looked).await;
    let (_, coverage) = looked.expect("the lookup ends before the request");
    let is_unknown = matches!(coverage, expected::Coverage::Undetermined(Some(_)));
    assert!(is_unknown, "{coverage:?}");
}

#[tokio::test]
async fn a_search_finds_the_malformed_messages_of_the_filter_of_the_consumer() {
    const MESSAGE: &str = r#"{"message":{"subject":"a.b","hdrs":"TkFUUy8xLjANCm5vIGNvbG9uDQoNCg==","data":"","time":"2026-01-01T00:00:00Z"}}"#;
    const A: &str = r#"{"config":{"filter_subject":"a.>"},"delivered":{"consumer_seq":9,"stream_seq":2},"ack_floor":{"stream_seq":1},"num_ack_pending":1}"#;
    const OTHER: &str = r#"{"config":{"filter_subjects":["b","c"]},"delivered":{"consumer_seq":9,"stream_seq":2},"ack_floor":{"stream_seq":1},"num_ack_pending":1}"#;
    for (answers, expected) in [
        (&[("CONSUMER.INFO", A), ("MSG.GET", MESSAGE)], true),
        (&[("CONSUMER.INFO", OTHER), ("MSG.GET", MESSAGE)], false),
    ] {
        let server = Mock::start(Api::Answers(answers)).await;
        let nats = server.connect().await;
        up(&nats).await;
        let found = consumer(&nats).unreadable(HashSet::new()).await.unwrap();
        assert_eq!(found.settled, 1);
        let replies = found.found.iter().map(|stored| stored.reply.as_str());
        // With the consumer's sequence of its last delivery: otherwise the server ignores a -NAK.
        let reply = expected.then_some("$JS.ACK.S.c.1.2.9.0.0");
        assert_eq!(replies.collect::<Vec<_>>(), Vec::from_iter(reply));
    }
}

#[tokio::test]
async fn records_are_deleted_only_if_the_user_is_known_to_have_the_permission() {
    const SOME: &[&str] =
        &[r#"{"data":{"permissions":{"publish":{"allow":["$JS.API.STREAM.INFO.*"]}}}}"#];
    let records = [crate::log::LogPosition::at(7)];
    for api in [Api::Stored(SOME), Api::NoResponders] {
        let server = Mock::start(api).await;
        let nats = server.connect().await;
        up(&nats).await;
        assert!(!nats.delete_records("S", &records).await.unwrap());
        assert_eq!(server.api_requests(), 0);
    }
}

/// Otherwise the record before a deleted one would count again.
#[tokio::test]
async fn records_are_deleted_only_from_a_stream_that_keeps_one_of_each_subject() {
    const ALL: (&str, &str) = ("USER.INFO", r#"{"data":{}}"#);
    const DELETED: (&str, &str) = ("MSG.DELETE", r#"{"success":true}"#);
    const ONE: &str = r#"{"config":{"max_msgs_per_subject":1}}"#;
    const ANY: &str = r#"{"config":{"max_msgs_per_subject":-1}}"#;
    const FIVE: &str = r#"{"config":{"max_msgs_per_subject":5}}"#;
    let records = [crate::log::LogPosition::at(7)];
    let of_one: &[_] = &[ALL, ("STREAM.INFO", ONE), DELETED];
    let of_any: &[_] = &[ALL, ("STREAM.INFO", ANY), DELETED];
    let of_five: &[_] = &[ALL, ("STREAM.INFO", FIVE), DELETED];
    for (answers, is_deleted) in [(of_one, true), (of_any, false), (of_five, false)] {
        let server = Mock::start(Api::Answers(answers)).await;
        let nats = server.connect().await;
        up(&nats).await;
        let deleted = nats.delete_records("S", &records).await.unwrap();
        assert_eq!(deleted, is_deleted);
        if is_deleted {
            let request = server.api_request("STREAM.MSG.DELETE.S");
            assert_eq!(request["seq"], 7);
        } else {
            assert_eq!(server.api_requests(), 1, "only STREAM.INFO");
        }
    }
}

/// Waits until the transport has this health.
async fn has_health(health: &mut watch::Receiver<Health>, is: impl FnMut(&Health) -> bool) {
    let reached = tokio::time::timeout(Duration::from_secs(60), health.wait_for(is)).await;
    assert!(matches!(reached, Ok(Ok(_))));
}

/// The state of the client does not show it.
#[tokio::test]
async fn another_client_takes_the_place_of_one_that_panics() {
    let listener = listener().await;
    let nats = connect(&listener.local_addr().unwrap().to_string()).await;
    let _server = Mock::serve_in_turn(listener, vec![Api::Broken, Api::Silent]);
    up(&nats).await;
    let inner = nats.inner();
    let mut health = nats.health();
    let live = Reading::Live { partition: None };
    let mut consumer = subscribe(&nats, "in.a", live.clone()).await.unwrap();
    let subject = Topic::new("a.b").unwrap();
    let is_ended = |now: &Health| matches!(now, Health::Down(cause) if cause.starts_with("the NATS client has ended"));
    let asked = lookup::look_up(inner.api.clone(), subject);
    tokio::join!(has_health(&mut health, is_ended), asked);
    // Nothing waits for it until its deadline.
    let hour = Instant::now() + Duration::from_secs(3600);
    let came_up = tokio::time::timeout(Duration::from_secs(60), inner.link.up(hour)).await;
    assert_eq!(came_up.unwrap().unwrap_err().kind(), Kind::Disconnected);
    ended(&mut consumer).await;
    assert!(consumer.lost().now_or_never().is_some());

    has_health(&mut health, |now| *now == Health::Up).await;
    let to = to("a.b", Guarantee::Default);
    let sent = nats.send(&to, Message::plain("x")).await.unwrap();
    sent.await.unwrap();
    let _again = subscribe(&nats, "in.a", live).await.unwrap();
    nats.close(Duration::from_secs(60)).await.unwrap();
    let sent = nats.send(&to, Message::plain("x")).await;
    assert_eq!(sent.unwrap_err().kind(), Kind::Closed);
}

#[tokio::test]
async fn a_stored_message_at_which_the_client_panics_is_read_from_the_stream_by_the_next_one() {
    const MESSAGE: &str = r#"{"message":{"subject":"a.b","hdrs":"TkFUUy8xLjANCmE6IGINYw0KDQo=","data":"Ym9keQ==","time":"2026-01-01T00:00:00Z"}}"#;
    const CONSUMER: &str = r#"{"config":{"ack_policy":"explicit","filter_subject":"a.b"},"delivered":{"consumer_seq":9,"stream_seq":2},"ack_floor":{"stream_seq":1},"num_pending":0,"num_ack_pending":1}"#;
    let listener = listener().await;
    let nats = connect(&listener.local_addr().unwrap().to_string()).await;
    let answers = Api::Answers(&[("CONSUMER.INFO", CONSUMER), ("MSG.GET", MESSAGE)]);
    let _server = Mock::serve_in_turn(listener, vec![Api::Broken, answers]);
    up(&nats).await;
    let reading = Reading::Durable {
        stream: "S".into(),
        name: "c".into(),
    };
    // The first client panics at the first answer of the API.
    assert!(subscribe(&nats, "a.b", reading.clone()).await.is_err());
    let subscribed = async {
        loop {
            if let Ok(consumer) = subscribe(&nats, "a.b", reading.clone()).await {
                break consumer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let subscribed = tokio::time::timeout(Duration::from_secs(60), subscribed).await;
    let mut consumer = subscribed.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(60), consumer.recv()).await;
    let delivery = next.unwrap().unwrap();
    assert_eq!(delivery.message.body.as_deref(), Some(&b"body"[..]));
}

/// The runtime drops the tasks of the client in any order.
#[test]
fn a_runtime_that_ends_is_no_failure_of_the_client() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let (_server, nats) = runtime.block_on(async {
        let server = Mock::start(Api::Silent).await;
        let nats = server.connect().await;
        up(&nats).await;
        (server, nats)
    });
    drop(runtime);
    let cause = nats.inner().link.cause();
    assert!(cause.contains("connection was lost"), "{cause}");
}

#[tokio::test]
async fn nothing_waits_for_a_connection_that_is_closed() {
    // Nobody answers.
    let listener = listener().await;
    let nats = connect(&listener.local_addr().unwrap().to_string()).await;
    let hour = Instant::now() + Duration::from_secs(3600);
    let inner = nats.inner();
    let waiting = tokio::time::timeout(Duration::from_secs(60), inner.link.up(hour));
    let (came_up, _) = tokio::join!(waiting, nats.close(Duration::ZERO));
    assert_eq!(came_up.unwrap().unwrap_err().kind(), Kind::Closed);
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
        let free = Arc::clone(&nats.inner().unanswered).acquire_many_owned(1);
        let free = tokio::time::timeout(Duration::from_secs(60), free).await;
        assert!(free.is_ok(), "the place is held");
    };

    let too_large = Message::plain(vec![b'x'; 2 << 20]);
    let refused = nats.send(&stored, too_large).await.map(drop);
    assert_eq!(refused.unwrap_err().kind(), Kind::TooLarge);
    is_free().await;

    // Nothing is taken out of the queue of the client until this task waits.
    let client = nats.inner().client.clone();
    let fill = || client.publish("c.d", "x".into());
    while unconstrained(fill()).now_or_never().is_some() {}
    let sending = Box::pin(nats.send(&stored, Message::plain("x")));
    assert!(unconstrained(sending).now_or_never().is_none());
    is_free().await;
}
