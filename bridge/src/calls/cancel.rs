//! The cancel that an agent gets when its caller no longer waits, in the agent's protocol.

use std::collections::VecDeque;
use std::sync::Mutex;

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_transports::Message;
use bytes::Bytes;
use prometheus::IntCounter;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::Level;

use crate::bus::outbound::Outgoing;
use crate::calls::callid::{CallId, ReplyId};
use crate::lock::lock;
use crate::log_limit::{LogLimit, LogLimits};
use crate::recent::Recent;

/// A call to cancel: its agent, and the destination of its request.
#[derive(Debug)]
pub struct Cancel {
    id: ReplyId,
    dialect: Dialect,
    target: Option<Text>,
    /// The copy of the request that is to be answered, without its content.
    original: Option<Outgoing>,
    /// The task that the agent works on.
    task: Option<String>,
}

/// Queues cancels for the task that sends them.
#[derive(Debug)]
pub struct Canceller {
    queue: mpsc::Sender<Cancel>,
    /// The cancels of calls that ended before their requests were handed to a bus. A request that is handed over at
    /// that moment takes its cancel from here, or leaves `None` if it comes first. The other cancels are not sent.
    early: Mutex<Recent<CallId, Option<Cancel>>>,
    dropped: IntCounter,
    log: LogLimit,
}

/// The notifications that cancel a request, of MCP and ACP.
pub(crate) const CANCELS: [&str; 2] = ["notifications/cancelled", "$/cancel_request"];
/// The prefix of the id of a cancel that is a request; the reply id of the call follows.
const CANCEL_PREFIX: &str = "cancel-";

/// The cancels for one bus.
#[derive(Debug, Default)]
pub(super) struct BusQueue {
    /// How many are being sent.
    sending: usize,
    waiting: VecDeque<Cancel>,
}

/// Maximum number of cancels that wait to be sent, and of those that wait for one bus. Further ones are dropped; the
/// agent's own deadline then ends the work.
const QUEUE_CANCELS: usize = 1_024;
/// Maximum number of cancels that are sent concurrently to one bus.
const MAX_CONCURRENT: usize = 64;
/// Maximum number of early cancels that are remembered.
const MAX_EARLY: usize = 65_536;

// === impl Canceller ===

impl Canceller {
    /// The two ends of the queue. `dropped` counts the cancels that did not fit.
    #[must_use]
    pub fn channel(dropped: IntCounter, log: &LogLimits) -> (Self, mpsc::Receiver<Cancel>) {
        let (queue, receiver) = mpsc::channel(QUEUE_CANCELS);
        let log = log.limit(Level::WARN, "more cancels were dropped");
        (
            Self {
                queue,
                early: Mutex::new(Recent::new(MAX_EARLY)),
                dropped,
                log,
            },
            receiver,
        )
    }

    /// Keeps a cancel until its request is handed over. Returns it if that has happened already.
    pub(crate) fn keep(&self, cancel: Cancel) -> Option<Cancel> {
        let (mut early, call) = (lock(&self.early), cancel.call());
        if early.contains(&call) {
            return Some(cancel);
        }
        early.insert(call, Some(cancel));
        None
    }

    /// Takes a cancel that was kept.
    pub(crate) fn take(&self, call: CallId) -> Option<Cancel> {
        lock(&self.early).get_mut(&call)?.take()
    }

    /// Notes that the request of a call was handed over after the call had ended. Returns its cancel, if it was kept.
    pub(crate) fn handed_over(&self, call: CallId) -> Option<Cancel> {
        let mut early = lock(&self.early);
        if let Some(kept) = early.get_mut(&call) {
            return kept.take();
        }
        early.insert(call, None);
        None
    }

    pub(crate) fn send(&self, cancel: Cancel) {
        let sent = self.queue.try_send(cancel);
        if let Err(TrySendError::Full(cancel) | TrySendError::Closed(cancel)) = sent {
            self.drop_one(&cancel);
        }
    }

    /// Counts and logs a cancel that is not sent.
    fn drop_one(&self, cancel: &Cancel) {
        self.dropped.inc();
        if let Some(suppressed) = self.log.allow() {
            let agent = cancel.target.as_ref().map(Text::as_str);
            tracing::warn!(
                agent, call = %cancel.call(), suppressed,
                "a cancel message was dropped: too many are waiting to be sent, or the bridge is shutting down; the agent goes on working"
            );
        }
    }
}

// === impl BusQueue ===

impl BusQueue {
    /// Takes a cancel. Returns it if it is to be sent now; otherwise it waits, or is dropped.
    pub(super) fn add(&mut self, cancel: Cancel, canceller: &Canceller) -> Option<Cancel> {
        if self.sending < MAX_CONCURRENT {
            self.sending += 1;
            return Some(cancel);
        }
        if self.waiting.len() < QUEUE_CANCELS {
            self.waiting.push_back(cancel);
        } else {
            canceller.drop_one(&cancel);
        }
        None
    }

    /// The cancel to send after one that was sent.
    pub(super) fn after_one(&mut self) -> Option<Cancel> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.sending -= 1;
        }
        next
    }
}

// === impl Cancel ===

impl Cancel {
    pub(crate) fn new(
        id: ReplyId,
        dialect: Dialect,
        target: Option<Text>,
        copies: &[Outgoing],
    ) -> Self {
        Self {
            id,
            dialect,
            target,
            original: copies
                .iter()
                .find(|copy| copy.is_awaited)
                .map(without_content),
            task: None,
        }
    }

