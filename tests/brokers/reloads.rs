//! The configuration file changes while requests, events and calls are on Kafka and NATS: nothing is lost or doubled.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use futures_util::StreamExt as _;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use serde_json::{Value, json};
use support::battery::within;
use support::server::{Kind, free_port, named, program};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::plain::{Plain, answer_to, jetstream_of, nats_client, next, subscribed, unique};

/// How often the file is replaced. Every tenth file is wrong; every fiftieth replacement comes without a SIGHUP.
const RELOADS: usize = 200;
/// How long each sender waits between two messages.
const PACE: Duration = Duration::from_millis(2);
/// How long the Kafka client waits for the broker.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Where the servers are, and the names of one run.
struct Names {
    kafka: String,
    nats: String,
    /// Before every topic, group and subject.
    u: String,
    stream: String,
}

impl Names {
    /// On side `a` events go to Kafka and calls to the agent on NATS; on side `b` it is the other way round. An event is not
    /// sent twice because its confirmation is late.
    fn config(&self, side: &str, doors: &str) -> String {
        let Self {
            kafka,
            nats,
            u,
            stream,
        } = self;
        let on_kafka = |name: &str| format!("{{ transport: kafka, topic: {u}.{name} }}");
        let on_nats = |name: &str| format!("{{ transport: nats, topic: {u}.{name} }}");
        let (weather, other, events) = if side == "a" {
            (on_nats("agent"), on_kafka("agent"), on_kafka("out"))
        } else {
            let stored = format!("{{ transport: nats, topic: {u}.out, stored: true }}");
            (on_kafka("agent"), on_nats("agent"), stored)
        };
        format!(
            "
instance: test
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'] }}
  nats: {{ type: nats, servers: ['{nats}'], ack_timeout: 2m }}
bindings:
  - {{ name: in, transport: kafka, topics: [{u}.in], group: {u}, dead_letter: {{ topic: {u}.dead }} }}
  - {{ name: kept, transport: nats, topics: [{u}.kept], stream: {stream}, durable: bridge, dead_letter: {{ transport: kafka, topic: {u}.dead }} }}
  - {{ name: asked, transport: nats, topics: [{u}.asked], dead_letter: {{ transport: kafka, topic: {u}.dead }} }}
routes:
  - {{ name: weather, when: {{ targetagent: weather }}, to: [{weather}] }}
  - {{ name: other, when: {{ targetagent: other }}, to: [{other}] }}
default_route: [{events}]
calls: {{ reply_topic: {u}.replies, reply_partitions: 1, timeout: 60s }}
{doors}"
        )
    }
}

/// A process whose configuration is mounted as the kubelet mounts a ConfigMap.
struct Pod {
    volume: TempDir,
    versions: usize,
    admin: String,
    door: String,
    log: PathBuf,
    process: Child,
}

