//! The response record. Source: docs/protocols/e2a.md §3.

use crate::e2a::envelope::{write_reference, write_stream_flag};
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::parts::{IdentityOrigin, JsonRpcId, Provenance};
use crate::e2a::read::{Members, non_empty, scalar_text};
use crate::e2a::write::{Form, Writer, is_empty};
use crate::e2a::{
    KIND_COMPLETE, PROTOCOL_VERSION, STATUS_IN_PROGRESS, WIRE_INTERNAL_METADATA_KEYS,
    WIRE_LEGACY_AGENT_CHUNK_KEY, WIRE_LEGACY_AGENT_RESPONSE_KEY, WIRE_SERVER_PUSH_KEY,
};
use crate::json::{Json, Number, Object};
use a2abus_plugin::Text;

/// One record of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct E2aResponse {
    /// The version, `1.0` when none is written.
    pub protocol_version: Text,
    /// The id of this record; many writers repeat `request_id`.
    pub response_id: Option<Text>,
    /// The request it answers.
    pub request_id: Option<Text>,
    /// Its place, from 0; -1 is a keepalive.
    pub sequence: i64,
    /// Whether it ends the answer, well or badly.
    pub is_final: bool,
    /// `succeeded`, `failed`, `in_progress` or another word.
    pub status: Text,
    /// What `body` is; empty when not written.
    pub response_kind: Text,
    /// When it was made, as in a request.
    pub timestamp: Option<Text>,
    /// Where it was before.
    pub provenance: Provenance,
    /// What it says.
    pub body: Object,
    /// The id of the JSON-RPC call it answers.
    pub jsonrpc_id: Option<JsonRpcId>,
    /// An id for tracing alone.
    pub correlation_id: Option<Text>,
    /// The A2A task.
    pub task_id: Option<Text>,
    /// The A2A context.
    pub context_id: Option<Text>,
    /// The session.
    pub session_id: Option<Text>,
    /// The id of a message.
    pub message_id: Option<Text>,
    /// Whether the request was for a stream.
    pub is_stream: bool,
    /// What kind of party it is from.
    pub identity_origin: IdentityOrigin,
    /// Where the request came in.
    pub channel: Option<Text>,
    /// The person the request was from.
    pub user_id: Option<Text>,
    /// The agent that answers: `mode` and `id`.
    pub agent_ref: Option<Object>,
    /// The agent it is from.
    pub source_agent_id: Option<Text>,
    /// The method of the request.
    pub method: Option<Text>,
    /// What it reads in other protocols, ready made.
    pub projections: Object,
    /// What has no place of its own.
    pub channel_context: Object,
    /// For the channel and the peers.
    pub metadata: Object,
    /// For A2A alone.
    pub a2a_metadata: Object,
    /// For ACP alone.
    pub acp_meta: Object,
    /// Top-level members that the protocol does not know; neither form writes them.
    pub extras: Object,
}

impl Default for E2aResponse {
    fn default() -> Self {
        Self {
            protocol_version: Text::from_static(PROTOCOL_VERSION),
            response_id: None,
            request_id: None,
            sequence: 0,
            is_final: false,
            status: Text::from_static(STATUS_IN_PROGRESS),
            response_kind: Text::default(),
            timestamp: None,
            provenance: Provenance::default(),
            body: Object::new(),
            jsonrpc_id: None,
            correlation_id: None,
            task_id: None,
            context_id: None,
            session_id: None,
            message_id: None,
            is_stream: false,
            identity_origin: IdentityOrigin::Agent,
            channel: None,
            user_id: None,
            agent_ref: None,
            source_agent_id: None,
            method: None,
            projections: Object::new(),
            channel_context: Object::new(),
            metadata: Object::new(),
            a2a_metadata: Object::new(),
            acp_meta: Object::new(),
            extras: Object::new(),
        }
    }
}

