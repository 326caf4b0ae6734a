//! The tasks of MCP (2025-11-25) that one run of an attached server has made.
//!
//! Most servers keep tasks in memory, so only the program or the session that has made a task knows it. Nothing leads a
//! request about a task to that program: another bridge that attaches the server may read it.
//!
//! Source: docs/protocols/mcp.md §11.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use a2abus_plugin::Text;
use a2abus_plugin::json::range_of;
use a2abus_plugin::protocol::jsonrpc::splice;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::members::WithParams;
use crate::lock::lock;
use crate::object::{self, present};

/// The tasks of one run.
#[derive(Debug, Default)]
pub(super) struct MadeTasks {
    /// Their ids, the newest last.
    ids: Mutex<VecDeque<Text>>,
    /// Whether it was logged that clients are not offered tasks.
    is_logged: AtomicBool,
}

/// Maximum number of tasks that are remembered.
const MOST: usize = 10_000;
/// The methods about one task. They are not those of A2A: `params` has `taskId`.
const ABOUT_TASK: [&str; 3] = ["tasks/get", "tasks/result", "tasks/cancel"];
/// JSON-RPC: invalid params. MCP requires this code for an unknown task.
const INVALID_PARAMS: i64 = -32_602;
/// What the error for an unknown task lacks.
const NOT_MADE: &str = "the program or session that was asked did not create this task; another run of the server, before a restart or at another bridge, may have created it, and then only that one knows it";

// === impl MadeTasks ===

impl MadeTasks {
    /// Remembers the task that the server has made for a request, if it has made one.
    pub(super) fn note(&self, request: &[u8], answer: &[u8]) {
        if let Some(id) = made_for(request, answer) {
            let mut ids = lock(&self.ids);
            if ids.len() >= MOST {
                ids.pop_front();
            }
            ids.push_back(id);
        }
    }

    /// The error in an answer about a task that this run has not made, with the possible cause. `None` for every other
    /// answer.
    pub(super) fn explained(&self, method: &str, request: &[u8], answer: &Bytes) -> Option<Bytes> {
        if !ABOUT_TASK.contains(&method) {
            return None;
        }
        let (message, text) = invalid_params_in(answer)?;
        let id = task_of(request)?;
        if lock(&self.ids).contains(&id) {
            return None;
        }
        let text = json!(format!("{text}: {NOT_MADE}")).to_string();
        Some(splice(answer, range_of(answer, message), &text))
    }

    /// Whether it is to be logged that clients are not offered tasks: once.
    pub(super) fn is_to_log(&self) -> bool {
        !self.is_logged.swap(true, Ordering::Relaxed)
    }
}

/// The id of the task that an answer says was made for a request that asks for one.
fn made_for(request: &[u8], answer: &[u8]) -> Option<Text> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(default, borrow, deserialize_with = "present")]
        task: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Answer {
        result: Made,
    }
    #[derive(Deserialize)]
    struct Made {
        task: Task,
    }
    let WithParams { params } = object::from_slice(request).ok()?;
    let sent: Params<'_> = object::from_slice(params?.get().as_bytes()).ok()?;
    sent.task?;
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    Some(answer.result.task.id.into())
}

/// The object that names a task.
#[derive(Debug, Deserialize)]
struct Task {
    #[serde(rename = "taskId")]
    id: String,
}

/// The task that a request is about.
fn task_of(request: &[u8]) -> Option<Text> {
    let WithParams { params } = object::from_slice(request).ok()?;
    let task: Task = object::from_slice(params?.get().as_bytes()).ok()?;
    Some(task.id.into())
}

/// The message of an error about invalid parameters: its JSON, and its text.
fn invalid_params_in(answer: &[u8]) -> Option<(&str, String)> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        error: RpcError<'a>,
    }
    #[derive(Deserialize)]
    struct RpcError<'a> {
        code: i64,
        #[serde(borrow)]
        message: &'a RawValue,
    }
    let Answer { error } = serde_json::from_slice(answer).ok()?;
    let text = serde_json::from_str(error.message.get()).ok()?;
    (error.code == INVALID_PARAMS).then(|| (error.message.get(), text))
}

