//! The role of an agent's message in its call, for every family.
//!
//! The body takes precedence over the headers, because agents copy the headers of a request to its answer.

use std::borrow::Cow;

use a2abus_models::e2a::Trust;
use a2abus_plugin::json::{self, BYTE_ORDER_MARK, Reader, Span};
use a2abus_plugin::protocol::jsonrpc::{self, Id, JsonRpc, RpcBody};
use a2abus_plugin::{
    DecodeErrorKind, Event, Family, Hint, Ids, Kind, Limits, MapContext, MapOptions, Refused,
    Source, Text, Unit, Value, decode, extension, kind_of_event, map_unit,
};
use bytes::{Buf as _, Bytes};
use serde::Deserialize;
use smallvec::SmallVec;

use crate::calls::callid::{CALL_ID_CHARS, CallId};
use crate::metrics::CallOutcome;

/// One unit of a message that was read where answers arrive.
#[derive(Debug)]
pub(crate) struct AnswerUnit {
    /// Which unit of the message, from 0.
    pub(crate) index: usize,
    /// Its exact bytes in the message.
    pub(crate) raw: Bytes,
    /// Its payload: these bytes, or the data if it is an event. Only that of JSON-RPC, whose spans count from it, may
    /// have a byte order mark.
    pub(crate) payload: Bytes,
    /// Its content.
    pub(crate) body: Body,
    /// The CloudEvent around it: the one in the headers of the message, or the unit itself.
    pub(crate) event: Option<Event>,
}

/// The content of one unit.
#[derive(Debug)]
pub(crate) enum Body {
    /// A JSON-RPC message.
    Rpc(JsonRpc),
    /// A message of another family, with the event it maps to.
    Mapped {
        /// The family.
        family: Family,
        /// Its role in the exchange.
        kind: Kind,
        /// Its attributes.
        event: Event,
        /// Whether members that only an E2A server may set count.
        trust: Trust,
    },
    /// JSON of no family.
    Json,
    /// It is not JSON, or not valid in its family.
    Broken {
        /// The problem.
        why: Text,
        /// The id of the request, as far as it can be read.
        correlation: Option<Text>,
        /// Whether it is JSON of a family, in which it is not valid.
        has_family: bool,
    },
}

/// The units of one message: nearly always one.
pub(crate) type Units = SmallVec<[AnswerUnit; 1]>;

/// A document without a byte order mark, which parsers of JSON refuse, in a stream on every line.
pub(crate) fn without_mark(mut document: Bytes) -> Bytes {
    if document.starts_with(BYTE_ORDER_MARK) {
        document.advance(BYTE_ORDER_MARK.len());
    }
    document
}

/// The units in the body of a message. `event` is the CloudEvent in its headers, if there is one; `trust` is the trust
/// of its reader in E2A records.
pub(crate) fn units(body: &Bytes, event: Option<&Event>, trust: Trust, limits: &Limits) -> Units {
    let decoded = decode(body, &hint(trust), limits);
    let units: Units = decoded
        .into_iter()
        .map(|unit| match unit {
            Ok(unit) => AnswerUnit::of_unit(unit, event, trust, limits),
            Err(refused) => AnswerUnit::of_refused(refused, event, limits),
        })
        .collect();
    let json = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    let is_array = json.trim_ascii_start().first() == Some(&b'[');
    if is_array && units.iter().all(|unit| matches!(unit.body, Body::Json)) {
        // An array without messages is one value.
        return SmallVec::from_iter([AnswerUnit {
            index: 0,
            raw: body.clone(),
            payload: without_mark(body.clone()),
            body: Body::Json,
            event: event.cloned(),
        }]);
    }
    units
}

/// An answer may be of any family, whichever its reader declares.
fn hint(trust: Trust) -> Hint {
    let mut hint = Hint::default();
    hint.e2a_trusted = trust == Trust::Trusted;
    hint
}

/// The members in which answers of any family repeat the id of their request: JSON-RPC, A2E messages, E2A, and
/// CloudEvents in structured mode. In legacy A2A it is `correlationId` in `metadata`.
const CORRELATIONS: [&str; 5] = [
    "id",
    "req_id",
    "request_id",
    extension::CALL_ID,
    extension::COLLABORATION_ID,
];

/// The id of a call in a body that cannot be used (too large, not JSON, or invalid in its family), so that its caller
/// gets the error at once. One with a reply token is preferred: copied attributes may contain another without. Members
/// after a syntax error are not read. An array may have one element.
#[cold]
pub(super) fn call_in_broken(body: &[u8], limits: &Limits) -> Option<Text> {
    let mut reader = Reader::new(body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body), limits);
    if reader.kind().ok()? != json::Kind::Array {
        return call_in_object(&mut reader);
    }
    let (mut found, mut elements) = (None, 0);
    // Why the body is refused is known already.
    let _error = reader.array(|reader| {
        elements += 1;
        if elements == 1 && reader.kind()? == json::Kind::Object {
            found = call_in_object(reader);
            return Ok(());
        }
        reader.value().map(drop)
    });
    found.filter(|_| elements == 1)
}

