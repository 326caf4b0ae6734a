//! When `/readyz` says that work may come. Kafka is librdkafka's own mock cluster, whose group answers when the test
//! lets it.

use std::sync::Arc;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::readiness::Phase;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use serde_json::Value;
use support::battery::within;
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// More refusals than a member can ask for during the test.
const REFUSALS: [RDKafkaRespErr; 500] =
    [RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE; 500];

/// A bridge whose one binding reads a topic of one partition.
struct Member {
    admin: String,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Member {
    async fn start(cluster: &Cluster) -> Self {
        let brokers = cluster.bootstrap_servers();
        let text = format!(
            "
instance: test
transports: {{ kafka: {{ type: kafka, brokers: ['{brokers}'] }} }}
bindings: [{{ name: orders, transport: kafka, topics: [in] }}]
default_route: [{{ transport: kafka, topic: out }}]
calls: {{ enabled: false }}
http: {{ enabled: false }}
admin: {{ listen: '127.0.0.1:0' }}
"
        );
        let config = Config::read("test.yaml", &text, []).unwrap();
        let bridge = Bridge::build(config).await.unwrap();
        let admin = format!("http://{}/readyz", bridge.admin_address().unwrap());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        Self {
            admin,
            stop,
            running,
        }
    }

    /// The status of `/readyz`, and the conditions that it reports as not ready.
    async fn ready(&self) -> (u16, Vec<(String, String)>) {
        let response = reqwest::get(&self.admin).await.unwrap();
        let status = response.status().as_u16();
        let report: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
        let text = |unmet: &Value, key: &str| unmet[key].as_str().unwrap().to_owned();
        let unmet = report["not_ready"].as_array().unwrap().iter();
        let unmet = unmet.map(|unmet| (text(unmet, "name"), text(unmet, "cause")));
        (status, unmet.collect())
    }

    async fn until(&self, what: &str, expected: (u16, Vec<(String, String)>)) {
        within(what, async {
            while self.ready().await != expected {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    async fn stop(self) {
        self.stop.cancel();
        within("the bridge ends", self.running).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_binding_is_ready_once_its_partitions_are_assigned() {
    let cluster = Cluster::new(1).unwrap();
    for topic in ["in", "out", "a2abus.dlq"] {
        cluster.create_topic(topic, 1, 1).unwrap();
    }
    cluster.request_errors(RDKafkaApiKey::JoinGroup, &REFUSALS);
    let member = Member::start(&cluster).await;
    let waiting = (
        "binding orders".to_owned(),
        "waiting for partitions".to_owned(),
    );
    member
        .until(
            "the report names the part that it waits for",
            (503, vec![waiting]),
        )
        .await;
    cluster.clear_request_errors(RDKafkaApiKey::JoinGroup);
    member.until("it is ready", (200, Vec::new())).await;
    member.stop().await;
}

#[tokio::test]
async fn a_bridge_whose_parts_have_not_begun_is_not_ready() {
    let text = "
transports: { bus: { type: memory } }
bindings: [{ name: orders, transport: bus, topics: [in] }]
default_route: [{ transport: bus, topic: out }]
http: { enabled: false }
admin: { enabled: false }
";
    let config = Config::read("test.yaml", text, []).unwrap();
    let bridge = Bridge::build(config).await.unwrap();
    let (readiness, stop) = (Arc::clone(bridge.readiness()), CancellationToken::new());
    let mut running = Box::pin(bridge.run(stop.clone()));
    // It has begun after this; the tasks that it spawned have not, since nothing has let them run.
    assert!(futures_util::poll!(&mut running).is_pending());
    let report = readiness.report();
    assert_eq!(report.phase, Phase::Running);
    assert!(!report.ready);
    let names: Vec<_> = report
        .not_ready
        .iter()
        .map(|unmet| unmet.name.as_str())
        .collect();
    assert_eq!(names, ["transport bus", "answers on bus", "binding orders"]);
    let running = tokio::spawn(running);
    within("it is ready", async {
        while !readiness.is_ready() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    stop.cancel();
    within("the bridge ends", running).await.unwrap();
}
