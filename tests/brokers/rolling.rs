//! Replicas come and go while requests wait: every requester gets its answer.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream;
use futures_util::StreamExt as _;
use rdkafka::consumer::StreamConsumer;
use serde_json::{Value, json};
use support::battery::{DEADLINE, within};
use support::running::Running;
use support::server::{Kind, Private, free_port, named};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::path::serve;
use crate::plain::{Plain, answer_to, jetstream_of, nats_client, next, subscribed, unique};

/// How often the requesters send.
const PACE: Duration = Duration::from_millis(10);
/// How long the agent works on each request.
const WORK: Duration = Duration::from_millis(50);
/// Requests of each kind between two steps.
const SOME: usize = 60;
/// Requests of core NATS that two shutdowns may lose: those that the server sends in the moment of a shutdown.
const WINDOW: usize = 20;
/// A request without an answer for so long is lost. On a slow machine many requests wait at a time.
const LOST: Duration = Duration::from_secs(60);
/// What the Helm chart adds to `http.drain_grace`.
const MARGIN: Duration = Duration::from_secs(10);

fn request(id: usize) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"_agentId": "weather"}})
}

fn id_of(body: &[u8]) -> usize {
    let body: Value = serde_json::from_slice(body).unwrap();
    let is_answer = body["result"].is_object();
    assert!(is_answer, "{body}");
    usize::try_from(body["id"].as_u64().unwrap()).unwrap()
}

/// An agent on NATS that takes a moment for each request.
fn agent(mut requests: async_nats::Subscriber, nats: async_nats::Client) -> JoinSet<()> {
    let mut agents = JoinSet::new();
    agents.spawn(async move {
        let mut answer_tasks = JoinSet::new();
        while let Some(request) = requests.next().await {
            let nats = nats.clone();
            answer_tasks.spawn(async move {
                sleep(WORK).await;
                let answer = answer_to(&request.payload);
                let place = request.reply.unwrap();
                nats.publish(place, answer.into()).await.unwrap();
            });
        }
    });
    agents
}

/// One replica, in a process of its own.
struct Replica {
    file: PathBuf,
    admin: String,
    process: Child,
}

impl Replica {
    async fn start(directory: &std::path::Path, number: usize, config: &str) -> Self {
        let address = format!("127.0.0.1:{}", free_port().await);
        let file = directory.join(format!("{number}.yaml"));
        let ends = format!(
            "http: {{ enabled: false, drain_grace: 60s }}\nadmin: {{ listen: '{address}' }}\n"
        );
        std::fs::write(&file, format!("{config}\n{ends}")).unwrap();
        let replica = Self {
            process: serve(&file),
            admin: format!("http://{address}/readyz"),
            file,
        };
        replica.until_ready().await;
        replica
    }

