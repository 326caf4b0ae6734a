//! The request. Source: docs/protocols/e2a.md §2.

use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::parts::{Auth, IdentityOrigin, JsonRpcId, Provenance, Trust};
use crate::e2a::read::{Members, is_truthy, non_empty, scalar_text, trim};
use crate::e2a::write::{Form, Writer, is_empty};
use crate::e2a::{INTERNAL_CONTEXT_KEY, PROTOCOL_VERSION, WIRE_INTERNAL_METADATA_KEYS};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// An E2A request. `Debug` masks the secrets of [`Auth`].
#[derive(Debug, Clone, PartialEq)]
pub struct E2aEnvelope {
    /// The version, `1.0` when none is written.
    pub protocol_version: Text,
    /// Where the request was before.
    pub provenance: Provenance,
    /// The id by which its records are known.
    pub request_id: Option<Text>,
    /// The id of the JSON-RPC call it was.
    pub jsonrpc_id: Option<JsonRpcId>,
    /// An id for tracing alone.
    pub correlation_id: Option<Text>,
    /// The A2A task.
    pub task_id: Option<Text>,
    /// The A2A context.
    pub context_id: Option<Text>,
    /// The session.
    pub session_id: Option<Text>,
    /// The id of the message on its platform.
    pub message_id: Option<Text>,
    /// When it was made: RFC 3339 when it was a number, else any text.
    pub timestamp: Option<Text>,
    /// What kind of party it is from.
    pub identity_origin: IdentityOrigin,
    /// Where it came in.
    pub channel: Option<Text>,
    /// The person it is from.
    pub user_id: Option<Text>,
    /// The agent it is for: `mode` and `id`.
    pub agent_ref: Option<Object>,
    /// The chat on its platform.
    pub chat_id: Option<Text>,
    /// The agent it is from.
    pub source_agent_id: Option<Text>,
    /// The agent it is for, else the agent it is from, without white space around.
    pub agent_id: Option<Text>,
    /// The service it is for.
    pub service_id: Option<Text>,
    /// The workspace it is for.
    pub workspace_key: Option<Text>,
    /// What is asked for: an ACP method, a name of the project's own, or nothing.
    pub method: Option<Text>,
    /// With what.
    pub params: Object,
    /// The method when `method` is `ext`.
    pub ext_method: Option<Text>,
    /// The kind of an ACP `session/update`.
    pub session_update_kind: Option<Text>,
    /// Whether the answer may come in parts.
    pub is_stream: bool,
    /// The media types of the answer, as A2A has them.
    pub expected_output_modes: Vec<Json>,
    /// Credentials.
    pub auth: Option<Auth>,
    /// What has no place of its own.
    pub channel_context: Object,
    /// For A2A alone.
    pub a2a_metadata: Object,
    /// For ACP alone.
    pub acp_meta: Object,
    /// Top-level members that the protocol does not know; neither form writes them.
    pub extras: Object,
}

/// Members of older writers that parsing turns into others.
const LEGACY_MEMBERS: [&str; 7] = [
    "channel_id",
    "req_method",
    "binding",
    "payload",
    "metadata",
    "app_id",
    "workspace_dir",
];

impl Default for E2aEnvelope {
    fn default() -> Self {
        Self {
            protocol_version: Text::from_static(PROTOCOL_VERSION),
            provenance: Provenance::default(),
            request_id: None,
            jsonrpc_id: None,
            correlation_id: None,
            task_id: None,
            context_id: None,
            session_id: None,
            message_id: None,
            timestamp: None,
            identity_origin: IdentityOrigin::User,
            channel: None,
            user_id: None,
            agent_ref: None,
            chat_id: None,
            source_agent_id: None,
            agent_id: None,
            service_id: None,
            workspace_key: None,
            method: None,
            params: Object::new(),
            ext_method: None,
            session_update_kind: None,
            is_stream: false,
            expected_output_modes: Vec::new(),
            auth: None,
            channel_context: Object::new(),
            a2a_metadata: Object::new(),
            acp_meta: Object::new(),
            extras: Object::new(),
        }
    }
}

