//! The executor as an agent on the bus: every form of a workflow request is answered once, whatever happens meanwhile.

mod answers;
mod doors;
mod fair;
mod lines;
mod places;
mod refused;
mod replicas;
mod stops;

use std::collections::BTreeMap;
use std::sync::Arc;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_bridge::readiness::Readiness;
use a2abus_executor::Environment;
use a2abus_plugin::{Data, Event, Limits};
use a2abus_transports::content_mode::{self, Content, ContentMode, ProtocolBinding};
use a2abus_transports::memory::Memory;
use a2abus_transports::{Address, AnyTransport, Consumer, Message, Topic, Transport as _};
use bytes::Bytes;
use serde_json::{Value, json};
use support::battery::within;
use support::service::Service;
use tokio::task::{JoinHandle, yield_now};
use tokio_util::sync::CancellationToken;

use crate::set_up::{self, group, next, until_ready};

/// Where workflows are sent.
const INBOX: &str = "agents.a2e-executor";

/// The routes of a world, unless a test has its own.
const ROUTES: &str = "[{ name: agents, when: { targetagent: '*' }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }]";

/// The SHA-256 of a key of the agent `reporter`.
const KEY: &str = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683";

/// A bridge that executes workflows, a service they may call, and the requesting agent.
struct World {
    memory: Memory,
    service: Service,
    door: String,
    admin: String,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    /// The messages that are routed to the agent `reporter`.
    answers: Consumer,
    dead: Consumer,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

/// An event of the executor.
#[derive(Debug, Clone, PartialEq)]
struct ReplyEvent {
    id: String,
    ty: String,
    attributes: BTreeMap<String, String>,
    /// The header of its message.
    trace: Option<Bytes>,
    data: Value,
}

impl ReplyEvent {
    fn of(message: &Message) -> Self {
        let read =
            content_mode::read(ProtocolBinding::Memory, message, &Limits::default()).unwrap();
        let Content::Event(event) = read else {
            panic!("not a CloudEvent")
        };
        let attributes = event.extensions();
        let attributes =
            attributes.map(|(name, value)| (name.to_owned(), value.to_text().to_string()));
        Self {
            id: event.id().to_string(),
            ty: event
                .ty()
                .strip_prefix("org.apache.eventmesh.a2a.")
                .unwrap()
                .to_owned(),
            attributes: attributes
                .chain([("source".to_owned(), event.source().to_string())])
                .collect(),
            trace: message.headers.get("traceparent").cloned(),
            data: serde_json::from_slice(&event.body()).unwrap(),
        }
    }

    fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    fn is_answer(&self) -> bool {
        self.attribute("mcptype") == "response"
    }
}

impl World {
    /// Everything runs as `reporter`.
    async fn new() -> Self {
        Self::with("run_as: reporter", "").await
    }

    /// Events name the agent themselves.
    async fn named() -> Self {
        Self::with("", "").await
    }

    async fn with(binding: &str, workflows: &str) -> Self {
        Self::on(Memory::default(), Service::open().await, binding, workflows).await
    }

    async fn on(memory: Memory, service: Service, binding: &str, workflows: &str) -> Self {
        Self::routed(memory, service, binding, workflows, ROUTES).await
    }

    async fn routed(
        memory: Memory,
        service: Service,
        binding: &str,
        workflows: &str,
        routes: &str,
    ) -> Self {
        let text = configuration(&service, binding, workflows, routes);
        Self::configured(memory, service, &text, None).await
    }

    /// With another clock, network or store for workflows.
    async fn configured(
        memory: Memory,
        service: Service,
        text: &str,
        world: Option<Environment>,
    ) -> Self {
        let config =
            Config::read("test.yaml", text, []).unwrap_or_else(|problems| panic!("{problems}"));
        let name = config.transports.keys().next().unwrap().clone();
        let transports = BTreeMap::from([(name, AnyTransport::Memory(memory.connect()))]);
        let bridge = Bridge::build_in(config, transports, world).await.unwrap();
        let door = format!("http://{}", bridge.door_address().unwrap());
        let admin = format!("http://{}", bridge.admin_address().unwrap());
        let (readiness, metrics) = (Arc::clone(bridge.readiness()), Arc::clone(bridge.metrics()));
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await;
        Self {
            answers: memory
                .subscribe(group("agents.reporter", "reporter"))
                .await
                .unwrap(),
            dead: memory.subscribe(group("dead", "dead")).await.unwrap(),
            memory,
            service,
            door,
            admin,
            metrics,
            readiness,
            stop,
            running,
        }
    }

    async fn publish(&self, message: Message) {
        publish(&self.memory, INBOX, message).await;
    }