fn call_in_object(reader: &mut Reader<'_>) -> Option<Text> {
    let mut found: Option<Text> = None;
    let mut note = |reader: &Reader<'_>, value: Span| {
        let text = reader.token(value).get(1..value.range().len() - 1);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        let has_token = |text: &str| text.len() > CALL_ID_CHARS;
        if let Some(text) = text.filter(|text| names_call(text))
            && found
                .as_deref()
                .is_none_or(|found| !has_token(found) && has_token(text))
        {
            found = Some(text.into());
        }
    };
    let _error = reader.object(|reader, name| {
        if name == b"metadata" && reader.kind()? == json::Kind::Object {
            let inner = reader.object(|reader, name| {
                let value = reader.value()?;
                if name == b"correlationId" {
                    note(reader, value);
                }
                Ok(())
            });
            return inner.map(drop);
        }
        let value = reader.value()?;
        if CORRELATIONS.iter().any(|known| known.as_bytes() == name) {
            note(reader, value);
        }
        Ok(())
    });
    found
}

/// Whether a text begins with the id of a call, so that it is one, or a damaged one.
fn names_call(text: &str) -> bool {
    let call = text.get(..CALL_ID_CHARS).map(str::parse::<CallId>);
    call.is_some_and(|call| call.is_ok())
}

// === impl AnswerUnit ===

impl AnswerUnit {
    /// The outcome of the call that this answer ends. If a bridge wrote the error in place of its server, the failure
    /// reason of the event decides.
    pub(crate) fn outcome(&self) -> CallOutcome {
        let Body::Rpc(JsonRpc {
            body: RpcBody::Error(_),
            ..
        }) = &self.body
        else {
            return CallOutcome::Answered;
        };
        let event = self.event.as_ref();
        let reason = event.and_then(|event| event.extension_text(extension::FAILURE_REASON));
        match reason.map(Text::as_str) {
            Some("agent_unavailable") => CallOutcome::Unavailable,
            Some("answer_lost") => CallOutcome::Failed,
            Some("timeout") => CallOutcome::Timeout,
            _ => CallOutcome::Answered,
        }
    }

    /// A message that cannot be used, for this reason.
    pub(crate) fn broken(raw: Bytes, why: Text) -> Self {
        Self {
            index: 0,
            raw,
            payload: Bytes::new(),
            body: Body::Broken {
                why,
                correlation: None,
                has_family: false,
            },
            event: None,
        }
    }

    fn of_unit(unit: Unit, event: Option<&Event>, trust: Trust, limits: &Limits) -> Self {
        let (index, family) = (unit.index, unit.detection.family);
        if let Some(message) = unit.json_rpc {
            return Self {
                index,
                raw: unit.bytes.clone(),
                payload: unit.bytes,
                body: Body::Rpc(message),
                event: event.cloned(),
            };
        }
        // The event is only inspected, not sent.
        let context = MapContext {
            source: Source::default(),
            time: None,
            ids: Ids::Payload(&crate::clock::new_event_id),
        };
        let mapped = map_unit(unit, &MapOptions::default(), &context);
        if family == Family::CloudEvent {
            return Self::of_data(index, mapped.bytes, mapped.event, trust, limits);
        }
        Self {
            index,
            raw: mapped.bytes.clone(),
            payload: without_mark(mapped.bytes),
            body: Body::Mapped {
                family,
                kind: mapped.kind,
                event: mapped.event,
                trust,
            },
            event: event.cloned(),
        }
    }

    /// The unit of a CloudEvent in structured mode: its data decide what it is.
    fn of_data(index: usize, whole: Bytes, event: Event, trust: Trust, limits: &Limits) -> Self {
        let data = event.body();
        let unit = decode(&data, &hint(trust), limits).into_only();
        let mut answer = match unit {
            Ok(Ok(unit)) if unit.detection.family != Family::CloudEvent => {
                Self::of_unit(unit, Some(&event), trust, limits)
            }
            Ok(Err(refused)) => Self::of_refused(refused, Some(&event), limits),
            // A nested event, or several units: plain data.
            Ok(Ok(_)) | Err(_) => Self {
                index,
                raw: Bytes::new(),
                payload: without_mark(data),
                body: Body::Json,
                event: Some(event),
            },
        };
        answer.index = index;
        answer.raw = whole;
        answer
    }

