//! Does the plugin read every payload as the sources say? The shared vectors of JSON-RPC, then framing and the order of
//! detection. Source: `tests/vectors/a2a.json`, docs/protocols/detection.md §1 and §2,
//! docs/protocols/eventmesh-a2a.md §1.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use a2abus_plugin::protocol::jsonrpc::{JsonRpc, Part, RpcBody, code_of};
use a2abus_plugin::{
    DecodeErrorKind, Family, Hint, Ids, Kind, Limits, MapContext, MapOptions, Mapped, Refused,
    Source, extension, map,
};
use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// What became of one unit.
pub(crate) type Outcome = Result<Mapped, Refused>;

/// Maps a payload with the defaults, and with ids `new-0`, `new-1`, ….
pub(crate) fn outcomes(payload: impl Into<Bytes>) -> Vec<Outcome> {
    outcomes_with(payload, &Hint::default(), &Limits::default())
}

fn outcomes_with(payload: impl Into<Bytes>, hint: &Hint, limits: &Limits) -> Vec<Outcome> {
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::new("/test").unwrap(),
        time: None,
        ids: Ids::Payload(&new_id),
    };
    map(
        &payload.into(),
        hint,
        limits,
        &MapOptions::default(),
        &context,
    )
    .into_iter()
    .collect()
}

fn hint_of(headers: &[(&str, &str)]) -> Hint {
    let mut hint = Hint::default();
    for (name, value) in headers {
        hint.header(name, value);
    }
    hint
}

fn lines_hint() -> Hint {
    hint_of(&[("content-type", "application/x-ndjson; charset=utf-8")])
}

/// A label for each unit: the family if it was mapped, or the kind of error if it was refused.
fn labels(outcomes: &[Outcome]) -> Vec<&'static str> {
    let label = |outcome: &Outcome| match outcome {
        Ok(mapped) => mapped.detection.family.as_str(),
        Err(refused) => refused.error.kind().as_str(),
    };
    outcomes.iter().map(label).collect()
}

#[track_caller]
fn check(payload: &str, expected: &[&str]) {
    assert_eq!(labels(&outcomes(payload.to_owned())), expected, "{payload}");
}

// === the shared vectors ===

#[derive(serde::Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    payload: Option<Box<RawValue>>,
    payload_raw: Option<String>,
    expect: BTreeMap<String, Value>,
}

/// Members that the plugin does not report: routing needs none of them. The HTTP interface reads them from the body.
const NOT_REPORTED: [&str; 10] = [
    "context_id",
    "message_id",
    "task_id",
    "state",
    "timeout_ms",
    "mcp_name",
    "mcp_version",
    "progress_token_raw",
    "cancels_id_raw",
    "http_status",
];

/// Expectations of single cases that are not the plugin's to meet.
const NOT_OURS: [(&str, &str, &str); 13] = [
    (
        "a2a03-agent-path-gives-target",
        "target",
        "the HTTP path names it",
    ),
    (
        "a2a03-path-beats-body-hint",
        "target",
        "the HTTP path names it",
    ),
    (
        "a2a10-method-without-version-header",
        "reply_error",
        "the path demands the header",
    ),
    (
        "id-null-mcp-refused",
        "kind",
        "only an MCP path refuses a null id",
    ),
    (
        "id-null-mcp-refused",
        "reply_error",
        "only an MCP path refuses a null id",
    ),
    (
        "a2a-path-unknown-method-without-id",
        "kind",
        "only an A2A path answers a notification",
    ),
    (
        "a2a-path-unknown-method-without-id",
        "reason",
        "the door knows who serves what",
    ),
    (
        "a2a-path-unknown-method-without-id",
        "reply_error",
        "the door knows who serves what",
    ),
    (
        "params-array-mcp-method",
        "protocol",
        "a refused unit has an error, not a dialect",
    ),
    (
        "params-array-mcp-method",
        "method",
        "a refused unit has an error, not a method",
    ),
    (
        "batch-mixed",
        "protocol",
        "the units of a batch have dialects, not the batch",
    ),
    (
        "batch-mixed",
        "kind",
        "the units of a batch have kinds, not the batch",
    ),
    (
        "batch-mixed",
        "id_raw",
        "the units of a batch have ids, not the batch",
    ),
];

