//! The MCP server for the conformance kit of MCP, as an agent on the bus: the tools, prompts and resources of its
//! scenarios. It answers on the bus like any other agent. Its endpoint is `/mcp/agents/everything`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_plugin::{Text, extension};
use a2abus_transports::Consumer;
use a2abus_transports::memory::Memory;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::lists::Answered;
use super::agents::{Request, publish, result, take};
use crate::lock::lock;

mod lists;
mod rounds;

/// Its name.
pub(super) const NAME: &str = "everything";
/// How long it works between two notifications.
const WORK: Duration = Duration::from_millis(50);
/// How long a client may take to answer a question.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The requests to clients that have no answer yet, by call and id.
type Questions = Arc<Mutex<HashMap<(Text, String), oneshot::Sender<Value>>>>;

/// A request in progress.
struct AgentRequest {
    memory: Memory,
    reply_to: Text,
    /// The call, which the answers of the client repeat.
    call: Text,
    body: Value,
    questions: Questions,
}

/// Answers requests until `stop`.
pub(super) async fn run(memory: Memory, mut consumer: Consumer, stop: CancellationToken) {
    let questions = Questions::default();
    let mut works = JoinSet::new();
    loop {
        let delivery = tokio::select! {
            delivery = consumer.recv() => delivery,
            Some(_) = works.join_next() => continue,
            () = stop.cancelled() => return,
        };
        let Some(delivery) = delivery else { return };
        let Some(request) = take(NAME, delivery) else {
            continue;
        };
        let memory = memory.clone();
        if let Some(turn) = AgentRequest::of(memory, request, &questions) {
            works.spawn(turn.done());
        }
    }
}

// === impl AgentRequest ===

impl AgentRequest {
    /// `None` for a message without an answer: a notification, or an answer of the client.
    fn of(memory: Memory, request: Request, questions: &Questions) -> Option<Self> {
        let Request {
            event,
            body,
            reply_to,
        } = request;
        let call = event.extension_text(extension::CALL_ID).cloned();
        let call = call.unwrap_or_default();
        if body.get("method").is_none() {
            let id = body["id"].as_str().unwrap_or_default().to_owned();
            let mut waiting = lock(questions);
            if let Some(waiting) = waiting.remove(&(call, id)) {
                drop(waiting.send(body));
            }
            return None;
        }
        body.get("id")?;
        Some(Self {
            memory,
            reply_to: reply_to?,
            call,
            body,
            questions: Arc::clone(questions),
        })
    }

    async fn done(self) {
        let id = &self.body["id"];
        let answer = match self.answered().await {
            Ok(answer) => result(id, &answer),
            Err((code, message, data)) => {
                let error = json!({ "code": code, "message": message, "data": data });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            }
        };
        self.publish(&answer).await;
    }

    async fn publish(&self, message: &Value) {
        if let Err(error) = publish(&self.memory, &self.reply_to, message).await {
            tracing::error!(agent = NAME, %error, "the agent failed");
        }
    }

    async fn notify(&self, method: &str, params: Value) {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.publish(&message).await;
    }

    async fn answered(&self) -> Answered {
        let params = &self.body["params"];
        match self.body["method"].as_str().unwrap_or_default() {
            "initialize" => Ok(lists::profile(params)),
            "tools/list" => Ok(json!({ "tools": lists::tools() })),
            "tools/call" => self.tool(params).await,
            "prompts/list" => Ok(json!({ "prompts": lists::prompts() })),
            "prompts/get" => match params["name"].as_str() {
                Some("test_input_required_result_prompt") => Ok(rounds::prompt(params)),
                name => lists::prompt(name.unwrap_or_default(), &params["arguments"]),
            },
            "resources/list" => Ok(json!({ "resources": lists::resources() })),
            "resources/templates/list" => Ok(json!({ "resourceTemplates": lists::templates() })),
            "resources/read" => lists::resource(params["uri"].as_str().unwrap_or_default()),
            "resources/subscribe" | "resources/unsubscribe" | "logging/setLevel" => Ok(json!({})),
            "completion/complete" => {
                let values = ["paris", "park", "party"];
                Ok(json!({ "completion": { "values": values, "total": 3, "hasMore": false } }))
            }
            method => Err((
                -32_601,
                format!("there is no method {method:?}"),
                Value::Null,
            )),
        }
    }

    async fn tool(&self, params: &Value) -> Answered {
        let name = params["name"].as_str().unwrap_or_default();
        let arguments = &params["arguments"];
        match name {
            "test_tool_with_logging" => {
                for text in [
                    "Tool execution started",
                    "Tool processing data",
                    "Tool execution completed",
                ] {
                    self.notify(
                        "notifications/message",
                        json!({ "level": "info", "data": text }),
                    )
                    .await;
                    tokio::time::sleep(WORK).await;
                }
                Ok(lists::text("The tool has logged three messages"))
            }
            "test_logging_tool" => {
                let params = json!({ "level": "info", "data": "a message that nobody asked for" });
                self.notify("notifications/message", params).await;
                Ok(lists::text("The tool has logged"))
            }
            "test_tool_with_progress" => {
                let token = &params["_meta"]["progressToken"];
                for progress in [0, 50, 100] {
                    if !token.is_null() {
                        let params =
                            json!({ "progressToken": token, "progress": progress, "total": 100 });
                        self.notify("notifications/progress", params).await;
                    }
                    tokio::time::sleep(WORK).await;
                }
                Ok(lists::text("The tool has reported its progress"))
            }
            "test_sampling" => self.sampled(arguments).await,
            "test_elicitation"
            | "test_elicitation_sep1034_defaults"
            | "test_elicitation_sep1330_enums" => self.elicited(name, arguments).await,
            _ => match rounds::tool(name, params) {
                Some(answered) => answered,
                None => lists::tool(name),
            },
        }
    }

    async fn sampled(&self, arguments: &Value) -> Answered {
        let content = json!({ "type": "text", "text": arguments["prompt"] });
        let params = json!({
            "messages": [{ "role": "user", "content": content }], "maxTokens": 100,
        });
        let result = self.ask("sampling/createMessage", params).await?;
        let text = result["content"]["text"].as_str().unwrap_or_default();
        Ok(lists::text(&format!("LLM response: {text}")))
    }

    async fn elicited(&self, name: &str, arguments: &Value) -> Answered {
        let message = arguments["message"].as_str();
        let params = json!({
            "message": message.unwrap_or("Please fill in this form"),
            "requestedSchema": lists::form(name),
        });
        let result = self.ask("elicitation/create", params).await?;
        let text = match name {
            "test_elicitation" => format!("User response: {result}"),
            _ => format!(
                "Elicitation completed: action={}, content={}",
                result["action"].as_str().unwrap_or_default(),
                result["content"]
            ),
        };
        Ok(lists::text(&text))
    }

    /// Sends a request to the client of this call, and waits for the answer.
    async fn ask(&self, method: &str, params: Value) -> Answered {
        let id = format!("question-{method}");
        let (sender, answer) = oneshot::channel();
        {
            let mut questions = lock(&self.questions);
            questions.insert((self.call.clone(), id.clone()), sender);
        }
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.publish(&message).await;
        let answer = tokio::time::timeout(TIMEOUT, answer).await;
        let failed = |why: &str| (-32_603, why.to_owned(), Value::Null);
        let answer = answer.map_err(|_| failed("the client did not answer in time"))?;
        let answer = answer.map_err(|_| failed("the answer of the client was lost"))?;
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => Err(failed(&format!("the client refused: {}", answer["error"]))),
        }
    }
}
