//! Requests and records in ACP and A2A. Source: docs/protocols/e2a.md §6, §7 and §10.4.

use super::{NEW_ID, NOW, check, check_error, check_members};

#[test]
fn a_prompt_is_made_of_the_members_that_have_content() {
    let merge = "merge_params_to_acp_prompt";
    for (params, prompt) in [
        (
            r#"{"prompt":null,"text":"a"}"#,
            r#"[{"type":"text","text":"a"}]"#,
        ),
        (
            r#"{"text":5,"content":" "}"#,
            r#"[{"type":"text","text":" "}]"#,
        ),
        (
            r#"{"content_blocks":[],"query":"q"}"#,
            r#"[{"type":"text","text":"q"}]"#,
        ),
        (r#"{"prompt":[],"query":"q"}"#, "[]"),
    ] {
        let input = format!(r#"{{"method":"session/prompt","params":{params}}}"#);
        check_members(merge, &input, &format!(r#"{{"prompt":{prompt}}}"#));
    }
    check(
        merge,
        r#"{"method":"session/prompt","session_id":"s","acp_meta":{"a":1,"b":2},
            "params":{"n":1,"session_id":"own","_meta":{"a":0,"c":3}}}"#,
        r#"{"n":1,"session_id":"own","_meta":{"a":1,"c":3,"b":2}}"#,
    );
    check_error(
        merge,
        r#"{"method":"session/prompt","acp_meta":{"a":1},"params":{"_meta":"x"}}"#,
        "bad_type(params._meta)",
    );
}

#[test]
fn an_acp_call_finds_its_session() {
    let from = "envelope_from_acp_jsonrpc";
    for (input, session) in [
        (
            r#"{"method":"m","session_id":"a","params":{"session_id":"b"}}"#,
            r#""a""#,
        ),
        (
            r#"{"method":"m","session_id":"","params":{"session_id":"b"}}"#,
            r#""b""#,
        ),
        (
            r#"{"method":"m","params":{"session_id":7,"sessionId":"c"}}"#,
            r#""c""#,
        ),
        (r#"{"method":"m","params":{"session_id":7}}"#, "null"),
    ] {
        check_members(from, input, &format!(r#"{{"session_id":{session}}}"#));
    }
    check_members(
        from,
        r#"{"method":"m","jsonrpc_id":0,"converter":"c","extra_provenance_details":{"kind":"x"}}"#,
        &format!(
            r#"{{"jsonrpc_id":0,"provenance":{{"source_protocol":"acp","converter":"c",
                "converted_at":"{NOW}",
                "details":{{"kind":"x","jsonrpc_method":"m","jsonrpc_id":0}}}}}}"#
        ),
    );
    check_error(from, r#"{"params":{}}"#, "bad_input(method)");
    check_error(from, r#"{"method":"m","params":[1]}"#, "bad_type(params)");
}

#[test]
fn a_call_to_acp_has_an_id_or_is_a_notification() {
    let to = "envelope_to_acp_jsonrpc_call";
    check(
        to,
        r#"{"method":"session/cancel","params":{"a":1}}"#,
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"a":1}}"#,
    );
    check(
        to,
        r#"{"method":"session/new","request_id":"r"}"#,
        r#"{"jsonrpc":"2.0","id":"r","method":"session/new","params":{}}"#,
    );
    check_error(
        to,
        r#"{"method":"session/new","request_id":""}"#,
        "missing_id",
    );
    check_error(to, r#"{"jsonrpc_id":1}"#, "missing_method");
    // An extension of this name is no prompt.
    check(
        to,
        r#"{"method":"ext","ext_method":"session/prompt","request_id":"r","session_id":"s","params":{"text":"t"}}"#,
        r#"{"jsonrpc":"2.0","id":"r","method":"session/prompt","params":{"text":"t"}}"#,
    );
    check(
        to,
        r#"{"method":"chat.send","jsonrpc_id":1.0,"params":{"query":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":1.0,"method":"chat.send","params":{"query":"x"}}"#,
    );
}

#[test]
fn a_pure_acp_peer_gets_acp_names() {
    let to = "envelope_to_acp_peer_call";
    check(
        to,
        r#"{"method":"chat.send","jsonrpc_id":1,"session_id":"s","params":{"query":"x"}}"#,
        concat!(
            r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"query":"x","#,
            r#""prompt":[{"type":"text","text":"x"}],"session_id":"s","sessionId":"s"}}"#
        ),
    );
    check(
        to,
        r#"{"method":"chat.interrupt","params":{}}"#,
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{}}"#,
    );
    check_members(
        to,
        r#"{"method":"session/prompt","jsonrpc_id":1,
            "params":{"message":{"parts":[{"kind":"text","text":"hi"}]}}}"#,
        r#"{"params":{"message":{"parts":[{"kind":"text","text":"hi"}]},
            "prompt":[{"type":"text","text":"hi"}]}}"#,
    );
}