    fn of_refused(refused: Refused, event: Option<&Event>, limits: &Limits) -> Self {
        let is_other_json = matches!(
            refused.error.kind(),
            DecodeErrorKind::Unknown | DecodeErrorKind::NotAnObject
        );
        let body = if is_other_json {
            Body::Json
        } else {
            let id = refused.id.as_ref().and_then(Id::text);
            Body::Broken {
                why: refused.error.to_string().into(),
                correlation: id.or_else(|| call_in_broken(&refused.bytes, limits)),
                has_family: !is_no_object(refused.error.kind()),
            }
        };
        Self {
            index: refused.index,
            raw: refused.bytes.clone(),
            payload: without_mark(refused.bytes),
            body,
            event: event.cloned(),
        }
    }

    /// The id of the request that the body itself names: the id of a JSON-RPC response, the progress token of a
    /// notification, the request id of other families.
    pub(crate) fn own_correlation(&self) -> Option<Text> {
        match &self.body {
            Body::Rpc(message) if message.is_call() => {
                message.progress.as_deref().and_then(Id::text)
            }
            Body::Rpc(JsonRpc { id, .. }) => id.as_ref().and_then(Id::text),
            Body::Broken { correlation, .. } => correlation.clone(),
            // The `collaborationid` of a question in a record is the id of the question, not of the call.
            _ if self.is_question_record() => request_id_of(&self.payload),
            Body::Mapped { event, .. } => {
                event.extension_text(extension::COLLABORATION_ID).cloned()
            }
            Body::Json => None,
        }
    }

    /// The call that the body itself names, if it is [another one](CallId::other_in) than this.
    pub(crate) fn other_call_in_body(&self, call: CallId) -> Option<CallId> {
        let own = match &self.body {
            Body::Rpc(message) if message.is_call() => message.progress.as_deref()?.token(),
            Body::Rpc(message) => message.id.as_ref()?.token(),
            Body::Broken { correlation, .. } => correlation.as_ref()?,
            Body::Mapped { event, .. } if !self.is_question_record() => {
                event.extension_text(extension::COLLABORATION_ID)?
            }
            Body::Mapped { .. } | Body::Json => return None,
        };
        call.other_in(own.trim_matches('"'))
    }

    /// Whether it is an answer, judged by its body alone.
    pub(crate) fn is_answer(&self) -> bool {
        match &self.body {
            Body::Rpc(message) => !message.is_call(),
            Body::Mapped { kind, .. } => matches!(kind, Kind::Response | Kind::Stream),
            Body::Json | Body::Broken { .. } => false,
        }
    }

    /// Whether it is a request and not an answer. Only its body counts, because agents copy the headers of the request.
    pub(crate) fn is_request(&self) -> bool {
        match &self.body {
            Body::Rpc(message) => message.is_call() && message.id.is_some(),
            Body::Mapped { kind, .. } => *kind == Kind::Request && !self.is_question_record(),
            Body::Json | Body::Broken { .. } => false,
        }
    }

    /// Whether it is an E2A record of an answer that contains a question.
    fn is_question_record(&self) -> bool {
        matches!(&self.body, Body::Mapped {
            family: Family::E2a,
            kind: Kind::Request,
            event,
            ..
        } if event.extension(extension::E2A_KIND).is_some())
    }

    /// The event around it, unless that is the request, whose headers the agent has copied.
    pub(crate) fn own_event(&self) -> Option<&Event> {
        let event = self.event.as_ref()?;
        (kind_of_event(event) != Kind::Request).then_some(event)
    }

    /// The kind that the headers declare. `request` is ignored, because agents copy the headers of the request.
    fn marked(&self) -> Option<Kind> {
        let event = self.event.as_ref()?;
        event.extension(extension::MCP_TYPE)?;
        Some(kind_of_event(event)).filter(|kind| *kind != Kind::Request)
    }

    /// Whether the headers declare that this is the last part, or that more follow.
    fn marked_last(&self) -> Option<bool> {
        if self.marked() == Some(Kind::Stream) {
            return Some(false);
        }
        match self.event.as_ref()?.extension(extension::IS_FINAL)? {
            Value::Boolean(is_final) => Some(*is_final),
            // In headers it is text, which the Python SDK of CloudEvents writes as `True` and `False`.
            Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
            Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
            _ => None,
        }
    }

