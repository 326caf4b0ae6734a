//! The explanation of a unit as text: what it is and why, what happens to it, and how to fix it.

use std::fmt::Write as _;

use a2abus_plugin::{Family, Mapped};
use bytes::Bytes;

use super::output::ExplainOutput;
use super::plain::PlainPayload;
use super::remedy::Fix;
use super::routing::{DestinationOutput, EXPIRED, RouteOutput};
use super::unknown::ForwardedUnknown;
use crate::cli::payload::{Refusal, display_value};
use crate::config::OnUnknown;
use crate::names::Mode;

/// Bytes of the payload that are shown on each side of an error.
const AROUND: usize = 32;

/// A unit that became an event.
pub(super) fn mapped(mapped: &Mapped, explained: &ExplainOutput) -> String {
    let mut report = String::new();
    let detection = &explained.because;
    section(
        &mut report,
        &format!("unit {}", mapped.index),
        &what(mapped),
    );
    section(
        &mut report,
        "why",
        &format!(
            "rule {} of detection: the member {:?} is {}",
            detection.rule, detection.member, detection.value
        ),
    );
    attributes(&mut report, mapped, explained);
    if !explained.removed.is_empty() {
        let names = explained.removed.join(", ");
        section(
            &mut report,
            "removed",
            &format!("{names}: not accepted here (an expirytime must be an RFC 3339 time)"),
        );
    }
    if let Some(route) = &explained.route {
        routed(&mut report, route);
    }
    report
}

/// A unit of an unknown format that is forwarded.
pub(super) fn carried(carried: &ForwardedUnknown<'_>) -> String {
    let mut report = String::new();
    let refusal = carried.refusal;
    let (what, data) = match carried.how {
        OnUnknown::Wrap => ("wrap: it becomes an event", "the data of the event"),
        _ => ("pass: its bytes go on", "without attributes"),
    };
    section(
        &mut report,
        &format!("unit {}", refusal.index),
        &format!("unknown format; on_unknown is {what}"),
    );
    section(&mut report, "why", &refusal.message);
    let ty = carried.event.attribute("type").map(|ty| ty.to_string());
    section(
        &mut report,
        "event",
        &format!("type {}", ty.unwrap_or_default()),
    );
    let bytes = refusal.bytes.len();
    section(
        &mut report,
        "data",
        &format!("{bytes} bytes, as they came: {data}"),
    );
    routed(&mut report, &carried.route);
    report
}

/// A payload that is read without an event.
pub(super) fn plain(payload: &PlainPayload) -> String {
    let mut report = String::new();
    let unit = format!("unit {}", payload.index);
    section(&mut report, &unit, payload.what);
    routed(&mut report, &payload.route);
    report
}

/// A unit that was refused; `is_http`: by the HTTP listener.
pub(super) fn refused(refusal: &Refusal, payload: &Bytes, fix: &Fix, is_http: bool) -> String {
    let mut report = String::new();
    section(
        &mut report,
        &format!("unit {}", refusal.index),
        &format!("refused: {}", fix.reason),
    );
    section(&mut report, "why", &refusal.message);
    let place = match refusal.pointer.as_str() {
        "" => format!("byte {}", refusal.offset),
        pointer => format!("{pointer}, byte {}", refusal.offset),
    };
    section(
        &mut report,
        "where",
        &format!("{place}: {}", around(payload, refusal.offset)),
    );
    let goes = match is_http {
        true => error(fix.reason),
        false => "to the dead letters of its binding".to_owned(),
    };
    section(&mut report, "goes", &goes);
    section(&mut report, "fix", fix.fix);
    report
}

/// One or more lines, with a heading at the left.
fn section(report: &mut String, label: &str, text: &str) {
    for (index, line) in text.lines().enumerate() {
        let label = if index == 0 { label } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(report, "{label:<7} {line}");
    }
}

fn what(mapped: &Mapped) -> String {
    let kind = mapped.kind.as_str();
    match (&mapped.json_rpc, mapped.detection.family) {
        (Some(message), _) => {
            let id = message
                .id
                .as_ref()
                .map_or("no id".to_owned(), |id| format!("id {}", id.token()));
            format!("JSON-RPC {kind}, {}, {id}", message.dialect.as_str())
        }
        (_, Family::Legacy) => format!("legacy A2A message, {kind}"),
        (_, Family::CloudEvent) => format!("CloudEvent, {kind}"),
        (_, Family::A2eMessage) => format!("A2E message, {kind}"),
        (_, Family::A2eWorkflow) => format!("A2E workflow, {kind}"),
        (_, Family::E2a) => format!("E2A record, {kind}"),
        (None, Family::JsonRpc) => format!("JSON-RPC {kind}"),
    }
}

