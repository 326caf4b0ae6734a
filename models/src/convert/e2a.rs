//! The conversions of E2A. Source: docs/protocols/e2a.md §2, §3, §6, §7, §8 and §10.4.

use std::borrow::Cow;

use super::conversion::{Conversion, ConvertContext, ConvertError};
use crate::e2a::{
    A2aSendMessage, AcpOptions, AcpRequest, AgentRequest, AgentResponse, AgentResponseChunk,
    Caller, E2aContext, E2aEnvelope, E2aError, E2aErrorKind, E2aResponse, Fold, FoldLimits,
    FoldStep, Folded, Form, RecordOptions, Reply, ServerPush, Trust, a2a_message_to_prompt,
    build_fallback_e2a, build_server_push_wire, classify, e2a_from_agent_fields,
    e2a_response_to_a2a_stream_payload, e2a_response_to_acp_jsonrpc_response, e2a_to_agent_request,
    encode_agent_chunk_for_wire, encode_agent_response_for_wire, encode_failure_agent_chunk,
    encode_failure_agent_response, encode_json_parse_error_wire, envelope_from_a2a_send_message,
    envelope_from_acp_jsonrpc, envelope_from_jsonrpc_request, envelope_to_acp_jsonrpc_call,
    falsy_object, is_e2a_response_wire_dict, merge_params_to_acp_prompt,
    parse_agent_server_wire_chunk, parse_agent_server_wire_unary, reply_for, text_of,
};
use crate::json::{Json, Object};
use a2abus_plugin::{DecodeErrorKind, Family, Hint, Limits, Text, decode};
use bytes::Bytes;

type Converted = Result<Json, ConvertError>;

