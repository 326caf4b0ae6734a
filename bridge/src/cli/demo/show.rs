//! The output of the demonstration: text, or JSON lines.

use std::net::SocketAddr;
use std::time::Duration;

use a2abus_executor::Progress;
use serde_json::{Map, Value, json};

use super::super::output::Output;
use super::super::workflow::lines::progress_line;
use super::agents::ReceivedEvent;
use super::step::{CallResponse, Headers};

/// Everything about one call.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) title: &'static str,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Headers,
    pub(crate) payload: Option<String>,
    pub(crate) seen: Vec<ReceivedEvent>,
    pub(crate) answer: CallResponse,
    /// What was wrong.
    pub(crate) problem: Option<String>,
}

/// Everything about the workflow.
#[derive(Debug)]
pub(crate) struct WorkflowReport {
    pub(crate) workflow: String,
    pub(crate) progress: Vec<Progress>,
    pub(crate) answer: String,
    pub(crate) elapsed: Duration,
    /// What was wrong.
    pub(crate) problem: Option<String>,
}

/// Text or JSON lines.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OutputStyle {
    People,
    JsonLines,
}

// === impl OutputStyle ===

impl OutputStyle {
    pub(crate) fn new(json: bool) -> Self {
        if json { Self::JsonLines } else { Self::People }
    }

    pub(crate) fn opening(self, door: SocketAddr) -> anyhow::Result<()> {
        match self {
            Self::JsonLines => Ok(()),
            Self::People => print(&format!(
                "a2abus demo: three agents and an MCP server on the memory transport, HTTP listener at http://{door}/rpc\n"
            )),
        }
    }

    pub(crate) fn step(self, report: &Report) -> anyhow::Result<()> {
        match self {
            Self::JsonLines => print(&json_line(report)),
            Self::People => print(&summary(report)),
        }
    }

    pub(crate) fn workflow(self, report: &WorkflowReport) -> anyhow::Result<()> {
        match self {
            Self::JsonLines => print(&workflow_line(report)),
            Self::People => print(&workflow_story(report)),
        }
    }

    pub(crate) fn closing(
        self,
        failed: usize,
        calls: usize,
        elapsed: Duration,
    ) -> anyhow::Result<()> {
        match self {
            Self::JsonLines => print(&format!(
                r#"{{"ok":{},"calls":{calls},"elapsed_ms":{}}}"#,
                failed == 0,
                millis(elapsed)
            )),
            Self::People if failed == 0 => print(&format!(
                "Passed: {calls} calls and 1 workflow in {:.0} ms.",
                millis(elapsed)
            )),
            Self::People => print(&format!(
                "FAILED: {failed} of {calls} calls and 1 workflow."
            )),
        }
    }

    /// The URLs of the agent of a kit; `url` is the one that its kit gets.
    pub(crate) fn kit(self, door: SocketAddr, agent: &str) -> anyhow::Result<()> {
        let base = format!("http://{door}");
        match self {
            Self::JsonLines => print(&json!({ "serving": base }).to_string()),
            Self::People => print(&format!(
                "The agent {agent:?} is served:\n  A2A at {base} (card: {base}/.well-known/agent-card.json)\n  MCP at {base}/mcp/agents/{agent}\nCtrl-C stops it."
            )),
        }
    }

