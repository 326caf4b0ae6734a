//! Properties of every message, however odd.

use a2abus_models::convert::Conversion;
use a2abus_models::e2a::{
    CallMode, Caller, E2aEnvelope, E2aResponse, Fold, FoldLimits, FoldStepKind, Form, Trust,
};
use a2abus_models::{Json, Number, Object};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::run;

/// Every member of a request or a record, and an unknown one.
const NAMES: [&str; 57] = [
    "protocol_version",
    "provenance",
    "request_id",
    "jsonrpc_id",
    "correlation_id",
    "task_id",
    "context_id",
    "session_id",
    "message_id",
    "timestamp",
    "identity_origin",
    "channel",
    "user_id",
    "agent_ref",
    "chat_id",
    "source_agent_id",
    "agent_id",
    "service_id",
    "workspace_key",
    "method",
    "params",
    "ext_method",
    "session_update_kind",
    "is_stream",
    "expected_output_modes",
    "auth",
    "channel_context",
    "a2a_metadata",
    "acp_meta",
    "channel_id",
    "req_method",
    "binding",
    "payload",
    "metadata",
    "app_id",
    "workspace_dir",
    "response_id",
    "sequence",
    "is_final",
    "status",
    "response_kind",
    "body",
    "projections",
    "ok",
    "is_complete",
    "call",
    "record",
    "records",
    "response",
    "chunk",
    "options",
    "message_body",
    "configuration",
    "request",
    "message",
    "type",
    "odd",
];

const STRINGS: [&str; 24] = [
    "",
    " ",
    "a",
    "1.0",
    "acp",
    "a2a",
    "user",
    "agent",
    "true",
    "FALSE",
    "7",
    "-1",
    "e2a.chunk",
    "e2a.complete",
    "e2a.error",
    "cron",
    "a2a.stream_event",
    "failed",
    "succeeded",
    "event",
    "session/prompt",
    "ext",
    "chat.send",
    "2026-03-28T12:00:00Z",
];

/// Members of the objects inside.
const INNER: [&str; 22] = [
    "source_protocol",
    "converter",
    "details",
    "migrated_from_binding",
    "value",
    "bearer_token",
    "extra_headers",
    "_meta",
    "_jiuwenswarm",
    "legacy_agent_request",
    "request_id",
    "_e2a_wire_legacy_agent_response",
    "_e2a_wire_legacy_agent_chunk",
    "event_type",
    "result",
    "delta",
    "delta_kind",
    "acp",
    "jsonrpc",
    "parts",
    "code",
    "prompt",
];

fn any_value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        (-3i64..3).prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_filter_map("finite", |n| Number::from_f64(n).map(Json::from)),
        select(&STRINGS[..]).prop_map(Json::from),
        any::<String>().prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::from),
            vec((select(&INNER[..]), inner), 0..5).prop_map(Json::object),
        ]
    })
}

/// Members with values of the type they want, so that many messages are good.
fn fitting() -> impl Strategy<Value = (&'static str, Json)> {
    let texts = &NAMES[2..13];
    prop_oneof![
        (select(texts), select(&STRINGS[..6])).prop_map(|(name, value)| (name, value.into())),
        (
            select(&["timestamp", "jsonrpc_id", "sequence"][..]),
            0i64..4_000_000_000
        )
            .prop_map(|(name, number)| (name, number.into())),
        select(&["user", "agent", "service"][..])
            .prop_map(|value| ("identity_origin", value.into())),
        (
            select(
                &[
                    "params",
                    "body",
                    "metadata",
                    "payload",
                    "auth",
                    "provenance"
                ][..]
            ),
            vec((select(&INNER[..]), select(&STRINGS[..])), 0..4)
        )
            .prop_map(|(name, members)| {
                let members = members
                    .into_iter()
                    .map(|(name, value)| (name, Json::from(value)));
                (name, Json::object(members))
            }),
    ]
}

fn any_message() -> impl Strategy<Value = Json> {
    let member = prop_oneof![3 => fitting(), 1 => (select(&NAMES[..]), any_value())];
    vec(member, 0..12).prop_map(Json::object)
}

fn full(envelope: &E2aEnvelope) -> Json {
    envelope.to_object(Form::Full).into()
}

proptest! {
    #[test]
    fn a_written_request_reads_the_same(message in any_message()) {
        for trust in [Trust::Untrusted, Trust::Trusted] {
            let Ok(mut envelope) = E2aEnvelope::parse(&message, trust) else {
                continue;
            };
            envelope.extras = Object::new();
            let short = Json::Object(envelope.to_object(Form::Compact));
            let long = full(&envelope);
            prop_assert_eq!(&E2aEnvelope::parse(&long, trust).unwrap(), &envelope);
            prop_assert_eq!(&E2aEnvelope::parse(&short, trust).unwrap(), &envelope);
            prop_assert_eq!(long.as_object().unwrap().len(), 29);
        }
    }

    #[test]
    fn a_written_record_reads_the_same(message in any_message()) {
        if let Ok(mut record) = E2aResponse::parse(&message) {
            record.extras = Object::new();
            let short = Json::Object(record.to_object(Form::Compact));
            let long = Json::Object(record.to_object(Form::Full));
            prop_assert_eq!(&E2aResponse::parse(&long).unwrap(), &record);
            prop_assert_eq!(&E2aResponse::parse(&short).unwrap(), &record);
            prop_assert_eq!(long.as_object().unwrap().len(), 28);
        }
    }

    #[test]
    fn normalising_twice_is_normalising_once(message in any_message()) {
        for name in ["envelope_normalize", "response_normalize"] {
            if let Ok(once) = run(name, &message) {
                let again = run(name, &once).unwrap();
                prop_assert_eq!(again.to_string(), once.to_string());
                prop_assert_eq!(&again, &once);
            }
        }
    }

    #[test]
    fn every_conversion_is_total(message in prop_oneof![any_message(), any_value()]) {
        for conversion in Conversion::all() {
            match run(conversion.name, &message) {
                Ok(output) => prop_assert!(!output.to_string().is_empty()),
                Err(error) => prop_assert!(!error.kind.is_empty()),
            }
        }
    }

    #[test]
    fn records_in_any_order_give_one_answer(
        order in Just((0..40i64).collect::<Vec<_>>()).prop_shuffle(),
        again in vec(0..40i64, 0..10),
    ) {
        let mut fold = Fold::new(
            Caller { id: None, mode: CallMode::Unary },
            Trust::Untrusted,
            FoldLimits::default(),
        );
        let mut steps = Vec::new();
        for sequence in order.into_iter().chain(again) {
            let delta = Json::from(format!("{sequence},"));
            let text = Json::object([("delta_kind", "text".into()), ("delta", delta)]);
            let record = Json::object([
                ("sequence", sequence.into()),
                ("response_kind", if sequence == 39 { "e2a.complete" } else { "e2a.chunk" }.into()),
                ("is_final", (sequence == 39).into()),
                ("body", if sequence == 39 { Json::Null } else { text }),
            ]);
            steps.extend(fold.take(E2aResponse::parse(&record).unwrap()));
        }
        let answers: Vec<_> = steps.iter().filter(|step| step.kind == FoldStepKind::Answer).collect();
        prop_assert_eq!(answers.len(), 1);
        let expected: String = (0..39).map(|sequence| format!("{sequence},")).collect();
        let result = answers[0].message.as_ref().unwrap().get("result").unwrap();
        prop_assert_eq!(result.get("content").unwrap().as_str(), Some(expected.as_str()));
        prop_assert!(!answers[0].gap);
    }
}
