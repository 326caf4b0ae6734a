//! The request. Source: docs/protocols/e2a.md §2.

use crate::e2a::constants::{INTERNAL_CONTEXT_KEY, PROTOCOL_VERSION, WIRE_INTERNAL_METADATA_KEYS};
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::parts::{Auth, IdentityOrigin, JsonRpcId, Provenance, Trust};
use crate::e2a::read::{Members, is_truthy, non_empty, scalar_text, trim};
use crate::e2a::record::records;
use crate::e2a::write::{Form, is_empty};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

records! {
    /// An E2A request. `Debug` masks the secrets of [`Auth`].
    #[derive(Debug, Clone, PartialEq)]
    E2aEnvelope with extras but [
        "channel_id", "req_method", "binding", "payload", "metadata", "app_id", "workspace_dir"
    ] {
        /// The version, `1.0` if absent.
        protocol_version: Text = Text::from_static(PROTOCOL_VERSION), by Members::protocol_version;
        /// The origin of the request before its conversion to E2A.
        provenance: Provenance;
        /// The id of the request, which its records repeat.
        request_id: Option<Text>;
        /// The id of the original JSON-RPC call.
        jsonrpc_id: Option<JsonRpcId>;
        /// An id for tracing only.
        correlation_id: Option<Text>;
        /// The A2A task.
        task_id: Option<Text>;
        /// The A2A context.
        context_id: Option<Text>;
        /// The session.
        session_id: Option<Text>;
        /// The id of the message on its platform.
        message_id: Option<Text>;
        /// The creation time: RFC 3339 if it was a number, else any text.
        timestamp: Option<Text>, by Members::timestamp;
        /// The kind of the sender.
        identity_origin: IdentityOrigin = IdentityOrigin::User;
        /// The channel through which it arrived.
        channel: Option<Text>, by Members::channel;
        /// The user who sent it.
        user_id: Option<Text>;
        /// The target agent: `mode` and `id`.
        agent_ref: Option<Object>;
        /// The chat on its platform.
        chat_id: Option<Text>;
        /// The agent that sent it.
        source_agent_id: Option<Text>;
        /// The target agent, else the sending agent, trimmed.
        agent_id: Option<Text>, by agent_id;
        /// The target service.
        service_id: Option<Text>, by service_id;
        /// The target workspace.
        workspace_key: Option<Text>, by workspace_key;
        /// The requested method: an ACP method, a name specific to the project, or nothing.
        method: Option<Text>, by method;
        /// Its parameters.
        params: Object, by params;
        /// The method if `method` is `ext`.
        ext_method: Option<Text>;
        /// The kind of an ACP `session/update`.
        session_update_kind: Option<Text>;
        /// Whether the answer may come in parts.
        is_stream: bool;
        /// The accepted media types of the answer, as in A2A.
        expected_output_modes: Vec<Json>;
        /// Credentials.
        auth: Option<Auth>;
        /// Unknown members.
        channel_context: Object, by channel_context;
        /// For A2A only.
        a2a_metadata: Object;
        /// For ACP only.
        acp_meta: Object;
    }
}

impl E2aEnvelope {
    /// Parses a request of any version, including the legacy shape, and converts legacy members to the
    /// current ones.
    ///
    /// Departs: refuses wrong types, where the original guesses.
    ///
    /// # Errors
    /// `not_an_object`, `duplicate_member`; `bad_type`, `bad_value` and `out_of_range` with the
    /// path of the member. `bad_value` on `channel_context._jiuwenswarm` when that block comes from
    /// an untrusted peer, and on its `request_id` when that is not the one of the request.
    ///
    /// Source: docs/protocols/e2a.md §2, §4, §5 and §9.
    pub fn parse(value: &Json, trust: Trust) -> Result<Self, E2aError> {
        let members = Members::of_message(value)?;
        let mut envelope = Self::read_members(members)?;
        envelope.provenance.migrate_binding(members.get("binding"));
        let block = envelope.channel_context.get(INTERNAL_CONTEXT_KEY);
        if let Some(block) = block.filter(|block| !block.is_null()) {
            check_internal_block(block, envelope.request_id.as_ref(), trust)?;
        }
        Ok(envelope)
    }

