//! How requests and records are read. Source: docs/protocols/e2a.md §2 to §5 and §9.

use a2abus_models::Json;
use a2abus_models::e2a::{
    E2aEnvelope, E2aErrorKind, E2aResponse, Form, Trust, check_version, strip_internal_keys,
};

use super::{check, check_error, check_members, convert, json, run};

#[test]
fn the_compact_form_matches_the_document() {
    let example = concat!(
        r#"{"protocol_version":"1.0","provenance":{"source_protocol":"e2a"},"#,
        r#""request_id":"req_abc_01","session_id":"sess_xyz","#,
        r#""timestamp":"2026-03-28T12:00:00+00:00","identity_origin":"user","channel":"web","#,
        r#""user_id":"u_001","method":"chat.send","#,
        r#""params":{"content":"Hello","mode":"plan","query":"Hello"},"is_stream":true}"#
    );
    check("envelope_compact", example, example);
    check(
        "envelope_compact",
        r#"{"auth":{},"agent_ref":{},"params":{"a":null,"b":{}}}"#,
        concat!(
            r#"{"protocol_version":"1.0","provenance":{"source_protocol":"e2a"},"#,
            r#""identity_origin":"user","agent_ref":{},"params":{"a":null,"b":{}},"auth":{}}"#
        ),
    );
    let record = concat!(
        r#"{"protocol_version":"1.0","response_id":"r1","request_id":"req_1","sequence":0,"#,
        r#""is_final":false,"status":"in_progress","response_kind":"e2a.chunk","#,
        r#""timestamp":"2026-03-29T12:00:00+00:00","provenance":{"source_protocol":"e2a"},"#,
        r#""body":{"delta_kind":"text","delta":"Hello"},"identity_origin":"agent"}"#
    );
    check("response_compact", record, record);
}

#[test]
fn examples_of_the_document_read() {
    check_members(
        "envelope_normalize",
        r#"{"request_id":"req_legacy_1","channel_id":"feishu","session_id":"sess_feishu_1",
            "req_method":"chat.send","is_stream":true,"timestamp":1774524781.15,
            "params":{"content":"List desktop files","mode":"plan"},
            "metadata":{"feishu_open_id":"ou_xxx","message_id":"om_xxx"}}"#,
        r#"{"channel":"feishu","method":"chat.send","message_id":null,
            "timestamp":"2026-03-26T11:33:01.150000+00:00",
            "channel_context":{"feishu_open_id":"ou_xxx","message_id":"om_xxx"}}"#,
    );
    check_members(
        "merge_params_to_acp_prompt",
        r#"{"method":"session/prompt","session_id":"s1","jsonrpc_id":1,
            "params":{"content_blocks":[{"type":"text","text":"Describe this image"},
                {"type":"image","mime_type":"image/png","data":"aGk="}]}}"#,
        r#"{"prompt":[{"type":"text","text":"Describe this image"},
                {"type":"image","mime_type":"image/png","data":"aGk="}],"session_id":"s1"}"#,
    );
    check_members(
        "response_normalize",
        r#"{"protocol_version":"1.0","response_id":"r3","request_id":"req_1","sequence":2,
            "is_final":true,"status":"succeeded","response_kind":"e2a.complete",
            "timestamp":"2026-03-29T12:00:02+00:00","provenance":{"source_protocol":"e2a"},
            "body":{"result":{"content":"Hello world"}}}"#,
        r#"{"sequence":2,"is_final":true,"body":{"result":{"content":"Hello world"}}}"#,
    );
}

#[test]
fn numbers_keep_their_digits() {
    let input = r#"{"request_id":12345678901234567890,"jsonrpc_id":1.50,"params":{"n":1e3}}"#;
    let expected = r#"{"request_id":"12345678901234567890","jsonrpc_id":1.50,"params":{"n":1e3}}"#;
    check_members("envelope_normalize", input, expected);
    check_members(
        "envelope_normalize",
        r#"{"jsonrpc_id":"0042"}"#,
        r#"{"jsonrpc_id":"0042"}"#,
    );
}