    pub(crate) fn curl(self, door: SocketAddr) -> anyhow::Result<()> {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_agentId":"echo","name":"weather","arguments":{"city":"Oslo"}}}"#;
        let line =
            format!("curl -s http://{door}/rpc -H 'content-type: application/json' -d '{body}'");
        match self {
            Self::JsonLines => {
                print(&json!({"serving": format!("http://{door}/rpc"), "curl": line}).to_string())
            }
            Self::People => print(&format!(
                "\nThe bridge is still running. Try:\n\n  {line}\n\nCtrl-C stops it."
            )),
        }
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    Output::new().line(text)
}

fn millis(elapsed: Duration) -> f64 {
    (elapsed.as_secs_f64() * 10_000.0).round() / 10.0
}

fn attributes(seen: &ReceivedEvent) -> Map<String, Value> {
    let core = seen
        .event
        .core_attributes()
        .map(|(name, value)| (name.to_owned(), Value::from(value)));
    let extensions = seen
        .event
        .extensions()
        .map(|(name, value)| (name.to_owned(), Value::from(value.to_text().as_str())));
    core.chain(extensions).collect()
}

fn json_line(report: &Report) -> String {
    let seen: Vec<Value> = report
        .seen
        .iter()
        .map(|seen| {
            let answers: Vec<Value> =
                seen.answers.iter().map(|(topic, text)| json!({"topic": topic.as_str(), "payload": text})).collect();
            json!({"agent": seen.agent, "topic": seen.topic.as_str(), "event": attributes(seen), "answers": answers})
        })
        .collect();
    let headers = report.headers.iter();
    let headers: Map<_, _> = headers
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    json!({
        "step": report.title,
        "ok": report.problem.is_none(),
        "problem": report.problem,
        "method": report.method,
        "path": report.path,
        "headers": headers,
        "payload": report.payload,
        "route": (!seen.is_empty()).then_some("agents"),
        "seen": seen,
        "status": report.answer.status,
        "answer": report.answer.parts,
        "elapsed_ms": millis(report.answer.elapsed),
    })
    .to_string()
}

fn summary(report: &Report) -> String {
    let mut lines = vec![format!(
        "{} {}",
        if report.problem.is_none() {
            "ok  "
        } else {
            "FAIL"
        },
        report.title
    )];
    let mut add = |label: &str, text: &str| lines.push(format!("     {label:<9} {text}"));
    let headers = report.headers.iter();
    let headers: String = headers
        .map(|(name, value)| format!("  ({name}: {value})"))
        .collect();
    add(report.method, &format!("{}{headers}", report.path));
    if let Some(payload) = &report.payload {
        add("payload", payload);
    }
    if report.seen.is_empty() && report.answer.is_unrouted() {
        add("route", "no route matches");
    }
    for seen in &report.seen {
        let [event, route, agent] = seen_by_agent(seen);
        add("event", &event);
        add("route", &route);
        add("agent", &agent);
    }
    if report.answer.parts.is_empty() {
        add(
            "answer",
            &format!("{} without a body", report.answer.status),
        );
    }
    for part in &report.answer.parts {
        add("answer", &format!("{} {part}", report.answer.status));
    }
    add("took", &format!("{} ms", millis(report.answer.elapsed)));
    if let Some(problem) = &report.problem {
        add("PROBLEM", problem);
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The event that an agent received, its route, and the answers of the agent.
fn seen_by_agent(seen: &ReceivedEvent) -> [String; 3] {
    let attribute = |name: &str| {
        let value = seen.event.attribute(name)?;
        Some(format!(" {name}={value}"))
    };
    let names = ["mcptype", "a2amethod", "targetagent", "collaborationid"];
    let attributes: String = names.into_iter().filter_map(attribute).collect();
    let agent = match seen.answers.first() {
        Some((topic, _)) => {
            let answers = count(seen.answers.len());
            format!("{} publishes {answers} to {topic}", seen.agent)
        }
        None => format!("{} sends no answer", seen.agent),
    };
    [
        format!("{}{attributes}", seen.event.ty()),
        format!("agents -> topic {}", seen.topic),
        agent,
    ]
}

fn workflow_line(report: &WorkflowReport) -> String {
    let progress: Vec<String> = report
        .progress
        .iter()
        .map(|p| p.to_value().to_string())
        .collect();
    format!(
        r#"{{"step":"workflow","ok":{},"problem":{},"workflow":{},"progress":[{}],"answer":{},"elapsed_ms":{}}}"#,
        report.problem.is_none(),
        json!(report.problem),
        json!(report.workflow),
        progress.join(","),
        report.answer,
        millis(report.elapsed),
    )
}

fn workflow_story(report: &WorkflowReport) -> String {
    let verdict = if report.problem.is_none() {
        "ok  "
    } else {
        "FAIL"
    };
    let mut lines = vec![format!("{verdict} workflow: fetch, filter, sort, store")];
    let mut add = |label: &str, text: &str| lines.push(format!("     {label:<9} {text}"));
    for line in report.workflow.lines() {
        add("line", line);
    }
    for progress in &report.progress {
        add("progress", &progress_line(progress));
    }
    add("answer", &report.answer);
    add("took", &format!("{} ms", millis(report.elapsed)));
    if let Some(problem) = &report.problem {
        add("PROBLEM", problem);
    }
    lines.push(String::new());
    lines.join("\n")
}

fn count(answers: usize) -> String {
    if answers == 1 {
        "1 answer".to_owned()
    } else {
        format!("{answers} parts")
    }
}
