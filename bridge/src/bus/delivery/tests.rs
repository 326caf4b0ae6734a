//! Requests whose callers wait: when they are not sent again, and when they count as given up.

use a2abus_transports::memory::Memory;
use a2abus_transports::{Address, AnyTransport, Message, Topic, TopicFilter, Transport as _};

use super::*;
use crate::bus::outbound::DeadLetter;
use crate::bus::{BusId, Buses};
use crate::config::Config;
use crate::log_limit::LogLimits;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::rules::{CurrentRules, Rules};

const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
default_route: [{ transport: bus, topic: agent }]
";

/// What a NATS server says first.
#[cfg(feature = "nats")]
const INFO: &[u8] = b"INFO {\"server_id\":\"M\",\"server_name\":\"m\",\"version\":\"2.11.0\",\"go\":\"\",\"host\":\"\",\"port\":1,\"headers\":true,\"max_payload\":1048576,\"proto\":1,\"client_id\":1,\"client_ip\":\"\"}\r\n";

impl Publisher {
    /// A publisher to these buses; none of its destinations has failed yet.
    pub(crate) fn of_test(buses: Buses) -> Self {
        let config = Config::read("test.yaml", CONFIG, []).unwrap();
        let rules = Arc::new(CurrentRules::new(Rules::new(&config).unwrap()));
        let (readiness, log) = (Arc::new(Readiness::new()), LogLimits::default());
        let destinations = Destinations::new(buses.clone(), readiness, &log);
        Self::new(Outbound::new(buses, rules), Arc::new(destinations))
    }
}

struct World {
    publisher: Publisher,
    bus: BusId,
    metrics: Metrics,
}

impl World {
    fn new(transport: AnyTransport) -> Self {
        let metrics = Metrics::new().unwrap();
        Self {
            publisher: Publisher::of_test(Buses::of_test(transport, &metrics)),
            bus: BusId::FIRST,
            metrics,
        }
    }

    /// A request that a binding sends on, and whose requester waits.
    fn request(&self) -> Outgoing {
        let address = Address {
            reply_to: Some(Topic::new("replies").unwrap()),
            ..Address::topic(Topic::new("agent").unwrap())
        };
        Outgoing {
            is_awaited: true,
            ..Outgoing::new(self.bus, address, Message::plain("a request"))
        }
    }

    /// A message that nobody answers to, and that its bus stores.
    #[cfg(feature = "nats")]
    fn stored(&self, is_awaited: bool) -> Outgoing {
        let request = self.request();
        Outgoing {
            address: Address {
                reply_to: None,
                guarantee: Guarantee::Stored {
                    message_id: Some("1".into()),
                },
                ..request.address
            },
            is_awaited,
            ..request
        }
    }

    fn given_up(&self) -> bool {
        let metrics = self.metrics.render().unwrap();
        metrics.contains("\na2abus_given_up_total{")
    }
}

#[tokio::test(start_paused = true)]
async fn only_messages_of_callers_count_as_given_up() {
    let memory = Memory::default();
    let world = World::new(AnyTransport::Memory(memory.clone()));
    let agent = TopicFilter::new("agent").unwrap();
    memory.set_refused(agent, Some(TransportErrorKind::UnknownTopic));
    let request = world.request();
    let sent = world.publisher.until_confirmed(&request).await;
    assert_eq!(sent.unwrap_err().kind(), TransportErrorKind::UnknownTopic);
    assert!(!world.given_up(), "it becomes a dead letter");
    let sent = world.publisher.for_call(&request, || (), None).await;
    assert_eq!(sent.unwrap_err().kind(), TransportErrorKind::UnknownTopic);
    assert!(world.given_up());
}

