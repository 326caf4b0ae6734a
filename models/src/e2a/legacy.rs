//! The legacy shapes between a gateway and its agent server. Source: docs/protocols/e2a.md §8.

use crate::e2a::constants::{INTERNAL_CONTEXT_KEY, MAX_FALLBACK_BYTES, SOURCE_PROTOCOL_E2A};
use crate::e2a::envelope::E2aEnvelope;
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::parts::{E2aContext, Provenance, Trust};
use crate::e2a::read::{Members, non_empty, scalar_text};
use crate::e2a::record::records;
use crate::e2a::write::{Form, json_bytes, object};
use crate::json::{Json, Object};
use a2abus_plugin::Text;
use a2abus_plugin::time;

/// The channel of a request that names none.
const DEFAULT_CHANNEL: &str = "web";

records! {
    /// A request in the legacy shape.
    #[derive(Debug, Clone, PartialEq)]
    AgentRequest {
        /// The id of the request, which its answers repeat.
        request_id: Text, by required_id;
        /// The channel through which it arrived; `web` if absent.
        channel_id: Text = Text::from_static(DEFAULT_CHANNEL);
        /// The session.
        session_id: Option<Text>;
        /// The requested method.
        req_method: Option<Text>, by |members: Members<'_>| members.string("req_method");
        /// Its parameters.
        params: Object;
        /// Whether the answer may come in parts.
        is_stream: bool;
        /// Seconds since 1970; 0 when unknown.
        timestamp: f64;
        /// Metadata of the channel.
        metadata: Option<Object>, by metadata;
        /// The application.
        app_id: Option<Text>;
        /// The user who sent it.
        user_id: Option<Text>;
    }
}

records! {
    /// A whole answer in the legacy shape.
    #[derive(Debug, Clone, PartialEq)]
    AgentResponse {
        /// The request it answers.
        request_id: Text;
        /// The channel through which the request arrived.
        channel_id: Text;
        /// Whether it succeeded; true if absent, false if null.
        ok: bool = true, by ok;
        /// The result, or the error.
        payload: Json;
        /// Metadata of the agent.
        metadata: Option<Object>, by metadata;
        /// The agent that answers.
        agent_ref: Option<Object>;
    }
}

records! {
    /// A part of an answer in the legacy shape.
    #[derive(Debug, Clone, PartialEq)]
    AgentResponseChunk {
        /// The request it answers.
        request_id: Text;
        /// The channel through which the request arrived.
        channel_id: Text;
        /// The part.
        payload: Json;
        /// Whether it is the last one.
        is_complete: bool;
        /// The agent that answers.
        agent_ref: Option<Object>;
        /// Metadata of the agent.
        metadata: Option<Object>, by metadata;
    }
}

impl AgentRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// `not_an_object`, `duplicate_member`, `missing_id`; `bad_type` and `out_of_range` with the
    /// member.
    pub fn parse(value: &Json) -> Result<Self, E2aError> {
        Self::read_members(Members::of_message(value)?)
    }

    /// Writes the request with every member.
    #[must_use]
    pub fn to_object(&self) -> Object {
        self.write_members(Form::Full)
    }
}

impl AgentResponse {
    /// Reads an answer.
    ///
    /// # Errors
    /// `not_an_object`, `duplicate_member`; `bad_type` with the member.
    pub fn parse(value: &Json) -> Result<Self, E2aError> {
        Self::read_members(Members::of_message(value)?)
    }

    /// Writes the answer with every member.
    #[must_use]
    pub fn to_object(&self) -> Object {
        self.write_members(Form::Full)
    }
}

impl AgentResponseChunk {
    /// Reads a part.
    ///
    /// # Errors
    /// `not_an_object`, `duplicate_member`; `bad_type` with the member.
    pub fn parse(value: &Json) -> Result<Self, E2aError> {
        Self::read_members(Members::of_message(value)?)
    }

    /// Writes the part with every member.
    #[must_use]
    pub fn to_object(&self) -> Object {
        self.write_members(Form::Full)
    }
}

fn required_id(members: Members<'_>) -> Result<Text, E2aError> {
    members.text("request_id")?.ok_or(Kind::MissingId.into())
}

fn ok(members: Members<'_>) -> Result<bool, E2aError> {
    let absent = !members.object().contains("ok");
    Ok(members.flag("ok")?.unwrap_or(absent))
}

fn metadata(members: Members<'_>) -> Result<Option<Object>, E2aError> {
    Ok(filled(members.free_object("metadata")?))
}

/// An object that is not empty.
pub(super) fn filled(object: Object) -> Option<Object> {
    (!object.is_empty()).then_some(object)
}

/// Converts a legacy request to an envelope, by the rules for parsing any request.
///
/// # Errors
/// Those of [`E2aEnvelope::parse`].
pub fn e2a_from_agent_fields(request: &AgentRequest) -> Result<E2aEnvelope, E2aError> {
    E2aEnvelope::parse(&Json::Object(request.to_object()), Trust::Untrusted)
}

/// Converts an envelope to a legacy request. Departs: accepts any method.
///
/// # Errors
/// `fallback_envelope` for an envelope that only carries another request.
pub fn e2a_to_agent_request(envelope: &E2aEnvelope) -> Result<AgentRequest, E2aError> {
    if envelope.is_fallback() {
        return Err(Kind::FallbackEnvelope.into());
    }
    let mut metadata = envelope.channel_context.clone();
    metadata.remove(INTERNAL_CONTEXT_KEY);
    let timestamp = envelope
        .timestamp
        .as_deref()
        .and_then(time::of_text)
        .map(time::seconds);
    Ok(AgentRequest {
        request_id: envelope.request_id.clone().unwrap_or_default(),
        channel_id: non_empty(envelope.channel.as_ref())
            .cloned()
            .unwrap_or(Text::from_static(DEFAULT_CHANNEL)),
        session_id: envelope.session_id.clone(),
        req_method: envelope.method.clone(),
        params: envelope.params.clone(),
        is_stream: envelope.is_stream,
        timestamp: timestamp.unwrap_or_default(),
        app_id: metadata.get("app_id").and_then(Json::as_text).cloned(),
        metadata: filled(metadata),
        user_id: envelope.user_id.clone(),
    })
}

/// Makes the envelope for a request in the legacy shape that could not be normalised. A request of more than 512,000
/// bytes of JSON is sent without its params.
#[must_use]
pub fn build_fallback_e2a(request: &Object, context: &E2aContext<'_>) -> E2aEnvelope {
    let mut inner = request.clone();
    if json_bytes(&inner) > MAX_FALLBACK_BYTES {
        let reason = [("_e2a_fallback_error", "legacy payload too large".into())];
        inner.insert("params", Json::object(reason));
    }
    let block = Json::object([
        ("normalize_failed", Json::Bool(true)),
        ("legacy_agent_request", inner.into()),
    ]);
    let id = |name: &str| request.get(name).and_then(scalar_text);
    let details = object([("kind", "fallback".into())]);
    // This member may be the invalid one; the inner request keeps it.
    let is_stream = Members::nested(request, "").flag("is_stream");
    E2aEnvelope {
        provenance: Provenance::converted(SOURCE_PROTOCOL_E2A, details, context),
        request_id: id("request_id"),
        channel: id("channel_id"),
        session_id: id("session_id"),
        user_id: id("user_id"),
        is_stream: is_stream.unwrap_or_default().unwrap_or_default(),
        channel_context: object([(INTERNAL_CONTEXT_KEY, block)]),
        ..E2aEnvelope::default()
    }
}
