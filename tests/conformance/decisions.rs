//! Does every row of the attribute table, every decision and every example of the EventMesh A2A document hold?
//! Source: docs/protocols/eventmesh-a2a.md §1 to §3.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use a2abus_plugin::protocol::legacy::Act;
use a2abus_plugin::{
    DecodeErrorKind, Event, EventErrorKind, Hint, Ids, Kind, Limits, MapContext, MapOptions,
    Notifications, Source, Value, map, wrap_unknown,
};
use bytes::Bytes;

use crate::payloads::{Outcome, outcomes};

/// The one event of a payload.
#[track_caller]
fn event(payload: &str) -> Event {
    let mut units = outcomes(payload.to_owned());
    assert_eq!(units.len(), 1, "{payload}");
    match units.remove(0) {
        Ok(mapped) => mapped.event,
        Err(refused) => panic!("{payload}: {}", refused.error),
    }
}

#[track_caller]
fn check(payload: &str, attribute: &str, expected: Option<&str>) {
    let value = event(payload).attribute(attribute);
    assert_eq!(value.as_deref(), expected, "{attribute} of {payload}");
}

/// The kind of error and the place of a payload that is refused as a whole.
#[track_caller]
fn check_refused(payload: &str, kind: DecodeErrorKind, pointer: &str) {
    let units = outcomes(payload.to_owned());
    assert_eq!(units.len(), 1, "{payload}");
    let error = &units[0].as_ref().unwrap_err().error;
    assert_eq!(
        (error.kind(), error.pointer()),
        (kind, pointer),
        "{payload}"
    );
}

/// All attributes of an event but those every mapped event has, which are checked here.
fn attributes(event: &Event) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = event
        .core_attributes()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    all.extend(
        event
            .extensions()
            .map(|(name, value)| (name.to_owned(), value.to_string())),
    );
    for (name, value) in [
        ("specversion", "1.0"),
        ("source", "/test"),
        ("datacontenttype", "application/json"),
        ("protocol", "A2A"),
    ] {
        assert_eq!(all.remove(name).as_deref(), Some(value), "{name}");
    }
    all
}

/// Every attribute of the event, none besides.
#[track_caller]
fn check_all(payload: &str, expected: &[(&str, &str)]) {
    let event = event(payload);
    let expected: BTreeMap<String, String> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    assert_eq!(attributes(&event), expected, "{payload}");
    assert_eq!(event.body(), payload);
}

const REQUEST: &str = r#"{"jsonrpc":"2.0","id":"req-1","method":"tools/call","params":{"_agentId":"weather","_seq":7}}"#;
const NOTIFICATION: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"_agentId":"weather"}}"#;
const RESULT: &str = r#"{"jsonrpc":"2.0","id":"req-1","result":{"_agentId":"weather"}}"#;
const ERROR: &str = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no"}}"#;
const LEGACY: &str = r#"{"protocol":"A2A","messageType":"PROPOSE","sourceAgent":{"agentId":"a"},"targetAgent":{"agentId":"b"},"payload":{},"metadata":{"correlationId":"c"}}"#;

// === detection ===

#[test]
fn detection_1_a_cloud_event_passes_with_its_attributes() {
    let payload = r#"{"specversion":"1.0","id":"e-1","source":"/elsewhere","type":"their.type","time":"2026-01-02T03:04:05Z","mcptype":"request","targetagent":"w","custom":true,"datacontenttype":"application/json","data":{ "jsonrpc":"2.0" }}"#;
    let event = event(payload);
    for (name, value) in [
        ("id", "e-1"),
        ("source", "/elsewhere"),
        ("type", "their.type"),
        ("time", "2026-01-02T03:04:05Z"),
        ("targetagent", "w"),
        ("mcptype", "request"),
        ("custom", "true"),
    ] {
        assert_eq!(event.attribute(name).unwrap(), value);
    }
    assert_eq!(event.attribute("a2amethod"), None);
    assert_eq!(event.body(), r#"{ "jsonrpc":"2.0" }"#);
    assert_eq!(outcomes(payload)[0].as_ref().unwrap().kind, Kind::Request);
}

#[test]
fn detection_1_a_broken_cloud_event_is_refused_with_its_attribute() {
    check_refused(
        r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"yesterday"}"#,
        DecodeErrorKind::BadCloudEvent,
        "/time",
    );
    check_refused(
        r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","targetagent":"a","targetagent":"b"}"#,
        DecodeErrorKind::BadCloudEvent,
        "/targetagent",
    );
}