fn attributes(report: &mut String, mapped: &Mapped, explained: &ExplainOutput) {
    let rows: Vec<(&str, String, &str)> = explained
        .origins
        .iter()
        .map(|(name, origin)| {
            let value = mapped.event.attribute(name);
            let value = value.map(|value| display_value(&value).to_owned());
            (name.as_str(), value.unwrap_or_default(), *origin)
        })
        .collect();
    let width =
        |of: fn(&(&str, String, &str)) -> usize| rows.iter().map(of).max().unwrap_or(0).min(60);
    let names = width(|row| row.0.len());
    let values = width(|row| row.1.chars().count());
    let lines: Vec<String> = rows
        .iter()
        .map(|(name, value, origin)| format!("{name:<names$}  {value:<values$}  from {origin}"))
        .collect();
    section(report, "event", &lines.join("\n"));
    section(
        report,
        "data",
        &format!("{} bytes, as they came", mapped.event.body().len()),
    );
}

/// Where an event goes that the HTTP listener does not publish.
fn error(reason: &str) -> String {
    format!("nowhere: the caller gets the error {reason}")
}

fn routed(report: &mut String, route: &RouteOutput) {
    let via = match route.is_http {
        true => "the HTTP listener".to_owned(),
        false => format!("binding {}", route.binding),
    };
    section(report, "via", &via);
    if let Some(note) = route.note {
        section(report, "note", note);
    }
    if let Some(converted) = &route.converted {
        section(report, "becomes", converted.get());
    }
    let steps: Vec<String> = route
        .steps
        .iter()
        .map(|step| match &step.mismatch {
            None => format!("{} matches", step.route),
            Some(mismatch) => format!("{} does not: {mismatch}", step.route),
        })
        .collect();
    section(report, "routes", &steps.join("\n"));
    let places: Vec<String> = route.destinations.iter().map(place).collect();
    section(report, "goes", &places.join("\n"));
    if let Some(reason) = &route.reason {
        let goes = match (route.is_http, route.is_answered) {
            (true, _) => error(reason),
            (false, _) if *reason == EXPIRED => {
                "nowhere: it is dropped, and its requester, if it has one, gets the error timeout"
                    .to_owned()
            }
            (false, true) => {
                format!("nowhere: its requester, if it has one, gets the error {reason}")
            }
            (false, false) => format!("to the dead letters: {reason}"),
        };
        section(report, "goes", &goes);
    }
    if let Some(detail) = &route.detail {
        section(report, "why", detail);
    }
    if let Some(fix) = route.fix {
        section(report, "fix", fix);
    }
}

fn place(destination: &DestinationOutput) -> String {
    match destination {
        DestinationOutput::Reachable {
            transport,
            topic,
            key,
            mode,
            answers,
        } => {
            let key = key
                .as_ref()
                .map_or("no key".to_owned(), |key| format!("key {key:?}"));
            let mode = match mode {
                Some(Mode::Binary) => "binary mode",
                Some(Mode::Structured) => "structured mode",
                None => "the bytes as they came",
            };
            let answers = if *answers { ", answers requests" } else { "" };
            format!("transport {transport}, topic {topic}, {key}, {mode}{answers}")
        }
        DestinationOutput::Refused { transport, error } => {
            format!("NOT to transport {transport}: {error}")
        }
    }
}

/// The payload around an offset, which is marked. Safe for a terminal.
fn around(payload: &Bytes, offset: usize) -> String {
    let offset = offset.min(payload.len());
    let excerpt = |from: usize, to: usize| {
        let bytes = payload.get(from..to).unwrap_or_default();
        String::from_utf8_lossy(bytes)
            .escape_debug()
            .to_string()
            .replace("\\\"", "\"")
    };
    let (from, to) = (
        offset.saturating_sub(AROUND),
        offset.saturating_add(AROUND).min(payload.len()),
    );
    let before = if from > 0 { "…" } else { "" };
    let after = if to < payload.len() { "…" } else { "" };
    format!(
        "{before}{} ▸{}{after}",
        excerpt(from, offset),
        excerpt(offset, to)
    )
}

#[cfg(test)]
mod tests {
    use a2abus_plugin::{Hint, Ids, Limits, MapContext, MapOptions, Source, map};

    use super::super::origins::Changes;
    use super::super::routing::Routing;
    use super::*;
    use crate::cli::payload::EntryPoint;
    use crate::config::Config;

