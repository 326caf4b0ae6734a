//! Calls over HTTP to an agent behind a broker: the bridge beside a proxy written by hand.
//!
//! The proxy is an axum handler. Over NATS it is `client.request`. Over Kafka it sends a record with a correlation id,
//! and a reader of the topic of replies hands the answer to the handler that waits for it. It checks nothing, and a call
//! that gets no answer waits for ever. The client and the agent are in this process, the same for both.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use bench_support::{Connection, SMALL_REQUEST, find, is_whole, median, scale};
use bytes::Bytes;
use futures_util::StreamExt as _;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::brokers::{Brokers, client, unique};
use crate::contestant::{Contestant, Process};
use crate::{LOOK, PATIENCE};

/// What is called, and where.
const DOORS: [Door; 3] = [
    Door {
        name: "/rpc",
        path: "/rpc/weather",
        body: SMALL_REQUEST,
    },
    Door {
        name: "message/send",
        path: "/a2a/agents/weather",
        body: r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","role":"user","messageId":"m","parts":[{"kind":"text","text":"The weather in Oslo?"}]}}}"#,
    },
    Door {
        name: "/mcp",
        path: "/mcp/agents/weather",
        body: r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"now","arguments":{"city":"Oslo","unit":"degrees Celsius","days":["today","tomorrow"]}}}"#,
    },
];
/// How many calls are made at a time, each on a connection of its own.
const IN_FLIGHT: [usize; 2] = [1, 64];
const CONTESTANTS: [Contestant; 2] = [Contestant::A2aBus, Contestant::ByHand];
/// The headers by which an answer finds its way.
const REPLY_TOPIC: &str = "kafka_replyTopic";
const REPLY_PARTITION: &str = "kafka_replyPartition";
const CORRELATION: &str = "kafka_correlationId";

/// Where the agent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bus {
    Nats,
    Kafka,
}

/// One way to call the agent.
struct Door {
    name: &'static str,
    path: &'static str,
    body: &'static str,
}

/// The costs of calls in one turn.
#[derive(Debug, Clone, Copy)]
struct Turn {
    per_second: f64,
    cpu_us: f64,
    p50_us: f64,
}

/// A contestant, and the address of its listener.
struct Started {
    process: Process,
    address: SocketAddr,
}

/// The addresses of one comparison.
struct Ends {
    bus: Bus,
    /// Of the broker.
    url: String,
    agent: String,
}

// === impl Bus ===

impl Bus {
    pub(crate) const ALL: [Self; 2] = [Self::Nats, Self::Kafka];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bus| bus.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nats => "http-nats",
            Self::Kafka => "http-kafka",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Nats => "a call over HTTP to an agent on NATS core",
            Self::Kafka => "a call over HTTP to an agent on Kafka",
        }
    }
}

/// Measures the calls to an agent on one bus, and prints the medians.
pub(crate) fn compare(brokers: &Brokers, bus: Bus, rounds: usize, only: Option<&str>) {
    let ends = Ends {
        bus,
        url: match bus {
            Bus::Nats => brokers.nats.clone(),
            Bus::Kafka => brokers.kafka.clone(),
        },
        agent: unique("agent"),
    };
    if bus == Bus::Kafka {
        brokers.create_topic(&ends.agent, 1);
    }
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(ends.agent());
    let mut contestants = CONTESTANTS.to_vec();
    contestants.retain(|who| only.is_none_or(|only| only == who.name()));
    let mut turns = vec![vec![Vec::new(); DOORS.len() * IN_FLIGHT.len()]; contestants.len()];
    for round in 0..rounds {
        for turn in 0..contestants.len() {
            let index = (round + turn) % contestants.len();
            // A topic of its own for each, so that nobody reads the answers of another.
            let replies = unique("replies");
            if bus == Bus::Kafka {
                brokers.create_topic(&replies, 1);
            }
            let who = contestants[index];
            let process = ends.start(who, &replies);
            let of_round = runtime.block_on(turns_of(&process, who.doors()));
            drop(process);
            if bus == Bus::Kafka {
                brokers.delete_topic(&replies);
            }
            for (turns, turn) in turns[index].iter_mut().zip(of_round) {
                turns.push(turn);
            }
        }
    }
    if bus == Bus::Kafka {
        brokers.delete_topic(&ends.agent);
    }
    table(bus, &contestants, &turns);
}