impl Pod {
    async fn start(names: &Names) -> (Self, String) {
        let volume = tempfile::tempdir().unwrap();
        let (door, admin) = (free_port().await, free_port().await);
        let doors = format!(
            "http: {{ listen: '127.0.0.1:{door}', drain_grace: 20s }}\nadmin: {{ listen: '127.0.0.1:{admin}' }}\n"
        );
        let file = volume.path().join("a2abus.yaml");
        swap(volume.path(), 0, &names.config("a", &doors));
        std::os::unix::fs::symlink("..data/a2abus.yaml", &file).unwrap();
        let log = volume.path().join("log");
        let process = Command::new(program())
            .args(["serve", "-c"])
            .arg(&file)
            .stderr(File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let pod = Self {
            volume,
            versions: 0,
            admin: format!("http://127.0.0.1:{admin}"),
            door: format!("http://127.0.0.1:{door}"),
            log,
            process,
        };
        pod.until("the process is ready", async || {
            pod.get("readyz").await.0 == 200
        })
        .await;
        (pod, doors)
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        within(what, async {
            while !holds().await {
                sleep(PACE).await;
            }
        })
        .await;
    }

    /// Status and body of a path of the admin listener.
    async fn get(&self, path: &str) -> (u16, String) {
        match reqwest::get(format!("{}/{path}", self.admin)).await {
            Ok(answer) => (answer.status().as_u16(), answer.text().await.unwrap()),
            Err(_) => (0, String::new()),
        }
    }

    /// The sum of all series whose line begins with this text.
    async fn metric(&self, beginning: &str) -> usize {
        let (_, text) = self.get("metrics").await;
        let lines = text.lines().filter(|line| line.starts_with(beginning));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
        values.sum()
    }

    async fn reloads(&self, result: &str) -> usize {
        self.metric(&format!(
            "a2abus_config_reloads_total{{result=\"{result}\"}}"
        ))
        .await
    }

    async fn signal(&self, signal: &str) {
        let id = self.process.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().await;
        assert!(sent.unwrap().success());
    }

    /// Replaces the file, and waits until a reload has had this result.
    async fn reload(&mut self, text: &str, result: &str, is_asked: bool) {
        let before = self.reloads(result).await;
        self.versions += 1;
        swap(self.volume.path(), self.versions, text);
        if is_asked {
            self.signal("-HUP").await;
        }
        self.until(result, async || self.reloads(result).await > before)
            .await;
    }

    /// The entry of the configuration in the readiness report. The process is ready all the time.
    async fn detail(&self) -> String {
        let (status, text) = self.get("readyz").await;
        assert_eq!(status, 200, "{text}");
        let report: Value = serde_json::from_str(&text).unwrap();
        let parts = report["degraded"].as_array().into_iter().flatten();
        let mut ours = parts.filter(|part| part["name"] == "configuration");
        let cause = ours.next().map(|part| part["cause"].as_str().unwrap());
        cause.unwrap_or_default().to_owned()
    }

    fn logged(&self, parts: &[&str]) -> usize {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let is_meant = |line: &&str| parts.iter().all(|name| line.contains(name));
        text.lines().filter(is_meant).count()
    }
}

/// Replaces the files of a volume as the kubelet does: they are links through `..data`, which is replaced as a whole.
fn swap(volume: &Path, version: usize, text: &str) {
    let version = format!("..{version}");
    std::fs::create_dir(volume.join(&version)).unwrap();
    std::fs::write(volume.join(&version).join("a2abus.yaml"), text).unwrap();
    std::os::unix::fs::symlink(version, volume.join("..new")).unwrap();
    std::fs::rename(volume.join("..new"), volume.join("..data")).unwrap();
}

/// Files with different errors, and the text of the readiness report for each.
fn wrong(right: &str, number: usize) -> (String, &'static str) {
    match number % 4 {
        0 => (format!("{right}routes: ["), "a2abus.yaml:"),
        1 => (String::new(), "transports"),
        2 => (
            right.replace("transport: kafka", "transport: nowhere"),
            "nowhere",
        ),
        _ => (
            format!("{right}limits: {{ max_hops: many }}\n"),
            "limits.max_hops",
        ),
    }
}

fn event(number: usize) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"number": number}})
        .to_string()
}

fn number_of(body: &[u8]) -> usize {
    let body: Value = serde_json::from_slice(body).unwrap();
    usize::try_from(body["params"]["number"].as_u64().unwrap()).unwrap()
}

