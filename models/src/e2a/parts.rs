//! The small types that requests and records share.

use std::fmt;

use crate::e2a::constants::{SOURCE_PROTOCOL_A2A, SOURCE_PROTOCOL_ACP, SOURCE_PROTOCOL_E2A};
use crate::e2a::error::{E2aError, E2aErrorKind};
use crate::e2a::read::{Members, text_of};
use crate::e2a::record::{Member, records, values};
use crate::e2a::write::Writer;
use crate::json::{Json, Number, Object};
use a2abus_plugin::{Hint, Text};

/// Values that only the author of a message knows. Source: docs/protocols/e2a.md §8.
#[derive(Debug, Clone, Copy)]
pub struct E2aContext<'a> {
    /// The current time, RFC 3339 in UTC.
    pub now: &'a Text,
    /// The name of the converter.
    pub converter: &'a Text,
    /// A new, unique id, if one is needed.
    pub new_id: &'a Text,
}

/// Whether the peers of the binding are trusted. Source: docs/protocols/e2a.md §S1 and §S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Any peer; internal keys are ignored.
    Untrusted,
    /// Our own gateway or agent server.
    Trusted,
}

impl From<&Hint> for Trust {
    /// The trust that a binding declares.
    fn from(hint: &Hint) -> Self {
        if hint.trusts_e2a() {
            Self::Trusted
        } else {
            Self::Untrusted
        }
    }
}

wire_enum! {
    /// The kind of a sender. Source: docs/protocols/e2a.md §1.
    IdentityOrigin {
        /// The system itself.
        System = "system",
        /// A person.
        User = "user",
        /// An agent.
        Agent = "agent",
        /// A service.
        Service = "service",
    }
}

impl From<IdentityOrigin> for Json {
    fn from(origin: IdentityOrigin) -> Self {
        Self::String(Text::from_static(origin.as_str()))
    }
}

/// A JSON-RPC id that is not null: `1`, `"1"` and `1.0` are different ids.
/// Source: docs/protocols/e2a.md §2.
#[derive(Debug, Clone)]
pub enum JsonRpcId {
    /// A string.
    String(Text),
    /// A number, by its digits.
    Number(Number),
}

impl JsonRpcId {
    /// A JSON value as an id; `None` for null and for values that cannot be an id. Source: docs/protocols/e2a.md §2.
    #[must_use]
    pub fn from_json(value: &Json) -> Option<Self> {
        match value {
            Json::String(text) => Some(Self::String(text.clone())),
            Json::Number(number) => Some(Self::Number(number.clone())),
            Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
        }
    }
}

/// By the digits of numbers, not by their value.
impl PartialEq for JsonRpcId {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => a.to_string() == b.to_string(),
            _ => false,
        }
    }
}

impl Eq for JsonRpcId {}

impl From<JsonRpcId> for Json {
    fn from(id: JsonRpcId) -> Self {
        match id {
            JsonRpcId::String(text) => Self::String(text),
            JsonRpcId::Number(number) => Self::Number(number),
        }
    }
}

records! {
    /// The origin of a message before its conversion to E2A. Source: docs/protocols/e2a.md §4.
    #[derive(Debug, Clone, PartialEq)]
    Provenance {
        /// `e2a`, `acp`, `a2a` or another value.
        source_protocol: Text = Text::from_static(SOURCE_PROTOCOL_E2A), by source_protocol;
        /// The name of the converter.
        converter: Option<Text>;
        /// When it was converted, RFC 3339.
        converted_at: Option<Text>;
        /// Additional details of the converter.
        details: Object;
    }
}

impl Provenance {
    /// The provenance of a message that is converted now.
    pub(super) fn converted(
        source_protocol: &'static str,
        details: Object,
        context: &E2aContext<'_>,
    ) -> Self {
        Self {
            source_protocol: Text::from_static(source_protocol),
            converter: Some(context.converter.clone()),
            converted_at: Some(context.now.clone()),
            details,
        }
    }