/// The rows of each number of calls in flight are compared with the last one, which is by hand.
fn table(bus: Bus, contestants: &[Contestant], turns: &[Vec<Vec<Turn>>]) {
    let of = |turns: &[Turn], field: fn(&Turn) -> f64| median(turns.iter().map(field).collect());
    println!("\n{}", bus.title());
    println!("| in flight | | calls/s | CPU us per call | p50 us | calls/s, p50 of by hand |");
    println!("|---|---|---|---|---|---|");
    for (level, in_flight) in IN_FLIGHT.iter().enumerate() {
        let by_hand = contestants.last() == Some(&Contestant::ByHand);
        let base = turns.last().filter(|_| by_hand);
        let base = base.map(|turns| &turns[level]);
        for (contestant, turns) in contestants.iter().zip(turns) {
            for (door, turns) in contestant.doors().iter().zip(turns.chunks(IN_FLIGHT.len())) {
                let turns = &turns[level];
                let ratio = |field| match base {
                    Some(base) => format!("{:.2}x", of(turns, field) / of(base, field)),
                    None => "-".to_owned(),
                };
                println!(
                    "| {in_flight} | {}, {} | {:.0} | {:.1} | {:.0} | {}, {} |",
                    contestant.name(),
                    door.name,
                    of(turns, |turn| turn.per_second),
                    of(turns, |turn| turn.cpu_us),
                    of(turns, |turn| turn.p50_us),
                    ratio(|turn| turn.per_second),
                    ratio(|turn| turn.p50_us),
                );
            }
        }
    }
}

// === impl Contestant ===

impl Contestant {
    /// What is called.
    fn doors(self) -> &'static [Door] {
        match self {
            Self::A2aBus => &DOORS,
            // It does the same with every body.
            _ => &DOORS[..1],
        }
    }
}

// === impl Door ===

impl Door {
    async fn open(&self, address: SocketAddr) -> Connection {
        Connection::open(address, self.path, self.body).await
    }
}

// === impl Started ===

impl Started {
    /// Whether it answers a call.
    async fn is_ready(&self) -> bool {
        if TcpStream::connect(self.address).await.is_err() {
            return false;
        }
        let mut connection = DOORS[0].open(self.address).await;
        let answer = connection.send(|read| find(read, b"\r\n\r\n").is_some());
        answer.await.starts_with(b"HTTP/1.1 200")
    }
}

// === impl Ends ===

impl Ends {
    /// Starts the agent.
    async fn agent(&self) {
        match self.bus {
            Bus::Nats => {
                let agent = async_nats::connect(&self.url).await.expect("connected");
                let requests = agent.subscribe(self.agent.clone()).await;
                let mut requests = requests.expect("subscribed");
                agent.flush().await.expect("flushed");
                tokio::spawn(async move {
                    while let Some(request) = requests.next().await {
                        let Some(reply) = request.reply else { continue };
                        let answer = answer(&request.payload);
                        let sent = agent.publish(reply, answer.into()).await;
                        sent.expect("published");
                    }
                });
            }
            Bus::Kafka => {
                let requests = reader(&self.url, &self.agent);
                tokio::spawn(answer_on_kafka(requests, producer(&self.url)));
            }
        }
    }

    fn start(&self, who: Contestant, replies: &str) -> Started {
        let free = StdTcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let process = self.process(who, address, replies);
        Started { process, address }
    }