/// The number of expectations in the vectors, by outcome.
const JUDGED: usize = 223;
const SKIPPED: usize = 61;

#[test]
fn every_shared_vector_is_read_as_it_says() {
    let vectors: Vectors = serde_json::from_str(include_str!("../vectors/a2a.json")).unwrap();
    assert_eq!(vectors.cases.len(), 49);
    let (mut checked, mut skipped) = (0, 0);
    let mut reasons_used = BTreeSet::new();
    for case in &vectors.cases {
        let outcomes = case.outcomes();
        for (member, expected) in &case.expect {
            let excuse = NOT_OURS
                .iter()
                .position(|(name, excused, _)| *name == case.name && excused == member);
            if NOT_REPORTED.contains(&member.as_str()) || excuse.is_some() {
                skipped += 1;
                reasons_used.extend(excuse);
            } else if member == "items" {
                let items = expected.as_array().unwrap();
                assert_eq!(outcomes.len(), items.len(), "{}", case.name);
                for (outcome, item) in outcomes.iter().zip(items) {
                    for (member, expected) in item.as_object().unwrap() {
                        assert_eq!(&output(outcome, member), expected, "{} {member}", case.name);
                        checked += 1;
                    }
                }
            } else {
                assert_eq!(outcomes.len(), 1, "{}", case.name);
                assert_eq!(
                    &output(&outcomes[0], member),
                    expected,
                    "{} {member}",
                    case.name
                );
                checked += 1;
            }
        }
    }
    assert_eq!(reasons_used.len(), NOT_OURS.len(), "an excuse is stale");
    assert_eq!((checked, skipped), (JUDGED, SKIPPED));
}

impl Case {
    fn outcomes(&self) -> Vec<Outcome> {
        let payload = match (&self.payload, &self.payload_raw) {
            (Some(value), None) => value.get().to_owned(),
            (None, Some(text)) => text.clone(),
            _ => panic!("{}: one payload", self.name),
        };
        let headers: Vec<_> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        outcomes_with(payload, &hint_of(&headers), &Limits::default())
    }
}

/// The value that the plugin reports for one member of the vectors, in the form of the vectors.
fn output(outcome: &Outcome, member: &str) -> Value {
    let mapped = match outcome {
        Ok(mapped) => mapped,
        Err(refused) => return output_of_refused(refused, member),
    };
    let message = mapped.json_rpc.as_ref().expect("JSON-RPC");
    let event = &mapped.event;
    match member {
        "protocol" => message.dialect.as_str().into(),
        "kind" => kind_of(message, mapped).into(),
        "method" => json!(event.attribute(extension::A2A_METHOD)),
        "id_raw" => json!(message.id.as_ref().map(|id| id.token())),
        "target" => json!(event.attribute(extension::TARGET_AGENT)),
        "streaming" => event.ty().ends_with(".stream").into(),
        "error_code" => match event.extension(extension::RPC_ERROR_CODE) {
            Some(a2abus_plugin::Value::Integer(code)) => (*code).into(),
            _ => Value::Null,
        },
        "final" => match message.body {
            RpcBody::Result(Part::Final) => true.into(),
            RpcBody::Result(Part::Partial) => false.into(),
            _ => Value::Null,
        },
        "routable" => event
            .attribute(extension::COLLABORATION_ID)
            .is_some()
            .into(),
        other => panic!("{other} is neither judged nor excused"),
    }
}

fn kind_of(message: &JsonRpc, mapped: &Mapped) -> &'static str {
    match message.body {
        RpcBody::Error(_) => "error",
        // The vectors use this name for a part of an answer too; `final` distinguishes them.
        RpcBody::Result(_) if mapped.kind == Kind::Stream => Kind::Response.as_str(),
        RpcBody::Call { .. } | RpcBody::Result(_) => mapped.kind.as_str(),
    }
}