impl E2aEnvelope {
    /// Reads a request of any version, the older shape of it included, and takes the members of
    /// older writers over into those of today.
    ///
    /// Departs: where the original guesses at a wrong type, this refuses it.
    ///
    /// # Errors
    /// `not_an_object`, `duplicate_member`; `bad_type`, `bad_value` and `out_of_range` with the
    /// path of the member. `bad_value` on `channel_context._jiuwenswarm` when that block comes from
    /// an untrusted peer, and on its `request_id` when that is not the one of the request.
    ///
    /// Source: docs/protocols/e2a.md §2, §4, §5 and §9.
    pub fn parse(value: &Json, trust: Trust) -> Result<Self, E2aError> {
        let members = Members::of_message(value)?;
        let source_agent_id = members.text("source_agent_id")?;
        let request_id = members.text("request_id")?;
        let mut provenance = Provenance::parse(members.get("provenance"))?;
        provenance.migrate_binding(members.get("binding"));
        Ok(Self {
            protocol_version: members.protocol_version()?,
            provenance,
            jsonrpc_id: members.jsonrpc_id("jsonrpc_id")?,
            correlation_id: members.text("correlation_id")?,
            task_id: members.text("task_id")?,
            context_id: members.text("context_id")?,
            session_id: members.text("session_id")?,
            message_id: members.text("message_id")?,
            timestamp: members.timestamp()?,
            identity_origin: members.identity_origin(IdentityOrigin::User)?,
            channel: members.channel()?,
            user_id: members.text("user_id")?,
            agent_ref: members.optional_object("agent_ref")?,
            chat_id: members.text("chat_id")?,
            agent_id: members
                .trimmed("agent_id")
                .or_else(|| source_agent_id.as_ref().and_then(trim)),
            source_agent_id,
            service_id: members.trimmed("service_id"),
            workspace_key: members
                .trimmed("workspace_key")
                .or_else(|| members.trimmed("workspace_dir")),
            method: method(members)?,
            params: params(members)?,
            ext_method: members.text("ext_method")?,
            session_update_kind: members.text("session_update_kind")?,
            is_stream: members.flag("is_stream")?.unwrap_or_default(),
            expected_output_modes: members.array("expected_output_modes")?,
            auth: members
                .optional_object("auth")?
                .as_ref()
                .map(Auth::parse)
                .transpose()?,
            channel_context: channel_context(members, request_id.as_ref(), trust)?,
            a2a_metadata: members.free_object("a2a_metadata")?,
            acp_meta: members.free_object("acp_meta")?,
            extras: members.extras(&Self::default().to_object(Form::Full), &LEGACY_MEMBERS),
            request_id,
        })
    }

    /// Writes the request. `parse` reads the same from both forms.
    #[must_use]
    pub fn to_object(&self, form: Form) -> Object {
        let mut writer = Writer::new(form);
        writer.always("protocol_version", self.protocol_version.clone());
        writer.always("provenance", self.provenance.write(form));
        writer.member("request_id", self.request_id.clone());
        writer.member("jsonrpc_id", self.jsonrpc_id.clone());
        writer.member("correlation_id", self.correlation_id.clone());
        writer.member("task_id", self.task_id.clone());
        writer.member("context_id", self.context_id.clone());
        writer.member("session_id", self.session_id.clone());
        writer.member("message_id", self.message_id.clone());
        writer.member("timestamp", self.timestamp.clone());
        writer.always("identity_origin", self.identity_origin);
        writer.member("channel", self.channel.clone());
        writer.member("user_id", self.user_id.clone());
        write_reference(&mut writer, "agent_ref", self.agent_ref.clone());
        writer.member("chat_id", self.chat_id.clone());
        writer.member("source_agent_id", self.source_agent_id.clone());
        writer.member("agent_id", self.agent_id.clone());
        writer.member("service_id", self.service_id.clone());
        writer.member("workspace_key", self.workspace_key.clone());
        writer.member("method", self.method.clone());
        writer.member("params", self.params.clone());
        writer.member("ext_method", self.ext_method.clone());
        writer.member("session_update_kind", self.session_update_kind.clone());
        write_stream_flag(&mut writer, self.is_stream);
        writer.member("expected_output_modes", self.expected_output_modes.clone());
        let auth = self.auth.as_ref().map(|auth| auth.write(form));
        write_reference(&mut writer, "auth", auth);
        writer.member("channel_context", self.channel_context.clone());
        writer.member("a2a_metadata", self.a2a_metadata.clone());
        writer.member("acp_meta", self.acp_meta.clone());
        writer.finish()
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

/// An object that is there is written in both forms: an empty one does not read as none.
pub(super) fn write_reference(writer: &mut Writer, name: &'static str, object: Option<Object>) {
    match object {
        Some(object) => writer.always(name, object),
        None => writer.member(name, Json::Null),
    }
}

pub(super) fn write_stream_flag(writer: &mut Writer, is_stream: bool) {
    if is_stream || writer.form() == Form::Full {
        writer.always("is_stream", is_stream);
    }
}

/// A blank name counts as absent under both keys, so that what is written reads the same.
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

fn channel_context(
    members: Members<'_>,
    request_id: Option<&Text>,
    trust: Trust,
) -> Result<Object, E2aError> {
    let mut context = members.free_object("channel_context")?;
    if let Some(block) = context.get(INTERNAL_CONTEXT_KEY) {
        check_internal_block(block, request_id, trust)?;
    }
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

/// A request inside the request runs in its place, so it must be the same one and from a peer that
/// may do so. Source: docs/protocols/e2a.md §S1.
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
