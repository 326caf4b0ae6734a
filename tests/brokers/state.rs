//! The state on Kafka and on JetStream: both pass the battery of its logs, with two replicas.

use std::collections::BTreeMap;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::state::{AnyLog, BusLog, Entries, Kind, LogLocation, LogSpec, TASKS};
use a2abus_transports::kafka::{Kafka, KafkaConfig};
use a2abus_transports::nats::{Nats, NatsConfig};
use a2abus_transports::{AnyTransport, Topic, Transport as _};
use serde_json::json;
use support::battery::{unique, within};
use support::logs::{self, CASES, History, Logs, commit, replicas};
use support::running::Running;
use support::server::{Kind as Server, Private, named};

/// A log that keeps the last record of each key.
const CARDS: LogSpec = LogSpec {
    name: "cards",
    kind: Kind::Latest,
};

struct OnKafka {
    address: String,
    partitions: u32,
}

impl Logs for OnKafka {
    async fn create(&self, spec: LogSpec) -> String {
        let name = format!("state-{}", unique());
        let policy = match spec.kind {
            Kind::Events { .. } => "delete",
            Kind::Latest => "compact",
        };
        let settings = BTreeMap::from([("cleanup.policy".to_owned(), policy.to_owned())]);
        let topic = Topic::new(name.clone()).unwrap();
        let kafka = Kafka::connect(KafkaConfig::new([self.address.as_str()])).unwrap();
        let created = kafka.create_topic(&topic, Some(self.partitions), None, &settings);
        created.await.unwrap();
        kafka.ensure_topic(&topic, self.partitions).await.unwrap();
        name
    }

    async fn open(&self, spec: LogSpec, name: &str) -> AnyLog {
        let kafka = Kafka::connect(KafkaConfig::new([self.address.as_str()])).unwrap();
        let place = LogLocation::Topic(Topic::new(name.to_owned()).unwrap());
        BusLog::new(spec, AnyTransport::from(kafka), place).into()
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some(2_000_000)
    }
}

struct OnJetStream {
    address: String,
}

impl Logs for OnJetStream {
    async fn create(&self, spec: LogSpec) -> String {
        let name = format!("state-{}", unique());
        let last = match spec.kind {
            Kind::Events { .. } => -1,
            Kind::Latest => 1,
        };
        let nats = Nats::connect(NatsConfig::new([self.address.as_str()]))
            .await
            .unwrap();
        let settings = json!({
            "subjects": [format!("{name}.>")], "storage": "file", "max_msgs_per_subject": last,
        });
        nats.create_stream(&name, settings).await.unwrap();
        name
    }