fn output_of_refused(refused: &Refused, member: &str) -> Value {
    match member {
        "protocol" => "none".into(),
        "kind" => "invalid".into(),
        "id_raw" => json!(refused.id.as_ref().map(|id| id.token())),
        "reply_error" => code_of(refused.error.kind()).into(),
        "reason" => match refused.error.kind() {
            DecodeErrorKind::BadId => "id_type",
            DecodeErrorKind::BadParams => "params_type",
            DecodeErrorKind::BothResultAndError => "result_and_error",
            same => same.as_str(),
        }
        .into(),
        other => panic!("{other} is neither judged nor excused"),
    }
}

// === framing ===

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"a/b"}"#;
const NOTE: &str = r#"{"jsonrpc":"2.0","method":"a/b"}"#;
const FIPA: &str = r#"{"protocol":"A2A","messageType":"REQUEST"}"#;
const EVENT: &str = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#;

#[test]
fn nothing_and_white_space_are_empty() {
    for payload in ["", " ", "\r\n\t \n", "\u{feff}", "\u{feff} \n"] {
        check(payload, &["empty"]);
    }
    let units = outcomes_with("\n \n", &lines_hint(), &Limits::default());
    assert_eq!(labels(&units), ["empty"]);
}

#[test]
fn one_object_is_one_unit_with_all_its_bytes() {
    for payload in [
        CALL.to_owned(),
        format!(" \r\n{CALL}\n\n"),
        format!("\u{feff}{CALL}"),
        "{\n \"jsonrpc\" : \"2.0\",\n \"id\" : 1,\n \"method\" : \"a/b\"\n}\n".to_owned(),
    ] {
        let units = outcomes(payload.clone());
        assert_eq!(labels(&units), ["jsonrpc"]);
        assert_eq!(units[0].as_ref().unwrap().event.body(), payload);
    }
}

#[test]
fn a_scalar_is_not_an_object() {
    for payload in ["\"x\"", "7", "-0.5e3", "true", "false", "null", " null\n"] {
        check(payload, &["not_an_object"]);
    }
}

#[test]
fn invalid_json_is_refused_with_its_position() {
    for (payload, offset) in [
        ("{", 1),
        ("{\"a\"}", 4),
        ("{\"a\":1,}", 7),
        ("{'a':1}", 1),
        ("{\"a\":01}", 6),
        ("{\"a\":NaN}", 5),
        ("{\"a\":\"\\x\"}", 6),
        ("hello", 0),
        ("{}}", 2),
        ("{} {}", 3),
        ("[{}", 3),
        ("[{},]", 4),
        ("[{}] x", 5),
    ] {
        let units = outcomes(payload);
        let refused = units[0].as_ref().unwrap_err();
        assert_eq!(units.len(), 1, "{payload}");
        assert_eq!(
            refused.error.kind(),
            DecodeErrorKind::NotJson,
            "{payload}: {}",
            refused.error
        );
        assert_eq!(refused.error.offset(), offset, "{payload}");
    }
}

#[test]
fn invalid_utf8_is_refused_with_its_position() {
    let mut payload = CALL.as_bytes().to_vec();
    payload.insert(17, 0xff);
    let units = outcomes(payload);
    let refused = units[0].as_ref().unwrap_err();
    assert_eq!(
        (refused.error.kind(), refused.error.offset()),
        (DecodeErrorKind::NotUtf8, 17)
    );
}

#[test]
fn a_batch_is_one_unit_an_element_in_order() {
    let payload = format!("\u{feff} [ {CALL} ,\n{NOTE},{FIPA} , {EVENT}]\n");
    let units = outcomes(payload);
    assert_eq!(
        labels(&units),
        ["jsonrpc", "jsonrpc", "legacy", "cloudevent"]
    );
    for (index, (unit, element)) in units.iter().zip([CALL, NOTE, FIPA, EVENT]).enumerate() {
        let unit = &unit.as_ref().unwrap();
        assert_eq!(
            (unit.index, unit.bytes.as_ref()),
            (index, element.as_bytes())
        );
    }
}