/// The conversions of E2A by name.
pub(super) const CONVERSIONS: &[Conversion] = &[
    Conversion {
        name: "classify",
        about: "anything -> its class on a connection that carries E2A",
        run: |input, _| Ok(classify(input).into()),
    },
    Conversion {
        name: "envelope_normalize",
        about: "an E2A request, current or legacy -> the request with every member",
        run: |input, _| Ok(full(&envelope(input)?)),
    },
    Conversion {
        name: "envelope_compact",
        about: "an E2A request, current or legacy -> the request without empty members",
        run: |input, _| Ok(envelope(input)?.to_object(Form::Compact).into()),
    },
    Conversion {
        name: "response_normalize",
        about: "an E2A record -> the record with every member",
        run: |input, _| Ok(record_json(&record(input)?)),
    },
    Conversion {
        name: "response_compact",
        about: "an E2A record -> the record without empty members",
        run: |input, _| Ok(record(input)?.to_object(Form::Compact).into()),
    },
    Conversion {
        name: "merge_params_to_acp_prompt",
        about: "an E2A request -> its params with the prompt that ACP requires",
        run: |input, _| Ok(merge_params_to_acp_prompt(&envelope(input)?)?.into()),
    },
    Conversion {
        name: "envelope_from_acp_jsonrpc",
        about: "{method, params?, jsonrpc_id?, session_id?, channel?, identity_origin?, \
                converter?, extra_provenance_details?} of an ACP call -> an E2A request",
        run: from_acp,
    },
    Conversion {
        name: "envelope_from_a2a_send_message",
        about: "{message_body, task_id?, context_id?, metadata?, configuration?, channel?, \
                identity_origin?, converter?, extra_provenance_details?} -> an E2A request",
        run: from_a2a,
    },
    Conversion {
        name: "envelope_to_acp_jsonrpc_call",
        about: "an E2A request -> a JSON-RPC call",
        run: |input, _| to_acp(input, AcpOptions::default()),
    },
    Conversion {
        name: "envelope_to_acp_peer_call",
        about: "an E2A request -> a JSON-RPC call in the words of ACP: methods of gateways mapped, \
                sessionId beside session_id, the prompt made of an A2A message",
        run: |input, _| {
            let options = AcpOptions {
                map_gateway_names: true,
                write_session_id_in_camel_case: true,
                prompt_from_a2a_message: true,
            };
            to_acp(input, options)
        },
    },
    Conversion {
        name: "a2a_message_to_prompt",
        about: "an A2A message -> the array of ACP content blocks",
        run: |input, _| Ok(a2a_message_to_prompt(object(input, "")?).into()),
    },
    Conversion {
        name: "envelope_from_jsonrpc_request",
        about: "{request, channel?}: a JSON-RPC request for an agent that speaks E2A -> an E2A \
                request",
        run: from_jsonrpc,
    },
    Conversion {
        name: "e2a_response_to_acp_jsonrpc_response",
        about: "an E2A record -> a JSON-RPC response, or null",
        run: |input, _| Ok(e2a_response_to_acp_jsonrpc_response(&record(input)?).into()),
    },
    Conversion {
        name: "e2a_response_to_a2a_stream_payload",
        about: "an E2A record -> the event of an A2A stream, or null",
        run: |input, _| Ok(e2a_response_to_a2a_stream_payload(&record(input)?).into()),
    },
    Conversion {
        name: "is_e2a_response_wire_dict",
        about: "any value -> whether it is an E2A record",
        run: |input, _| Ok(is_e2a_response_wire_dict(input).into()),
    },
    Conversion {
        name: "encode_agent_response_for_wire",
        about: "{response, options?: {response_id?, sequence?}}: a legacy answer -> a record",
        run: |input, context| encode_response(input, context, encode_agent_response_for_wire),
    },
    Conversion {
        name: "encode_agent_chunk_for_wire",
        about: "{chunk, options?: {response_id?, sequence?}}: a legacy part -> a record",
        run: |input, context| encode_chunk(input, context, encode_agent_chunk_for_wire),
    },
    Conversion {
        name: "encode_failure_agent_response",
        about: "{response, options?}: a legacy answer -> a failed record that carries it",
        run: |input, context| encode_response(input, context, encode_failure_agent_response),
    },
    Conversion {
        name: "encode_failure_agent_chunk",
        about: "{chunk, options?}: a legacy part -> a failed record that carries it",
        run: |input, context| encode_chunk(input, context, encode_failure_agent_chunk),
    },
    Conversion {
        name: "encode_json_parse_error_wire",
        about: "{message?} -> the record that answers a frame which is not JSON",
        run: |input, context| {
            let message = input.get("message").map(text_of).unwrap_or_default();
            let record = encode_json_parse_error_wire(message, &borrowed(context));
            Ok(record_json(&record))
        },
    },
    Conversion {
        name: "build_server_push_wire",
        about: "{request_id, channel_id?, session_id?, metadata?, and response_kind and body, or \
                payload and is_complete?} -> a record nobody asked for",
        run: |input, context| {
            let push = ServerPush::parse(input)?;
            Ok(record_json(&build_server_push_wire(
                &push,
                &borrowed(context),
            )))
        },
    },
    Conversion {
        name: "parse_agent_server_wire_unary",
        about: "a record, or a legacy answer -> a legacy answer",
        run: |input, _| Ok(parse_agent_server_wire_unary(input)?.to_object().into()),
    },
    Conversion {
        name: "parse_agent_server_wire_chunk",
        about: "a record, or a legacy part -> a legacy part",
        run: |input, _| Ok(parse_agent_server_wire_chunk(input)?.to_object().into()),
    },
    Conversion {
        name: "e2a_from_agent_fields",
        about: "a legacy request -> an E2A request",
        run: |input, _| {
            let expected = "a legacy request";
            refuse_answer(input, expected)?;
            if is_filled(input, &["method"]) && !is_filled(input, &["req_method"]) {
                return Err(other_shape(expected, "an E2A request"));
            }
            Ok(full(&e2a_from_agent_fields(&AgentRequest::parse(input)?)?))
        },
    },
    Conversion {
        name: "e2a_to_agent_request",
        about: "an E2A request of a trusted peer -> a legacy request",
        run: |input, _| {
            refuse_answer(input, "an E2A request")?;
            let envelope = E2aEnvelope::parse(input, Trust::Trusted)?;
            Ok(e2a_to_agent_request(&envelope)?.to_object().into())
        },
    },
    Conversion {
        name: "build_fallback_e2a",
        about: "a legacy request that cannot be normalised -> an E2A request that carries it",
        run: |input, context| {
            let request = object(input, "")?;
            Ok(full(&build_fallback_e2a(request, &borrowed(context))))
        },
    },
    Conversion {
        name: "reply_for",
        about: "{call: {id, mode?: unary|stream}, record, parts?: [record]} -> {part} or {answer}, \
                a JSON-RPC message, or null",
        run: reply,
    },
    Conversion {
        name: "fold",
        about: "{call: {id, mode?: unary|stream}, records: [record], trusted?} -> the steps of the \
                exchange: [{kind, sequence, message, gap}]",
        run: fold,
    },
];