/// Nothing waits for such a topic, so nothing else would find out that it works again.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_whose_source_stores_nothing_is_sent_although_its_topic_has_failed() {
    let memory = Memory::default();
    let world = World::new(AnyTransport::Memory(memory.clone()));
    let topic = TopicFilter::new("agent").unwrap();
    memory.set_refused(topic.clone(), Some(TransportErrorKind::UnknownTopic));
    let dead_letter = Outgoing {
        is_awaited: false,
        dead_letter: Some(DeadLetter {
            is_reduced: false,
            is_backed: false,
        }),
        ..world.request()
    };
    let sent = async || world.publisher.send(&dead_letter).await?.await;
    let error = sent().await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::UnknownTopic);
    world.publisher.refused(&dead_letter, &error);
    assert!(world.publisher.known_failure(&dead_letter).is_some());
    memory.set_refused(topic, None);
    sent().await.unwrap();
    world.publisher.confirmed(&dead_letter, Duration::ZERO);
    assert!(world.publisher.known_failure(&dead_letter).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_whose_source_stores_nothing_waits_a_minute_for_a_stream_that_may_come_back()
{
    use TransportErrorKind::{
        BadConfig, BadMessage, Disconnected, Full, Other, Saturated, TimedOut, UnknownTopic,
    };
    let world = World::new(AnyTransport::Memory(Memory::default()));
    let dead_letter = Outgoing {
        is_awaited: false,
        dead_letter: Some(DeadLetter {
            is_reduced: true,
            is_backed: false,
        }),
        ..world.request()
    };
    let action = |error: &TransportError| world.publisher.failure_action(&dead_letter, error);
    let error = |kind| TransportError::new(kind, "store it");
    for kind in [Disconnected, Saturated] {
        assert_eq!(action(&error(kind)), FailureAction::Hold);
    }
    // Perhaps no stream stores it, and a subscriber of core NATS hides that.
    for kind in [UnknownTopic, Full, BadConfig, BadMessage, Other, TimedOut] {
        assert_eq!(action(&error(kind)), FailureAction::Refuse);
    }
    // JetStream is away for a moment, or there is none.
    let unclear = |cause| error(Disconnected).caused_by(error(cause));
    assert_eq!(action(&unclear(Other)), FailureAction::Hold);
    assert_eq!(action(&unclear(BadConfig)), FailureAction::Refuse);
    let leaderless = error(Disconnected);
    let _held = world.publisher.held(&dead_letter, &leaderless);
    assert_eq!(action(&leaderless), FailureAction::Hold);
    tokio::time::advance(UNBACKED_HOLD).await;
    assert_eq!(action(&leaderless), FailureAction::Refuse);
}

#[tokio::test]
async fn a_call_that_is_answered_before_its_request_is_confirmed_is_not_given_up() {
    let memory = Memory::default();
    let agent = TopicFilter::new("agent").unwrap();
    memory.set_refused(agent, Some(TransportErrorKind::UnknownTopic));
    let world = World::new(AnyTransport::Memory(memory));
    let (request, is_answered) = (world.request(), AtomicBool::new(true));
    let (publisher, handed_over) = (&world.publisher, || ());
    let sent = publisher.for_call(&request, handed_over, Some(&is_answered));
    sent.await.expect("it is not sent again");
    let error = TransportError::new(TransportErrorKind::TimedOut, "confirm it");
    let destinations = &world.publisher.destinations;
    let mut interest = destinations.interest(&request, Some(&is_answered));
    interest.failed(&error, true);
    drop(interest);
    assert!(!world.given_up(), "its answer confirms it");
    let mut interest = destinations.interest(&request, None);
    interest.failed(&error, true);
    drop(interest);
    assert!(world.given_up());
}

/// A server with one stream, which gives these answers to the messages for it, one after another.
#[cfg(feature = "nats")]
async fn stream(
    answers: Vec<&'static str>,
) -> (
    a2abus_transports::nats::Nats,
    tokio_util::task::AbortOnDropHandle<()>,
) {
    use a2abus_transports::nats::{Nats, NatsConfig};
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let (read, mut write) = connection.split();
        let mut lines = BufReader::new(read);
        write.write_all(INFO).await.unwrap();
        let (mut line, mut inbox) = (String::new(), String::new());
        let mut answers = answers.into_iter();
        while lines.read_line(&mut line).await.is_ok_and(|read| read > 0) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut said = String::new();
            match words.as_slice() {
                ["PING"] => "PONG\r\n".clone_into(&mut said),
                ["SUB", _, id] => (*id).clone_into(&mut inbox),
                ["PUB" | "HPUB", _, reply, .., length] => {
                    let mut body = vec![0; length.parse::<usize>().unwrap() + 2];
                    lines.read_exact(&mut body).await.unwrap();
                    if let Some(answer) = answers.next() {
                        let length = answer.len();
                        said = format!("MSG {reply} {inbox} {length}\r\n{answer}\r\n");
                    }
                }
                _ => {}
            }
            write.write_all(said.as_bytes()).await.unwrap();
            line.clear();
        }
    });
    let nats = Nats::connect(NatsConfig::new([format!("nats://{address}")])).await;
    let nats = nats.unwrap();
    (nats, tokio_util::task::AbortOnDropHandle::new(server))
}

