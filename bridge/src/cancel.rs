//! Telling an agent that its caller is gone, in the words of its protocol.

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_transports::Headers;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::callid::CallId;
use crate::outbound::Outgoing;

/// A call to cancel: whose it was and where its request went.
#[derive(Debug)]
pub struct Cancel {
    call: CallId,
    dialect: Dialect,
    target: Option<Text>,
    copies: Vec<Outgoing>,
    last_part: Option<Bytes>,
}

/// Hands cancels to the task that sends them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Canceller(mpsc::Sender<Cancel>);

/// Cancels that wait to be sent, at most. One that finds no room is dropped: the agent's own deadline ends the work.
const QUEUE_CANCELS: usize = 1_024;

// === impl Canceller ===

impl Canceller {
    /// The two ends of the queue.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Cancel>) {
        let (sender, receiver) = mpsc::channel(QUEUE_CANCELS);
        (Self(sender), receiver)
    }

    pub(crate) fn send(&self, cancel: Cancel) {
        let call = cancel.call;
        if self.0.try_send(cancel).is_err() {
            tracing::debug!(%call, "a cancel was dropped: too many wait, or the bridge is ending");
        }
    }
}

// === impl Cancel ===

impl Cancel {
    pub(crate) fn new(
        call: CallId,
        dialect: Dialect,
        target: Option<Text>,
        copies: Vec<Outgoing>,
    ) -> Self {
        Self {
            call,
            dialect,
            target,
            copies,
            last_part: None,
        }
    }

    pub(crate) fn call(&self) -> CallId {
        self.call
    }

    pub(crate) fn target(&self) -> Option<&Text> {
        self.target.as_ref()
    }

    /// The request's own copies: the cancel goes where they went.
    pub(crate) fn copies(&self) -> &[Outgoing] {
        &self.copies
    }

    /// Keeps only where the copies went: a call may wait long, and its request may be large.
    pub(crate) fn forget_bodies(&mut self) {
        for copy in &mut self.copies {
            copy.message.body = None;
            copy.message.headers = Headers::new();
        }
    }

    /// Remembers a part, which names the task that the agent works on.
    pub(crate) fn note_part(&mut self, body: &Bytes) {
        if matches!(
            self.dialect,
            Dialect::A2a03 | Dialect::A2a10 | Dialect::JafDoc
        ) {
            self.last_part = Some(body.clone());
        }
    }

    /// The cancel itself, leaving an empty one behind.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            call: self.call,
            dialect: self.dialect,
            target: self.target.take(),
            copies: std::mem::take(&mut self.copies),
            last_part: self.last_part.take(),
        }
    }

    /// The JSON-RPC message to send. A2A cancels a task, which only a part of the answer names; before there is one,
    /// and in protocols without a cancel of their own, MCP's notification carries the id of the call.
    /// Source: `a2a-http` sections 3.1, 4.2, 5.
    pub(crate) fn payload(&self) -> String {
        let call = self.call.to_string();
        let task = self.last_part.as_deref().and_then(task_id);
        let message = match (self.dialect, task) {
            (Dialect::A2a03 | Dialect::JafDoc, Some(task)) => {
                json!({"jsonrpc": "2.0", "id": format!("cancel-{call}"), "method": "tasks/cancel", "params": {"id": task}})
            }
            (Dialect::A2a10, Some(task)) => {
                json!({"jsonrpc": "2.0", "id": format!("cancel-{call}"), "method": "CancelTask", "params": {"id": task}})
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

/// The task that a part of an A2A answer is about.
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
    use crate::callid::Replica;

    fn payload(dialect: Dialect, part: Option<&'static str>) -> Value {
        let call = CallId::new(Replica(0)).unwrap();
        let mut cancel = Cancel::new(call, dialect, None, Vec::new());
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
    fn each_protocol_cancels_in_its_own_words() {
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
}