#[test]
fn wrong_types_are_refused_by_their_path() {
    for (input, error) in [
        ("[]", "not_an_object"),
        (r#"{"request_id":true}"#, "bad_type(request_id)"),
        (r#"{"session_id":{}}"#, "bad_type(session_id)"),
        (r#"{"jsonrpc_id":[]}"#, "bad_type(jsonrpc_id)"),
        (r#"{"timestamp":true}"#, "bad_type(timestamp)"),
        (r#"{"timestamp":{}}"#, "bad_type(timestamp)"),
        (r#"{"timestamp":1e300}"#, "out_of_range(timestamp)"),
        (r#"{"timestamp":-99999999999}"#, "out_of_range(timestamp)"),
        (
            r#"{"timestamp":253402300800000}"#,
            "out_of_range(timestamp)",
        ),
        (r#"{"identity_origin":1}"#, "bad_type(identity_origin)"),
        (
            r#"{"identity_origin":"User"}"#,
            "bad_value(identity_origin)",
        ),
        (r#"{"agent_ref":"x"}"#, "bad_type(agent_ref)"),
        (r#"{"method":1}"#, "bad_type(method)"),
        (r#"{"is_stream":"yes"}"#, "bad_type(is_stream)"),
        (
            r#"{"expected_output_modes":"text"}"#,
            "bad_type(expected_output_modes)",
        ),
        (r#"{"auth":0}"#, "bad_type(auth)"),
        (
            r#"{"auth":{"bearer_token":[]}}"#,
            "bad_type(auth.bearer_token)",
        ),
        (
            r#"{"auth":{"extra_headers":1}}"#,
            "bad_type(auth.extra_headers)",
        ),
        (
            r#"{"provenance":{"details":1}}"#,
            "bad_type(provenance.details)",
        ),
        (r#"{"channel_context":"x"}"#, "bad_type(channel_context)"),
        (r#"{"method":"a","method":"b"}"#, "duplicate_member(method)"),
    ] {
        check_error("envelope_normalize", input, error);
    }
    for (input, error) in [
        (r#"{"sequence":3.5}"#, "bad_type(sequence)"),
        (r#"{"sequence":true}"#, "bad_type(sequence)"),
        (
            r#"{"sequence":9223372036854775808}"#,
            "out_of_range(sequence)",
        ),
        (
            r#"{"sequence":"-9223372036854775809"}"#,
            "out_of_range(sequence)",
        ),
        (r#"{"sequence":1e300}"#, "out_of_range(sequence)"),
        (r#"{"body":"x"}"#, "bad_type(body)"),
        (r#"{"status":[]}"#, "bad_type(status)"),
        (r#"{"is_final":{}}"#, "bad_type(is_final)"),
        (
            r#"{"sequence":1,"sequence":2}"#,
            "duplicate_member(sequence)",
        ),
    ] {
        check_error("response_normalize", input, error);
    }
    // A member that decides nothing may be repeated, as anywhere in JSON.
    check_members("envelope_normalize", r#"{"x":1,"x":2}"#, "{}");
}

/// Their members would be lost.
#[test]
fn messages_of_other_families_are_refused() {
    let rpc = r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{}}"#;
    let a2e = r#"{"type":"tool/call/req","id":"1","version":"1.0","ts":1,"tool_name":"ls"}"#;
    let legacy = r#"{"protocol":"A2A","messageType":"REQUEST","payload":{}}"#;
    let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{}}"#;
    let record = r#"{"protocol_version":"1.0","request_id":"r","response_kind":"e2a.chunk","body":{"delta":"x"}}"#;
    let request = r#"{"protocol_version":"1.0","request_id":"r","method":"m","params":{}}"#;
    let answer = r#"{"request_id":"r","channel_id":"c","ok":true,"payload":{"a":1}}"#;
    let chunk = r#"{"request_id":"r","channel_id":"c","is_complete":false,"payload":{"a":1}}"#;
    let older = r#"{"request_id":"r","channel_id":"c","req_method":"m","params":{}}"#;
    for name in [
        "envelope_normalize",
        "envelope_compact",
        "envelope_to_acp_jsonrpc_call",
        "e2a_to_agent_request",
    ] {
        for other in [rpc, a2e, legacy, event, record, answer, chunk] {
            check_error(name, other, "unrecognized_shape");
        }
        assert!(convert(name, request).is_ok(), "{name}");
    }
    for name in ["response_normalize", "e2a_response_to_acp_jsonrpc_response"] {
        for other in [rpc, a2e, legacy, event, request, answer] {
            check_error(name, other, "unrecognized_shape");
        }
        assert!(convert(name, record).is_ok(), "{name}");
    }
    let name = "e2a_from_agent_fields";
    for other in [rpc, a2e, legacy, event, record, answer, chunk, request] {
        check_error(name, other, "unrecognized_shape");
    }
    assert!(convert(name, older).is_ok());
    let refused = run("envelope_normalize", &json(rpc)).unwrap_err();
    assert_eq!(
        refused.message,
        "unrecognized_shape: expected an E2A request, but this is a JSON-RPC message"
    );
}

#[test]
fn messages_of_other_families_are_refused_if_they_are_invalid_or_large() {
    let names = [
        "envelope_normalize",
        "response_normalize",
        "e2a_from_agent_fields",
    ];
    let of = |found: &str, input: &Json| {
        for name in names {
            let refused = run(name, input).unwrap_err();
            assert!(refused.message.ends_with(found), "{name}: {refused}");
        }
    };
    for event in [
        r#"{"specversion":"0.3","id":"1","source":"/s","type":"t","data":{}}"#,
        r#"{"specversion":1.0,"id":"1","source":"/s","type":"t","data":{}}"#,
        r#"{"specversion":"1.0","id":"","source":"/s","type":"t","data":{}}"#,
        r#"{"specversion":"1.0","source":"/s","type":"t","data":{}}"#,
        r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","Bad":1}"#,
    ] {
        of("a CloudEvent", &json(event));
    }
    for line in [
        r#"{"beginExecution":{}}"#,
        r#"{"operationUpdate":{"executionId":"e","operations":[]}}"#,
        r#"{"type":"beginExecution"}"#,
    ] {
        of("a line of an A2E workflow", &json(line));
    }
    let large = |text: &str| {
        let mut message = json(text).as_object().unwrap().clone();
        message.insert("payload", "x".repeat(2 << 20));
        Json::Object(message)
    };
    let legacy = large(r#"{"protocol":"A2A","messageType":"REQUEST"}"#);
    of("a legacy A2A message", &legacy);
    let request = large(r#"{"protocol_version":"1.0","request_id":"r","method":"m","params":{}}"#);
    assert!(run("envelope_normalize", &request).is_ok());
}

#[test]
fn odd_values_read_as_ours() {
    for (input, members) in [
        (
            r#"{"protocol_version":null}"#,
            r#"{"protocol_version":"1.0"}"#,
        ),
        (
            r#"{"identity_origin":null}"#,
            r#"{"identity_origin":"user"}"#,
        ),
        (r#"{"method":" ","req_method":"a"}"#, r#"{"method":"a"}"#),
        (r#"{"method":"a","req_method":"b"}"#, r#"{"method":"a"}"#),
        (r#"{"req_method":7}"#, r#"{"method":null}"#),
        (r#"{"is_stream":0}"#, r#"{"is_stream":false}"#),
        (r#"{"is_stream":"TRUE"}"#, r#"{"is_stream":true}"#),
        (
            r#"{"expected_output_modes":0}"#,
            r#"{"expected_output_modes":[]}"#,
        ),
        (r#"{"channel":null,"channel_id":7}"#, r#"{"channel":"7"}"#),
        (r#"{"provenance":[]}"#, r#"{"protocol_version":"1.0"}"#),
        (r#"{"app_id":"a"}"#, r#"{"channel_context":{"app_id":"a"}}"#),
        (r#"{"app_id":0}"#, r#"{"channel_context":{}}"#),
        (
            r#"{"app_id":"a","channel_context":{"app_id":null}}"#,
            r#"{"channel_context":{"app_id":null}}"#,
        ),
        (
            r#"{"binding":"internal","provenance":{"source_protocol":"acp"}}"#,
            r#"{"provenance":{"source_protocol":"acp","converter":null,"converted_at":null,
                "details":{"migrated_from_binding":"internal"}}}"#,
        ),
        (
            r#"{"binding":{"value":null}}"#,
            r#"{"provenance":{"source_protocol":"e2a","converter":null,"converted_at":null,
                "details":{"migrated_from_binding":""}}}"#,
        ),
        (
            r#"{"binding":"acp","provenance":{"details":{"migrated_from_binding":"x"}}}"#,
            r#"{"provenance":{"source_protocol":"e2a","converter":null,"converted_at":null,
                "details":{"migrated_from_binding":"x"}}}"#,
        ),
    ] {
        check_members("envelope_normalize", input, members);
    }
    check_members(
        "response_normalize",
        r#"{"sequence":3.0,"response_kind":5,"status":"odd","is_final":"true"}"#,
        r#"{"sequence":3,"response_kind":"5","status":"odd","is_final":true}"#,
    );
    check_members(
        "response_normalize",
        r#"{"sequence":" -1 "}"#,
        r#"{"sequence":-1}"#,
    );
}

#[test]
fn times_are_written_in_utc() {
    for (number, time) in [
        ("-1.5", "1969-12-31T23:59:58.500000+00:00"),
        ("1700000000.9999996", "2023-11-14T22:13:21+00:00"),
        ("0", "1970-01-01T00:00:00+00:00"),
        ("-0.0000001", "1970-01-01T00:00:00+00:00"),
        ("-62135596800000", "0001-01-01T00:00:00+00:00"),
        ("253402300799999", "9999-12-31T23:59:59.999000+00:00"),
        ("1709164800", "2024-02-29T00:00:00+00:00"),
        ("99999999999", "5138-11-16T09:46:39+00:00"),
        ("100000000000", "1973-03-03T09:46:40+00:00"),
    ] {
        let input = format!(r#"{{"timestamp":{number}}}"#);
        check_members(
            "envelope_normalize",
            &input,
            &format!(r#"{{"timestamp":"{time}"}}"#),
        );
    }
}

#[test]
fn a_request_inside_a_request_is_accepted_only_from_trusted_peers() {
    let block = |inner: &str| {
        json(&format!(
            r#"{{"request_id":"r","channel_context":{{"_jiuwenswarm":{{"normalize_failed":true,
                "legacy_agent_request":{{{inner}}}}}}}}}"#
        ))
    };
    let same = block(r#""request_id":"r""#);
    let refused = E2aEnvelope::parse(&same, Trust::Untrusted).unwrap_err();
    assert_eq!(refused.kind, E2aErrorKind::BadValue);
    assert_eq!(refused.field, "channel_context._jiuwenswarm");
    assert!(
        E2aEnvelope::parse(&same, Trust::Trusted)
            .unwrap()
            .is_fallback()
    );
    for other in [r#""request_id":"other""#, ""] {
        let refused = E2aEnvelope::parse(&block(other), Trust::Trusted).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "bad_value at channel_context._jiuwenswarm.legacy_agent_request.request_id"
        );
    }
}

#[test]
fn a_legacy_blob_of_another_request_is_refused() {
    let record = |id: &str| {
        format!(
            r#"{{"request_id":"r",
                "metadata":{{"_e2a_wire_legacy_agent_chunk":{{"request_id":{id}}}}}}}"#
        )
    };
    for id in [r#""other""#, "1", "[]"] {
        let error = "bad_value(metadata._e2a_wire_legacy_agent_chunk)";
        check_error("response_normalize", &record(id), error);
    }
    for id in [r#""r""#, "null", r#""""#] {
        assert!(convert("response_normalize", &record(id)).is_ok(), "{id}");
    }
}

#[test]
fn internal_keys_are_stripped() {
    let text =
        r#"{"metadata":{"_jiuwenswarm_server_push":true,"_jiuwenswarm_cancel_source":"x","a":1}}"#;
    let mut record = E2aResponse::parse(&json(text)).unwrap();
    assert!(record.is_server_push());
    strip_internal_keys(&mut record.metadata);
    assert_eq!(record.metadata.to_string(), r#"{"a":1}"#);
    assert!(!record.is_server_push());
}

#[test]
fn unknown_members_are_extras_and_are_not_written() {
    let envelope = json(r#"{"method":"a","mood":"good","payload":{"k":1}}"#);
    let envelope = E2aEnvelope::parse(&envelope, Trust::Untrusted).unwrap();
    assert_eq!(envelope.extras.to_string(), r#"{"mood":"good"}"#);
    assert!(!envelope.to_object(Form::Full).contains("mood"));
    let record = E2aResponse::parse(&json(r#"{"mood":"good","channel_id":"c"}"#)).unwrap();
    assert_eq!(record.extras.to_string(), r#"{"mood":"good"}"#);
    assert_eq!(record.to_object(Form::Full).len(), 28);
    assert_eq!(envelope.to_object(Form::Full).len(), 29);
}

#[test]
fn secrets_appear_in_no_debug_output_or_error() {
    let text = r#"{"auth":{"method_id":"oauth","bearer_token":"s3cret",
        "extra_headers":{"X-Key":"s3cret"}},"agent_ref":AGENT}"#;
    let envelope = json(&text.replace("AGENT", "null"));
    let envelope = E2aEnvelope::parse(&envelope, Trust::Untrusted).unwrap();
    for debug in [format!("{envelope:?}"), format!("{envelope:#?}")] {
        assert!(!debug.contains("s3cret"), "{debug}");
        assert!(debug.contains("X-Key") && debug.contains("***"), "{debug}");
    }
    let written = envelope.to_object(Form::Compact).to_string();
    assert!(written.contains("s3cret"));
    for broken in [
        text.replace("AGENT", "1"),
        text.replace(r#"{"X-Key":"s3cret"}"#, r#""s3cret""#),
        text.replace(r#""s3cret","#, r#"["s3cret"],"#),
    ] {
        let broken = json(&broken.replace("AGENT", "null"));
        let error = E2aEnvelope::parse(&broken, Trust::Untrusted).unwrap_err();
        assert!(!format!("{error:?} {error}").contains("s3cret"));
    }
}

#[test]
fn versions_are_distinguished() {
    let kind = |text: &str| check_version(json(text).as_object().unwrap()).map_err(|e| e.kind);
    for spoken in ["1", "1.0", "1.12"] {
        assert_eq!(
            kind(&format!(r#"{{"protocol_version":"{spoken}"}}"#)),
            Ok(())
        );
    }
    for other in [r#""2.0""#, r#""1.""#, r#""1.x""#, r#""10""#, "1.0", r#""""#] {
        let text = format!(r#"{{"protocol_version":{other}}}"#);
        assert_eq!(
            kind(&text),
            Err(E2aErrorKind::UnsupportedVersion),
            "{other}"
        );
    }
    assert_eq!(kind("{}"), Err(E2aErrorKind::MissingVersion));
    assert_eq!(
        kind(r#"{"protocol_version":null}"#),
        Err(E2aErrorKind::MissingVersion)
    );
}