impl E2aResponse {
    /// Reads a record of any version and kind.
    ///
    /// Departs: where the original guesses at a wrong type, this refuses it.
    ///
    /// # Errors
    /// `not_an_object`, `duplicate_member`; `bad_type`, `bad_value` and `out_of_range` with the
    /// path of the member. `bad_value` on a legacy record in `metadata` whose `request_id` is not
    /// the one of the record.
    ///
    /// Source: docs/protocols/e2a.md §3, §4, §5 and §9.
    pub fn parse(value: &Json) -> Result<Self, E2aError> {
        let members = Members::of_message(value)?;
        let request_id = members.text("request_id")?;
        let metadata = members.free_object("metadata")?;
        check_legacy_blobs(&metadata, request_id.as_ref())?;
        Ok(Self {
            protocol_version: members.protocol_version()?,
            response_id: members.text("response_id")?,
            request_id,
            sequence: sequence(members)?,
            is_final: members.flag("is_final")?.unwrap_or_default(),
            status: members
                .text("status")?
                .unwrap_or(Text::from_static(STATUS_IN_PROGRESS)),
            response_kind: members.text("response_kind")?.unwrap_or_default(),
            timestamp: members.timestamp()?,
            provenance: Provenance::parse(members.get("provenance"))?,
            body: members.free_object("body")?,
            jsonrpc_id: members.jsonrpc_id("jsonrpc_id")?,
            correlation_id: members.text("correlation_id")?,
            task_id: members.text("task_id")?,
            context_id: members.text("context_id")?,
            session_id: members.text("session_id")?,
            message_id: members.text("message_id")?,
            is_stream: members.flag("is_stream")?.unwrap_or_default(),
            identity_origin: members.identity_origin(IdentityOrigin::Agent)?,
            channel: members.channel()?,
            user_id: members.text("user_id")?,
            agent_ref: members.optional_object("agent_ref")?,
            source_agent_id: members.text("source_agent_id")?,
            method: members.text("method")?,
            projections: members.free_object("projections")?,
            channel_context: members.free_object("channel_context")?,
            metadata,
            a2a_metadata: members.free_object("a2a_metadata")?,
            acp_meta: members.free_object("acp_meta")?,
            extras: members.extras(&Self::default().to_object(Form::Full), &["channel_id"]),
        })
    }

    /// Writes the record. `parse` reads the same from both forms.
    #[must_use]
    pub fn to_object(&self, form: Form) -> Object {
        let mut writer = Writer::new(form);
        writer.always("protocol_version", self.protocol_version.clone());
        writer.member("response_id", self.response_id.clone());
        writer.member("request_id", self.request_id.clone());
        writer.always("sequence", self.sequence);
        writer.always("is_final", self.is_final);
        writer.always("status", self.status.clone());
        writer.always("response_kind", self.response_kind.clone());
        writer.member("timestamp", self.timestamp.clone());
        writer.always("provenance", self.provenance.write(form));
        writer.member("body", self.body.clone());
        writer.member("jsonrpc_id", self.jsonrpc_id.clone());
        writer.member("correlation_id", self.correlation_id.clone());
        writer.member("task_id", self.task_id.clone());
        writer.member("context_id", self.context_id.clone());
        writer.member("session_id", self.session_id.clone());
        writer.member("message_id", self.message_id.clone());
        write_stream_flag(&mut writer, self.is_stream);
        writer.always("identity_origin", self.identity_origin);
        writer.member("channel", self.channel.clone());
        writer.member("user_id", self.user_id.clone());
        write_reference(&mut writer, "agent_ref", self.agent_ref.clone());
        writer.member("source_agent_id", self.source_agent_id.clone());
        writer.member("method", self.method.clone());
        writer.member("projections", self.projections.clone());
        writer.member("channel_context", self.channel_context.clone());
        writer.member("metadata", self.metadata.clone());
        writer.member("a2a_metadata", self.a2a_metadata.clone());
        writer.member("acp_meta", self.acp_meta.clone());
        writer.finish()
    }

    /// Whether it says that nobody asked for it. To be believed from an agent server alone.
    /// Source: docs/protocols/e2a.md §S3.
    #[must_use]
    pub fn is_server_push(&self) -> bool {
        self.metadata
            .get(WIRE_SERVER_PUSH_KEY)
            .and_then(Json::as_bool)
            .unwrap_or_default()
    }