fn request(id: usize, agent: &str) -> String {
    let params = json!({"_agentId": agent, "name": "now", "arguments": {}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

fn assert_answers(answer: &[u8], id: usize) {
    let body: Value = serde_json::from_slice(answer).unwrap();
    assert_eq!(body, json!({"jsonrpc": "2.0", "id": id, "result": {}}));
}

/// What every sender and agent of a run has.
struct World {
    names: Names,
    plain: Plain,
    /// Looks up how many records topics have.
    marks: StreamConsumer,
    client: async_nats::Client,
    jetstream: jetstream::Context,
    is_over: AtomicBool,
    /// Events on Kafka and JetStream, calls over HTTP, and requests on core NATS that were begun.
    sent: [AtomicUsize; 4],
    /// Requests that the agents have read.
    agent_requests: AtomicUsize,
}

impl World {
    async fn new(kafka: String, nats: String) -> Self {
        let u = unique("reload");
        let stream = u.replace('.', "_");
        let plain = Plain::new(&kafka);
        for topic in ["in", "out", "agent", "dead", "replies"] {
            plain.create(&format!("{u}.{topic}"), 1).await;
        }
        let client = nats_client(&nats).await;
        let jetstream = jetstream_of(client.clone());
        for (name, subject) in [(stream.clone(), "kept"), (format!("{stream}_OUT"), "out")] {
            let config = stream::Config {
                name,
                subjects: vec![format!("{u}.{subject}")],
                // Duplicates are not hidden.
                duplicate_window: Duration::from_millis(100),
                ..stream::Config::default()
            };
            jetstream.create_stream(config).await.unwrap();
        }
        let bridge = jetstream::consumer::pull::Config {
            durable_name: Some("bridge".to_owned()),
            filter_subject: format!("{u}.kept"),
            ..Default::default()
        };
        let kept = jetstream.get_stream(&stream).await.unwrap();
        kept.create_consumer(bridge).await.unwrap();
        Self {
            marks: plain.read(&format!("{u}.dead"), 1),
            names: Names {
                kafka,
                nats,
                u,
                stream,
            },
            plain,
            client,
            jetstream,
            is_over: AtomicBool::new(false),
            sent: Default::default(),
            agent_requests: AtomicUsize::new(0),
        }
    }

    fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.names.u)
    }

    fn sent(&self) -> [usize; 4] {
        [0, 1, 2, 3].map(|kind| self.sent[kind].load(Ordering::Relaxed))
    }

    /// The number of the next message of a kind, after a pause; `None` at the end.
    async fn turn(&self, kind: usize) -> Option<usize> {
        sleep(PACE).await;
        let is_over = self.is_over.load(Ordering::Relaxed);
        (!is_over).then(|| self.sent[kind].fetch_add(1, Ordering::Relaxed))
    }

    async fn publish_on_kafka(self: Arc<Self>) {
        let topic = self.topic("in");
        while let Some(number) = self.turn(0).await {
            self.plain.publish(&topic, None, &event(2 * number)).await;
        }
    }

    async fn publish_on_jetstream(self: Arc<Self>) {
        let subject = self.topic("kept");
        while let Some(number) = self.turn(1).await {
            let body = event(2 * number + 1).into();
            let stored = self.jetstream.publish(subject.clone(), body).await;
            within("the event is stored", stored.unwrap().into_future())
                .await
                .unwrap();
        }
    }

    async fn call_over_http(self: Arc<Self>, door: String) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        while let Some(id) = self.turn(2).await {
            let agent = if id % 2 == 0 { "weather" } else { "other" };
            let answer = client
                .post(format!("{door}/rpc/{agent}"))
                .header("content-type", "application/json")
                .body(request(id, agent))
                .send();
            let answer = within("a call is answered", answer).await.unwrap();
            assert_answers(&answer.bytes().await.unwrap(), id);
        }
    }

    async fn request_on_nats(self: Arc<Self>) {
        let subject = self.topic("asked");
        while let Some(id) = self.turn(3).await {
            let message = async_nats::Request::new()
                .payload(request(id, "weather").into())
                .timeout(None);
            let answer = self.client.send_request(subject.clone(), message);
            let answer = within("a request is answered", answer).await.unwrap();
            assert_answers(&answer.payload, id);
        }
    }

    async fn agent_on_nats(self: Arc<Self>, mut requests: async_nats::Subscriber) {
        while let Some(request) = requests.next().await {
            self.agent_requests.fetch_add(1, Ordering::Relaxed);
            let (reply_address, answer) = (request.reply.unwrap(), answer_to(&request.payload));
            self.client
                .publish(reply_address, answer.into())
                .await
                .unwrap();
        }
    }

    async fn agent_on_kafka(self: Arc<Self>) {
        let requests = self.plain.read(&self.topic("agent"), 1);
        loop {
            let request = next(&requests).await;
            self.agent_requests.fetch_add(1, Ordering::Relaxed);
            let reply_address = String::from_utf8(request.headers["ce_replyto"].clone()).unwrap();
            let answer = answer_to(&request.body);
            self.plain.publish(&reply_address, None, &answer).await;
        }
    }

    /// Records of a Kafka topic.
    fn records(&self, topic: &str) -> usize {
        let marks = self.marks.fetch_watermarks(&self.topic(topic), 0, TIMEOUT);
        usize::try_from(marks.unwrap().1).unwrap()
    }

    async fn stored(&self) -> usize {
        let stream = format!("{}_OUT", self.names.stream);
        let mut stream = self.jetstream.get_stream(stream).await.unwrap();
        let messages = stream.info().await.unwrap().state.messages;
        usize::try_from(messages).unwrap()
    }

    /// The numbers of all events that have arrived, on Kafka and in the stream.
    async fn arrived(&self) -> Vec<usize> {
        let mut numbers = Vec::new();
        let (there, consumer) = (self.records("out"), self.plain.read(&self.topic("out"), 1));
        for _ in 0..there {
            numbers.push(number_of(&next(&consumer).await.body));
        }
        let stream = format!("{}_OUT", self.names.stream);
        let stream = self.jetstream.get_stream(stream).await.unwrap();
        let config = jetstream::consumer::pull::OrderedConfig::default();
        let consumer = stream.create_consumer(config).await.unwrap();
        let mut messages = consumer.messages().await.unwrap();
        for _ in 0..self.stored().await {
            let message = messages.next().await.unwrap().unwrap();
            numbers.push(number_of(&message.payload));
        }
        numbers
    }
}