/// A server's answer to `initialize` without the capability `tasks`; `None` if it does not have it.
pub(super) fn without_tasks(profile: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Profile<'a> {
        #[serde(borrow)]
        capabilities: &'a RawValue,
    }
    let Profile { capabilities } = serde_json::from_str(profile).ok()?;
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(capabilities.get()).ok()?;
    members.remove("tasks")?;
    let members = serde_json::to_string(&members).ok()?;
    let span = range_of(profile.as_bytes(), capabilities.get());
    let (before, after) = (profile.get(..span.start)?, profile.get(span.end..)?);
    Some(format!("{before}{members}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    static UNKNOWN: Bytes = Bytes::from_static(
        br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"data": 1.0e2,"message":"no \"task\""}}"#,
    );

    fn about(id: &str) -> String {
        json!({ "method": "tasks/get", "params": { "taskId": id } }).to_string()
    }

    fn make(tasks: &MadeTasks, id: &str) {
        let request = br#"{"method":"tools/call","params":{"name":"x","task":{}}}"#;
        let answer = json!({ "result": { "task": { "taskId": id, "status": "working" } } });
        tasks.note(request, answer.to_string().as_bytes());
    }

    fn explained(tasks: &MadeTasks, id: &str) -> Option<Bytes> {
        tasks.explained("tasks/get", about(id).as_bytes(), &UNKNOWN)
    }

    #[test]
    fn the_error_for_a_task_of_another_program_says_so() {
        let tasks = MadeTasks::default();
        make(&tasks, "mine");
        // This run has made it: the server knows best.
        assert_eq!(explained(&tasks, "mine"), None);
        let text = String::from_utf8(explained(&tasks, "other").unwrap().to_vec()).unwrap();
        assert!(text.contains(r#""data": 1.0e2,"message":"no \"task\": the program"#));
        assert!(text.contains("only that one knows it\"}}"), "{text}");
    }

    #[test]
    fn no_other_answer_changes() {
        let tasks = MadeTasks::default();
        let request = about("other");
        let unchanged = |method: &str, answer: &'static str| {
            let answer = Bytes::from_static(answer.as_bytes());
            assert_eq!(tasks.explained(method, request.as_bytes(), &answer), None);
        };
        unchanged("tasks/get", r#"{"result":{"taskId":"other"}}"#);
        unchanged("tasks/result", r#"{"error":{"code":-32000,"message":"x"}}"#);
        unchanged("tasks/list", r#"{"error":{"code":-32602,"message":"x"}}"#);
        // It was not asked for a task: its result only looks like one.
        let answer = br#"{"result":{"task":{"taskId":"plain"}}}"#;
        tasks.note(br#"{"method":"tools/call","params":{"name":"x"}}"#, answer);
        assert!(explained(&tasks, "plain").is_some());
    }

    #[test]
    fn the_oldest_tasks_are_forgotten() {
        let tasks = MadeTasks::default();
        (0..=MOST).for_each(|n| make(&tasks, &n.to_string()));
        assert!(explained(&tasks, "0").is_some());
        assert!(explained(&tasks, "1").is_none());
    }

    #[test]
    fn the_profile_loses_nothing_but_its_tasks() {
        let profile =
            r#"{"v": 1.0e2, "capabilities": {"tasks":{"list":{}},"tools":{"n": 1}}, "x":1}"#;
        let without = r#"{"v": 1.0e2, "capabilities": {"tools":{"n": 1}}, "x":1}"#;
        assert_eq!(without_tasks(profile).as_deref(), Some(without));
        assert_eq!(without_tasks(without), None);
        assert_eq!(without_tasks(r#"{"capabilities":[]}"#), None);
    }
}
