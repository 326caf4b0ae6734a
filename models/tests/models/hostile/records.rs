//! E2A requests and records, by their typed models: objects with each member wrong in turn.

use a2abus_models::convert::{Conversion, ConvertContext};
use a2abus_models::e2a::{E2aEnvelope, E2aResponse, Form, Trust};
use a2abus_models::{Json, Object};
use a2abus_plugin::Limits;

use super::{
    Either, HostileKind, OLDER, RECORD, REQUEST, Refused, VALUES, kind, replaced, truncated,
    with_bytes, with_member,
};

fn request(document: &[u8]) -> Vec<Result<(), &'static str>> {
    each(document, |json| {
        let mut envelope =
            E2aEnvelope::parse(json, Trust::Untrusted).map_err(|error| error.kind.as_str())?;
        envelope.extras = Object::new();
        let written = Json::Object(envelope.to_object(Form::Full));
        assert_eq!(
            E2aEnvelope::parse(&written, Trust::Untrusted).unwrap(),
            envelope
        );
        Ok(())
    })
}

fn record(document: &[u8]) -> Vec<Result<(), &'static str>> {
    each(document, |json| {
        let mut record = E2aResponse::parse(json).map_err(|error| error.kind.as_str())?;
        record.extras = Object::new();
        let written = Json::Object(record.to_object(Form::Full));
        assert_eq!(E2aResponse::parse(&written).unwrap(), record);
        Ok(())
    })
}

/// All conversions; none is expected to take the document, and each gives a value or a word.
fn conversions(document: &[u8]) -> Vec<Result<(), &'static str>> {
    let context = ConvertContext {
        now: "2026-03-28T12:00:00Z".into(),
        converter: "hostile".into(),
        new_id: "new".into(),
    };
    let convert = |conversion: &Conversion| {
        let result = conversion.run_on(document, &Limits::default(), &context);
        result
            .map(|output| assert!(!output.to_string().is_empty()))
            .map_err(|error| error.kind)
    };
    Conversion::all().map(convert).collect()
}

fn each(
    document: &[u8],
    read: impl Fn(&Json) -> Result<(), &'static str>,
) -> Vec<Result<(), &'static str>> {
    let json = Json::parse(document, &Limits::default());
    vec![
        json.map_err(|error| error.kind().as_str())
            .and_then(|json| read(&json)),
    ]
}

/// The sample with each of these members given each value.
fn given(sample: &str, names: &[&str]) -> Vec<String> {
    let with = |name: &&str| VALUES.map(|value| replaced(sample, name, value));
    names.iter().flat_map(with).collect()
}

pub(super) fn kinds() -> Vec<HostileKind> {
    let wrong: &[&str] = &["bad_type", "bad_value", "out_of_range"];
    let texts = [
        "request_id",
        "session_id",
        "correlation_id",
        "task_id",
        "context_id",
        "message_id",
        "user_id",
        "chat_id",
    ];
    let twice = |sample: &str, names: &[&str]| -> Vec<String> {
        names
            .iter()
            .flat_map(|name| with_member(&replaced(sample, name, "null"), name, "null"))
            .collect()
    };
    vec![
        kind(
            "request: any value of any member",
            Either(wrong),
            request,
            given(
                REQUEST,
                &[
                    "protocol_version",
                    "provenance",
                    "request_id",
                    "jsonrpc_id",
                    "timestamp",
                    "identity_origin",
                    "channel",
                    "agent_ref",
                    "agent_id",
                    "service_id",
                    "method",
                    "params",
                    "ext_method",
                    "is_stream",
                    "expected_output_modes",
                    "auth",
                    "channel_context",
                    "a2a_metadata",
                    "acp_meta",
                    "binding",
                    "payload",
                    "metadata",
                    "channel_id",
                    "req_method",
                ],
            ),
        ),
        kind(
            "request: a name that is no text",
            Refused(&["bad_type"]),
            request,
            texts
                .iter()
                .flat_map(|name| ["true", "[]", "{}"].map(|value| replaced(REQUEST, name, value))),
        ),
        kind(
            "record: any value of any member",
            Either(wrong),
            record,
            given(
                RECORD,
                &[
                    "protocol_version",
                    "response_id",
                    "request_id",
                    "jsonrpc_id",
                    "sequence",
                    "is_final",
                    "is_stream",
                    "status",
                    "response_kind",
                    "body",
                    "metadata",
                    "timestamp",
                    "identity_origin",
                    "channel",
                    "provenance",
                    "agent_ref",
                ],
            ),
        ),
        kind(
            "request: a member that decides, twice",
            Refused(&["duplicate_member"]),
            request,
            twice(
                REQUEST,
                &[
                    "request_id",
                    "method",
                    "params",
                    "agent_id",
                    "channel",
                    "channel_context",
                    "jsonrpc_id",
                ],
            ),
        ),
        kind(
            "record: a member that decides, twice",
            Refused(&["duplicate_member"]),
            record,
            twice(
                RECORD,
                &[
                    "request_id",
                    "response_kind",
                    "sequence",
                    "is_final",
                    "metadata",
                ],
            ),
        ),
        kind(
            "request: no object",
            Refused(&["not_an_object"]),
            request,
            ["7", "null", "\"a\"", "[]", "[{}]", "true"],
        ),
        kind(
            "request: truncated at every byte",
            Refused(&["not_json"]),
            request,
            truncated(&[REQUEST, OLDER]),
        ),
        kind(
            "record: bad UTF-8 at every byte",
            Refused(&["not_utf8"]),
            record,
            with_bytes(&[RECORD], b"\xf5"),
        ),
        kind(
            "request: what only this side may say",
            Refused(&["bad_value"]),
            request,
            [
                replaced(
                    REQUEST,
                    "channel_context",
                    r#"{"_jiuwenswarm":{"legacy_agent_request":{}}}"#,
                ),
                replaced(REQUEST, "channel_context", r#"{"_jiuwenswarm":{}}"#),
            ],
        ),
        kind(
            "conversions: any value",
            Either(&[
                "bad_input",
                "bad_type",
                "bad_value",
                "out_of_range",
                "not_an_object",
                "missing_id",
                "missing_method",
                "missing_version",
                "unsupported_version",
                "unsupported_kind",
                "unrecognized_shape",
                "fallback_envelope",
                "duplicate_member",
                "not_json",
                "invalid_message",
                "schema_violation",
                "version_mismatch",
                "parse_error",
                "not_a2e",
            ]),
            conversions,
            VALUES.iter().map(|value| (*value).to_owned()).chain(
                [
                    "call",
                    "record",
                    "records",
                    "response",
                    "chunk",
                    "request",
                    "message_body",
                    "options",
                    "parts",
                    "workflow",
                ]
                .iter()
                .flat_map(|name| VALUES.map(|value| format!("{{\"{name}\":{value}}}"))),
            ),
        ),
    ]
}