    /// Whether it is the last part. The headers take precedence over the body. `streamed` is whether the request asked
    /// for a stream.
    pub(crate) fn is_last(&self, streamed: bool) -> bool {
        if let Some(marked) = self.marked_last() {
            return marked;
        }
        match &self.body {
            Body::Rpc(message) => match message.body {
                RpcBody::Result(jsonrpc::Part::Partial) => false,
                RpcBody::Result(jsonrpc::Part::Snapshot) => !streamed,
                RpcBody::Result(jsonrpc::Part::Final) | RpcBody::Error(_) => true,
                RpcBody::Call { .. } => message.id.is_some(),
            },
            Body::Mapped {
                family: Family::Legacy,
                event,
                ..
            } => !is_agreement(event),
            // Its own `is_final` decides. It is absent on a push, which ends nothing.
            Body::Mapped { event, .. } if self.is_question_record() => {
                event.extension(extension::IS_FINAL) == Some(&Value::Boolean(true))
            }
            Body::Mapped { kind, .. } => *kind != Kind::Stream && !self.is_push(),
            Body::Json => !self.is_progress(),
            Body::Broken { .. } => true,
        }
    }

    /// Whether it is an E2A record that a trusted agent marks as a push: it is no answer, and has no place in the order
    /// of an answer.
    pub(crate) fn is_push(&self) -> bool {
        match &self.body {
            Body::Mapped {
                family: Family::E2a,
                kind: Kind::Notification,
                event,
                ..
            } => event.extension(extension::E2A_KIND).is_some(),
            Body::Rpc(_) | Body::Mapped { .. } | Body::Json | Body::Broken { .. } => false,
        }
    }

    /// Whether it is a notification about the progress of the request, in no known family.
    pub(crate) fn is_progress(&self) -> bool {
        matches!(self.body, Body::Json) && self.marked() == Some(Kind::Notification)
    }
}

/// Whether an answer was refused before its family was known.
fn is_no_object(kind: DecodeErrorKind) -> bool {
    matches!(
        kind,
        DecodeErrorKind::Empty
            | DecodeErrorKind::NotUtf8
            | DecodeErrorKind::NotJson
            | DecodeErrorKind::TooLarge
            | DecodeErrorKind::TooDeep
            | DecodeErrorKind::EmptyBatch
    )
}

/// The `request_id` of an E2A record.
fn request_id_of(record: &[u8]) -> Option<Text> {
    #[derive(Deserialize)]
    struct Record<'a> {
        #[serde(borrow)]
        request_id: Cow<'a, str>,
    }
    let record: Record<'_> = serde_json::from_slice(record).ok()?;
    Some(Text::from(&*record.request_id))
}

/// AGREE announces the answer that follows it. Source: FIPA ACL.
fn is_agreement(event: &Event) -> bool {
    let act = event.extension_text(extension::A2A_METHOD);
    act.is_some_and(|act| act == "agree")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_in_a_record_belongs_to_the_request_of_the_record() {
        let record = r#"{"protocol_version":"1.0","request_id":"r","response_kind":"acp.output_request","sequence":0,"is_final":false,"body":{"jsonrpc":"2.0","id":9,"method":"session/request_permission"}}"#;
        let record = Bytes::from_static(record.as_bytes());
        let units = units(&record, None, Trust::Untrusted, &Limits::default());
        assert_eq!(units[0].own_correlation().as_deref(), Some("r"));
    }

    #[test]
    fn a_question_in_a_record_ends_the_answer_only_if_the_record_is_final() {
        for (trust, members, is_last) in [
            (Trust::Untrusted, r#""is_final":false"#, false),
            (Trust::Untrusted, r#""sequence":1"#, false),
            (Trust::Untrusted, r#""is_final":true"#, true),
            (
                Trust::Trusted,
                r#""is_final":true,"metadata":{"_jiuwenswarm_server_push":true}"#,
                false,
            ),
        ] {
            let record = format!(
                r#"{{"protocol_version":"1.0","request_id":"r","response_kind":"acp.output_request",{members},"body":{{"jsonrpc":"2.0","id":9,"method":"session/request_permission"}}}}"#
            );
            let units = units(&record.into(), None, trust, &Limits::default());
            for streamed in [true, false] {
                assert_eq!(units[0].is_last(streamed), is_last, "{members}");
            }
        }
    }

    #[test]
    fn a_push_of_a_trusted_agent_is_not_the_last_part() {
        let record = r#"{"protocol_version":"1.0","request_id":"r","response_kind":"cron","sequence":0,"is_final":true,"metadata":{"_jiuwenswarm_server_push":true}}"#;
        let record = Bytes::from_static(record.as_bytes());
        for (trust, is_push) in [(Trust::Trusted, true), (Trust::Untrusted, false)] {
            let units = units(&record, None, trust, &Limits::default());
            let found = (units[0].is_push(), units[0].is_last(true));
            assert_eq!(found, (is_push, !is_push), "{trust:?}");
            assert_eq!(units[0].own_correlation().as_deref(), Some("r"));
        }
    }
}
