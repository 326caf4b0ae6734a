//! Finds clients that have lost the cluster for good.
//!
//! librdkafka removes the brokers of a client that a response about the cluster does not name. A cluster whose brokers
//! have all been fenced, as after a pause of their machines, names none for a moment. After such a response a client
//! sometimes has no broker left, and never looks for one again. A new client does not have the problem. Source:
//! librdkafka 2.12, `rd_kafka_metadata_decommission_unavailable_brokers`, and its issue 5301.

use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};

use super::config::KafkaConfig;
use super::health::{PROBE_TIMEOUT, PROBE_TOPIC, Pulse};
use crate::transport::Health;

/// How long a client may be without any sign of the cluster before it is checked.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// How often it is then checked.
const INTERVAL: Duration = Duration::from_secs(5);
/// The same if it got an answer, and the last outage was not recent.
const INTERVAL_OF_IDLE: Duration = Duration::from_secs(60);
/// How long an outage counts as recent.
const RECENT: Duration = Duration::from_secs(120);
/// For how long a client must have no broker while new clients get answers. Longer than the default pause between two
/// attempts to connect (`reconnect.backoff.max.ms`, 1 s).
const CONFIRMED: Duration = Duration::from_secs(5);
/// How long the producer may get no answer while brokers answer others. The cluster needs about that long to replace a
/// lost broker.
const UNCONFIRMED: Duration = Duration::from_secs(15);
/// How long a new client may take to connect and to get an answer.
const CONNECTED: Duration = Duration::from_secs(3);

/// The checks of one client.
#[derive(Debug)]
pub(super) struct Checkup {
    last: Instant,
    /// Whether it got an answer then.
    is_answered: bool,
    /// Since when this client has no broker although new ones do.
    cut_off_since: Option<Instant>,
}

/// A client that only sends metadata requests, while the producer gets no answers. A broker answers the requests of a
/// connection in order, so those of the producer wait behind a message that a lost replica holds up, although the
/// cluster answers.
#[derive(Default)]
pub(super) struct SecondOpinion {
    client: Option<Asker>,
    /// Since when it is asked.
    since: Option<Instant>,
    /// Whether the brokers have refused the login of another client since then.
    is_refused: bool,
}

/// A client that only asks.
pub(super) type Asker = BaseProducer<Silent>;

/// The context of a client that only asks.
pub(super) struct Silent;

// === impl Checkup ===

impl Checkup {
    pub(super) fn new() -> Self {
        Self {
            last: Instant::now(),
            is_answered: false,
            cut_off_since: None,
        }
    }

    /// Whether a silent client has lost the cluster, which new clients reach. Blocks for several seconds.
    pub(super) fn is_cut_off<C: ClientContext>(
        &mut self,
        client: &Client<C>,
        config: &KafkaConfig,
        pulse: &Pulse,
    ) -> bool {
        let is_idle = self.is_answered && pulse.answers_for() > RECENT;
        let interval = if is_idle { INTERVAL_OF_IDLE } else { INTERVAL };
        if self.last.elapsed() < interval {
            return false;
        }
        let answer = client.fetch_metadata(Some(PROBE_TOPIC), PROBE_TIMEOUT);
        // A late answer is no reason: a new client would only overtake what a slow broker still works on.
        let has_no_broker = matches!(
            &answer,
            Err(error) if error.rdkafka_error_code() == Some(Code::BrokerTransportFailure)
        );
        let is_cut_off = has_no_broker
            && pulse.answers_newcomers(INTERVAL, || a_new_client_gets_answer(config, pulse));
        tracing::debug!(answer = ?answer.as_ref().map(drop), is_cut_off, "a silent Kafka client is checked");
        let now = Instant::now();
        (self.last, self.is_answered) = (now, answer.is_ok());
        if !is_cut_off {
            self.cut_off_since = None;
            return false;
        }
        now.duration_since(*self.cut_off_since.get_or_insert(now)) >= CONFIRMED
    }
}

