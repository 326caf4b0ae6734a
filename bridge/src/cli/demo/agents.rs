//! Three simple agents: they read a topic and publish plain JSON-RPC to the topic that the request names.

use a2abus_plugin::{Event, Limits, Text, extension};
use a2abus_transports::content_mode::{self, Content, ProtocolBinding};
use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, Consumer, Delivery, Message, Outcome, Reading, Subscription, Topic, TopicFilter,
    Transport as _,
};
use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// An event that an agent received, and what it did.
#[derive(Debug)]
pub(crate) struct ReceivedEvent {
    pub(crate) agent: &'static str,
    pub(crate) topic: Text,
    pub(crate) event: Event,
    /// The responses it published, with their topics.
    pub(crate) answers: Vec<(Text, String)>,
}

/// What an agent does with a request: the JSON-RPC responses it publishes.
type Behaviour = fn(id: &Value, request: &Value) -> Vec<Value>;

const AGENTS: [(&str, Behaviour); 3] = [("echo", echo), ("slow", slow), ("stream", stream)];

/// A request to an agent.
pub(super) struct Request {
    pub(super) event: Event,
    pub(super) body: Value,
    /// The topic of its answer; a notification has none.
    pub(super) reply_to: Option<Text>,
}

/// Starts the agents; they end with `stop`.
pub(crate) async fn start(
    memory: &Memory,
    seen: &mpsc::Sender<ReceivedEvent>,
    stop: &CancellationToken,
) -> anyhow::Result<JoinSet<()>> {
    let mut agents = JoinSet::new();
    for (name, behaviour) in AGENTS {
        let mut consumer = subscribe(memory, name).await?;
        let (memory, seen, stop) = (memory.clone(), seen.clone(), stop.clone());
        agents.spawn(async move {
            loop {
                let delivery = tokio::select! {
                    delivery = consumer.recv() => delivery,
                    () = stop.cancelled() => return,
                };
                let Some(delivery) = delivery else { return };
                match serve(name, behaviour, &memory, delivery).await {
                    // The demonstration has ended.
                    Ok(event) => drop(seen.send(event).await),
                    Err(error) => tracing::error!(agent = name, %error, "the sample agent failed"),
                }
            }
        });
    }
    Ok(agents)
}

/// The requests of an agent.
pub(super) async fn subscribe(memory: &Memory, agent: &str) -> anyhow::Result<Consumer> {
    let subscription = Subscription {
        topics: vec![TopicFilter::new(format!("agents.{agent}"))?],
        reading: Reading::Group(Text::from(agent)),
        budget_bytes: 1 << 20,
        budget_messages: 100,
    };
    Ok(memory.subscribe(subscription).await?)
}

async fn serve(
    agent: &'static str,
    behaviour: Behaviour,
    memory: &Memory,
    delivery: Delivery,
) -> anyhow::Result<ReceivedEvent> {
    let request = read(&delivery)?;
    let mut answers = Vec::new();
    if let Some(id) = request.body.get("id") {
        let reply_to = request
            .reply_to
            .context("the request does not name the topic of its answer")?;
        for response in behaviour(id, &request.body) {
            let text = publish(memory, &reply_to, &response).await?;
            answers.push((reply_to.clone(), text));
        }
    }
    delivery.acknowledger.settle(Outcome::Settled)?;
    Ok(ReceivedEvent {
        agent,
        topic: Text::from(delivery.topic.as_str()),
        event: request.event,
        answers,
    })
}

/// Reads and settles a request before the agent works on it. That may take long, and a request that is lost with this
/// process has no caller left. Unreadable requests are logged.
pub(super) fn take(agent: &str, delivery: Delivery) -> Option<Request> {
    let request = read(&delivery)
        .inspect_err(|error| tracing::error!(agent, %error, "a request could not be read"));
    if let Err(error) = delivery.acknowledger.settle(Outcome::Settled) {
        tracing::error!(agent, %error, "a request was not settled");
    }
    request.ok()
}

fn read(delivery: &Delivery) -> anyhow::Result<Request> {
    let content = content_mode::read(
        ProtocolBinding::Memory,
        &delivery.message,
        &Limits::default(),
    )?;
    let Content::Event(event) = content else {
        anyhow::bail!("not a CloudEvent")
    };
    Ok(Request {
        body: serde_json::from_slice(&event.body())?,
        reply_to: event.extension_text(extension::REPLY_TO).cloned(),
        event,
    })
}

/// Publishes a response as plain JSON. Returns its text.
pub(super) async fn publish(
    memory: &Memory,
    reply_to: &Text,
    response: &Value,
) -> anyhow::Result<String> {
    let text = response.to_string();
    let address = Address::topic(Topic::new(reply_to.clone())?);
    memory
        .send(&address, Message::plain(text.clone()))
        .await?
        .await?;
    Ok(text)
}

pub(super) fn result(id: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// Answers a tool call with its arguments.
fn echo(id: &Value, request: &Value) -> Vec<Value> {
    let text = request["params"]["arguments"].to_string();
    vec![result(
        id,
        &json!({"content": [{"type": "text", "text": text}], "isError": false}),
    )]
}

/// Never answers in time.
fn slow(_id: &Value, _request: &Value) -> Vec<Value> {
    Vec::new()
}

/// Answers in parts: A2A status updates, then the end.
fn stream(id: &Value, _request: &Value) -> Vec<Value> {
    let update = |state: &str, text: &str, is_final: bool| {
        let message = json!({"role": "agent", "kind": "message", "messageId": text, "parts": [{"kind": "text", "text": text}]});
        result(
            id,
            &json!({"kind": "status-update", "taskId": "task-1", "contextId": "context-1",
            "status": {"state": state, "message": message}, "final": is_final}),
        )
    };
    vec![
        update("submitted", "got it", false),
        update("working", "looking at flights", false),
        update("working", "looking at hotels", false),
        update("completed", "a plan for three days", true),
    ]
}