impl From<E2aError> for ConvertError {
    fn from(error: E2aError) -> Self {
        Self {
            kind: error.kind.as_str(),
            message: Cow::Owned(format!("{error}: {}", error.kind.meaning())),
            field: error.field,
        }
    }
}

/// A message of another kind than the conversion reads, which would lose its members.
fn other_shape(expected: &str, found: &str) -> ConvertError {
    let kind = E2aErrorKind::UnrecognizedShape.as_str();
    ConvertError {
        kind,
        field: Text::default(),
        message: format!("{kind}: expected {expected}, but this is {found}").into(),
    }
}

/// Refuses a message of another family. Source: docs/protocols/e2a.md §9, S4.
fn refuse_other_family(input: &Json, expected: &str) -> Result<(), ConvertError> {
    if input.as_object().is_none() {
        // Its parser reports that.
        return Ok(());
    }
    if input.get("jsonrpc").is_some() {
        return Err(other_shape(expected, "a JSON-RPC message"));
    }
    let mut limits = Limits::default();
    // Its parser has a limit.
    limits.max_bytes = usize::MAX;
    limits.max_members = u32::MAX;
    let outline = Bytes::from(outline(input).to_string());
    let family = match decode(&outline, &Hint::default(), &limits).into_only() {
        Ok(Ok(unit)) => Some(unit.detection.family),
        Ok(Err(refused)) => match refused.sender {
            Some(sender) => Some(sender.family),
            None if input.get("specversion").is_some() => Some(Family::CloudEvent),
            None if refused.error.kind() == DecodeErrorKind::Unknown => None,
            // The only family left whose refused messages have no sender.
            None => Some(Family::A2eWorkflow),
        },
        Err(_) => None,
    };
    let found = match family {
        None | Some(Family::E2a) => return Ok(()),
        Some(Family::JsonRpc) => "a JSON-RPC message",
        Some(Family::CloudEvent) => "a CloudEvent",
        Some(Family::Legacy) => "a legacy A2A message",
        Some(Family::A2eMessage) => "an A2E message",
        Some(Family::A2eWorkflow) => "a line of an A2E workflow",
    };
    Err(other_shape(expected, found))
}

/// The value with empty objects, empty arrays and short strings as members: enough to detect its family, however large
/// it is.
fn outline(input: &Json) -> Json {
    /// Longer than every string that decides.
    const MAX_STRING_BYTES: usize = 256;
    let members = input.as_object().into_iter().flat_map(Object::iter);
    Json::object(members.map(|(name, value)| {
        let value = match value {
            Json::Object(_) => Json::from(Object::new()),
            Json::Array(_) => Json::from(Vec::<Json>::new()),
            Json::String(text) if text.len() > MAX_STRING_BYTES => Json::from("long"),
            other => other.clone(),
        };
        (name.clone(), value)
    }))
}

/// Whether one of the members is present, and neither null nor empty.
fn is_filled(input: &Json, names: &[&str]) -> bool {
    names.iter().any(|name| {
        let value = input.get(name);
        value.is_some_and(|value| !value.is_null() && value.as_str() != Some(""))
    })
}