    fn process(&self, who: Contestant, address: SocketAddr, replies: &str) -> Process {
        let Self { bus, url, agent } = self;
        if who == Contestant::ByHand {
            let work = format!("{} {url} {agent} {replies} {address}", bus.name());
            let mut command = Command::new(std::env::current_exe().expect("a path"));
            command.args(["by-hand-proxy", &work]);
            return Process::spawn(command, None);
        }
        let transport = match bus {
            Bus::Nats => format!("type: nats, servers: ['{url}']"),
            Bus::Kafka => format!("type: kafka, brokers: ['{url}']"),
        };
        let calls = match bus {
            Bus::Nats => String::new(),
            Bus::Kafka => format!("calls: {{ reply_topic: {replies} }}\n"),
        };
        let text = format!(
            "transports: {{ bus: {{ {transport} }} }}
agents: {{ weather: {{ description: Answers., to: {{ transport: bus, topic: {agent} }} }} }}
{calls}a2a: {{ max_requests_per_client: 1000 }}
http: {{ listen: '{address}' }}
admin: {{ enabled: false }}
"
        );
        Process::bridge(agent, &text)
    }
}

/// Waits until calls are answered, and makes those of one round.
async fn turns_of(started: &Started, doors: &'static [Door]) -> Vec<Turn> {
    let start = Instant::now();
    while !started.is_ready().await {
        assert!(start.elapsed() < PATIENCE, "no call is answered");
        tokio::time::sleep(LOOK).await;
    }
    let mut turns = Vec::new();
    for door in doors {
        let mut connection = door.open(started.address).await;
        for _ in 0..scale(500, 1) {
            connection.send(is_whole).await;
        }
        for in_flight in IN_FLIGHT {
            turns.push(turn(started, door, in_flight).await);
        }
    }
    turns
}

async fn turn(
    Started { process, address }: &Started,
    door: &'static Door,
    in_flight: usize,
) -> Turn {
    let address = *address;
    let used = process.usage().expect("it runs").cpu;
    let length = Duration::from_millis(scale(2_000, 1) as u64);
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..in_flight {
        clients.spawn(async move {
            let mut connection = door.open(address).await;
            let mut times = Vec::new();
            loop {
                let begun = Instant::now();
                connection.send(is_whole).await;
                times.push(begun.elapsed().as_secs_f64() * 1e6);
                if start.elapsed() >= length {
                    return times;
                }
            }
        });
    }
    let times = clients.join_all().await.concat();
    let (calls, took) = (times.len() as f64, start.elapsed());
    let cpu = process.usage().expect("it runs").cpu - used;
    Turn {
        per_second: calls / took.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / calls,
        p50_us: median(times),
    }
}

fn producer(brokers: &str) -> FutureProducer {
    let mut config = client(brokers);
    config.set("linger.ms", "0").set("acks", "all");
    config.create().expect("a producer")
}

/// A consumer of the only partition of a new topic.
fn reader(brokers: &str, topic: &str) -> StreamConsumer {
    let mut config = client(brokers);
    config.set("group.id", topic);
    config.set("enable.auto.commit", "false");
    config.set("fetch.wait.max.ms", "500");
    let consumer: StreamConsumer = config.create().expect("a consumer");
    let mut partitions = TopicPartitionList::new();
    let added = partitions.add_partition_offset(topic, 0, Offset::Beginning);
    added.expect("an offset");
    consumer.assign(&partitions).expect("assigned");
    consumer
}