#[test]
fn parts_of_both_versions_of_a2a_become_blocks() {
    for (part, block) in [
        (
            r#"{"kind":"text","text":"a"}"#,
            r#"{"type":"text","text":"a"}"#,
        ),
        (r#"{"text":"a"}"#, r#"{"type":"text","text":"a"}"#),
        (
            r#"{"kind":"file","file":{"bytes":"aGk=","mimeType":"image/png"}}"#,
            r#"{"type":"image","data":"aGk=","mimeType":"image/png"}"#,
        ),
        (
            r#"{"raw":"aGk=","mediaType":"Audio/wav"}"#,
            r#"{"type":"audio","data":"aGk=","mimeType":"Audio/wav"}"#,
        ),
        (
            r#"{"raw":"aGk=","filename":"a.pdf","mediaType":"application/pdf"}"#,
            concat!(
                r#"{"type":"resource","resource":{"uri":"attachment:a.pdf","blob":"aGk=","#,
                r#""mimeType":"application/pdf"}}"#
            ),
        ),
        (
            r#"{"kind":"file","file":{"uri":"https://x/a","name":"a"}}"#,
            r#"{"type":"resource_link","uri":"https://x/a","name":"a"}"#,
        ),
        (
            r#"{"url":"https://x/a","mediaType":"text/csv"}"#,
            concat!(
                r#"{"type":"resource_link","uri":"https://x/a","name":"https://x/a","#,
                r#""mimeType":"text/csv"}"#
            ),
        ),
        (
            r#"{"kind":"data","data":{"n":1.0}}"#,
            r#"{"type":"text","text":"{\"n\":1.0}"}"#,
        ),
        (
            r#"{"kind":"odd"}"#,
            r#"{"type":"text","text":"{\"kind\":\"odd\"}"}"#,
        ),
        ("7", r#"{"type":"text","text":"7"}"#),
    ] {
        let message = format!(r#"{{"parts":[{part}]}}"#);
        check("a2a_message_to_prompt", &message, &format!("[{block}]"));
    }
    check("a2a_message_to_prompt", "{}", "[]");
}

#[test]
fn a_record_answers_acp_by_its_kind() {
    let answer = "e2a_response_to_acp_jsonrpc_response";
    for (record, response) in [
        (
            r#"{"response_kind":"odd","jsonrpc_id":1,
                "projections":{"acp":{"jsonrpc":"2.0","result":{}}}}"#,
            r#"{"jsonrpc":"2.0","result":{},"id":1}"#,
        ),
        (
            r#"{"jsonrpc_id":1,"projections":{"acp":{"jsonrpc":"2.0","id":null,"error":{}}}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{}}"#,
        ),
        (
            r#"{"projections":{"acp":{"jsonrpc":"1.0","result":{}}}}"#,
            "null",
        ),
        (
            r#"{"response_kind":"acp.jsonrpc_error","body":{"code":1}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#,
        ),
        (
            r#"{"response_kind":"e2a.error","body":{"code":-5,"message":null,"details":{}}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-5,"message":"","data":{"details":{}}}}"#,
        ),
        (
            r#"{"response_kind":"e2a.error","body":{"code":true,"message":{"a":1}}}"#,
            concat!(
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"#,
                r#""message":"{\"a\":1}","data":{"e2a_code":true}}}"#
            ),
        ),
        (
            r#"{"response_kind":"e2a.error"}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":""}}"#,
        ),
    ] {
        check(answer, record, response);
    }
}

#[test]
fn a_stream_event_has_one_branch() {
    let event = "e2a_response_to_a2a_stream_payload";
    for (record, payload) in [
        (
            r#"{"response_kind":"a2a.task","projections":{"a2a":{"task":{}}}}"#,
            "null",
        ),
        (
            r#"{"response_kind":"a2a.stream_event","projections":{"a2a":{"task":{"id":1}}}}"#,
            r#"{"task":{"id":1}}"#,
        ),
        (
            r#"{"response_kind":"a2a.stream_event","projections":{"a2a":{"task":{},"message":{}}},
                "body":{"branch":"artifact_update","payload":{"a":1}}}"#,
            r#"{"artifactUpdate":{"a":1}}"#,
        ),
        (
            r#"{"response_kind":"a2a.stream_event","body":{"branch":"statusUpdate"}}"#,
            "null",
        ),
        (
            r#"{"response_kind":"a2a.stream_event","body":{"branch":"task","payload":[]}}"#,
            "null",
        ),
    ] {
        check(event, record, payload);
    }
}

#[test]
fn a_jsonrpc_request_becomes_an_envelope() {
    let from = "envelope_from_jsonrpc_request";
    check_members(
        from,
        r#"{"request":{"jsonrpc":"2.0","id":"7","method":"session/prompt",
            "params":{"sessionId":"s","prompt":[]}},"channel":"bus"}"#,
        &format!(
            r#"{{"request_id":"{NEW_ID}","timestamp":"{NOW}","jsonrpc_id":"7","is_stream":true,
                "session_id":"s","channel":"bus","method":"session/prompt",
                "params":{{"sessionId":"s","prompt":[]}}}}"#
        ),
    );
    for (method, is_stream) in [
        ("message/send", false),
        ("message/stream", true),
        ("message/sendStream", true),
        ("SendMessage", false),
        ("SendStreamingMessage", true),
    ] {
        check_members(
            from,
            &format!(
                r#"{{"request":{{"id":7,"method":"{method}","params":{{"metadata":{{"t":1}},
                    "message":{{"taskId":"t","contextId":"c","parts":[]}},
                    "configuration":{{"acceptedOutputModes":["text/plain"]}}}}}}}}"#
            ),
            &format!(
                r#"{{"jsonrpc_id":7,"is_stream":{is_stream},"method":"session/prompt",
                    "task_id":"t","context_id":"c","a2a_metadata":{{"t":1}},
                    "expected_output_modes":["text/plain"]}}"#
            ),
        );
    }
    for (request, error) in [
        (r#"{"id":1}"#, "missing_method"),
        (r#"{"id":{},"method":"m"}"#, "bad_type(id)"),
        (r#"{"id":1,"method":"m","params":[]}"#, "bad_type(params)"),
        (
            r#"{"id":1,"method":"SendMessage"}"#,
            "bad_type(params.message)",
        ),
        (
            r#"{"id":1,"method":"a","method":"b"}"#,
            "duplicate_member(method)",
        ),
    ] {
        check_error(from, &format!(r#"{{"request":{request}}}"#), error);
    }
    check_error(from, "{}", "bad_input(request)");
}
