//! The agent for the compatibility kits of A2A: the prefix of `messageId` decides how it handles a message. It knows
//! nothing else about the kits, and answers on the bus like any other agent.

use std::collections::HashMap;
use std::time::Duration;

use a2abus_transports::Consumer;
use a2abus_transports::memory::Memory;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agents::{Request, publish, result, take};

/// Its name.
pub(super) const NAME: &str = "tck";
/// How long it works on a task that the kits query again.
const LONG_WORK: Duration = Duration::from_secs(4);

/// One request.
struct Work {
    /// Its own id for the task.
    task: String,
    context: Value,
    /// The id of the message.
    message: String,
    /// The id of its answer.
    message_id: String,
    is_cancel: bool,
}

/// The next step.
enum Action {
    Say(Value),
    Work(Duration),
}

type Script = fn(&Work) -> Vec<Action>;

/// The actions for each prefix; the longest matching prefix decides.
const SCRIPTS: [(&str, Script); 18] = [
    ("", |work| vec![work.ended("input-required", "What next?")]),
    // `tck-complete-task`, and messages of tests that only concern the bridge.
    ("tck-", |work| {
        vec![work.ended("completed", "Hello from TCK")]
    }),
    ("tck-artifact-text", |work| {
        vec![work.with_artifact(&text("Generated text content"))]
    }),
    ("tck-artifact-file", |work| {
        vec![work.with_artifact(&file())]
    }),
    ("tck-artifact-file-url", |work| {
        vec![work.with_artifact(&json!({"kind": "file", "file": {
            "uri": "https://example.com/output.txt", "name": "output.txt", "mimeType": "text/plain"}}))]
    }),
    ("tck-artifact-data", |work| {
        let data = json!({"kind": "data", "data": {"key": "value", "count": 42}});
        vec![work.with_artifact(&data)]
    }),
    ("tck-message-response", |work| {
        vec![Action::Say(work.message("Direct message response"))]
    }),
    ("tck-input-required", |work| {
        vec![work.ended("input-required", "More is needed")]
    }),
    ("tck-reject-task", |work| {
        vec![work.ended("rejected", "rejected")]
    }),
    ("tck-stream-001", |work| {
        work.streamed(&text("Stream hello from TCK"))
    }),
    ("tck-stream-002", |work| vec![work.status("completed")]),
    ("tck-stream-003", |work| {
        work.streamed(&text("Stream task lifecycle"))
    }),
    ("tck-stream-ordering-001", |work| {
        work.streamed(&text("Ordered output"))
    }),
    ("tck-stream-artifact-text", |work| {
        work.streamed(&text("Streamed text content"))
    }),
    ("tck-stream-artifact-file", |work| work.streamed(&file())),
    ("tck-stream-artifact-chunked", |work| {
        vec![
            work.status("working"),
            work.artifact(&text("chunk-1 "), false, false),
            work.artifact(&text("chunk-2"), true, true),
            work.status("completed"),
        ]
    }),
    ("test-unsupported-part-message-id", |work| {
        vec![work.ended("failed", "A part of this kind cannot be read")]
    }),
    ("test-resubscribe-message-id", |work| {
        vec![
            work.status("working"),
            Action::Work(LONG_WORK),
            work.status("completed"),
        ]
    }),
];

/// Answers requests until `stop`.
pub(super) async fn run(memory: Memory, mut consumer: Consumer, stop: CancellationToken) {
    // The tasks in progress, with the handles that cancel them.
    let mut running: HashMap<String, CancellationToken> = HashMap::new();
    let (mut works, mut count) = (JoinSet::new(), 0_u64);
    loop {
        let delivery = tokio::select! {
            delivery = consumer.recv() => delivery,
            Some(done) = works.join_next() => {
                running.retain(|task, _| done.as_ref().is_ok_and(|done| done != task));
                continue;
            }
            () = stop.cancelled() => return,
        };
        let Some(delivery) = delivery else { return };
        let Some(request) = take(NAME, delivery) else {
            continue;
        };
        count += 1;
        let work = Work::of(&request.body, count);
        let cancelled = CancellationToken::new();
        let replaced = running.insert(work.task.clone(), cancelled.clone());
        let memory = memory.clone();
        if work.is_cancel {
            // Stops the work on the task.
            replaced.inspect(CancellationToken::cancel);
        }
        works.spawn(async move {
            if let Err(error) = done(&memory, &request, &work, &cancelled).await {
                tracing::error!(agent = NAME, %error, "the agent failed");
            }
            work.task
        });
    }
}