/// The answer to a request, with its id.
fn answer(request: &[u8]) -> String {
    let request: serde_json::Value = serde_json::from_slice(request).expect("JSON");
    let result = if request["method"] == "message/send" {
        r#"{"kind":"message","role":"agent","messageId":"a","parts":[{"kind":"text","text":"22 degrees"}]}"#
    } else {
        r#"{"content":[{"type":"text","text":"22 degrees"}],"isError":false}"#
    };
    let id = &request["id"];
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// Answers every request to the topic and partition that its headers name.
async fn answer_on_kafka(requests: StreamConsumer, producer: FutureProducer) {
    while let Ok(request) = requests.recv().await {
        let header = |name: &str| {
            let mut headers = request.headers()?.iter();
            headers.find(|header| header.key == name)?.value
        };
        let topic = header(REPLY_TOPIC).expect("a topic of replies");
        let partition = header(REPLY_PARTITION).and_then(|bytes| bytes.try_into().ok());
        let body = answer(request.payload().unwrap_or_default());
        let topic = std::str::from_utf8(topic).expect("text");
        let mut record = FutureRecord::<(), _>::to(topic).payload(&body);
        record.partition = partition.map(i32::from_be_bytes);
        if let Some(value) = header(CORRELATION) {
            let correlation = Header {
                key: CORRELATION,
                value: Some(value),
            };
            record.headers = Some(OwnedHeaders::new().insert(correlation));
        }
        let sent = producer.send_result(record).map_err(|(error, _)| error);
        tokio::spawn(sent.expect("queued"));
    }
}

// === the proxy by hand ===

/// `NAME URL AGENT REPLIES ADDRESS`
pub(crate) fn run_by_hand(work: &str) {
    let words: Vec<&str> = work.split(' ').collect();
    let [name, url, agent, replies, address] = words[..] else {
        panic!("not five words: {work}");
    };
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let router = match Bus::named(name).expect("a bus") {
            Bus::Nats => over_nats(url, agent).await,
            Bus::Kafka => Exchange::new(url, agent, replies).router(),
        };
        let listener = TcpListener::bind(address).await.expect("a free port");
        axum::serve(listener, router).await.expect("it serves");
    });
}

async fn over_nats(url: &str, agent: &str) -> Router {
    let client = async_nats::connect(url).await.expect("connected");
    let agent = async_nats::Subject::from(agent);
    let ask = async move |body: Bytes| {
        let answer = client.request(agent.clone(), body).await;
        answer.expect("an answer").payload
    };
    Router::new().fallback(ask)
}

/// Requests on one topic, and answers on another.
struct Exchange {
    producer: FutureProducer,
    agent: String,
    replies: String,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Bytes>>>,
}

// === impl Exchange ===

impl Exchange {
    fn new(url: &str, agent: &str, replies: &str) -> Arc<Self> {
        let exchange = Arc::new(Self {
            producer: producer(url),
            agent: agent.to_owned(),
            replies: replies.to_owned(),
            next: AtomicU64::default(),
            waiting: Mutex::default(),
        });
        tokio::spawn(Arc::clone(&exchange).read(reader(url, replies)));
        exchange
    }

    fn router(self: Arc<Self>) -> Router {
        let ask = async move |body: Bytes| self.ask(&body).await;
        Router::new().fallback(ask)
    }

    async fn ask(&self, body: &[u8]) -> Bytes {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().expect("a map").insert(id, sender);
        let headers = OwnedHeaders::new()
            .insert(Header {
                key: REPLY_TOPIC,
                value: Some(&self.replies),
            })
            .insert(Header {
                key: CORRELATION,
                value: Some(&id.to_be_bytes()),
            });
        let record = FutureRecord::<(), _>::to(&self.agent)
            .payload(body)
            .headers(headers);
        let sent = self
            .producer
            .send_result(record)
            .map_err(|(error, _)| error);
        sent.expect("queued")
            .await
            .expect("confirmed")
            .expect("confirmed");
        answer.await.expect("an answer")
    }

    async fn read(self: Arc<Self>, replies: StreamConsumer) {
        while let Ok(reply) = replies.recv().await {
            let mut headers = reply.headers().expect("headers").iter();
            let id = headers.find(|header| header.key == CORRELATION);
            let id = id.and_then(|header| header.value?.try_into().ok());
            let id = u64::from_be_bytes(id.expect("a correlation id"));
            let sender = self.waiting.lock().expect("a map").remove(&id);
            let body = Bytes::copy_from_slice(reply.payload().unwrap_or_default());
            let _received = sender.expect("somebody waits").send(body);
        }
    }
}