    /// Publishes an event of the agent `reporter` to the executor.
    async fn send(&self, id: &str, attributes: &[(&str, &str)], data: &str) {
        self.publish(event(id, attributes, data)).await;
    }

    /// The next event that the agent gets.
    async fn next_reply(&mut self) -> ReplyEvent {
        ReplyEvent::of(&next(&mut self.answers).await)
    }

    /// All events up to the next answer.
    async fn until_answer(&mut self) -> Vec<ReplyEvent> {
        let mut all = Vec::new();
        loop {
            all.push(self.next_reply().await);
            if all.last().is_some_and(ReplyEvent::is_answer) {
                return all;
            }
        }
    }

    /// The next answer.
    async fn answer(&mut self) -> ReplyEvent {
        self.until_answer().await.pop().unwrap()
    }

    async fn dead_letter(&mut self) -> Message {
        next(&mut self.dead).await
    }

    /// Posts a JSON-RPC request to the HTTP listener.
    async fn call(&self, body: &Value) -> Value {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = client
            .post(format!("{}/rpc/a2e-executor", self.door))
            .json(body);
        let response = within("the answer", request.send()).await.unwrap();
        response.json().await.unwrap()
    }

    /// The value of a counter.
    fn count(&self, series: &str) -> u64 {
        set_up::count(&self.metrics, series)
    }

    async fn until_counted(&self, series: &str, expected: u64) {
        set_up::until_counted(&self.metrics, series, expected).await;
    }

    /// The value of a counter when it is more than this.
    async fn until_more(&self, series: &str, than: u64) -> u64 {
        within(series, async {
            loop {
                match self.count(series) {
                    count if count > than => return count,
                    _ => yield_now().await,
                }
            }
        })
        .await
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

/// The configuration of a world.
fn configuration(service: &Service, binding: &str, workflows: &str, routes: &str) -> String {
    let permissions = match binding.contains("run_as") {
        true => "",
        false => "trusts: [sourceagent]",
    };
    let keys = [permissions, binding]
        .into_iter()
        .filter(|keys| !keys.is_empty());
    let binding = keys.collect::<Vec<_>>().join(", ");
    format!(
        "
instance: test
transports: {{ bus: {{ type: memory }} }}
bindings:
  - {{ name: work, role: workflows, transport: bus, topics: [{INBOX}], dead_letter: {{ topic: dead }}, {binding} }}
  - {{ name: relay, transport: bus, topics: [relay], dead_letter: {{ topic: dead }} }}
routes: {routes}
http: {{ listen: '127.0.0.1:0', drain_grace: 20s }}
admin: {{ listen: '127.0.0.1:0' }}
workflows:
  enabled: true
  apis: [{{ id: service, base_url: '{base}' }}]
  agents:
    - id: reporter
      keys: [{{ sha256: '{KEY}' }}]
      operations: ['*']
      apis: [service]
      storages: [localStorage, sessionStorage]
      rates: {{ api_calls_per_minute: 1000, api_calls_per_hour: 1000 }}
    - {{ id: idler, operations: [Wait] }}
{workflows}",
        base = service.base
    )
}

async fn publish(memory: &Memory, topic: &str, mut message: Message) {
    // A single lane keeps the messages of a test in order.
    message.key = Some("key".into());
    let address = Address::topic(Topic::new(topic.to_owned()).unwrap());
    set_up::publish(memory, &address, message).await;
}

/// A CloudEvent from the agent `reporter`, unless its attributes say otherwise.
fn event(id: &str, attributes: &[(&str, &str)], data: &str) -> Message {
    let mut event = Event::new(id.into(), "/reporter".into(), "test".into()).unwrap();
    event.set("sourceagent", "reporter").unwrap();
    for (name, value) in attributes {
        event.set(name, *value).unwrap();
    }
    event.set_data(Some(Data::from(bytes::Bytes::from(data.to_owned()))));
    content_mode::write(ProtocolBinding::Memory, &event, ContentMode::Binary).unwrap()
}

/// A line that defines an operation.
fn define(id: &str, operation: &Value) -> String {
    json!({"type": "operationUpdate", "operationId": id, "operation": operation}).to_string()
}

fn begin(execution: &str, order: &[&str]) -> String {
    json!({"type": "beginExecution", "executionId": execution, "operationOrder": order}).to_string()
}

/// A workflow of these operations, in this order.
fn workflow(execution: &str, operations: &[(&str, Value)]) -> String {
    let mut lines: Vec<String> = operations.iter().map(|(id, of)| define(id, of)).collect();
    let order: Vec<&str> = operations.iter().map(|(id, _)| *id).collect();
    lines.push(begin(execution, &order));
    lines.join("\n")
}

fn wait(millis: u64) -> Value {
    json!({"Wait": {"duration": millis}})
}