/// Refuses a message of another family, and an answer in place of a request.
fn refuse_answer(input: &Json, expected: &str) -> Result<(), ConvertError> {
    refuse_other_family(input, expected)?;
    if is_filled(input, &["response_kind"]) {
        return Err(other_shape(expected, "an E2A record"));
    }
    let is_request = is_filled(input, &["method", "req_method", "params"]);
    if !is_request && is_filled(input, &["ok", "is_complete"]) {
        return Err(other_shape(expected, "a legacy answer"));
    }
    Ok(())
}

/// An E2A record. A message without a kind is one unless it is a request or a legacy answer.
fn record(input: &Json) -> Result<E2aResponse, ConvertError> {
    let expected = "an E2A record";
    refuse_other_family(input, expected)?;
    let record = E2aResponse::parse(input)?;
    if !record.response_kind.is_empty() {
        return Ok(record);
    }
    if is_filled(input, &["method", "req_method"]) {
        return Err(other_shape(expected, "an E2A request"));
    }
    if is_filled(input, &["ok", "is_complete"]) {
        return Err(other_shape(expected, "a legacy answer"));
    }
    Ok(record)
}

fn bad_input(field: &'static str, message: &'static str) -> ConvertError {
    ConvertError {
        kind: "bad_input",
        field: Text::from_static(field),
        message: Cow::Borrowed(message),
    }
}

fn object<'a>(value: &'a Json, field: &'static str) -> Result<&'a Object, ConvertError> {
    let message = "not a JSON object";
    value.as_object().ok_or_else(|| bad_input(field, message))
}

fn member<'a>(input: &'a Json, name: &'static str) -> Result<&'a Json, ConvertError> {
    let message = "the input lacks a member";
    input.get(name).ok_or_else(|| bad_input(name, message))
}

/// An object that may be absent.
fn optional_object(input: &Json, name: &'static str) -> Result<Object, ConvertError> {
    let message = "not a JSON object";
    falsy_object(input.get(name)).ok_or_else(|| bad_input(name, message))
}

/// The records of an exchange, and whether each has a sequence number.
fn records(input: &Json, name: &'static str) -> Result<Vec<(E2aResponse, bool)>, ConvertError> {
    let records = member(input, name)?.as_array();
    let records = records.ok_or_else(|| bad_input(name, "not a JSON array"))?;
    let parsed = records.iter().map(|record| -> Result<_, ConvertError> {
        let has_sequence = E2aResponse::has_sequence(record);
        Ok((E2aResponse::parse(record)?, has_sequence))
    });
    parsed.collect()
}

fn borrowed(context: &ConvertContext) -> E2aContext<'_> {
    E2aContext {
        now: &context.now,
        converter: &context.converter,
        new_id: &context.new_id,
    }
}

fn envelope(input: &Json) -> Result<E2aEnvelope, ConvertError> {
    refuse_answer(input, "an E2A request")?;
    Ok(E2aEnvelope::parse(input, Trust::Untrusted)?)
}

fn full(envelope: &E2aEnvelope) -> Json {
    envelope.to_object(Form::Full).into()
}

fn record_json(record: &E2aResponse) -> Json {
    record.to_object(Form::Full).into()
}

/// The converter that the input names, or the one of the context.
fn converter(input: &Json, context: &ConvertContext) -> Text {
    let named = input.get("converter").and_then(Json::as_text);
    named.unwrap_or(&context.converter).clone()
}

/// The arguments are named like the members of a request, and are parsed by the same rules.
fn from_acp(input: &Json, context: &ConvertContext) -> Converted {
    let details = optional_object(input, "extra_provenance_details")?;
    let arguments = envelope(input)?;
    let message = "the input lacks a method";
    let request = AcpRequest {
        method: arguments
            .method
            .ok_or_else(|| bad_input("method", message))?,
        params: arguments.params,
        jsonrpc_id: arguments.jsonrpc_id,
        session_id: arguments.session_id,
        channel: arguments.channel,
        identity_origin: arguments.identity_origin,
        details,
    };
    let context = E2aContext {
        converter: &converter(input, context),
        ..borrowed(context)
    };
    Ok(full(&envelope_from_acp_jsonrpc(request, &context)))
}

