//! Requests whose callers wait: when they are not sent again, and when they count as given up.

use a2abus_transports::memory::Memory;
use a2abus_transports::{Address, AnyTransport, Message, Topic, TopicFilter};

use super::*;
use crate::bus::{Bus, Buses};
use crate::config::{Config, Name};
use crate::log_limit::LogLimits;
use crate::metrics::Metrics;
use crate::names::Mode;
use crate::readiness::Readiness;
use crate::rules::{CurrentRules, Rules};

const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
default_route: [{ transport: bus, topic: agent }]
";

struct World {
    publisher: Publisher,
    bus: BusId,
    metrics: Metrics,
}

impl World {
    fn new(transport: AnyTransport) -> Self {
        let config = Config::read("test.yaml", CONFIG, []).unwrap();
        let rules = CurrentRules::new(Rules::new(&config).unwrap());
        let name: Name = serde_json::from_str("\"bus\"").unwrap();
        let metrics = Metrics::new().unwrap();
        let buses = Buses::new(vec![Bus {
            name: name.clone(),
            transport,
            metrics: metrics.transport(name.text()),
        }]);
        let bus = buses.find(&name).unwrap();
        let readiness = Arc::new(Readiness::new());
        let destinations = Destinations::new(buses.clone(), readiness, &LogLimits::default());
        let outbound = Outbound::new(buses, Arc::new(rules));
        Self {
            publisher: Publisher::new(outbound, Arc::new(destinations)),
            bus,
            metrics,
        }
    }

    /// A request that a binding sends on, and whose requester waits.
    fn request(&self) -> Outgoing {
        Outgoing {
            bus: self.bus,
            address: Address {
                reply_to: Some(Topic::new("replies").unwrap()),
                ..Address::topic(Topic::new("agent").unwrap())
            },
            message: Message::plain("a request"),
            named_by: NamedBy::Config,
            mode: Mode::default(),
            agent: None,
            call: None,
            is_awaited: true,
            expires: None,
            unit: None,
            dead_letter: None,
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
    let sent = world.publisher.for_caller(&request, || ()).await;
    assert_eq!(sent.unwrap_err().kind(), TransportErrorKind::UnknownTopic);
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
    const INFO: &[u8] = br#"INFO {"server_id":"M","server_name":"m","version":"2.11.0","go":"","host":"","port":1,"headers":true,"max_payload":1048576,"proto":1,"client_id":1,"client_ip":""}"#;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = AbortOnDropHandle::new(tokio::spawn(async move {
        let (connection, _) = listener.accept().await.unwrap();
        let mut connection = BufReader::new(connection);
        connection.write_all(INFO).await.unwrap();
        connection.write_all(b"\r\n").await.unwrap();
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
