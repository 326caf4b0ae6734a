//! The response record. Source: docs/protocols/e2a.md §3.

use crate::e2a::constants::{
    KIND_ACP_OUTPUT_REQUEST, KIND_COMPLETE, PROTOCOL_VERSION, STATUS_IN_PROGRESS,
    WIRE_INTERNAL_METADATA_KEYS, WIRE_LEGACY_AGENT_CHUNK_KEY, WIRE_LEGACY_AGENT_RESPONSE_KEY,
    WIRE_SERVER_PUSH_KEY,
};
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::parts::{IdentityOrigin, JsonRpcId, Provenance};
use crate::e2a::read::{Members, non_empty, scalar_text};
use crate::e2a::record::records;
use crate::e2a::write::{Form, is_empty};
use crate::json::{Json, Object};
use a2abus_plugin::{Text, is_e2a_version_1};

records! {
    /// One record of an answer.
    #[derive(Debug, Clone, PartialEq)]
    E2aResponse with extras but ["channel_id"] {
        /// The version, `1.0` if absent.
        protocol_version: Text = Text::from_static(PROTOCOL_VERSION), by Members::protocol_version;
        /// The id of this record; many writers repeat `request_id`.
        response_id: Option<Text>;
        /// The request it answers.
        request_id: Option<Text>;
        /// Its sequence number, from 0; -1 for a keepalive. Also 0 if it is absent ([`E2aResponse::has_sequence`]).
        sequence: i64;
        /// Whether it ends the answer, successfully or not.
        is_final: bool;
        /// `succeeded`, `failed`, `in_progress` or another value.
        status: Text = Text::from_static(STATUS_IN_PROGRESS);
        /// The kind of `body`; empty if it was not written.
        response_kind: Text;
        /// The creation time, as in a request.
        timestamp: Option<Text>, by Members::timestamp;
        /// Its origin before its conversion to E2A.
        provenance: Provenance;
        /// The content.
        body: Object;
        /// The id of the JSON-RPC call it answers.
        jsonrpc_id: Option<JsonRpcId>;
        /// An id for tracing only.
        correlation_id: Option<Text>;
        /// The A2A task.
        task_id: Option<Text>;
        /// The A2A context.
        context_id: Option<Text>;
        /// The session.
        session_id: Option<Text>;
        /// The id of a message.
        message_id: Option<Text>;
        /// Whether the request asked for a stream.
        is_stream: bool;
        /// The kind of the sender.
        identity_origin: IdentityOrigin = IdentityOrigin::Agent;
        /// The channel through which the request arrived.
        channel: Option<Text>, by Members::channel;
        /// The user who sent the request.
        user_id: Option<Text>;
        /// The agent that answers: `mode` and `id`.
        agent_ref: Option<Object>;
        /// The agent that sent it.
        source_agent_id: Option<Text>;
        /// The method of the request.
        method: Option<Text>;
        /// The record in the form of other protocols.
        projections: Object;
        /// Unknown members.
        channel_context: Object;
        /// Metadata for the channel and the peers.
        metadata: Object;
        /// For A2A only.
        a2a_metadata: Object;
        /// For ACP only.
        acp_meta: Object;
    }
}

impl E2aResponse {
    /// Reads a record of any version and kind.
    ///
    /// Departs: refuses wrong types, where the original guesses.
    ///
    /// # Errors
    /// `not_an_object`, `duplicate_member`; `bad_type`, `bad_value` and `out_of_range` with the
    /// path of the member. `bad_value` on a legacy record in `metadata` whose `request_id` is not
    /// the one of the record.
    ///
    /// Source: docs/protocols/e2a.md §3, §4, §5 and §9.
    pub fn parse(value: &Json) -> Result<Self, E2aError> {
        let record = Self::read_members(Members::of_message(value)?)?;
        check_legacy_blobs(&record.metadata, record.request_id.as_ref())?;
        Ok(record)
    }

    /// Writes the record. `parse` reads the same record from both forms.
    #[must_use]
    pub fn to_object(&self, form: Form) -> Object {
        self.write_members(form)
    }

    /// Whether a record, as it was written, has a sequence number. Without one, only the order of arrival counts.
    #[must_use]
    pub fn has_sequence(written: &Json) -> bool {
        written.get("sequence").is_some_and(|it| !it.is_null())
    }

    /// Whether its body says that it only keeps the connection alive.
    pub(super) fn is_keepalive(&self) -> bool {
        let event = self.body.get("event_type");
        !self.is_final && event.and_then(Json::as_str) == Some("keepalive")
    }

    /// Whether it is marked as unsolicited. Trust this only from an agent server. Source: docs/protocols/e2a.md §S3.
    #[must_use]
    pub fn is_server_push(&self) -> bool {
        self.metadata
            .get(WIRE_SERVER_PUSH_KEY)
            .and_then(Json::as_bool)
            .unwrap_or_default()
    }

    /// Whether it contains a JSON-RPC request of the agent, whose answer the agent waits for.
    #[must_use]
    pub fn is_question(&self) -> bool {
        let member = |name| self.body.get(name);
        let is_id = |id: &Json| JsonRpcId::from_json(id).is_some();
        self.response_kind == KIND_ACP_OUTPUT_REQUEST
            && member("jsonrpc").and_then(Json::as_str) == Some("2.0")
            && member("method").and_then(Json::as_str).is_some()
            && member("id").is_some_and(is_id)
    }

    /// Whether it is an `e2a.complete` without a result, which only ends a stream.
    #[must_use]
    pub fn is_sentinel(&self) -> bool {
        let result = self.body.get("result");
        self.is_final && self.response_kind == KIND_COMPLETE && result.is_none_or(is_empty)
    }
}

/// Removes the internal keys from the `metadata` of a record.
/// Source: docs/protocols/e2a.md §S3.
pub fn strip_internal_keys(metadata: &mut Object) {
    for key in WIRE_INTERNAL_METADATA_KEYS {
        metadata.remove(key);
    }
}

/// Whether `protocol_version` is supported: `1` or `1.` and digits.
///
/// # Errors
/// `missing_version` when it is absent or null, `unsupported_version` for all others.
///
/// Source: docs/protocols/e2a.md §10.1.
pub fn check_version(message: &Object) -> Result<(), E2aError> {
    match message.get("protocol_version") {
        None | Some(Json::Null) => Err(Kind::MissingVersion.into()),
        Some(version) if version.as_str().is_some_and(is_e2a_version_1) => Ok(()),
        Some(_) => Err(Kind::UnsupportedVersion.into()),
    }
}

/// Whether a frame of the agent server is an E2A record: of a supported version, with a kind, and not a control event.
/// Departs: accepts every `1.x`. Source: docs/protocols/e2a.md §8.
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

/// A legacy record in `metadata` replaces the record, so it must be the same one. Source: docs/protocols/e2a.md §S2.
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
