//! Finds clients that have lost the cluster for good.
//!
//! librdkafka removes the brokers of a client that a response about the cluster does not name. A cluster whose brokers
//! have all been fenced, as after a pause of their machines, names none for a moment. After such a response a client
//! sometimes has no broker left, and never looks for one again. A new client does not have the problem. Source:
//! librdkafka 2.12, `rd_kafka_metadata_decommission_unavailable_brokers`, and its issue 5301.

use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};

use super::config::KafkaConfig;
use super::health::{PROBE_TIMEOUT, PROBE_TOPIC};

/// How long a client may be without any sign of the cluster before it is checked.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// How often it is then checked.
const INTERVAL: Duration = Duration::from_secs(10);
/// The same while it gets answers.
const INTERVAL_OF_IDLE: Duration = Duration::from_secs(60);
/// For how long a client must get no answer while new clients do. Longer than the pause of librdkafka between two
/// attempts to connect.
const CONFIRMED: Duration = Duration::from_secs(15);
/// How long a new client may take to connect.
const CONNECTED: Duration = Duration::from_secs(5);

/// The checks of one client.
#[derive(Debug)]
pub(super) struct Checkup {
    next: Instant,
    /// Since when this client gets no answer although new ones do.
    cut_off_since: Option<Instant>,
}

/// The context of a client that only asks.
struct Silent;

// === impl Checkup ===

impl Checkup {
    pub(super) fn new() -> Self {
        Self {
            next: Instant::now() + SILENCE,
            cut_off_since: None,
        }
    }

    /// Whether a silent client has lost the cluster, which new clients reach. Blocks for a few seconds at most.
    pub(super) fn is_cut_off<C: ClientContext>(
        &mut self,
        client: &Client<C>,
        config: &KafkaConfig,
    ) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        if gets_answer(client, PROBE_TIMEOUT) {
            self.next = now + INTERVAL_OF_IDLE;
            self.cut_off_since = None;
            return false;
        }
        self.next = now + INTERVAL;
        if !a_new_client_gets_answer(config) {
            self.cut_off_since = None;
            return false;
        }
        now.duration_since(*self.cut_off_since.get_or_insert(now)) >= CONFIRMED
    }
}

fn a_new_client_gets_answer(config: &KafkaConfig) -> bool {
    let client = config.producer(Duration::ZERO).map(|config| {
        let client: Result<BaseProducer<Silent>, _> = config.create_with_context(Silent);
        client
    });
    matches!(client, Ok(Ok(client)) if gets_answer(client.client(), CONNECTED))
}

fn gets_answer<C: ClientContext>(client: &Client<C>, within: Duration) -> bool {
    client.fetch_metadata(Some(PROBE_TOPIC), within).is_ok()
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
    fn only_a_client_that_gets_no_answer_while_new_ones_do_is_cut_off() {
        let cluster = MockCluster::new(1).unwrap();
        let config = |brokers: &str| KafkaConfig::new([brokers]);
        let client = |config: &KafkaConfig| -> BaseProducer<Silent> {
            let config = config.producer(Duration::ZERO).unwrap();
            config.create_with_context(Silent).unwrap()
        };
        let (reached, nobody) = (config(&cluster.bootstrap_servers()), config("127.0.0.1:1"));
        let (connected, lost) = (client(&reached), client(&nobody));
        let begun = Instant::now();
        let mut checks = [Checkup::new(), Checkup::new(), Checkup::new()];
        let deadline = begun + 6 * (INTERVAL + CONFIRMED);
        while !checks[0].is_cut_off(lost.client(), &reached) {
            assert!(Instant::now() < deadline, "it is not found");
            assert!(!checks[1].is_cut_off(connected.client(), &reached));
            // Nobody reaches that cluster.
            assert!(!checks[2].is_cut_off(lost.client(), &nobody));
            connected.poll(INTERVAL / 20);
        }
        assert!(begun.elapsed() >= CONFIRMED);
    }
}