#[test]
fn detection_2_the_string_2_0_is_needed_not_its_number() {
    check(REQUEST, "protocolversion", Some("2.0"));
    check_refused(
        r#"{"jsonrpc":2.0,"id":1,"method":"m"}"#,
        DecodeErrorKind::UnsupportedVersion,
        "/jsonrpc",
    );
}

#[test]
fn detection_3_the_mark_of_legacy_messages() {
    check(
        LEGACY,
        "type",
        Some("org.apache.eventmesh.a2a.legacy.propose"),
    );
    check_refused(
        r#"{"protocol":"a2a","messageType":"PROPOSE"}"#,
        DecodeErrorKind::Unknown,
        "",
    );
}

#[test]
fn detection_5_every_element_of_an_array_has_a_result() {
    let units = outcomes(format!("[{REQUEST},{{\"method\":\"x\"}},{LEGACY}]"));
    let types: Vec<_> = units
        .iter()
        .map(|unit| unit.as_ref().map(|mapped| mapped.event.ty().as_str()))
        .collect();
    assert_eq!(types[0], Ok("org.apache.eventmesh.a2a.tools.call.req"));
    assert_eq!(types[1].unwrap_err().error.kind(), DecodeErrorKind::Unknown);
    assert_eq!(types[2], Ok("org.apache.eventmesh.a2a.legacy.propose"));
}

#[test]
fn detection_5_nothing_is_an_error() {
    check_refused("", DecodeErrorKind::Empty, "");
    check_refused("[]", DecodeErrorKind::EmptyBatch, "");
}

#[test]
fn detection_6_unknown_payloads_are_refused_or_wrapped() {
    check_refused("{}", DecodeErrorKind::Unknown, "");
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::new("/test").unwrap(),
        time: Some("2026-01-02T03:04:05Z".try_into().unwrap()),
        ids: Ids::Payload(&new_id),
    };
    let payload = Bytes::from_static(b"\xff not JSON");
    let event = wrap_unknown(&payload, 0, &MapOptions::default(), &context);
    assert_eq!(event.ty(), "org.apache.eventmesh.a2a.unknown");
    assert_eq!(event.id(), "new-0");
    assert_eq!(event.time().unwrap(), "2026-01-02T03:04:05Z");
    assert_eq!(event.body(), payload);
}

// === the table, column by column ===

#[test]
fn column_request() {
    check_all(
        REQUEST,
        &[
            ("type", "org.apache.eventmesh.a2a.tools.call.req"),
            ("id", "req-1"),
            ("mcptype", "request"),
            ("a2amethod", "tools/call"),
            ("targetagent", "weather"),
            ("seq", "7"),
            ("protocolversion", "2.0"),
        ],
    );
}

#[test]
fn column_notification() {
    check_all(
        NOTIFICATION,
        &[
            ("type", "org.apache.eventmesh.a2a.notifications.progress"),
            ("id", "new-0"),
            ("mcptype", "notification"),
            ("a2amethod", "notifications/progress"),
            ("targetagent", "weather"),
            ("protocolversion", "2.0"),
        ],
    );
}

#[test]
fn column_response() {
    check_all(
        RESULT,
        &[
            ("type", "org.apache.eventmesh.a2a.common.response"),
            ("id", "new-0"),
            ("mcptype", "response"),
            ("collaborationid", "req-1"),
            ("protocolversion", "2.0"),
        ],
    );
    check_all(
        ERROR,
        &[
            ("type", "org.apache.eventmesh.a2a.common.response"),
            ("id", "new-0"),
            ("mcptype", "response"),
            ("collaborationid", "7"),
            ("rpcerrorcode", "-32601"),
            ("protocolversion", "2.0"),
        ],
    );
}

// === the table, row by row ===

