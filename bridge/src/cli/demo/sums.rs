//! A small MCP server over stdio, which the bridge of the demonstration starts and puts on the bus, and the calls of an
//! MCP client to it.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::output::Output;
use super::step::{Step, call};

/// The name of the agent.
pub(super) const NAME: &str = "sums";
/// The hidden command that runs the server.
pub(super) const COMMAND: &str = "demo-server";

/// Answers the requests on standard input until it ends.
///
/// # Errors
/// When the input cannot be read or is no JSON, or the output cannot be written.
pub(crate) fn serve() -> anyhow::Result<()> {
    for line in std::io::stdin().lines() {
        let message: Value = serde_json::from_str(&line.context("standard input")?)?;
        if let Some(answer) = answer(&message) {
            Output::new().line(answer.to_string())?;
        }
    }
    Ok(())
}

/// The answer to a request; a notification has none.
fn answer(message: &Value) -> Option<Value> {
    let (id, params) = (message.get("id")?, &message["params"]);
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": params["protocolVersion"], "capabilities": { "tools": {} },
            "serverInfo": { "name": NAME, "version": env!("CARGO_PKG_VERSION") },
        }),
        "tools/list" => {
            let number = json!({ "type": "number" });
            let schema = json!({ "type": "object", "properties": { "a": number, "b": number }, "required": ["a", "b"] });
            json!({ "tools": [{ "name": "add", "description": "Adds two numbers.", "inputSchema": schema }] })
        }
        "tools/call" => {
            let number = |name: &str| params["arguments"][name].as_f64();
            let sum = number("a")
                .zip(number("b"))
                .map(|(a, b)| (a + b).to_string());
            let is_error = sum.is_none();
            let text = sum.unwrap_or_else(|| "a and b are numbers".to_owned());
            json!({ "content": [{ "type": "text", "text": text }], "isError": is_error })
        }
        _ => {
            let error = json!({ "code": -32_601, "message": "there is no such method" });
            return Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

/// The calls of an MCP client to it.
pub(super) fn steps() -> [Step; 2] {
    let step = |title, path: &str, payload, expect, expected| Step {
        title,
        path: path.to_owned(),
        headers: Vec::new(),
        payload: Some(payload),
        leaves_after: None,
        agents: &[],
        expect,
        expected,
    };
    let arguments = json!({ "name": "sums.add", "arguments": { "a": 40, "b": 2 } });
    [
        step(
            "MCP: the tools of a program that the bridge has started",
            "/mcp/agents/sums",
            call(&json!("req-6"), "tools/list", &json!({})),
            |answer| answer.only(|part| part["result"]["tools"][0]["name"] == "add"),
            "the tool \"add\"",
        ),
        step(
            "MCP: a call of its tool, among those of all agents",
            "/mcp",
            call(&json!("req-7"), "tools/call", &arguments),
            |answer| answer.only(|part| part["result"]["content"][0]["text"] == "42"),
            "a result with the text \"42\"",
        ),
    ]
}