    /// Whether it is an `e2a.complete` without a result, which ends a stream and says nothing.
    #[must_use]
    pub fn is_sentinel(&self) -> bool {
        let result = self.body.get("result");
        self.is_final && self.response_kind == KIND_COMPLETE && result.is_none_or(is_empty)
    }
}

/// Takes the marks that are internal to a trusted zone out of the `metadata` of a record.
/// Source: docs/protocols/e2a.md §S3.
pub fn strip_internal_keys(metadata: &mut Object) {
    for key in WIRE_INTERNAL_METADATA_KEYS {
        metadata.remove(key);
    }
}

/// Whether `protocol_version` is one that is spoken: `1` or `1.` and digits.
///
/// # Errors
/// `missing_version` when it is absent or null, `unsupported_version` for all others.
///
/// Source: docs/protocols/e2a.md §10.1.
pub fn check_version(message: &Object) -> Result<(), E2aError> {
    let minor = match message.get("protocol_version") {
        None | Some(Json::Null) => return Err(Kind::MissingVersion.into()),
        Some(version) => version.as_str().and_then(|text| text.strip_prefix('1')),
    };
    let is_minor = |minor: &str| {
        minor.strip_prefix('.').map_or(minor.is_empty(), |digits| {
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    match minor {
        Some(minor) if is_minor(minor) => Ok(()),
        _ => Err(Kind::UnsupportedVersion.into()),
    }
}

/// Whether a frame of the agent server is an E2A record: of a version that is spoken, with a kind,
/// and no control event. Departs: takes every `1.x`. Source: docs/protocols/e2a.md §8.
#[must_use]
pub fn is_e2a_response_wire_dict(frame: &Json) -> bool {
    let Some(members) = frame.as_object() else {
        return false;
    };
    let kind = members.get("response_kind").and_then(Json::as_str);
    members.get("type").and_then(Json::as_str) != Some("event")
        && check_version(members).is_ok()
        && kind.is_some_and(|kind| !kind.trim().is_empty())
}

/// An integer, written as a number (`3` or `3.0`) or as text.
fn sequence(members: Members<'_>) -> Result<i64, E2aError> {
    let error = |kind| members.error(kind, "sequence");
    match members.get("sequence") {
        None => Ok(0),
        Some(Json::Number(number)) => integer(number).map_err(error),
        Some(Json::String(text)) => {
            let text = text.trim();
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(error(Kind::BadType));
            }
            text.parse().map_err(|_| error(Kind::OutOfRange))
        }
        Some(_) => Err(error(Kind::BadType)),
    }
}

fn integer(number: &Number) -> Result<i64, Kind> {
    /// 2^63: the first double above what 64 bits hold.
    const END: f64 = 9_223_372_036_854_775_808.0;
    let value = number.as_f64();
    match number.as_i64() {
        Some(integer) => Ok(integer),
        None if !(-END..END).contains(&value) => Err(Kind::OutOfRange),
        None if value.fract() != 0.0 => Err(Kind::BadType),
        None => Ok(value as i64),
    }
}

/// A legacy record in `metadata` is read in place of the record, so it must be the same one.
/// Source: docs/protocols/e2a.md §S2.
fn check_legacy_blobs(metadata: &Object, request_id: Option<&Text>) -> Result<(), E2aError> {
    for key in [WIRE_LEGACY_AGENT_RESPONSE_KEY, WIRE_LEGACY_AGENT_CHUNK_KEY] {
        let blob = metadata.get(key).and_then(Json::as_object);
        let Some(id) = blob
            .and_then(|blob| blob.get("request_id"))
            .filter(|id| !id.is_null())
        else {
            continue;
        };
        let differs = match scalar_text(id) {
            Some(id) => !id.is_empty() && Some(&id) != non_empty(request_id),
            None => true,
        };
        if differs {
            return Err(E2aError::new(Kind::BadValue, format!("metadata.{key}")));
        }
    }
    Ok(())
}