/// A request with this method.
fn call(method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#)
}

#[test]
fn row_type() {
    for (method, ty) in [
        ("ping", "ping.req"),
        ("a/b/c", "a.b.c.req"),
        ("/a//b/", ".a..b..req"),
        ("GetTask", "GetTask.req"),
        ("a.b", "a.b.req"),
    ] {
        let ty = format!("org.apache.eventmesh.a2a.{ty}");
        check(&call(method), "type", Some(&ty));
    }
    check(
        r#"{"jsonrpc":"2.0","method":"message/stream"}"#,
        "type",
        Some("org.apache.eventmesh.a2a.message.stream"),
    );
}

#[test]
fn row_type_of_streaming_methods() {
    for method in [
        "message/sendStream",
        "message/stream",
        "tasks/resubscribe",
        "SendStreamingMessage",
        "SubscribeToTask",
    ] {
        let ty = format!(
            "org.apache.eventmesh.a2a.{}.stream",
            method.replace('/', ".")
        );
        check(&call(method), "type", Some(&ty));
    }
}

#[test]
fn row_type_takes_the_configured_prefix() {
    let mut options = MapOptions::default();
    options.type_prefix = "x.".try_into().unwrap();
    let types: Vec<_> = [REQUEST, NOTIFICATION, RESULT, LEGACY]
        .map(|payload| map_with(payload, &options)[0].clone().unwrap())
        .map(|mapped| mapped.event.ty().to_string())
        .into();
    assert_eq!(
        types,
        [
            "x.tools.call.req",
            "x.notifications.progress",
            "x.common.response",
            "x.legacy.propose"
        ]
    );
}

fn map_with(payload: &str, options: &MapOptions) -> Vec<Outcome> {
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::new("/test").unwrap(),
        time: None,
        ids: Ids::Payload(&new_id),
    };
    map(
        &payload.to_owned().into(),
        &Hint::default(),
        &Limits::default(),
        options,
        &context,
    )
    .into_iter()
    .collect()
}