#[test]
fn only_the_bad_element_is_refused() {
    let payload = format!(r#"[{CALL},7,null,"x",[{CALL}],[],{{}},{{"jsonrpc":"1.0"}},{NOTE}]"#);
    let expected = [
        "jsonrpc",
        "not_an_object",
        "not_an_object",
        "not_an_object",
        "not_an_object",
        "not_an_object",
        "unknown",
        "unsupported_version",
        "jsonrpc",
    ];
    let units = outcomes(payload);
    assert_eq!(labels(&units), expected);
    let nested = units[4].as_ref().unwrap_err();
    assert_eq!(
        (nested.index, nested.bytes.as_ref()),
        (4, format!("[{CALL}]").as_bytes())
    );
}

#[test]
fn an_empty_batch_is_refused() {
    check("[]", &["empty_batch"]);
    check(" [ \n ] ", &["empty_batch"]);
}

#[test]
fn lines_are_one_unit_each() {
    let payload = format!("{CALL}\r\n\n \t\r\n  {NOTE}  \n{FIPA}\n\n");
    let units = outcomes(payload);
    assert_eq!(labels(&units), ["jsonrpc", "jsonrpc", "legacy"]);
    for (index, (unit, line)) in units.iter().zip([CALL, NOTE, FIPA]).enumerate() {
        let unit = &unit.as_ref().unwrap();
        assert_eq!((unit.index, unit.bytes.as_ref()), (index, line.as_bytes()));
    }
}

#[test]
fn lines_after_a_byte_order_mark_are_one_unit_each() {
    let units = outcomes(format!("\u{feff}{CALL}\n{NOTE}"));
    assert_eq!(labels(&units), ["jsonrpc", "jsonrpc"]);
    assert_eq!(units[0].as_ref().unwrap().bytes, CALL);
}

/// Its sender waits for an error of its own family. Source: docs/protocols/a2e-messages.md §1.3.
#[test]
fn the_sender_of_broken_json_is_read_from_the_members_before_the_error() {
    let broken = r#"{"type":"tool/call/req","id":"c1","version":"1.0","ts":1,"x":NaN}"#;
    let more = r#"{"type":"tool/call/req","id":"c1","version":"1.0","ts":1} {}"#;
    for payload in [
        broken.to_owned(),
        format!("{CALL}\n{broken}"),
        more.to_owned(),
    ] {
        let units = outcomes(payload);
        let refused = units.last().unwrap().as_ref().unwrap_err();
        assert_eq!(refused.error.kind(), DecodeErrorKind::NotJson);
        let sender = refused.sender.as_ref().unwrap();
        assert_eq!(sender.family, Family::A2eMessage);
        assert_eq!(sender.id.as_deref(), Some("c1"));
        assert!(sender.expects_answer);
    }
    // What comes too late, JSON-RPC, which demands the id null, and what may be an answer.
    for payload in [
        r#"{"x":NaN,"type":"tool/call/req"}"#,
        r#"{"jsonrpc":"2.0","id":1,"x":NaN}"#,
        r#"{"type":"tool/call/resp","id":"c1","version":"1.0","ts":1,"x":NaN}"#,
        r#"{"protocol":"A2A","messageType":"FAILURE","metadata":{"correlationId":"c"},"x":NaN}"#,
        r#"{"request_id":"r","method":"session/prompt","protocol_version":"1.0","x":NaN}"#,
    ] {
        let units = outcomes(payload);
        assert!(units[0].as_ref().unwrap_err().sender.is_none(), "{payload}");
    }
}

#[test]
fn indented_json_is_no_line() {
    let indented = "{\n \"jsonrpc\": \"2.0\",\n \"method\": \"a/b\"\n}";
    check(&format!("{indented}\n{indented}"), &["not_json"]);
    check(&format!("{indented}\n{CALL}"), &["not_json"]);
    check(&format!("{indented}\n \n"), &["jsonrpc"]);
    // The content type says that these are lines.
    let units = outcomes_with(
        format!("{CALL}\n{indented}"),
        &lines_hint(),
        &Limits::default(),
    );
    assert_eq!(labels(&units)[0], "jsonrpc");
}

#[test]
fn an_incomplete_cloud_event_names_what_is_missing() {
    for (payload, missing) in [
        (r#"{"specversion":"1.0","source":"s","type":"t"}"#, "\"id\""),
        (
            r#"{"specversion":"1.0","id":1,"source":"s","type":"t"}"#,
            "\"id\"",
        ),
        (r#"{"specversion":"1.0","id":"1","source":"s"}"#, "\"type\""),
    ] {
        let units = outcomes(payload.to_owned());
        let error = &units[0].as_ref().unwrap_err().error;
        assert_eq!(error.kind(), DecodeErrorKind::Unknown);
        assert!(error.to_string().contains(missing), "{error}");
    }
}

#[test]
fn only_the_bad_line_is_refused() {
    let payload = format!("{CALL}\n{{\"a\":\n{NOTE}\nnonsense\n7\n[{CALL}]\n{FIPA}");
    check(
        &payload,
        &[
            "jsonrpc",
            "not_json",
            "jsonrpc",
            "not_json",
            "not_an_object",
            "not_an_object",
            "legacy",
        ],
    );
}

#[test]
fn a_line_never_reaches_into_the_next() {
    // Both lines are halves of one object: each is refused, and the line after them is read.
    let payload = format!("{NOTE}\n{{\"jsonrpc\":\"2.0\",\n\"method\":\"x\"}}\n{CALL}");
    let units = outcomes(payload);
    assert_eq!(
        labels(&units),
        ["jsonrpc", "not_json", "not_json", "jsonrpc"]
    );
    assert_eq!(
        units[1].as_ref().unwrap_err().bytes,
        "{\"jsonrpc\":\"2.0\","
    );
}

#[test]
fn two_values_on_a_line_are_refused() {
    check(&format!("{CALL}{NOTE}"), &["not_json"]);
    check(&format!("{CALL} {NOTE}\n{FIPA}"), &["not_json"]);
    check(
        &format!("{FIPA}\n{CALL} {NOTE}\n{FIPA}"),
        &["legacy", "not_json", "legacy"],
    );
}

#[test]
fn a_declared_line_format_holds_from_the_first_line() {
    let outcomes_of = |payload: String| {
        let units = outcomes_with(payload, &lines_hint(), &Limits::default());
        labels(&units)
    };
    assert_eq!(outcomes_of(format!("{{\n{CALL}")), ["not_json", "jsonrpc"]);
    assert_eq!(
        outcomes_of(format!("[{CALL}]\n{CALL}")),
        ["not_an_object", "jsonrpc"]
    );
    assert_eq!(
        outcomes_of(format!("{CALL}{CALL}\r\n{CALL}")),
        ["not_json", "jsonrpc"]
    );
    assert_eq!(outcomes_of(CALL.to_owned()), ["jsonrpc"]);
}

#[test]
fn limits_are_kept_to_the_unit() {
    let mut limits = Limits::default();
    limits.max_bytes = 400;
    limits.max_depth = 4;
    limits.max_members = 40;
    limits.max_units = 3;
    let outcomes_of = |payload: String| labels(&outcomes_with(payload, &Hint::default(), &limits));
    let padded = |bytes: usize| format!("{CALL}{}", " ".repeat(bytes - CALL.len()));
    assert_eq!(outcomes_of(padded(400)), ["jsonrpc"]);
    assert_eq!(outcomes_of(padded(401)), ["too_large"]);
    let deep = |levels: usize| {
        let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        format!(r#"{{"jsonrpc":"2.0","method":"a","params":{open}{close}}}"#)
    };
    assert_eq!(outcomes_of(deep(4)), ["jsonrpc"]);
    assert_eq!(outcomes_of(deep(5)), ["too_deep"]);
    let wide = |members: usize| {
        let elements = vec!["0"; members - 3].join(",");
        format!(r#"{{"jsonrpc":"2.0","method":"a","params":[{elements}]}}"#)
    };
    assert_eq!(outcomes_of(wide(40)), ["jsonrpc"]);
    assert_eq!(outcomes_of(wide(41)), ["too_large"]);
    assert_eq!(
        outcomes_of(format!("[{NOTE},{NOTE},{NOTE}]")),
        ["jsonrpc"; 3]
    );
    assert_eq!(
        outcomes_of(format!("[{NOTE},{NOTE},{NOTE},{NOTE}]")),
        ["too_large"]
    );
    assert_eq!(
        outcomes_of(format!("{NOTE}\n{NOTE}\n{NOTE}\n\n")),
        ["jsonrpc"; 3]
    );
    assert_eq!(
        outcomes_of(format!("{NOTE}\n{NOTE}\n{NOTE}\n{NOTE}")),
        ["too_large"]
    );
}

// === the order of detection ===

/// The family, the rule and the member of a payload that is one good unit.
#[track_caller]
fn check_because(payload: &str, family: Family, rule: u8, member: &str) {
    let units = outcomes(payload.to_owned());
    let detection = units[0].as_ref().unwrap().detection;
    assert_eq!(
        (detection.family, detection.rule, detection.member),
        (family, rule, member),
        "{payload}"
    );
}

#[test]
fn every_rule_says_which_member_decided() {
    check_because(EVENT, Family::CloudEvent, 1, "specversion");
    check_because(CALL, Family::JsonRpc, 2, "jsonrpc");
    check_because(FIPA, Family::Legacy, 3, "protocol");
}

#[test]
fn an_earlier_rule_wins() {
    let all = r#"{"protocol":"A2A","jsonrpc":"2.0","method":"m","specversion":"1.0","id":"1","source":"/s","type":"t"}"#;
    check_because(all, Family::CloudEvent, 1, "specversion");
    let old_version = r#"{"jsonrpc":"1.0","specversion":"1.0","id":"1","source":"/s","type":"t"}"#;
    check_because(old_version, Family::CloudEvent, 1, "specversion");
    let two = r#"{"protocol":"A2A","jsonrpc":"2.0","method":"m"}"#;
    check_because(two, Family::JsonRpc, 2, "jsonrpc");
    let half_an_event =
        r#"{"specversion":"1.0","id":1,"source":"/s","type":"t","jsonrpc":"2.0","method":"m"}"#;
    check_because(half_an_event, Family::JsonRpc, 2, "jsonrpc");
}

#[test]
fn an_unsupported_version_does_not_fall_through() {
    for payload in [
        r#"{"jsonrpc":2.0,"id":1,"method":"m"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#,
        r#"{"jsonrpc":"2.0 ","id":1,"method":"m"}"#,
        r#"{"jsonrpc":"2","id":1,"method":"m"}"#,
        r#"{"jsonrpc":null,"id":1,"method":"m"}"#,
        r#"{"jsonrpc":["2.0"],"id":1,"method":"m"}"#,
        r#"{"jsonrpc":"1.0","protocol":"A2A"}"#,
        r#"{"specversion":"0.3","id":"1","source":"/s","type":"t"}"#,
        r#"{"specversion":1.0,"id":"1","source":"/s","type":"t"}"#,
    ] {
        check(payload, &["unsupported_version"]);
    }
}

#[test]
fn an_object_of_no_family_is_unknown() {
    for payload in [
        "{}",
        r#"{"method":"tools/call","id":1}"#,
        r#"{"protocol":"a2a"}"#,
        r#"{"protocol":{"A2A":1}}"#,
        r#"{"protocol":["A2A"],"messageType":"CFP"}"#,
        r#"{"JSONRPC":"2.0","id":1,"method":"m"}"#,
        r#"{"specversion":"1.0","id":"1","type":"t"}"#,
    ] {
        check(payload, &["unknown"]);
    }
}

#[test]
fn text_inside_strings_and_below_the_top_decides_nothing() {
    for payload in [
        r#"{"note":"{\"jsonrpc\":\"2.0\",\"method\":\"x\"}"}"#,
        r#"{"jsonrpc\":\"2.0":1}"#,
        r#"{"data":{"jsonrpc":"2.0","id":1,"method":"m"}}"#,
        r#"{"list":[{"protocol":"A2A"}]}"#,
        r#"{"a":"\"protocol\":\"A2A\""}"#,
        r#"{"x":"\\","y":"\",\"jsonrpc\":\"2.0"}"#,
    ] {
        check(payload, &["unknown"]);
    }
    let quoted = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"text":"\"protocol\":\"A2A\",\"specversion\":\"1.0\",\"_agentId\":\"evil\"","_agentId":"evil"}}}"#;
    let units = outcomes(quoted);
    assert_eq!(labels(&units), ["jsonrpc"]);
    let event = &units[0].as_ref().unwrap().event;
    assert_eq!(event.attribute("targetagent"), None);
}

#[test]
fn escaped_names_and_values_mean_what_they_spell() {
    let payload = r#"{"\u006asonrpc":"\u0032.0","i\u0064":"\u0031","\u006dethod":"tools\/c\u0061ll","p\u0061rams":{"\u005fagentId":"w\u0065ather"}}"#;
    let units = outcomes(payload);
    let mapped = units[0].as_ref().unwrap();
    for (name, value) in [
        ("id", "1"),
        ("a2amethod", "tools/call"),
        ("targetagent", "weather"),
        ("type", "org.apache.eventmesh.a2a.tools.call.req"),
    ] {
        assert_eq!(mapped.event.attribute(name).unwrap(), value);
    }
    assert_eq!(output(&units[0], "id_raw"), r#""\u0031""#);
    check(r#"{"pr\u006ftocol":"\u0041\u0032A"}"#, &["legacy"]);
}

#[test]
fn headers_decide_the_framing_and_the_dialect() {
    let dialect = |headers: &[(&str, &str)], payload: &str| {
        let units = outcomes_with(payload.to_owned(), &hint_of(headers), &Limits::default());
        output(&units[0], "protocol")
    };
    let send = r#"{"jsonrpc":"2.0","id":1,"method":"message/send"}"#;
    assert_eq!(dialect(&[], send), "a2a-0.3");
    assert_eq!(dialect(&[("X-A2A-Client", "jaf-js/2.0")], send), "jaf-doc");
    assert_eq!(dialect(&[("x-a2a-version", "0.3.0")], send), "jaf-doc");
    assert_eq!(dialect(&[("x-a2a-client", "other/2.0")], send), "a2a-0.3");
    assert_eq!(
        dialect(&[("A2A-Version", "0.3"), ("X-A2A-Client", "jaf-x")], send),
        "a2a-0.3"
    );
    // A header never turns a method of one protocol into another's.
    assert_eq!(dialect(&[("X-A2A-Version", "1")], CALL), "jsonrpc");
}

#[test]
fn a_binding_that_demands_one_family_refuses_the_others() {
    let mut strict = Hint::default();
    strict.family = Some(Family::Legacy);
    strict.strict = true;
    let payload = format!("[{FIPA},{CALL},{EVENT},{{}}]");
    let units = outcomes_with(payload, &strict, &Limits::default());
    assert_eq!(
        labels(&units),
        ["legacy", "wrong_family", "wrong_family", "unknown"]
    );
}

#[test]
fn the_id_to_answer_with_is_given_only_when_it_is_beyond_doubt() {
    for (payload, id) in [
        (
            r#"{"jsonrpc":"2.0","id":"\u0061","method":7}"#,
            Some(r#""\u0061""#),
        ),
        (r#"{"jsonrpc":"2.0","id":1.50}"#, Some("1.50")),
        (r#"{"jsonrpc":"1.0","id":3,"method":"m"}"#, Some("3")),
        (r#"{"jsonrpc":"1.0","id":3,"id":4,"method":"m"}"#, None),
        (r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}"#, None),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#, None),
        (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, None),
        (r#"{"jsonrpc":"2.0","method":7}"#, None),
        (r#"{"id":1}"#, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m""#, None),
    ] {
        let units = outcomes(payload);
        let refused = units[0].as_ref().unwrap_err();
        let token = refused.id.as_ref().map(|id| id.token().as_str());
        assert_eq!(token, id, "{payload}");
    }
}