/// The stream still stores the first attempt. That is no refusal, and a later refusal concerns only a later attempt.
#[cfg(feature = "nats")]
#[tokio::test]
async fn a_refusal_after_an_attempt_that_may_have_been_stored_is_marked() {
    const IN_PROCESS: &str = r#"{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}"#;
    const FULL: &str =
        r#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}"#;
    const STORED: &str = r#"{"stream":"S","seq":7,"duplicate":true}"#;
    for (last, is_awaited, has_caller) in [
        (STORED, true, false),
        (STORED, false, false),
        (FULL, true, false),
        (FULL, false, false),
        // A notification: no answer shows whether it has arrived.
        (FULL, false, true),
    ] {
        let (nats, _server) = stream(vec![IN_PROCESS, last]).await;
        let world = World::new(AnyTransport::Nats(nats));
        let copy = Outgoing {
            named_by: NamedBy::Event,
            ..world.stored(is_awaited)
        };
        let sent = async {
            match has_caller {
                true => world.publisher.for_call(&copy, || (), None).await,
                false => world.publisher.until_confirmed(&copy).await,
            }
        };
        let sent = tokio::time::timeout(Duration::from_secs(60), sent).await;
        match sent.expect("it is decided") {
            // Its answer or its deadline decides.
            Ok(()) => {
                assert!(last == STORED || is_awaited);
                assert_eq!(world.given_up(), last == FULL);
            }
            Err(error) => {
                assert!(last == FULL && !is_awaited, "{error}");
                assert_eq!(world.given_up(), has_caller);
                assert_eq!(error.kind(), TransportErrorKind::Full);
                let error = error.to_string();
                let marked = "(full); an earlier attempt may have been stored";
                assert!(error.ends_with(marked), "{error}");
            }
        }
    }
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_message_whose_caller_leaves_before_it_is_confirmed_is_counted() {
    let (nats, _server) = stream(Vec::new()).await;
    let world = World::new(AnyTransport::Nats(nats));
    let copy = world.stored(false);
    let handed_over = tokio::sync::Notify::new();
    let sent = world
        .publisher
        .for_call(&copy, || handed_over.notify_one(), None);
    tokio::select! {
        sent = sent => panic!("nothing confirms it: {sent:?}"),
        () = handed_over.notified() => {}
    }
    assert!(world.given_up());
}

/// Its lane would otherwise wait until the process is restarted.
#[cfg(feature = "nats")]
#[tokio::test]
async fn a_request_of_a_binding_that_core_nats_may_have_sent_is_not_sent_again() {
    use a2abus_transports::nats::{Nats, NatsConfig};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpListener;
    use tokio::time::timeout;
    use tokio_util::task::AbortOnDropHandle;

    const SOON: Duration = Duration::from_secs(60);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = AbortOnDropHandle::new(tokio::spawn(async move {
        let (connection, _) = listener.accept().await.unwrap();
        let mut connection = BufReader::new(connection);
        connection.write_all(INFO).await.unwrap();
        let mut line = String::new();
        while line != "PING\r\n" {
            line.clear();
            connection.read_line(&mut line).await.unwrap();
        }
        connection.write_all(b"PONG\r\n").await.unwrap();
        // It reads no more, and keeps the connection open.
        pending::<()>().await;
    }));
    let nats = Nats::connect(NatsConfig {
        ack_timeout: Duration::from_millis(100),
        ping_interval: Duration::from_secs(300),
        ..NatsConfig::new([format!("nats://{address}")])
    });
    let nats = nats.await.unwrap();
    let mut health = nats.health();
    let up = timeout(SOON, health.wait_for(|health| health.is_up())).await;
    drop(up.unwrap().unwrap());
    let world = World::new(AnyTransport::Nats(nats.clone()));
    let full = async {
        let to = Address::topic(Topic::new("other").unwrap());
        let message = Message::plain(vec![b' '; 512 << 10]);
        // One flush alone may be late on a slow computer.
        let mut unconfirmed = 0;
        loop {
            let sent = nats.send(&to, &message).await.unwrap();
            match sent.await {
                Ok(_) => unconfirmed = 0,
                Err(error) if unconfirmed == 2 => break error,
                Err(_) => unconfirmed += 1,
            }
        }
    };
    let error = timeout(SOON, full).await.unwrap();
    assert_eq!(error.kind(), TransportErrorKind::TimedOut);
    let request = world.request();
    let sent = timeout(SOON, world.publisher.until_confirmed(&request)).await;
    sent.expect("nothing waits for ever").unwrap();
    assert!(world.publisher.known_failure(&request).is_none());
    assert!(world.given_up(), "it is counted, so it was not confirmed");
}