#[test]
fn row_id() {
    for (id, text) in [
        (r#""req-1""#, "req-1"),
        ("7", "7"),
        ("-0.50e+1", "-0.50e+1"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890",
        ),
        (r#""\u00e9\"/""#, "é\"/"),
        (r#""""#, "new-0"),
        ("null", "new-0"),
    ] {
        let payload = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
        check(&payload, "id", Some(text));
    }
}

#[test]
fn row_mcptype() {
    check(REQUEST, "mcptype", Some("request"));
    check(NOTIFICATION, "mcptype", Some("notification"));
    check(RESULT, "mcptype", Some("response"));
    check(ERROR, "mcptype", Some("response"));
}

#[test]
fn row_a2amethod() {
    check(REQUEST, "a2amethod", Some("tools/call"));
    check(NOTIFICATION, "a2amethod", Some("notifications/progress"));
    check(RESULT, "a2amethod", None);
}

#[test]
fn row_collaborationid() {
    check(REQUEST, "collaborationid", None);
    check(NOTIFICATION, "collaborationid", None);
    check(RESULT, "collaborationid", Some("req-1"));
    check(
        r#"{"jsonrpc":"2.0","id":1.50,"result":1}"#,
        "collaborationid",
        Some("1.50"),
    );
}

#[test]
fn row_targetagent() {
    check(REQUEST, "targetagent", Some("weather"));
    check(NOTIFICATION, "targetagent", Some("weather"));
    check(RESULT, "targetagent", None);
    check(&call("m"), "targetagent", None);
}

#[test]
fn row_subject() {
    let payload = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_topic":"a/b.c"}}"#;
    check(payload, "subject", Some("a/b.c"));
    check(REQUEST, "subject", None);
    check(RESULT, "subject", None);
}

#[test]
fn row_seq() {
    for (seq, text) in [("7", "7"), (r#""x-7""#, "x-7"), ("1.0", "1.0")] {
        let payload =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_seq":{seq}}}}}"#);
        check(&payload, "seq", Some(text));
    }
    for seq in ["{}", "[1]", "true", "null", r#""""#, r#""\u0000""#] {
        let payload =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_seq":{seq}}}}}"#);
        check_refused(&payload, DecodeErrorKind::BadSeq, "/params/_seq");
    }
    check(RESULT, "seq", None);
}

#[test]
fn row_protocol_and_protocolversion() {
    for payload in [REQUEST, NOTIFICATION, RESULT, ERROR] {
        check(payload, "protocol", Some("A2A"));
        check(payload, "protocolversion", Some("2.0"));
    }
}

#[test]
fn row_source_is_the_origin_of_the_payload() {
    for payload in [REQUEST, NOTIFICATION, RESULT, LEGACY] {
        check(payload, "source", Some("/test"));
    }
}

#[test]
fn row_data_are_the_received_bytes() {
    let payload = "\t{ \"jsonrpc\" : \"2.0\" , \"id\":1.0,\"method\":\"m\",\"params\":{\"b\":1e2,\"a\":\"\\u0041\",\"b\":2}}\r\n ";
    let event = event(payload);
    assert_eq!(event.body(), payload);
    assert_eq!(event.datacontenttype().unwrap(), "application/json");
}

// === legacy messages ===

#[test]
fn legacy_example() {
    check_all(
        LEGACY,
        &[
            ("type", "org.apache.eventmesh.a2a.legacy.propose"),
            ("id", "new-0"),
            ("messagetype", "PROPOSE"),
            ("sourceagent", "a"),
            ("targetagent", "b"),
            ("collaborationid", "c"),
            ("mcptype", "request"),
            ("a2amethod", "propose"),
        ],
    );
}

#[test]
fn legacy_members_that_are_absent_give_no_attributes() {
    for payload in [
        r#"{"protocol":"A2A"}"#,
        r#"{"protocol":"A2A","messageType":null,"sourceAgent":null,"targetAgent":"b","metadata":{"correlationId":null}}"#,
        r#"{"protocol":"A2A","sourceAgent":{"agentId":""},"metadata":{"correlationId":""}}"#,
    ] {
        check_all(
            payload,
            &[
                ("type", "org.apache.eventmesh.a2a.legacy.unknown"),
                ("id", "new-0"),
                ("messagetype", "UNKNOWN"),
                ("mcptype", "notification"),
                ("a2amethod", "unknown"),
            ],
        );
    }
}

/// A legacy message of this act, with or without a correlation id.
fn act(name: &str, correlated: &str) -> String {
    format!(r#"{{"protocol":"A2A","messageType":"{name}","metadata":{{{correlated}}}}}"#)
}

#[test]
fn legacy_mcptype_of_the_22_acts() {
    let requests = [
        "REQUEST",
        "REQUEST_WHEN",
        "REQUEST_WHENEVER",
        "QUERY_IF",
        "QUERY_REF",
        "CFP",
        "SUBSCRIBE",
        "PROXY",
        "PROPAGATE",
        "PROPOSE",
        "CANCEL",
    ];
    let answers = [
        "INFORM",
        "INFORM_IF",
        "INFORM_REF",
        "AGREE",
        "REFUSE",
        "FAILURE",
        "CONFIRM",
        "DISCONFIRM",
        "ACCEPT_PROPOSAL",
        "REJECT_PROPOSAL",
        "NOT_UNDERSTOOD",
    ];
    const CORRELATED: &str = r#""correlationId":"c""#;
    for name in requests {
        check(&act(name, ""), "mcptype", Some("request"));
        check(&act(name, CORRELATED), "mcptype", Some("request"));
    }
    for name in answers {
        check(&act(name, ""), "mcptype", Some("notification"));
        check(&act(name, CORRELATED), "mcptype", Some("response"));
    }
    for name in requests.into_iter().chain(answers) {
        assert!(Act::from_message_type(name).is_some(), "{name}");
    }
}

#[test]
fn legacy_acts_are_read_in_any_case_and_with_hyphens() {
    let payload = act("Query-If", "");
    check(&payload, "mcptype", Some("request"));
    check(&payload, "messagetype", Some("Query-If"));
    check(&payload, "a2amethod", Some("query-if"));
    check(
        &payload,
        "type",
        Some("org.apache.eventmesh.a2a.legacy.query-if"),
    );
}

#[test]
fn an_unknown_legacy_act_is_a_notification() {
    let payload = act("DANCE", r#""correlationId":"c""#);
    check(&payload, "mcptype", Some("notification"));
    check(&payload, "messagetype", Some("DANCE"));
    check(&payload, "collaborationid", Some("c"));
}

#[test]
fn legacy_target_is_held_to_the_same_names() {
    for target in [r#""""#, r#""a b""#, "7", "null", "{}", r#""..""#] {
        let payload = format!(r#"{{"protocol":"A2A","targetAgent":{{"agentId":{target}}}}}"#);
        check_refused(&payload, DecodeErrorKind::BadTarget, "/targetAgent/agentId");
    }
}

#[test]
fn legacy_act_is_held_to_the_same_words_as_a_method() {
    for name in [
        "REQUEST WHEN",
        "a\\u0000b",
        "\\r\\nX: y",
        &"x".repeat(257),
        "",
    ] {
        check_refused(&act(name, ""), DecodeErrorKind::BadMethod, "/messageType");
    }
    check_refused(
        r#"{"protocol":"A2A","messageType":7}"#,
        DecodeErrorKind::BadMethod,
        "/messageType",
    );
}

#[test]
fn legacy_members_that_decide_occur_once() {
    for (payload, pointer) in [
        (
            r#"{"protocol":"A2A","messageType":"CFP","messageType":"AGREE"}"#,
            "/messageType",
        ),
        (
            r#"{"protocol":"A2A","targetAgent":{"agentId":"a","agentId":"b"}}"#,
            "/targetAgent/agentId",
        ),
        (
            r#"{"protocol":"A2A","targetAgent":{"agentId":"a"},"targetAgent":{}}"#,
            "/targetAgent",
        ),
        (
            r#"{"protocol":"A2A","metadata":{"correlationId":"a","correlationId":"b"}}"#,
            "/metadata/correlationId",
        ),
    ] {
        check_refused(payload, DecodeErrorKind::DuplicateMember, pointer);
    }
}

// === decisions ===

#[test]
fn d1_a_notification_is_a_notification_unless_eventmesh_is_copied() {
    check(NOTIFICATION, "mcptype", Some("notification"));
    let mut copy = MapOptions::default();
    copy.notifications = Notifications::AsRequests;
    let mapped = map_with(NOTIFICATION, &copy).remove(0).unwrap();
    assert_eq!(mapped.kind, Kind::Request);
    assert_eq!(mapped.event.attribute("mcptype").unwrap(), "request");
    assert_eq!(
        mapped.event.ty(),
        "org.apache.eventmesh.a2a.notifications.progress.req"
    );
}

#[test]
fn d2_the_number_1_and_the_string_1_are_two_ids_of_one_text() {
    let ids = ["1", r#""1""#, "1.0", r#""\u0031""#].map(|token| {
        let payload = format!(r#"{{"jsonrpc":"2.0","id":{token},"result":1}}"#);
        let mapped = outcomes(payload).remove(0).unwrap();
        let message = mapped.json_rpc.expect("JSON-RPC");
        let text = mapped.event.attribute("collaborationid").unwrap();
        (message.id.unwrap().token().to_string(), text.to_string())
    });
    let expected = [
        ("1", "1"),
        ("\"1\"", "1"),
        ("1.0", "1.0"),
        ("\"\\u0031\"", "1"),
    ];
    assert_eq!(
        ids,
        expected.map(|(token, text)| (token.to_owned(), text.to_owned()))
    );
}

#[test]
fn d3_a_null_id_correlates_nothing() {
    let payload = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#;
    check(payload, "collaborationid", None);
    assert_eq!(
        event(payload).extension("rpcerrorcode"),
        Some(&Value::Integer(-32_700))
    );
    let request = r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#;
    check(request, "mcptype", Some("request"));
    check(request, "id", Some("new-0"));
}

#[test]
fn d4_the_source_says_where_the_payload_came_from() {
    let new_id = MapContext::counting("new");
    let mapped = ["/a2abus/one/in", "/a2abus/two/in"].map(|source| {
        let context = MapContext {
            source: Source::new(source).unwrap(),
            time: None,
            ids: Ids::Payload(&new_id),
        };
        let units = map(
            &Bytes::from_static(REQUEST.as_bytes()),
            &Hint::default(),
            &Limits::default(),
            &MapOptions::default(),
            &context,
        );
        let event = units[0].as_ref().unwrap().event.clone();
        (event.source().to_string(), event.id().to_string())
    });
    assert_eq!(
        mapped,
        [("/a2abus/one/in", "req-1"), ("/a2abus/two/in", "req-1")]
            .map(|(source, id)| (source.to_owned(), id.to_owned()))
    );
}

#[test]
fn d5_a_topic_wins_over_an_agent() {
    let payload = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_agentId":"a","_topic":"t"}}"#;
    check(payload, "subject", Some("t"));
    check(payload, "targetagent", None);
}

/// A call with this member of its parameters.
fn call_with(member: &str, value: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"{member}":{value}}}}}"#)
}

#[test]
fn d6_a_target_is_a_name() {
    let long = format!("\"{}\"", "a".repeat(256));
    for good in [r#""a""#, r#""A-z.0_9/b:c@d+e""#, r#""a.b""#, &long] {
        let expected = good.trim_matches('"');
        check(&call_with("_agentId", good), "targetagent", Some(expected));
    }
    let too_long = format!("\"{}\"", "a".repeat(257));
    let bad = [
        r#""""#,
        r#"" ""#,
        r#""a b""#,
        r#""a..b""#,
        r#""..""#,
        r#""a*""#,
        r#""a>""#,
        r#""é""#,
        r#""a\nb""#,
        r#""a\u0000""#,
        r#""\ud800""#,
        r#""a\r\nX: y""#,
        r#""{x}""#,
        "7",
        "true",
        "null",
        "{}",
        r#"["a"]"#,
        &too_long,
    ];
    for value in bad {
        let payload = call_with("_agentId", value);
        check_refused(&payload, DecodeErrorKind::BadTarget, "/params/_agentId");
    }
}

#[test]
fn d6_a_topic_is_a_name_of_249_characters() {
    let long = "t".repeat(249);
    let payload = call_with("_topic", &format!("\"{long}\""));
    check(&payload, "subject", Some(&long));
    let too_long = format!("\"{}\"", "t".repeat(250));
    for value in [r#""""#, r#""a b""#, r#""a..b""#, "7", "null", &too_long] {
        let payload = call_with("_topic", value);
        check_refused(&payload, DecodeErrorKind::BadTopic, "/params/_topic");
    }
    // A bad agent is an error beside a good topic, too.
    let payload = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_agentId":{},"_topic":"t"}}"#;
    check_refused(payload, DecodeErrorKind::BadTarget, "/params/_agentId");
}

#[test]
fn d7_errors_are_typed_and_say_where() {
    use DecodeErrorKind as K;
    for (payload, kind, pointer, offset) in [
        ("{\"jsonrpc\":\"2.0\"", K::NotJson, "", 16),
        ("[{},7]x", K::NotJson, "", 6),
        ("7", K::NotAnObject, "", 0),
        (" []", K::EmptyBatch, "", 1),
        (
            r#"{"jsonrpc":"2.0","method":"m","method":"m"}"#,
            K::DuplicateMember,
            "/method",
            39,
        ),
        (
            r#"{"jsonrpc":"2.0","id":[],"method":"m"}"#,
            K::BadId,
            "/id",
            22,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
            K::BadMethod,
            "/method",
            33,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":5}"#,
            K::BadParams,
            "/params",
            46,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":"x"}}"#,
            K::BothResultAndError,
            "/error",
            43,
        ),
        (r#"{"jsonrpc":"2.0","id":1}"#, K::Invalid, "", 0),
    ] {
        let units = outcomes(payload);
        let error = &units[0].as_ref().unwrap_err().error;
        assert_eq!(
            (error.kind(), error.pointer(), error.offset()),
            (kind, pointer, offset),
            "{payload}"
        );
    }
    let deep = format!("{{\"a\":{}", "[".repeat(200));
    check_refused(&deep, K::TooDeep, "");
    let not_utf8 = outcomes(&b"{\"a\":\"\xff\"}"[..]);
    assert_eq!(not_utf8[0].as_ref().unwrap_err().error.kind(), K::NotUtf8);
}

#[test]
fn d7_errors_never_repeat_the_payload() {
    let secret = "s3cr3t-t0k3n";
    for payload in [
        format!(r#"{{"jsonrpc":"2.0","id":"{secret}","method":7}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a {secret}"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_agentId":"{secret} "}}}}"#),
        format!(r#"{{"{secret}":"#),
        format!(r#"{{"{secret}":1}}"#),
        format!(r#"{{"jsonrpc":"{secret}"}}"#),
    ] {
        let units = outcomes(payload);
        let error = &units[0].as_ref().unwrap_err().error;
        assert!(!format!("{error} {error:?}").contains(secret), "{error:?}");
    }
}

#[test]
fn d8_neither_method_nor_result_nor_error_is_invalid() {
    for payload in [
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":1,"params":{}}"#,
    ] {
        check_refused(payload, DecodeErrorKind::Invalid, "");
    }
    for payload in [
        r#"{"jsonrpc":"2.0","id":1,"method":"m","result":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","error":{"code":1,"message":""}}"#,
    ] {
        check_refused(payload, DecodeErrorKind::Invalid, "/method");
    }
}

#[test]
fn d9_the_error_code_is_an_integer_attribute() {
    for code in [-32_601, 0, 7, i32::MAX, i32::MIN] {
        let payload =
            format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"x"}}}}"#);
        assert_eq!(
            event(&payload).extension("rpcerrorcode"),
            Some(&Value::Integer(code))
        );
    }
    // Legal JSON-RPC, but no CloudEvents Integer.
    let payload = r#"{"jsonrpc":"2.0","id":1,"error":{"code":2147483648,"message":"x"}}"#;
    check(payload, "rpcerrorcode", None);
    check(RESULT, "rpcerrorcode", None);
    for error in [
        "null",
        "7",
        "{}",
        r#"{"code":1}"#,
        r#"{"message":"x"}"#,
        r#"{"code":"1","message":"x"}"#,
        r#"{"code":1.5,"message":"x"}"#,
        r#"{"code":1,"message":null}"#,
    ] {
        let payload = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#);
        check_refused(&payload, DecodeErrorKind::BadError, "/error");
    }
}

#[test]
fn d10_a_member_that_decides_occurs_once() {
    for (payload, pointer) in [
        (
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","method":"m"}"#,
            "/jsonrpc",
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m","id":2}"#, "/id"),
        (
            r#"{"jsonrpc":"2.0","method":"a","\u006dethod":"b"}"#,
            "/method",
        ),
        (
            r#"{"jsonrpc":"2.0","method":"a","params":{},"params":{"_agentId":"x"}}"#,
            "/params",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":1,"result":2}"#,
            "/result",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"},"error":{"code":1,"message":"x"}}"#,
            "/error",
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":{"_agentId":"a","_agentId":"b"}}"#,
            "/params/_agentId",
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":{"_agentId":"a","\u005fagentId":"b"}}"#,
            "/params/_agentId",
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":{"_topic":"a","_topic":"a"}}"#,
            "/params/_topic",
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":{"_seq":1,"_seq":1}}"#,
            "/params/_seq",
        ),
    ] {
        check_refused(payload, DecodeErrorKind::DuplicateMember, pointer);
    }
}

#[test]
fn d10_other_members_may_repeat() {
    let payload = r#"{"x":1,"jsonrpc":"2.0","x":2,"id":1,"method":"m","params":{"a":1,"a":{"_agentId":"p","_agentId":"q"}}}"#;
    assert_eq!(event(payload).body(), payload);
}

#[test]
fn d11_a_method_is_a_word_and_keeps_its_case() {
    let long = "m".repeat(256);
    for good in [
        "m",
        "tools/call",
        "GetTask",
        "$/cancel_request",
        "größe/日本",
        &long,
    ] {
        check(&call(good), "a2amethod", Some(good));
        let ty = format!("org.apache.eventmesh.a2a.{}.req", good.replace('/', "."));
        check(&call(good), "type", Some(&ty));
    }
    let umlauts = "ö".repeat(256);
    check(&call(&umlauts), "a2amethod", Some(&umlauts));
    let (too_long, too_many) = ("m".repeat(257), "ö".repeat(257));
    for bad in [
        "",
        " ",
        "a b",
        "a\\nb",
        "a\\u0000",
        "a\\u007f",
        "a\\u0085",
        "a\u{a0}b",
        "a\u{2028}b",
        "\\ud800",
        "a\u{fffe}",
        &too_long,
        &too_many,
    ] {
        check_refused(&call(bad), DecodeErrorKind::BadMethod, "/method");
    }
    for bad in ["null", "7", "{}", "[\"m\"]", "true"] {
        let payload = format!(r#"{{"jsonrpc":"2.0","id":1,"method":{bad}}}"#);
        check_refused(&payload, DecodeErrorKind::BadMethod, "/method");
    }
}

#[test]
fn d12_reserved_methods_pass() {
    check(&call("rpc.discover"), "a2amethod", Some("rpc.discover"));
}

// === the examples of the EventMesh document ===

#[test]
fn eventmesh_5_1_sending_a_tool_call() {
    check_all(
        r#"{
  "jsonrpc": "2.0",
  "method": "tools/call",
  "params": {
    "name": "weather_service",
    "arguments": { "city": "New York" }
  },
  "id": "msg-101"
}"#,
        &[
            ("type", "org.apache.eventmesh.a2a.tools.call.req"),
            ("a2amethod", "tools/call"),
            ("mcptype", "request"),
            ("id", "msg-101"),
            ("protocolversion", "2.0"),
        ],
    );
}

#[test]
fn eventmesh_5_2_returning_a_result() {
    check_all(
        r#"{
  "jsonrpc": "2.0",
  "result": { "temperature": 22 },
  "id": "msg-101"
}"#,
        &[
            ("type", "org.apache.eventmesh.a2a.common.response"),
            ("mcptype", "response"),
            ("collaborationid", "msg-101"),
            ("id", "new-0"),
            ("protocolversion", "2.0"),
        ],
    );
}

#[test]
fn eventmesh_4_1_detection_takes_json_rpc_then_legacy_then_falls_back() {
    let both = r#"{"protocol":"A2A","jsonrpc":"2.0","id":1,"method":"m"}"#;
    check(both, "a2amethod", Some("m"));
    check(LEGACY, "messagetype", Some("PROPOSE"));
    check_refused(r#"{"hello":1}"#, DecodeErrorKind::Unknown, "");
}

#[test]
fn eventmesh_4_2_a_the_agent_of_the_body_becomes_the_routing_attribute() {
    let payload = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_agentId":"weather","name":"x"}}"#;
    check(payload, "targetagent", Some("weather"));
}

#[test]
fn eventmesh_4_2_b_a_batch_of_requests_becomes_as_many_events() {
    let requests: Vec<String> = (0..50)
        .map(|n| format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"sensors/read"}}"#))
        .collect();
    let units = outcomes(format!("[{}]", requests.join(",")));
    assert_eq!(units.len(), 50);
    for (n, (unit, request)) in units.iter().zip(&requests).enumerate() {
        let event = &unit.as_ref().unwrap().event;
        assert_eq!(
            (event.id().as_str(), event.body().as_ref()),
            (n.to_string().as_str(), request.as_bytes())
        );
    }
}

#[test]
fn eventmesh_4_2_c_an_error_is_a_common_response_with_its_correlation() {
    check(
        ERROR,
        "type",
        Some("org.apache.eventmesh.a2a.common.response"),
    );
    check(ERROR, "collaborationid", Some("7"));
}

#[test]
fn eventmesh_3_3_an_attribute_can_never_carry_control_characters() {
    let mut event = event(REQUEST);
    for name in ["id", "type", "targetagent", "subject", "a2amethod"] {
        let error = event.set(name, "x\r\nev: il").unwrap_err();
        assert_eq!(error.kind(), EventErrorKind::InvalidAttributeValue);
    }
}