    const CONFIG: &str = "
instance: t
transports: { bus: { type: memory } }
bindings: [{ name: in, transport: bus, topics: [in] }]
routes:
  - { name: other, when: { targetagent: other }, to: [{ transport: bus, topic: other }] }
  - { name: tools, when: { a2amethod: tools/call }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }
";

    fn report(payload: &'static str) -> String {
        let payload = Bytes::from_static(payload.as_bytes());
        let new_id = MapContext::counting("new");
        let context = MapContext {
            source: Source::new("/a2abus/t/in").unwrap(),
            time: None,
            ids: Ids::Payload(&new_id),
        };
        let options = MapOptions::default();
        let unit = map(
            &payload,
            &Hint::default(),
            &Limits::default(),
            &options,
            &context,
        )
        .into_only()
        .unwrap();
        let config = Config::read("f", CONFIG, []).unwrap();
        let place = EntryPoint {
            config: &config,
            binding: config.bindings.first(),
        };
        let routing = Routing::new(place).unwrap();
        match unit {
            Ok(unit) => {
                let explained = ExplainOutput::of(&unit, Changes::default(), None, Some(&routing));
                mapped(&unit, &explained)
            }
            Err(refusal) => {
                let refusal: Refusal = refusal.into();
                refused(&refusal, &payload, &Fix::of(&refusal, None), false)
            }
        }
    }

    #[track_caller]
    fn check(payload: &'static str, expected: &str) {
        let report = report(payload);
        let report: Vec<&str> = report.lines().map(str::trim_end).collect();
        let expected: Vec<&str> = expected.trim_matches('\n').lines().collect();
        assert_eq!(report, expected, "\n{}", report.join("\n"));
    }

    #[test]
    fn a_routed_event() {
        check(
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"_agentId":"weather"}}"#,
            r#"
unit 0  JSON-RPC request, mcp, id 7
why     rule 2 of detection: the member "jsonrpc" is "2.0"
event   id               7                                        from id
        source           /a2abus/t/in                             from where the payload was received
        type             org.apache.eventmesh.a2a.tools.call.req  from type_prefix and method
        datacontenttype  application/json                         from the payload is JSON
        a2amethod        tools/call                               from method
        targetagent      weather                                  from params._agentId
        mcptype          request                                  from method with an id
        protocol         A2A                                      from the payload's family
        protocolversion  2.0                                      from jsonrpc
data    78 bytes, as they came
via     binding in
routes  other does not: targetagent is "weather", not "other"
        tools matches
goes    transport bus, topic agents.weather, no key, binary mode
"#,
        );
    }

    #[test]
    fn an_event_that_matches_no_route() {
        let report = report(r#"{"protocol":"A2A","messageType":"CFP"}"#);
        let end: Vec<&str> = report.lines().rev().take(4).collect();
        assert_eq!(
            end[0],
            "fix     fix the condition that does not match, add a route for this event, or set default_route"
        );
        assert_eq!(end[1], "goes    to the dead letters: no_route");
        assert!(
            end[2].starts_with("        tools does not: a2amethod is \"cfp\""),
            "{}",
            end[2]
        );
        assert!(
            end[3].starts_with("routes  other does not: targetagent is absent"),
            "{}",
            end[3]
        );
    }

    #[test]
    fn an_event_without_an_attribute_of_its_topic() {
        let report = report(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#);
        assert!(
            report.contains(
                "goes    NOT to transport bus: the topic needs the attribute \"targetagent\""
            ),
            "{report}"
        );
        assert!(
            report.contains("goes    to the dead letters: bad_destination"),
            "{report}"
        );
        assert!(report.contains("fix     send the attribute"), "{report}");
    }

    #[test]
    fn a_refused_payload() {
        check(
            "{\"jsonrpc\":\"2.0\",\"id\":1,\n\"method\":\"m\",\"params\":{\"_agentId\":\"a b\"}}",
            r#"
unit 0  refused: bad_target
why     must be a string of 1 to 256 letters, digits and . _ - / : @ + without ".."
where   /params/_agentId, byte 59: …ethod":"m","params":{"_agentId": ▸"a b"}}
goes    to the dead letters of its binding
fix     name one agent, the same wherever the message names it, with 1 to 256 of A-Z a-z 0-9 . _ - / : @ + and no ".."
"#,
        );
    }

    #[test]
    fn the_payload_around_an_error_is_safe_to_print() {
        let payload = Bytes::from_static(b"\x1b[2J\xff\"");
        assert_eq!(around(&payload, 4), "\\u{1b}[2J ▸\u{fffd}\"");
        assert_eq!(around(&Bytes::new(), 9), " ▸");
    }
}