    /// Writes the request. `parse` reads the same request from both forms.
    #[must_use]
    pub fn to_object(&self, form: Form) -> Object {
        self.write_members(form)
    }

    /// Whether it only carries another request that its sender could not normalise.
    /// Source: docs/protocols/e2a.md §8.
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        self.channel_context
            .get(INTERNAL_CONTEXT_KEY)
            .and_then(|block| block.get("normalize_failed"))
            .is_some_and(is_truthy)
    }
}

fn agent_id(members: Members<'_>) -> Result<Option<Text>, E2aError> {
    let source = members.text("source_agent_id")?;
    let source = source.as_ref().and_then(trim);
    Ok(members.trimmed("agent_id").or(source))
}

fn service_id(members: Members<'_>) -> Result<Option<Text>, E2aError> {
    Ok(members.trimmed("service_id"))
}

fn workspace_key(members: Members<'_>) -> Result<Option<Text>, E2aError> {
    let key = members.trimmed("workspace_key");
    Ok(key.or_else(|| members.trimmed("workspace_dir")))
}

/// A blank name counts as absent under both keys, so that the written request reads the same.
fn method(members: Members<'_>) -> Result<Option<Text>, E2aError> {
    let is_name = |name: &Text| !name.trim().is_empty();
    let older = || members.get("req_method").and_then(Json::as_text).cloned();
    Ok(members
        .string("method")?
        .filter(is_name)
        .or_else(|| older().filter(is_name)))
}

fn params(members: Members<'_>) -> Result<Object, E2aError> {
    let mut params = members.free_object("params")?;
    if let Some(payload) = members.get("payload").and_then(Json::as_object) {
        for (name, value) in payload.iter().filter(|(_, value)| !is_empty(value)) {
            add(&mut params, name, value);
        }
    }
    Ok(params)
}

fn channel_context(members: Members<'_>) -> Result<Object, E2aError> {
    let mut context = members.free_object("channel_context")?;
    if let Some(metadata) = members.get("metadata").and_then(Json::as_object) {
        let internal = |name: &Text| {
            name == INTERNAL_CONTEXT_KEY || WIRE_INTERNAL_METADATA_KEYS.contains(&name.as_str())
        };
        for (name, value) in metadata.iter().filter(|(name, _)| !internal(name)) {
            add(&mut context, name, value);
        }
    }
    if let Some(app_id) = members.get("app_id").filter(|app_id| is_truthy(app_id)) {
        add(&mut context, &Text::from_static("app_id"), app_id);
    }
    Ok(context)
}

fn add(object: &mut Object, name: &Text, value: &Json) {
    if !object.contains(name) {
        object.insert(name.clone(), value.clone());
    }
}

/// A request inside the request replaces it, so it must be the same request and come from a trusted peer. Source:
/// docs/protocols/e2a.md §S1.
fn check_internal_block(
    block: &Json,
    request_id: Option<&Text>,
    trust: Trust,
) -> Result<(), E2aError> {
    if trust == Trust::Untrusted {
        return Err(E2aError::new(
            Kind::BadValue,
            "channel_context._jiuwenswarm",
        ));
    }
    let Some(inner) = block.get("legacy_agent_request").and_then(Json::as_object) else {
        return Ok(());
    };
    let inner_id = inner.get("request_id").and_then(scalar_text);
    if non_empty(inner_id.as_ref()) == non_empty(request_id) {
        return Ok(());
    }
    Err(E2aError::new(
        Kind::BadValue,
        "channel_context._jiuwenswarm.legacy_agent_request.request_id",
    ))
}