fn from_a2a(input: &Json, context: &ConvertContext) -> Converted {
    let arguments = envelope(input)?;
    let send = A2aSendMessage {
        task_id: arguments.task_id,
        context_id: arguments.context_id,
        message: member(input, "message_body")?.clone(),
        metadata: optional_object(input, "metadata")?,
        configuration: optional_object(input, "configuration")?,
        channel: arguments.channel,
        identity_origin: arguments.identity_origin,
        details: optional_object(input, "extra_provenance_details")?,
    };
    let context = E2aContext {
        converter: &converter(input, context),
        ..borrowed(context)
    };
    Ok(full(&envelope_from_a2a_send_message(send, &context)))
}

fn to_acp(input: &Json, options: AcpOptions) -> Converted {
    Ok(envelope_to_acp_jsonrpc_call(&envelope(input)?, options)?.into())
}

fn from_jsonrpc(input: &Json, context: &ConvertContext) -> Converted {
    let request = member(input, "request")?;
    let channel = input.get("channel").and_then(Json::as_text).cloned();
    let envelope = envelope_from_jsonrpc_request(request, channel, &borrowed(context))?;
    Ok(full(&envelope))
}

/// The options are named like the members of a record, and are parsed by the same rules.
fn record_options(input: &Json) -> Result<RecordOptions, ConvertError> {
    let options = Json::Object(optional_object(input, "options")?);
    let arguments = E2aResponse::parse(&options)?;
    Ok(RecordOptions {
        response_id: arguments.response_id,
        sequence: arguments.sequence,
    })
}

fn encode_response(
    input: &Json,
    context: &ConvertContext,
    encode: fn(&AgentResponse, RecordOptions, &E2aContext<'_>) -> E2aResponse,
) -> Converted {
    let response = AgentResponse::parse(member(input, "response")?)?;
    let record = encode(&response, record_options(input)?, &borrowed(context));
    Ok(record_json(&record))
}

fn encode_chunk(
    input: &Json,
    context: &ConvertContext,
    encode: fn(&AgentResponseChunk, RecordOptions, &E2aContext<'_>) -> E2aResponse,
) -> Converted {
    let chunk = AgentResponseChunk::parse(member(input, "chunk")?)?;
    let record = encode(&chunk, record_options(input)?, &borrowed(context));
    Ok(record_json(&record))
}

fn reply(input: &Json, _: &ConvertContext) -> Converted {
    let caller = Caller::parse(member(input, "call")?)?;
    let record = E2aResponse::parse(member(input, "record")?)?;
    let mut folded = Folded::new(FoldLimits::default().max_folded_bytes);
    if input.get("parts").is_some() {
        for (part, _) in records(input, "parts")? {
            folded.absorb(&part);
        }
    }
    Ok(match reply_for(&caller, &record, &folded) {
        Reply::Nothing => Json::Null,
        Reply::Part(message) => Json::object([("part", Json::Object(message))]),
        Reply::Answer(message) => Json::object([("answer", Json::Object(message))]),
    })
}

fn fold(input: &Json, _: &ConvertContext) -> Converted {
    let caller = Caller::parse(member(input, "call")?)?;
    let trust = match input.get("trusted").and_then(Json::as_bool) {
        Some(true) => Trust::Trusted,
        Some(false) | None => Trust::Untrusted,
    };
    let mut fold = Fold::new(caller, trust, FoldLimits::default());
    let mut steps = Vec::new();
    for (record, has_sequence) in records(input, "records")? {
        steps.extend(match has_sequence {
            true => fold.take(record),
            false => fold.append(record),
        });
    }
    steps.extend(fold.close());
    Ok(steps.into_iter().map(step).collect::<Vec<_>>().into())
}

fn step(step: FoldStep) -> Json {
    Json::object([
        ("kind", Json::from(step.kind.as_str())),
        ("sequence", step.sequence.into()),
        ("message", step.message.into()),
        ("gap", step.gap.into()),
    ])
}