/// Replaces the file again and again while messages of every kind meet each version of it.
async fn reload_under_load(world: &World, pod: &mut Pod, doors: &str) {
    let mut side = "a";
    for number in 1..=RELOADS {
        let is_asked = number % 50 != 0;
        if number % 10 == 5 {
            let (text, why) = wrong(&world.names.config("wrong", doors), number / 10);
            pod.reload(&text, "refused", is_asked).await;
            let detail = pod.detail().await;
            assert!(detail.contains("invalid and not in use"), "{detail}");
            assert!(detail.contains(why), "{why}: {detail}");
            let last = "a2abus_config_last_reload_successful";
            assert_eq!(pod.metric(last).await, 0);
        } else {
            side = if side == "a" { "b" } else { "a" };
            pod.reload(&world.names.config(side, doors), "applied", is_asked)
                .await;
            assert_eq!(pod.detail().await, "");
        }
        let before = world.sent();
        pod.until("messages of every kind are sent", async || {
            let mut pairs = world.sent().into_iter().zip(before);
            pairs.all(|(now, before)| now > before + 1)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_reloads_lose_nothing_and_double_nothing_on_kafka_and_nats() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let world = Arc::new(World::new(kafka, nats).await);
    let requests = world.client.subscribe(world.topic("agent")).await.unwrap();
    subscribed(&world.client).await;
    let mut agents = JoinSet::new();
    agents.spawn(Arc::clone(&world).agent_on_nats(requests));
    agents.spawn(Arc::clone(&world).agent_on_kafka());
    let (mut pod, doors) = Pod::start(&world.names).await;
    let mut senders = JoinSet::new();
    senders.spawn(Arc::clone(&world).publish_on_kafka());
    senders.spawn(Arc::clone(&world).publish_on_jetstream());
    senders.spawn(Arc::clone(&world).call_over_http(pod.door.clone()));
    senders.spawn(Arc::clone(&world).request_on_nats());

    reload_under_load(&world, &mut pod, &doors).await;

    world.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = within("the senders end", senders.join_next()).await {
        ended.unwrap();
    }
    let [on_kafka, on_jetstream, calls, requests] = world.sent();
    let (events, answered) = (on_kafka + on_jetstream, calls + requests);
    pod.until("all events arrive", async || {
        world.records("out") + world.stored().await >= events
    })
    .await;

    // What cannot change while the process runs is named, and the rest is in use.
    let more = world.names.config("a", &doors).replace("60s", "61s");
    pod.reload(&more, "restart_needed", true).await;
    assert_eq!(pod.detail().await, "calls.timeout: needs a restart");
    assert_eq!(pod.logged(&["WARN", "calls.timeout", "not in use"]), 1);
    let (wrong, right) = (RELOADS / 10, RELOADS - RELOADS / 10);
    assert!(pod.reloads("refused").await >= wrong);
    // Each change of side is logged with the old and the new value.
    let [kafka, nats] = ["kafka", "nats"];
    for (setting, before, after) in [
        ("default_route[0].transport", kafka, nats),
        ("routes.weather.to[0].transport", nats, kafka),
    ] {
        let parts = [&format!("setting={setting} "), "a setting has changed"];
        let (before, after) = (format!("before=\"{before}\""), format!("after=\"{after}\""));
        let output = pod.logged(&[parts[0], parts[1], &before, &after]);
        assert_eq!(output, right / 2, "{setting}: {before} {after}");
    }

    pod.signal("-TERM").await;
    let status = within("the process drains", pod.process.wait()).await;
    assert!(status.unwrap().success());
    let (at_kafka, at_nats) = (world.records("out"), world.stored().await);
    println!(
        "{events} events ({at_kafka} on Kafka, {at_nats} on JetStream), {calls} calls, {requests} requests on NATS"
    );
    let arrived = world.arrived().await;
    let sent = (0..on_kafka).map(|number| 2 * number);
    let sent: BTreeSet<usize> = sent
        .chain((0..on_jetstream).map(|number| 2 * number + 1))
        .collect();
    assert_eq!(arrived.iter().copied().collect::<BTreeSet<_>>(), sent);
    assert_eq!(arrived.len(), events, "none is doubled");
    assert_eq!(
        world.agent_requests.load(Ordering::Relaxed),
        answered,
        "an agent is asked once"
    );
    assert_eq!(world.records("dead"), 0);
}
