//! The older shapes and their records. Source: docs/protocols/e2a.md §8.

use a2abus_models::Json;
use a2abus_models::e2a::{
    AgentResponseChunk, E2aContext, Form, RecordOptions, encode_agent_chunk_for_wire,
};
use a2abus_plugin::Text;

use super::{NEW_ID, check, check_error, check_members, convert, json};

#[test]
fn encoders_choose_the_kind_by_the_payload() {
    let encode = "encode_agent_chunk_for_wire";
    for (chunk, members) in [
        (
            r#"{"payload":{"event_type":"chat.error","error":"boom"},"is_complete":true}"#,
            r#"{"response_kind":"e2a.error","status":"failed","is_final":true,"body":{
                "code":"chat.error","message":"boom",
                "details":{"event_type":"chat.error","error":"boom"}}}"#,
        ),
        (
            r#"{"payload":{"is_complete":true,"a":1},"is_complete":true}"#,
            r#"{"response_kind":"e2a.complete","body":{"result":{"is_complete":true,"a":1}}}"#,
        ),
        (
            r#"{"payload":{"event_type":"chat.delta","content":null,"rid":7,"role":null}}"#,
            r#"{"response_kind":"e2a.chunk","body":{"delta_kind":"text","delta":"",
                "event_type":"chat.delta","source_chunk_type":null,"rid":7}}"#,
        ),
        (
            r#"{"payload":null}"#,
            r#"{"is_final":false,"body":{"delta_kind":"custom","delta":{},"event_type":null}}"#,
        ),
        (
            r#"{"payload":{"event_type":"chat.final","content":"x"}}"#,
            r#"{"is_final":false,"status":"in_progress","body":{"delta_kind":"custom",
                "delta":{"event_type":"chat.final","content":"x"},"event_type":"chat.final"}}"#,
        ),
    ] {
        check_members(encode, &format!(r#"{{"chunk":{chunk}}}"#), members);
    }
    check_members(
        "encode_agent_response_for_wire",
        r#"{"response":{"request_id":7,"ok":false,"payload":{"error":{"a":1},"message":"m"}}}"#,
        &format!(
            r#"{{"response_id":"{NEW_ID}","request_id":"7","body":{{"code":"E2A.AGENT_ERROR",
                "message":"{{\"a\":1}}","details":{{"error":{{"a":1}},"message":"m"}}}}}}"#
        ),
    );
    for (payload, message) in [
        (r#"{"error":"","message":"m"}"#, ""),
        (r#"{"error":0}"#, "0"),
        (r#"{"message":""}"#, ""),
        (r#"{"error":null,"message":"m"}"#, "m"),
        ("{}", "Agent error"),
    ] {
        check_members(
            "encode_agent_response_for_wire",
            &format!(r#"{{"response":{{"ok":false,"payload":{payload}}}}}"#),
            &format!(
                r#"{{"body":{{"code":"E2A.AGENT_ERROR","message":"{message}","details":{payload}}}}}"#
            ),
        );
    }
    check_members(
        "encode_agent_response_for_wire",
        r#"{"response":{"ok":false,"payload":null}}"#,
        r#"{"body":{"code":"E2A.AGENT_ERROR","message":"Agent error","details":{}}}"#,
    );
    check_members(
        "encode_agent_response_for_wire",
        r#"{"response":{"request_id":"r"}}"#,
        r#"{"status":"succeeded","body":{"result":{}}}"#,
    );
    check_error(encode, "{}", "bad_input(chunk)");
    check_error(
        encode,
        r#"{"chunk":{},"options":{"sequence":"x"}}"#,
        "bad_type(sequence)",
    );
}

#[test]
fn encoded_values_parse_back() {
    let chunks = [
        r#"{"event_type":"chat.delta","content":"a","source_chunk_type":"llm_reasoning","rid":1}"#,
        r#"{"event_type":"chat.delta","content":"a","source_chunk_type":"llm_output"}"#,
        r#"{"event_type":"chat.delta","content":"a","role":"leader","member_name":"m"}"#,
        r#"{"event_type":"chat.tool_call","tool":{"name":"t"}}"#,
        r#"{"is_complete":true}"#,
        r#"{"content":"done"}"#,
        r#"{"event_type":"chat.error","error":"boom"}"#,
    ];
    for payload in chunks {
        let complete = payload.contains("is_complete")
            || payload.contains("done")
            || payload.contains("chat.error");
        let text = format!(
            r#"{{"request_id":"r","channel_id":"c","payload":{payload},"is_complete":{complete},
                "agent_ref":{{"mode":"agent","id":"a"}},"metadata":{{"m":1}}}}"#
        );
        let chunk = AgentResponseChunk::parse(&json(&text)).unwrap();
        let (now, name): (Text, Text) = ("2026-04-01T10:00:00Z".into(), "c".into());
        let context = E2aContext {
            now: &now,
            converter: &name,
            new_id: &name,
        };
        let record = encode_agent_chunk_for_wire(&chunk, RecordOptions::default(), &context);
        let wire = record.to_object(Form::Compact).to_string();
        let back = convert("parse_agent_server_wire_chunk", &wire).unwrap();
        assert_eq!(back, Json::Object(chunk.to_object()), "{payload}");
    }
}

#[test]
fn records_parse_to_older_answers() {
    let unary = "parse_agent_server_wire_unary";
    let record = |rest: &str| format!(r#"{{"protocol_version":"1.0","request_id":"r",{rest}}}"#);
    for (rest, ok, payload) in [
        (
            r#""response_kind":"e2a.complete","status":"succeeded","body":{"result":[1]}"#,
            true,
            "{}",
        ),
        (
            r#""response_kind":"e2a.error","body":{"message":"m","code":"C","details":{}}"#,
            false,
            r#"{"error":"m","code":"C"}"#,
        ),
        (
            r#""response_kind":"ext","status":"failed","body":{}"#,
            false,
            r#"{"error":"Agent error","code":null}"#,
        ),
        (
            r#""response_kind":"e2a.error","body":{"details":{"d":1}}"#,
            false,
            r#"{"d":1}"#,
        ),
    ] {
        let expected = format!(r#"{{"ok":{ok},"payload":{payload},"channel_id":""}}"#);
        check_members(unary, &record(rest), &expected);
    }
    check_error(
        unary,
        &record(r#""response_kind":"e2a.complete""#),
        "unsupported_kind",
    );
    check_error(
        unary,
        r#"{"response_kind":"e2a.complete"}"#,
        "unrecognized_shape",
    );
    check_error(unary, "[]", "not_an_object");
    check_members(
        unary,
        r#"{"protocol_version":"1.3","request_id":"r","response_kind":"e2a.complete",
            "status":"succeeded","metadata":{"_jiuwenswarm_server_push":true,"m":1}}"#,
        r#"{"ok":true,"metadata":{"m":1}}"#,
    );
    check_members(
        unary,
        &record(r#""response_kind":"e2a.complete","status":"succeeded","agent_ref":{"id":"q"}"#),
        r#"{"ok":true,"agent_ref":null}"#,
    );
    check_members(
        unary,
        r#"{"request_id":"r","channel_id":"c","ok":null,"agent_ref":{"id":"q"}}"#,
        r#"{"ok":false,"agent_ref":{"id":"q"}}"#,
    );
}

#[test]
fn records_parse_to_older_parts() {
    let chunk = "parse_agent_server_wire_chunk";
    let record = |rest: &str| format!(r#"{{"protocol_version":"1.0","request_id":"r",{rest}}}"#);
    for (rest, complete, payload) in [
        (
            r#""response_kind":"e2a.complete","is_final":true,"body":{"result":{}}"#,
            true,
            r#"{"is_complete":true}"#,
        ),
        (
            r#""response_kind":"e2a.error","is_final":true,"body":{"message":"m"}"#,
            true,
            r#"{"message":"m"}"#,
        ),
        (
            r#""response_kind":"e2a.chunk","body":{"delta_kind":"custom","delta":[1]}"#,
            false,
            r#"{"content":[1]}"#,
        ),
        (
            r#""response_kind":"cron","body":{"action":"add","extra":1}"#,
            true,
            concat!(
                r#"{"event_type":"cron.response","action":"add","status":null,"#,
                r#""data":null,"message":null}"#
            ),
        ),
        (
            r#""response_kind":"acp.output_request","body":{"id":1}"#,
            false,
            r#"{"event_type":"acp.output_request","jsonrpc":{"id":1}}"#,
        ),
        (
            r#""response_kind":"e2a.complete","is_final":true"#,
            true,
            "{}",
        ),
        (
            r#""response_kind":"e2a.complete","is_final":true,"body":{"result":5}"#,
            true,
            "{}",
        ),
        (
            r#""response_kind":"e2a.chunk","body":{"delta_kind":"text","delta":null,"role":null,"member_name":null}"#,
            false,
            r#"{"event_type":"chat.delta","content":""}"#,
        ),
        (
            r#""response_kind":"plan.approval_required","body":{"plan_content":null}"#,
            true,
            concat!(
                r#"{"event_type":"plan.approval_required","plan_content":null,"plan_slug":"","#,
                r#""plan_path":"","session_id":""}"#
            ),
        ),
        (
            r#""response_kind":"plan.approval_required","session_id":"s","body":{"plan_slug":"p"}"#,
            true,
            concat!(
                r#"{"event_type":"plan.approval_required","plan_content":"","plan_slug":"p","#,
                r#""plan_path":"","session_id":"s"}"#
            ),
        ),
    ] {
        let expected = format!(r#"{{"is_complete":{complete},"payload":{payload}}}"#);
        check_members(chunk, &record(rest), &expected);
    }
    for rest in [
        r#""response_kind":"e2a.chunk","is_final":true"#,
        r#""response_kind":"e2a.complete""#,
        r#""response_kind":"a2a.task""#,
        r#""response_kind":"ext""#,
        r#""response_kind":"acp.session_update""#,
    ] {
        check_error(chunk, &record(rest), "unsupported_kind");
    }
    check(
        chunk,
        r#"{"request_id":5,"channel_id":"c","payload":null,"is_complete":false,
            "metadata":{"m":1}}"#,
        concat!(
            r#"{"request_id":"5","channel_id":"c","payload":null,"is_complete":false,"#,
            r#""agent_ref":null,"metadata":null}"#
        ),
    );
    check_error(
        chunk,
        r#"{"request_id":5,"channel_id":"c","payload":1,"is_complete":true,"ok":true}"#,
        "unrecognized_shape",
    );
}

#[test]
fn a_response_that_cannot_be_encoded_is_wrapped_in_an_error() {
    let response = concat!(
        r#"{"request_id":"r","channel_id":"c","ok":true,"payload":{"a":1},"#,
        r#""metadata":null,"agent_ref":null}"#
    );
    let input = format!(r#"{{"response":{response}}}"#);
    let failed = convert("encode_failure_agent_response", &input).unwrap();
    assert_eq!(failed.get("status").unwrap().as_str(), Some("failed"));
    let code = failed.get("body").unwrap().get("code").unwrap();
    assert_eq!(code.as_str(), Some("E2A.WIRE_ENCODE_ERROR"));
    check(
        "parse_agent_server_wire_unary",
        &failed.to_string(),
        response,
    );

    let chunk = concat!(
        r#"{"request_id":"r","channel_id":"c","payload":{"a":1},"is_complete":false,"#,
        r#""agent_ref":null,"metadata":null}"#
    );
    let input = format!(r#"{{"chunk":{chunk}}}"#);
    let failed = convert("encode_failure_agent_chunk", &input).unwrap();
    assert_eq!(failed.get("is_final"), Some(&Json::Bool(false)));
    check("parse_agent_server_wire_chunk", &failed.to_string(), chunk);

    let smuggled = failed
        .to_string()
        .replacen(r#""request_id":"r""#, r#""request_id":"other""#, 1);
    check_error(
        "parse_agent_server_wire_chunk",
        &smuggled,
        "bad_value(metadata._e2a_wire_legacy_agent_chunk)",
    );
}

#[test]
fn a_frame_that_is_not_json_is_answered() {
    let input = r#"{"message":"no"}"#;
    let members = r#"{"response_id":"invalid-json","request_id":null,"is_final":true,
        "status":"failed","body":{"code":"E2A.INVALID_JSON","message":"no","details":{}}}"#;
    check_members("encode_json_parse_error_wire", input, members);
    let record = convert("encode_json_parse_error_wire", input).unwrap();
    let members = r#"{"ok":false,"payload":{"error":"no","code":"E2A.INVALID_JSON"}}"#;
    check_members(
        "parse_agent_server_wire_unary",
        &record.to_string(),
        members,
    );
}

#[test]
fn a_push_is_marked_as_one() {
    let push = "build_server_push_wire";
    check_members(
        push,
        r#"{"request_id":"r","channel_id":"c","session_id":"s","response_kind":"cron",
            "body":{"action":"add"},"metadata":{"m":1,"_jiuwenswarm_cancel_source":"x"}}"#,
        r#"{"response_id":"r","request_id":"r","sequence":0,"is_final":true,"status":"succeeded",
            "response_kind":"cron","session_id":"s","channel":"c","body":{"action":"add"},
            "metadata":{"m":1,"_jiuwenswarm_server_push":true}}"#,
    );
    check_members(
        push,
        r#"{"request_id":"r","payload":{"event_type":"note"}}"#,
        r#"{"response_id":"r","is_final":false,"response_kind":"e2a.chunk",
            "body":{"delta_kind":"custom","delta":{"event_type":"note"},"event_type":"note"},
            "metadata":{"_jiuwenswarm_server_push":true}}"#,
    );
}

#[test]
fn older_requests_become_envelopes_and_back() {
    check_members(
        "e2a_from_agent_fields",
        r#"{"request_id":"r","req_method":"chat.send","metadata":{"k":1},"app_id":"a"}"#,
        r#"{"request_id":"r","channel":"web","method":"chat.send",
            "timestamp":"1970-01-01T00:00:00+00:00","channel_context":{"k":1,"app_id":"a"}}"#,
    );
    check_error(
        "e2a_from_agent_fields",
        r#"{"channel_id":"web"}"#,
        "missing_id",
    );
    check_error(
        "e2a_from_agent_fields",
        r#"{"request_id":"r","timestamp":"x"}"#,
        "bad_type(timestamp)",
    );
    check(
        "e2a_to_agent_request",
        r#"{"method":"odd.method","timestamp":"2026-03-26T13:33:01.150000+02:00",
            "channel_context":{"k":1,"_jiuwenswarm":{"x":1}}}"#,
        concat!(
            r#"{"request_id":"","channel_id":"web","session_id":null,"req_method":"odd.method","#,
            r#""params":{},"is_stream":false,"timestamp":1774524781.15,"metadata":{"k":1},"#,
            r#""app_id":null,"user_id":null}"#
        ),
    );
    for (text, seconds) in [
        ("1970-01-01T00:00:10Z", "10.0"),
        ("0001-01-01T00:00:00Z", "-62135596800.0"),
        ("2026-03-28T12:00:00", "0.0"),
        ("2026-02-30T12:00:00Z", "0.0"),
        ("2026-02-20T24:00:00Z", "0.0"),
        ("2026-02-20T12:00:00.Z", "0.0"),
        ("2026-02-20T12:00:00+1:00", "0.0"),
        ("é026-02-20T12:00:00Z", "0.0"),
        ("", "0.0"),
    ] {
        let input = format!(r#"{{"timestamp":"{text}"}}"#);
        let members = format!(r#"{{"timestamp":{seconds},"metadata":null}}"#);
        check_members("e2a_to_agent_request", &input, &members);
    }
}

#[test]
fn a_request_that_cannot_be_normalised_travels_inside() {
    let fallback = convert(
        "build_fallback_e2a",
        r#"{"request_id":"r","channel_id":"c","is_stream":"odd","identity_origin":"robot"}"#,
    )
    .unwrap();
    check_members(
        "build_fallback_e2a",
        r#"{"request_id":"r","channel_id":"c","is_stream":true,"user_id":"u"}"#,
        r#"{"request_id":"r","channel":"c","method":null,"params":{},"is_stream":true,
            "user_id":"u","channel_context":{"_jiuwenswarm":{"normalize_failed":true,
            "legacy_agent_request":{"request_id":"r","channel_id":"c","is_stream":true,
            "user_id":"u"}}}}"#,
    );
    check_error(
        "e2a_to_agent_request",
        &fallback.to_string(),
        "fallback_envelope",
    );
    let refused = "bad_value(channel_context._jiuwenswarm)";
    check_error("envelope_normalize", &fallback.to_string(), refused);

    let large = format!(
        r#"{{"request_id":"r","params":{{"a":"{}"}}}}"#,
        "x".repeat(512_000)
    );
    let fallback = convert("build_fallback_e2a", &large).unwrap();
    assert!(fallback.to_string().contains(
        r#"{"request_id":"r","params":{"_e2a_fallback_error":"legacy payload too large"}}"#
    ));
}

#[test]
fn control_events_are_not_records() {
    for (frame, is_record) in [
        (r#"{"protocol_version":"1.2","response_kind":"x"}"#, "true"),
        (r#"{"protocol_version":"2.0","response_kind":"x"}"#, "false"),
        (
            r#"{"type":"event","protocol_version":"1.0","response_kind":"x"}"#,
            "false",
        ),
        (r#"{"protocol_version":"1.0","response_kind":" "}"#, "false"),
        (r#"{"protocol_version":1.0,"response_kind":"x"}"#, "false"),
        ("[]", "false"),
    ] {
        check("is_e2a_response_wire_dict", frame, is_record);
    }
}