    async fn open(&self, spec: LogSpec, name: &str) -> AnyLog {
        let nats = Nats::connect(NatsConfig::new([self.address.as_str()]))
            .await
            .unwrap();
        let place = LogLocation::Stream {
            name: name.to_owned(),
            prefix: Topic::new(name.to_owned()).unwrap(),
        };
        BusLog::new(spec, AnyTransport::from(nats), place).into()
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some(2_000_000)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_passes_the_battery_of_the_state() {
    let Some(address) = named(Server::Kafka) else {
        return;
    };
    for partitions in [1, 3] {
        for case in CASES {
            println!("kafka, {partitions} partitions: {case:?}");
            let address = address.clone();
            logs::run(
                case,
                &OnKafka {
                    address,
                    partitions,
                },
            )
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_passes_the_battery_of_the_state() {
    let Some(address) = named(Server::Nats) else {
        return;
    };
    for case in CASES {
        println!("jetstream: {case:?}");
        let address = address.clone();
        logs::run(case, &OnJetStream { address }).await;
    }
}

/// A view goes on where it was when its broker comes back.
async fn goes_on_after_an_outage(logs: &impl Logs, broker: &Private) {
    let spec = LogSpec {
        name: "events",
        kind: Kind::Events {
            life: std::time::Duration::from_secs(3_600),
            max_life: std::time::Duration::from_secs(3_600),
        },
    };
    let (_, [(one, _one), (other, _other)]) = replicas(logs, spec).await;
    commit(&one, "task", "part 0").await;
    broker.kill().await;
    let mut progress = one.progress();
    let is_silent = progress.wait_for(|now| now.silent.is_some());
    within("the log is seen to be silent", is_silent)
        .await
        .unwrap();
    broker.start().await;
    let answers = progress.wait_for(|now| now.silent.is_none());
    within("the log answers again", answers).await.unwrap();
    let mut position = None;
    for number in 1..50 {
        let body = Some(format!("part {number}").into());
        position = one.append("task", body).await.ok();
        if position.is_some() {
            break;
        }
    }
    let position = position.expect("the broker is back");
    for view in [&one, &other] {
        let applied = view.applied(position, support::battery::DEADLINE);
        within("the record", applied).await.unwrap();
        let last = view.read(|entries| {
            entries
                .get("task")
                .and_then(|task| task.parts.last().cloned())
        });
        assert_eq!(last.map(|(at, _)| at), Some(position));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn views_of_a_topic_survive_the_death_of_their_broker() {
    if named(Server::Kafka).is_none() {
        return;
    }
    let Some(broker) = Private::start_new(Server::Kafka).await else {
        return;
    };
    let logs = OnKafka {
        address: broker.address(),
        partitions: 1,
    };
    goes_on_after_an_outage(&logs, &broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn views_of_a_stream_survive_the_death_of_their_server() {
    if named(Server::Nats).is_none() {
        return;
    }
    let Some(server) = Private::start_new(Server::Nats).await else {
        return;
    };
    let logs = OnJetStream {
        address: format!("nats://{}", server.address()),
    };
    goes_on_after_an_outage(&logs, &server).await;
}

/// Two bridges, of which one creates the logs, are two replicas of one state.
async fn two_bridges_share_their_state(transport: &str, prefix: &str) {
    let start = async || {
        let text = format!(
            "transports: {{ bus: {transport} }}\nhttp: {{ listen: '127.0.0.1:0' }}\nadmin: {{ enabled: false }}\nstate: {{ log: bus, create: true, prefix: {prefix} }}\n"
        );
        let config = Config::read("test", &text, std::iter::empty()).unwrap();
        let bridge = Box::pin(Bridge::build(config)).await.unwrap();
        let tasks = bridge.state().view(TASKS, History).await.unwrap();
        let cards = bridge.state().view(CARDS, History).await.unwrap();
        (bridge, tasks, cards)
    };
    let (_one, tasks, cards) = start().await;
    for view in [&tasks, &cards] {
        within("the log is made and read", view.caught_up())
            .await
            .unwrap();
    }
    let task = commit(&tasks, "task", "claim one").await;
    commit(&cards, "agent", "part card").await;
    let (_other, tasks, cards) = start().await;
    for view in [&tasks, &cards] {
        within("the log is read", view.caught_up()).await.unwrap();
    }
    let lost = commit(&tasks, "task", "claim other").await;
    assert!(task < lost);
    let owner = tasks.read(|tasks| tasks.get("task").and_then(|task| task.owner.clone()));
    assert_eq!(owner.as_deref(), Some("one"));
    assert_eq!(cards.read(Entries::len), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_bridges_share_their_state_on_kafka() {
    let Some(address) = named(Server::Kafka) else {
        return;
    };
    let transport = format!("{{ type: kafka, brokers: ['{address}'] }}");
    let prefix = format!("state-{}", unique());
    Box::pin(two_bridges_share_their_state(&transport, &prefix)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_bridges_share_their_state_on_jetstream() {
    let Some(address) = named(Server::Nats) else {
        return;
    };
    let transport = format!("{{ type: nats, servers: ['{address}'] }}");
    let prefix = format!("state-{}", unique());
    Box::pin(two_bridges_share_their_state(&transport, &prefix)).await;
}

/// Callers do not wait for a log that does not answer, although the records of their requests may still be stored.
#[tokio::test(flavor = "multi_thread")]
async fn callers_get_an_answer_in_time_although_the_log_does_not_answer() {
    if named(Server::Kafka).is_none() {
        return;
    }
    let Some(broker) = Private::start_new(Server::Kafka).await else {
        return;
    };
    let address = broker.address();
    let bridge = Running::start(&format!(
        "
instance: test
transports:
  kafka: {{ type: kafka, brokers: ['{address}'], message_timeout: 15m }}
  local: {{ type: memory }}
agents: {{ silent: {{ description: Never answers., to: {{ transport: local, topic: silent }} }} }}
state: {{ log: kafka, create: true }}"
    ))
    .await;
    broker.freeze().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let post = |path: &str, key: &str, body: serde_json::Value| {
        let request = http.post(format!("{}{path}", bridge.door)).json(&body);
        let request = request.header("x-a2a-timeout", "3000");
        let request = match key {
            "" => request,
            key => request.header("idempotency-key", key),
        };
        async move {
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        }
    };
    let message = |method: &str, blocking: bool| {
        let message = json!({ "kind": "message", "role": "user", "messageId": "m", "parts": [{ "kind": "text", "text": "t" }] });
        let configuration = json!({ "blocking": blocking });
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "message": message, "configuration": configuration } })
    };
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "echo", "params": {} });
    let agent = "/a2a/agents/silent";
    let answers = async {
        tokio::join!(
            post(agent, "", message("message/stream", true)),
            post(agent, "", message("message/send", false)),
            post("/rpc/silent", "key", call),
        )
    };
    let (stream, task, keyed) = within("all callers have an answer", answers).await;
    for (_, body) in [stream, task] {
        assert!(body.contains("was not stored in time"), "{body}");
        assert!(body.contains(r#""reason":"answer_lost""#), "{body}");
        assert!(body.contains(r#""taskId":"#), "{body}");
    }
    assert_eq!(keyed.0, 503, "{keyed:?}");
    assert!(keyed.1.contains("nothing was done"), "{keyed:?}");
    // Once the bridge knows, it refuses such requests before an agent gets them.
    within("the log is seen to be silent", async {
        while !bridge
            .report()
            .not_ready
            .iter()
            .any(|unmet| *unmet.name == *"state tasks")
        {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    let refused = post(agent, "", message("message/stream", true));
    let (_, refused) = within("the caller has an answer", refused).await;
    assert!(refused.contains("cannot be stored now"), "{refused}");
}
