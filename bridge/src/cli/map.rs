//! `a2abus map`: payloads in, CloudEvents out, one JSON line per unit.

use a2abus_plugin::{Event, Mapped, format};
use clap::Args;
use serde::Serialize;

use super::command::Status;
use super::output::Output;
use super::payload::{PayloadArgs, Refusal, UnitResult, display_value};

/// Arguments of `a2abus map`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"_agentId\":\"weather\"}}' | a2abus map
  a2abus map request.json | jq .event.targetagent
  a2abus map --lines --ids random --now real < captured.jsonl
  a2abus map --header ce-specversion=1.0 --header ce-id=1 --header ce-source=/s --header ce-type=t </dev/null

Each line is {\"index\":0,\"ok\":true,\"family\":…,\"rule\":…,\"kind\":…,\"event\":{…}}, for JSON-RPC with
\"dialect\" and \"id_raw\", or {\"index\":0,\"ok\":false,\"error\":{\"kind\":…,\"message\":…,\"pointer\":…,
\"offset\":…}}. With --lines, \"index\" starts at 0 again for every line, and an empty line is an empty
payload.

The id of an event is that of its payload. In a bridge it is the position of the message, unless mapping.ids of
the binding says otherwise; over HTTP it is the id of the call.

Exit status 1 if any unit is refused.")]
pub(crate) struct MapArgs {
    #[command(flatten)]
    payload: PayloadArgs,
}

/// Maps every payload.
///
/// # Errors
/// When the usage is wrong, or reading or writing fails; refused payloads are output, not errors.
pub(crate) fn run(args: &MapArgs) -> anyhow::Result<Status> {
    let options = args.payload.options_at(None)?;
    let mut documents = args.payload.documents(&options)?;
    let mut output = Output::new();
    let mut status = Status::Success;
    while let Some(payload) = documents.next()? {
        for outcome in options.map_payload(&payload) {
            if outcome.is_err() {
                status = Status::Failure;
            }
            output.line(line(&outcome, &NoFields {}))?;
        }
    }
    Ok(status)
}

/// The members of the line for a mapped unit, without the event.
#[derive(Serialize)]
struct UnitOutput<'a> {
    index: usize,
    ok: bool,
    family: &'static str,
    rule: u8,
    kind: &'static str,
    #[serde(flatten)]
    json_rpc: Option<JsonRpcOutput<'a>>,
}

#[derive(Serialize)]
struct JsonRpcOutput<'a> {
    dialect: &'static str,
    id_raw: Option<&'a str>,
}

/// The members of the line for a refused unit.
#[derive(Serialize)]
struct RefusedOutput<'a> {
    index: usize,
    ok: bool,
    error: ErrorOutput<'a>,
}

#[derive(Serialize)]
struct ErrorOutput<'a> {
    kind: &'static str,
    message: &'a str,
    pointer: &'a str,
    offset: usize,
}

/// No further members.
#[derive(Serialize)]
struct NoFields {}

/// The JSON line of a unit. The members of `more` come last.
pub(crate) fn line(outcome: &UnitResult, more: &impl Serialize) -> Vec<u8> {
    let mut line = match outcome {
        Ok(mapped) => {
            let mut line = members(&unit_output(mapped));
            line.extend_from_slice(b",\"event\":");
            write_on_one_line(&mapped.event, &mut line);
            line
        }
        Err(refusal) => members(&refusal_output(refusal)),
    };
    let more = members(more);
    if let Some(more) = more.strip_prefix(b"{").filter(|more| !more.is_empty()) {
        line.push(b',');
        line.extend_from_slice(more);
    }
    line.push(b'}');
    line
}

fn unit_output(mapped: &Mapped) -> UnitOutput<'_> {
    let detection = mapped.detection;
    let json_rpc = mapped.json_rpc.as_ref().map(|message| JsonRpcOutput {
        dialect: message.dialect.as_str(),
        id_raw: message.id.as_ref().map(|id| id.token().as_str()),
    });
    UnitOutput {
        index: mapped.index,
        ok: true,
        family: detection.family.as_str(),
        rule: detection.rule,
        kind: mapped.kind.as_str(),
        json_rpc,
    }
}

fn refusal_output(refusal: &Refusal) -> RefusedOutput<'_> {
    RefusedOutput {
        index: refusal.index,
        ok: false,
        error: ErrorOutput {
            kind: refusal.kind.as_str(),
            message: &refusal.message,
            pointer: &refusal.pointer,
            offset: refusal.offset,
        },
    }
}

/// A JSON object without its closing brace.
fn members(value: &impl Serialize) -> Vec<u8> {
    // Serialising values with string keys cannot fail.
    let mut json = serde_json::to_vec(value).unwrap_or_else(|_| b"{}".to_vec());
    json.pop();
    json
}

/// Removes line ends from the event, because data are written unchanged. In JSON a bare line end is white space.
fn write_on_one_line(event: &Event, line: &mut Vec<u8>) {
    let start = line.len();
    format::write(event, line);
    let mut written = line.split_off(start);
    if let Some(time) = event
        .time()
        .filter(|time| display_value(time) != time.as_str())
    {
        // Attributes come before the data, so the first match is the right one.
        let member = |time: &str| format!("\"time\":\"{time}\"").into_bytes();
        let (found, instead) = (member(time), member(display_value(time)));
        let at = written
            .windows(found.len())
            .position(|bytes| bytes == found);
        if let Some(at) = at {
            written.splice(at..at + found.len(), instead);
        }
    }
    written.retain(|byte| !matches!(byte, b'\n' | b'\r'));
    line.append(&mut written);
}