    async fn until_ready(&self) {
        within("the replica is ready", async {
            loop {
                let answer = reqwest::get(&self.admin).await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }

    /// SIGTERM, and the end.
    async fn stop(&mut self) {
        let id = self.process.id().unwrap().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().await;
        assert!(sent.unwrap().success());
        let status = within("the replica drains", self.process.wait()).await;
        assert!(status.unwrap().success());
    }

    /// As a deployment does it: the end, and the next one.
    async fn restart(&mut self) {
        self.stop().await;
        self.process = serve(&self.file);
        self.until_ready().await;
    }
}

/// The names of one run.
struct Names {
    kafka_requests: String,
    kafka_replies: String,
    stream: String,
    stored: String,
    core: String,
    inbox: String,
    agent: String,
}

impl Names {
    fn new() -> Self {
        Self {
            kafka_requests: unique("requests"),
            kafka_replies: unique("replies"),
            stream: unique("STREAM").replace('.', "-"),
            stored: unique("stored"),
            core: unique("core"),
            inbox: unique("clients"),
            agent: unique("agent"),
        }
    }

    fn config(&self, kafka: &str, nats: &str) -> String {
        let Self {
            kafka_requests,
            kafka_replies,
            stream,
            stored,
            core,
            inbox,
            agent,
        } = self;
        format!(
            "
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'], session_timeout: 6s }}
  nats: {{ type: nats, servers: ['{nats}'], jetstream: {{ manage: true }} }}
bindings:
  - {{ name: kafka, transport: kafka, topics: [{kafka_requests}], group: {kafka_requests}, reply_topics: [{kafka_replies}], dead_letter: {{ topic: {kafka_requests}.dead }} }}
  - {{ name: stored, transport: nats, topics: [{stored}], stream: {stream}, durable: bridge, reply_topics: [{inbox}], dead_letter: {{ topic: {kafka_requests}.dead, transport: kafka }} }}
  - {{ name: core, transport: nats, topics: [{core}], dead_letter: {{ topic: {kafka_requests}.dead, transport: kafka }} }}
routes: [{{ name: weather, when: {{ targetagent: weather }}, to: [{{ transport: nats, topic: {agent} }}] }}]
calls: {{ reply_topic: {agent}.replies, timeout: 120s }}
"
        )
    }
}

/// Sends requests of one kind until it is stopped. Returns how many.
async fn until_stopped<F: Future<Output = ()>>(
    stop: CancellationToken,
    sent: Arc<AtomicUsize>,
    send: impl Fn(usize) -> F,
) -> usize {
    let mut pace = interval(PACE);
    while !stop.is_cancelled() {
        pace.tick().await;
        let id = sent.load(Ordering::Relaxed);
        send(id).await;
        sent.store(id + 1, Ordering::Relaxed);
    }
    sent.load(Ordering::Relaxed)
}

async fn kafka_answers(replies: &StreamConsumer, expected: usize) {
    let mut missing: BTreeSet<usize> = (0..expected).collect();
    while !missing.is_empty() {
        let record = timeout(DEADLINE, next(replies)).await;
        let record = record.unwrap_or_else(|_| panic!("unanswered on Kafka: {missing:?}"));
        missing.remove(&id_of(&record.body));
    }
}

async fn stored_answers(replies: &mut async_nats::Subscriber, expected: usize) {
    let mut missing: BTreeSet<usize> = (0..expected).collect();
    while !missing.is_empty() {
        let message = timeout(DEADLINE, replies.next()).await;
        let message = message.unwrap_or_else(|_| panic!("unanswered on JetStream: {missing:?}"));
        missing.remove(&id_of(&message.unwrap().payload));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_that_are_restarted_in_turn_answer_every_request() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let (names, plain) = (Names::new(), Arc::new(Plain::new(&kafka)));
    plain.create(&names.kafka_requests, 4).await;
    plain.create(&names.kafka_replies, 1).await;
    let client = nats_client(&nats).await;
    let jetstream = jetstream_of(client.clone());
    let stream = stream::Config {
        name: names.stream.clone(),
        subjects: vec![names.stored.clone()],
        ..stream::Config::default()
    };
    jetstream.create_stream(stream).await.unwrap();
    let requests = client.subscribe(names.agent.clone()).await.unwrap();
    let mut stored_replies = client.subscribe(names.inbox.clone()).await.unwrap();
    subscribed(&client).await;
    let _agent = agent(requests, client.clone());

    let directory = tempfile::tempdir().unwrap();
    let config = names.config(&kafka, &nats);
    let mut first = Replica::start(directory.path(), 1, &config).await;
    let mut second = Replica::start(directory.path(), 2, &config).await;

    let stop = CancellationToken::new();
    let sent: [Arc<AtomicUsize>; 3] = Default::default();
    let on_kafka = tokio::spawn(until_stopped(stop.clone(), Arc::clone(&sent[0]), {
        let (plain, topic, replies) = (
            Arc::clone(&plain),
            names.kafka_requests.clone(),
            names.kafka_replies.clone(),
        );
        move |id| {
            let (plain, topic, replies) = (Arc::clone(&plain), topic.clone(), replies.clone());
            async move {
                let headers = [("kafka_replyTopic", Some(replies.as_str()))];
                let body = request(id).to_string();
                plain.publish_with(&topic, &headers, &body).await;
            }
        }
    }));
    let on_stream = tokio::spawn(until_stopped(stop.clone(), Arc::clone(&sent[1]), {
        let (subject, inbox) = (names.stored.clone(), names.inbox.clone());
        move |id| {
            let (jetstream, subject, inbox) = (jetstream.clone(), subject.clone(), inbox.clone());
            async move {
                let event = json!({
                    "specversion": "1.0", "id": id.to_string(), "source": "/me", "type": "t", "mcptype": "request",
                    "targetagent": "weather", "replyto": inbox, "data": request(id),
                });
                let mut headers = async_nats::HeaderMap::new();
                headers.insert("content-type", "application/cloudevents+json");
                let body = event.to_string().into();
                let stored = jetstream.publish_with_headers(subject, headers, body).await;
                within("the request is stored", stored.unwrap().into_future())
                    .await
                    .unwrap();
            }
        }
    }));
    let lost = Arc::new(AtomicUsize::new(0));
    let request_tasks = Arc::new(tokio::sync::Mutex::new(JoinSet::new()));
    let on_core = tokio::spawn(until_stopped(stop.clone(), Arc::clone(&sent[2]), {
        let (client, subject) = (client.clone(), names.core.clone());
        let (lost, request_tasks) = (Arc::clone(&lost), Arc::clone(&request_tasks));
        move |id| {
            let (client, subject) = (client.clone(), subject.clone());
            let (lost, request_tasks) = (Arc::clone(&lost), Arc::clone(&request_tasks));
            async move {
                request_tasks.lock().await.spawn(async move {
                    // Who gets no answer asks once more.
                    for attempt in 0..2 {
                        let ask = async_nats::Request::new()
                            .payload(request(id).to_string().into())
                            .timeout(Some(LOST));
                        match client.send_request(subject.clone(), ask).await {
                            Ok(answer) => {
                                assert_eq!(id_of(&answer.payload), id);
                                lost.fetch_add(attempt, Ordering::Relaxed);
                                return;
                            }
                            Err(failed) => println!("core NATS request {id}: {failed}"),
                        }
                    }
                    panic!("the core NATS request {id} got no answer twice");
                });
            }
        }
    }));
    let until_some = async || {
        let before: Vec<usize> = sent
            .iter()
            .map(|sent| sent.load(Ordering::Relaxed))
            .collect();
        within("requests are sent", async {
            while sent
                .iter()
                .zip(&before)
                .any(|(sent, before)| sent.load(Ordering::Relaxed) < before + SOME)
            {
                sleep(PACE).await;
            }
        })
        .await;
    };

    let start = Instant::now();
    until_some().await;
    first.restart().await;
    until_some().await;
    second.restart().await;
    until_some().await;
    stop.cancel();
    let (on_kafka, on_stream, on_core) = (
        on_kafka.await.unwrap(),
        on_stream.await.unwrap(),
        on_core.await.unwrap(),
    );
    kafka_answers(&plain.read(&names.kafka_replies, 1), on_kafka).await;
    stored_answers(&mut stored_replies, on_stream).await;
    let mut request_tasks = request_tasks.lock().await;
    while let Some(ended) = within("core NATS requests end", request_tasks.join_next()).await {
        ended.unwrap();
    }
    let lost = lost.load(Ordering::Relaxed);
    println!(
        "{on_kafka} requests on Kafka and {on_stream} on JetStream answered; {lost} of {on_core} on core NATS were sent again; {:?}",
        start.elapsed()
    );
    assert!(lost <= WINDOW, "{lost}");
}

/// How long a revocation in the test below may wait for unsettled messages: half of the session timeout.
const REVOCATION: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_its_agent_does_not_delay_a_rebalance_and_is_answered_once() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (topic, replies, subject) = (unique("requests"), unique("replies"), unique("agent"));
    plain.create(&topic, 2).await;
    plain.create(&replies, 1).await;
    let client = nats_client(&nats).await;
    let mut agent = client.subscribe(subject.clone()).await.unwrap();
    subscribed(&client).await;
    let config = format!(
        "
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'], session_timeout: 120s }}
  nats: {{ type: nats, servers: ['{nats}'] }}
bindings: [{{ name: in, transport: kafka, topics: [{topic}], group: {topic}, replies: {replies}, dead_letter: {{ topic: {topic}.dead }} }}]
routes: [{{ name: weather, when: {{ targetagent: weather }}, to: [{{ transport: nats, topic: {subject} }}] }}]
calls: {{ reply_topic: {subject}.replies, timeout: 200s, max_timeout: 200s }}"
    );
    let first = Running::start(&config).await;
    let ask = async |partition: i32, id: usize| {
        plain
            .publish(&topic, Some(partition), &request(id).to_string())
            .await;
    };
    let mut requests = Vec::new();
    for partition in [0, 1] {
        ask(partition, usize::try_from(partition).unwrap()).await;
        requests.push(
            within("the agent has a request", agent.next())
                .await
                .unwrap(),
        );
    }
    let started = Instant::now();
    let second = Running::start(&config).await;
    // The second replica reads the request of the partition that it got.
    requests.push(
        within("the agent has a request again", agent.next())
            .await
            .unwrap(),
    );
    let took = started.elapsed();
    println!("a replica took a partition over after {took:?}");
    assert!(took < REVOCATION, "{took:?}");
    for request in requests {
        let answer = answer_to(&request.payload);
        client
            .publish(request.reply.unwrap(), answer.into())
            .await
            .unwrap();
    }
    let received = plain.read(&replies, 1);
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(id_of(&within("the answer", next(&received)).await.body));
    }
    for id in [2, 3] {
        ask(i32::try_from(id - 2).unwrap(), id).await;
        let request = within("the agent has a later request", agent.next())
            .await
            .unwrap();
        let answer = answer_to(&request.payload);
        client
            .publish(request.reply.unwrap(), answer.into())
            .await
            .unwrap();
        ids.push(id_of(&within("the answer", next(&received)).await.body));
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3], "each once");
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_ends_in_time_when_its_broker_no_longer_answers() {
    let mut late = Vec::new();
    // A stall of the machine delays one replica, and a bridge that ends too slowly all of them.
    for _ in 0..3 {
        let Some(broker) = Private::start_new(Kind::Kafka).await else {
            return;
        };
        let took = end_without_broker(&broker).await;
        if took < GRACE + MARGIN {
            return;
        }
        late.push(took);
    }
    panic!("no replica ended in time: {late:?}");
}

/// The grace of that replica.
const GRACE: Duration = Duration::from_secs(1);

/// How long a replica takes to end after its broker has stopped answering.
async fn end_without_broker(broker: &Private) -> Duration {
    let plain = Plain::new(&broker.address());
    let topic = unique("agents");
    plain.create(&topic, 1).await;
    let requests = plain.read(&topic, 1);
    let door = format!("127.0.0.1:{}", free_port().await);
    let admin = format!("127.0.0.1:{}", free_port().await);
    let config = format!(
        "
transports: {{ kafka: {{ type: kafka, brokers: ['{}'] }} }}
default_route: [{{ transport: kafka, topic: {topic} }}]
http: {{ listen: '{door}', drain_grace: {}s }}
admin: {{ listen: '{admin}' }}
",
        broker.address(),
        GRACE.as_secs()
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, config).unwrap();
    let mut replica = Replica {
        process: serve(&file),
        admin: format!("http://{admin}/readyz"),
        file,
    };
    replica.until_ready().await;
    let call = || {
        let request = reqwest::Client::new().post(format!("http://{door}/rpc"));
        let request = request.header("content-type", "application/json");
        tokio::spawn(request.body(self::request(1).to_string()).send())
    };
    let confirmed = call();
    within("the agent has the request", next(&requests)).await;
    broker.freeze().await;
    let unconfirmed = call();
    within("the call waits", async {
        let metrics = format!("http://{admin}/metrics");
        let waiting = async || reqwest::get(&metrics).await.unwrap().text().await.unwrap();
        while !waiting().await.contains("a2abus_pending_calls 2\n") {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let start = Instant::now();
    replica.stop().await;
    let took = start.elapsed();
    // The broker may have taken the request that it did not confirm.
    for answer in [confirmed, unconfirmed] {
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.text().await.unwrap().contains("answer_lost"));
    }
    took
}