    pub(crate) fn call(&self) -> CallId {
        self.id.call
    }

    /// The id of the request that the agent received.
    pub(crate) fn id(&self) -> ReplyId {
        self.id
    }

    pub(crate) fn target(&self) -> Option<&Text> {
        self.target.as_ref()
    }

    /// The copy of the request that is to be answered: the cancel has the same destination. Others do not know the
    /// call.
    pub(crate) fn original(&self) -> Option<&Outgoing> {
        self.original.as_ref()
    }

    /// Remembers the agent's task, if a part of the answer names it.
    pub(crate) fn note_part(&mut self, body: &Bytes) {
        let names_tasks = matches!(
            self.dialect,
            Dialect::A2a03 | Dialect::A2a10 | Dialect::JafDoc
        );
        if names_tasks && self.task.is_none() {
            self.task = task_id(body);
        }
    }

    /// Takes the cancel out, leaving an empty one.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            id: self.id,
            dialect: self.dialect,
            target: self.target.take(),
            original: self.original.take(),
            task: self.task.take(),
        }
    }

    /// The JSON-RPC message to send. A2A cancels tasks, and the agent's answer names the task. Before the task is
    /// known, and in protocols without their own cancel, this is MCP's notification with the reply id, which the agent
    /// got as the id of the request. Source: docs/protocols/a2a.md §7, docs/protocols/mcp.md §4 and
    /// docs/protocols/acp.md §2.
    pub(crate) fn payload(&self) -> String {
        let call = self.id.to_string();
        let message = match (self.dialect, &self.task) {
            (Dialect::A2a03 | Dialect::JafDoc, Some(task)) => {
                json!({"jsonrpc": "2.0", "id": format!("{CANCEL_PREFIX}{call}"), "method": "tasks/cancel", "params": {"id": task}})
            }
            (Dialect::A2a10, Some(task)) => {
                json!({"jsonrpc": "2.0", "id": format!("{CANCEL_PREFIX}{call}"), "method": "CancelTask", "params": {"id": task}})
            }
            (Dialect::Acp, _) => {
                json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": call}})
            }
            _ => json!({
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": call, "reason": "the caller no longer waits"},
            }),
        };
        message.to_string()
    }
}

/// A copy with only its destination. A call may wait for a long time, and its request may be large.
fn without_content(copy: &Outgoing) -> Outgoing {
    let message = Message {
        key: copy.message.key.clone(),
        ..Message::default()
    };
    Outgoing {
        named_by: copy.named_by,
        mode: copy.mode,
        agent: copy.agent.clone(),
        call: copy.call.clone(),
        is_awaited: copy.is_awaited,
        expires: copy.expires,
        may_have_arrived: copy.may_have_arrived,
        ..Outgoing::new(copy.bus, copy.address.clone(), message)
    }
}

/// The call whose cancel has this id.
pub(crate) fn cancelled_by(id: &str) -> Option<CallId> {
    let id: ReplyId = id.strip_prefix(CANCEL_PREFIX)?.parse().ok()?;
    Some(id.call)
}

/// The task that a part of an A2A answer names.
fn task_id(part: &[u8]) -> Option<String> {
    let part: Value = serde_json::from_slice(part).ok()?;
    let result = part.get("result")?;
    let wrapped = ["statusUpdate", "artifactUpdate", "task"]
        .into_iter()
        .find_map(|name| result.get(name));
    let body = wrapped.unwrap_or(result);
    let id = body.get("taskId").or_else(|| body.get("id"))?;
    id.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;

    fn payload(dialect: Dialect, part: Option<&'static str>) -> Value {
        let call = CallId::new(Replica(0)).unwrap();
        let id = ReplyId { call, token: None };
        let mut cancel = Cancel::new(id, dialect, None, &[]);
        if let Some(part) = part {
            cancel.note_part(&Bytes::from_static(part.as_bytes()));
        }
        let mut value: Value = serde_json::from_str(&cancel.payload()).unwrap();
        if let Some(id) = value.pointer_mut("/params/requestId") {
            assert_eq!(*id, call.to_string());
            *id = "CALL".into();
        }
        value
    }

    #[test]
    fn each_protocol_has_its_own_cancel() {
        let task = r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","taskId":"t-1"}}"#;
        let wrapped = r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"t-2"}}}"#;
        assert_eq!(
            payload(Dialect::Mcp, None)["method"],
            "notifications/cancelled"
        );
        assert_eq!(
            payload(Dialect::Mcp, Some(task))["params"]["requestId"],
            "CALL"
        );
        assert_eq!(
            payload(Dialect::A2a03, None)["method"],
            "notifications/cancelled"
        );
        assert_eq!(payload(Dialect::A2a03, Some(task))["params"]["id"], "t-1");
        assert_eq!(
            payload(Dialect::A2a10, Some(wrapped))["params"]["id"],
            "t-2"
        );
        assert_eq!(
            payload(Dialect::A2a10, Some(wrapped))["method"],
            "CancelTask"
        );
        assert_eq!(payload(Dialect::Acp, None)["method"], "$/cancel_request");
    }

    #[test]
    fn the_answer_to_a_cancel_names_its_call() {
        let call = CallId::new(Replica(0)).unwrap();
        assert_eq!(cancelled_by(&format!("cancel-{call}")), Some(call));
        for other in [call.text().as_str(), "cancel-7", "cancel-"] {
            assert_eq!(cancelled_by(other), None, "{other}");
        }
    }
}