async fn done(
    memory: &Memory,
    request: &Request,
    work: &Work,
    cancelled: &CancellationToken,
) -> anyhow::Result<()> {
    // A notification has no answer.
    let (Some(id), Some(reply_to)) = (request.body.get("id"), &request.reply_to) else {
        return Ok(());
    };
    for step in work.steps() {
        match step {
            Action::Say(answer) => {
                publish(memory, reply_to, &result(id, &answer)).await?;
            }
            Action::Work(time) => tokio::select! {
                () = tokio::time::sleep(time) => {}
                () = cancelled.cancelled() => return Ok(()),
            },
        }
    }
    Ok(())
}

fn script(message_id: &str) -> Script {
    let fitting = SCRIPTS
        .iter()
        .filter(|(beginning, _)| message_id.starts_with(beginning));
    let longest = fitting.max_by_key(|(beginning, _)| beginning.len());
    longest.map_or(SCRIPTS[0].1, |(_, script)| *script)
}

fn text(text: &str) -> Value {
    json!({"kind": "text", "text": text})
}

fn file() -> Value {
    json!({"kind": "file", "file": {"bytes": "SGVsbG8gZnJvbSBUQ0s=", "name": "output.txt", "mimeType": "text/plain"}})
}

// === impl Work ===

impl Work {
    /// `count` gives a new task its id.
    fn of(request: &Value, count: u64) -> Self {
        let is_cancel = matches!(
            request["method"].as_str(),
            Some("tasks/cancel" | "CancelTask")
        );
        let (params, message) = (&request["params"], &request["params"]["message"]);
        let task = if is_cancel {
            &params["id"]
        } else {
            &message["taskId"]
        };
        Self {
            task: task
                .as_str()
                .map_or_else(|| format!("task-{count}"), str::to_owned),
            context: message["contextId"].clone(),
            message: message["messageId"].as_str().unwrap_or_default().to_owned(),
            message_id: format!("said-{count}"),
            is_cancel,
        }
    }

    fn steps(&self) -> Vec<Action> {
        if self.is_cancel {
            let status = json!({"state": "canceled"});
            return vec![Action::Say(
                json!({"kind": "task", "id": self.task, "status": status}),
            )];
        }
        script(&self.message)(self)
    }

    fn message(&self, content: &str) -> Value {
        json!({"kind": "message", "role": "agent", "messageId": self.message_id,
            "contextId": self.context, "parts": [text(content)]})
    }

    /// A task that has stopped, with a message of the agent.
    fn ended(&self, state: &str, content: &str) -> Action {
        Action::Say(
            json!({"kind": "task", "id": self.task, "contextId": self.context,
            "status": {"state": state, "message": self.message(content)}}),
        )
    }

    fn with_artifact(&self, part: &Value) -> Action {
        let artifact = json!({"artifactId": "output", "name": "output", "parts": [part]});
        Action::Say(
            json!({"kind": "task", "id": self.task, "contextId": self.context,
            "status": {"state": "completed"}, "artifacts": [artifact]}),
        )
    }

    fn status(&self, state: &str) -> Action {
        Action::Say(
            json!({"kind": "status-update", "taskId": self.task, "contextId": self.context,
            "status": {"state": state}, "final": state == "completed"}),
        )
    }

    fn artifact(&self, part: &Value, append: bool, last: bool) -> Action {
        let artifact = json!({"artifactId": "output", "name": "output", "parts": [part]});
        Action::Say(
            json!({"kind": "artifact-update", "taskId": self.task, "contextId": self.context,
            "artifact": artifact, "append": append, "lastChunk": last}),
        )
    }

    fn streamed(&self, part: &Value) -> Vec<Action> {
        vec![
            self.status("working"),
            self.artifact(part, false, true),
            self.status("completed"),
        ]
    }
}