    /// Reads the member that old requests have instead of provenance.
    pub(super) fn migrate_binding(&mut self, binding: Option<&Json>) {
        const MIGRATED: &str = "migrated_from_binding";
        let Some(binding) = binding.filter(|binding| !binding.is_null()) else {
            return;
        };
        if self
            .details
            .get(MIGRATED)
            .is_some_and(|done| !done.is_null())
        {
            return;
        }
        let protocol = text_of(binding.get("value").unwrap_or(binding));
        let known = protocol == SOURCE_PROTOCOL_ACP || protocol == SOURCE_PROTOCOL_A2A;
        if known && self.source_protocol == SOURCE_PROTOCOL_E2A {
            self.source_protocol = protocol.clone();
        }
        self.details.insert(MIGRATED, protocol);
    }
}

/// Any value as text.
fn source_protocol(members: Members<'_>) -> Result<Text, E2aError> {
    let protocol = members.get("source_protocol").map(text_of);
    Ok(protocol.unwrap_or(Text::from_static(SOURCE_PROTOCOL_E2A)))
}

records! {
    /// Credentials, or references to them. `Debug` masks the secrets.
    /// Source: docs/protocols/e2a.md §2 and §9.
    #[derive(Clone, PartialEq)]
    Auth {
        /// The method of authentication.
        method_id: Option<Text>;
        /// A secret.
        bearer_token: Option<Text>;
        /// The name of a key stored elsewhere.
        api_key_ref: Option<Text>;
        /// The name of a credential stored elsewhere.
        credential_ref: Option<Text>;
        /// Headers by name; their values are secrets.
        extra_headers: Object;
        /// Other members, written as `_meta`.
        meta as "_meta": Object;
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&Text> = self.extra_headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Auth")
            .field("method_id", &self.method_id)
            .field("bearer_token", &self.bearer_token.as_ref().map(|_| "***"))
            .field("api_key_ref", &self.api_key_ref)
            .field("credential_ref", &self.credential_ref)
            .field("extra_headers", &headers)
            .field("meta", &self.meta)
            .finish()
    }
}

impl Members<'_> {
    pub(super) fn jsonrpc_id(self, name: &str) -> Result<Option<JsonRpcId>, E2aError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match JsonRpcId::from_json(value) {
                Some(id) => Ok(Some(id)),
                None => Err(self.error(E2aErrorKind::BadType, name)),
            },
        }
    }

    pub(super) fn identity_origin(self, name: &str) -> Result<Option<IdentityOrigin>, E2aError> {
        match self
            .string(name)?
            .map(|origin| IdentityOrigin::from_name(&origin))
        {
            Some(None) => Err(self.error(E2aErrorKind::BadValue, name)),
            origin => Ok(origin.flatten()),
        }
    }
}

values! {
    Option<JsonRpcId>: member, |members, name, _| members.jsonrpc_id(name);
    IdentityOrigin: always, |members, name, default| {
        Ok(members.identity_origin(name)?.unwrap_or(default))
    };
}

impl Member for Option<Auth> {
    fn read(members: Members<'_>, name: &str, _: Self) -> Result<Self, E2aError> {
        let object = members.optional_object(name)?;
        let auth = object
            .as_ref()
            .map(|auth| Auth::read_members(Members::nested(auth, "auth.")));
        auth.transpose()
    }

    fn write(&self, name: &'static str, writer: &mut Writer) {
        let auth = self.as_ref().map(|auth| auth.write_members(writer.form()));
        Member::write(&auth, name, writer);
    }
}

/// Anything other than an object reads as the default.
impl Member for Provenance {
    fn read(members: Members<'_>, name: &str, default: Self) -> Result<Self, E2aError> {
        match members.get(name).and_then(Json::as_object) {
            Some(object) => Self::read_members(Members::nested(object, "provenance.")),
            None => Ok(default),
        }
    }

    fn write(&self, name: &'static str, writer: &mut Writer) {
        writer.always(name, self.write_members(writer.form()));
    }
}