fn a_new_client_gets_answer(config: &KafkaConfig, pulse: &Pulse) -> bool {
    new_client(config, pulse).is_some_and(|client| gets_answer(&client, CONNECTED))
}

/// A new client that only asks.
pub(super) fn new_client(config: &KafkaConfig, pulse: &Pulse) -> Option<Asker> {
    let config = config.client();
    pulse.note_new_client(config.as_ref().map(drop));
    let config = config.ok()?;
    config.build().create_with_context(Silent).ok()
}

fn gets_answer(client: &Asker, timeout: Duration) -> bool {
    let answer = client.client().fetch_metadata(Some(PROBE_TOPIC), timeout);
    answer.is_ok()
}

// === impl SecondOpinion ===

impl SecondOpinion {
    /// Whether any broker answers. Blocks for a limited time.
    pub(super) fn is_answered(&mut self, config: &KafkaConfig, pulse: &Pulse) -> bool {
        self.since.get_or_insert_with(Instant::now);
        if self.client.is_none() {
            self.client = new_client(config, pulse);
        }
        let Some(client) = &self.client else {
            return false;
        };
        // Its events are not used.
        client.poll(Duration::ZERO);
        gets_answer(client, PROBE_TIMEOUT)
    }

    /// The health of a cluster that answers this client but not the producer. `is_refused`: it has just refused a login.
    pub(super) fn health(&mut self, is_refused: bool) -> Health {
        self.is_refused |= is_refused;
        match self.since {
            // A new client reads the file of its password again.
            _ if self.is_refused => Health::Impaired(Text::from_static(
                "the brokers refuse the login of running clients, but accept that of a new one: the running clients are replaced; if this lasts, check `sasl`, and the users of the cluster",
            )),
            Some(since) if since.elapsed() > UNCONFIRMED => Health::Impaired(Text::from_static(
                "brokers answer, but not the producer of the bridge: if this lasts, check that enough replicas of the topics are in sync",
            )),
            _ => Health::Up,
        }
    }

    /// Ends the client.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }
}

// === impl Silent ===

impl ClientContext for Silent {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _message: &str) {}

    fn error(&self, _error: KafkaError, _reason: &str) {}
}

impl ProducerContext for Silent {
    type DeliveryOpaque = ();

    fn delivery(&self, _result: &DeliveryResult<'_>, (): ()) {}
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::*;

    #[test]
    fn a_cluster_that_refuses_running_clients_is_impaired_until_they_are_replaced() {
        let mut second = SecondOpinion::default();
        assert_eq!(second.health(false), Health::Up);
        // The refusal is reported once.
        for is_refused in [true, false] {
            assert!(matches!(second.health(is_refused), Health::Impaired(_)));
        }
        second.close();
        assert_eq!(second.health(false), Health::Up);
    }

    #[test]
    fn only_a_client_that_gets_no_answer_while_new_ones_do_is_cut_off() {
        let cluster = MockCluster::new(1).unwrap();
        let config = |brokers: &str| KafkaConfig::new([brokers]);
        let client = |config: &KafkaConfig| -> BaseProducer<Silent> {
            let config = config.producer(Duration::ZERO).unwrap();
            config.create_with_context(Silent).unwrap()
        };
        let (reached, nobody) = (config(&cluster.bootstrap_servers()), config("127.0.0.1:1"));
        let (connected, lost) = (client(&reached), client(&nobody));
        let (alive, dead) = (Pulse::default(), Pulse::default());
        let begun = Instant::now();
        let mut checks = [Checkup::new(), Checkup::new(), Checkup::new()];
        let deadline = begun + 6 * (INTERVAL + CONFIRMED);
        while !checks[0].is_cut_off(lost.client(), &reached, &alive) {
            assert!(Instant::now() < deadline, "it is not found");
            assert!(!checks[1].is_cut_off(connected.client(), &reached, &alive));
            // Nobody reaches that cluster.
            assert!(!checks[2].is_cut_off(lost.client(), &nobody, &dead));
            connected.poll(INTERVAL / 20);
        }
        assert!(begun.elapsed() >= CONFIRMED);
    }
}
