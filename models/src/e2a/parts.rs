//! The small types that requests and records share.

use std::fmt;

use crate::e2a::error::{E2aError, E2aErrorKind};
use crate::e2a::read::{Members, text_of};
use crate::e2a::write::{Form, Writer};
use crate::e2a::{SOURCE_PROTOCOL_A2A, SOURCE_PROTOCOL_ACP, SOURCE_PROTOCOL_E2A};
use crate::json::{Json, Number, Object};
use a2abus_plugin::Text;

/// What a message needs that only its maker knows. Source: docs/protocols/e2a.md §8.
#[derive(Debug, Clone, Copy)]
pub struct E2aContext<'a> {
    /// The time now, RFC 3339 in UTC.
    pub now: &'a Text,
    /// The name of the converter.
    pub converter: &'a Text,
    /// A new id, unique, where one is needed.
    pub new_id: &'a Text,
}

/// Whether a message comes over a binding whose peers are trusted.
/// Source: docs/protocols/e2a.md §S1 and §S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// From anybody: internal marks are not believed.
    Untrusted,
    /// From a gateway or an agent server of one's own.
    Trusted,
}

/// Who a message is from, by kind. Source: docs/protocols/e2a.md §1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdentityOrigin {
    /// The system itself.
    System,
    /// A person.
    User,
    /// An agent.
    Agent,
    /// A service.
    Service,
}

impl IdentityOrigin {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Agent => "agent",
            Self::Service => "service",
        }
    }

    /// The origin a word names, in lower case.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::System, Self::User, Self::Agent, Self::Service]
            .into_iter()
            .find(|origin| origin.as_str() == word)
    }
}

impl From<IdentityOrigin> for Json {
    fn from(origin: IdentityOrigin) -> Self {
        Self::String(Text::from_static(origin.as_str()))
    }
}

/// A JSON-RPC id that is not null: `1`, `"1"` and `1.0` are three.
/// Source: docs/protocols/e2a.md §2.
#[derive(Debug, Clone)]
pub enum JsonRpcId {
    /// A string.
    String(Text),
    /// A number, by its digits.
    Number(Number),
}

impl JsonRpcId {
    /// The id a JSON value is; `None` for null and for what cannot be one.
    /// Source: docs/protocols/e2a.md §2.
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

/// Where a message was before it became E2A. Source: docs/protocols/e2a.md §4.
#[derive(Debug, Clone, PartialEq)]
pub struct Provenance {
    /// `e2a`, `acp`, `a2a` or another word.
    pub source_protocol: Text,
    /// The name of what converted it.
    pub converter: Option<Text>,
    /// When it was converted, RFC 3339.
    pub converted_at: Option<Text>,
    /// What the converter knew.
    pub details: Object,
}

impl Default for Provenance {
    fn default() -> Self {
        Self {
            source_protocol: Text::from_static(SOURCE_PROTOCOL_E2A),
            converter: None,
            converted_at: None,
            details: Object::new(),
        }
    }
}

impl Provenance {
    /// The provenance of what is converted now.
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

    /// Null, absent and what is not an object read as the default.
    pub(super) fn parse(value: Option<&Json>) -> Result<Self, E2aError> {
        let Some(object) = value.and_then(Json::as_object) else {
            return Ok(Self::default());
        };
        let members = Members::nested(object, "provenance.");
        Ok(Self {
            source_protocol: members
                .get("source_protocol")
                .map_or(Text::from_static(SOURCE_PROTOCOL_E2A), text_of),
            converter: members.text("converter")?,
            converted_at: members.text("converted_at")?,
            details: members.free_object("details")?,
        })
    }

    /// Takes over the member that stood for provenance in old requests.
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
        let word = text_of(binding.get("value").unwrap_or(binding));
        let known = word == SOURCE_PROTOCOL_ACP || word == SOURCE_PROTOCOL_A2A;
        if known && self.source_protocol == SOURCE_PROTOCOL_E2A {
            self.source_protocol = word.clone();
        }
        self.details.insert(MIGRATED, word);
    }

    pub(super) fn write(&self, form: Form) -> Object {
        let mut writer = Writer::new(form);
        writer.always("source_protocol", self.source_protocol.clone());
        writer.member("converter", self.converter.clone());
        writer.member("converted_at", self.converted_at.clone());
        writer.member("details", self.details.clone());
        writer.finish()
    }
}

/// Credentials, or references to them. `Debug` masks the secrets.
/// Source: docs/protocols/e2a.md §2 and §9.
#[derive(Clone, Default, PartialEq)]
pub struct Auth {
    /// The method of authentication.
    pub method_id: Option<Text>,
    /// A secret.
    pub bearer_token: Option<Text>,
    /// The name of a key held elsewhere.
    pub api_key_ref: Option<Text>,
    /// The name of a credential held elsewhere.
    pub credential_ref: Option<Text>,
    /// Headers by name; their values are secrets.
    pub extra_headers: Object,
    /// Anything else, written as `_meta`.
    pub meta: Object,
}

impl Auth {
    pub(super) fn parse(object: &Object) -> Result<Self, E2aError> {
        let members = Members::nested(object, "auth.");
        Ok(Self {
            method_id: members.text("method_id")?,
            bearer_token: members.text("bearer_token")?,
            api_key_ref: members.text("api_key_ref")?,
            credential_ref: members.text("credential_ref")?,
            extra_headers: members.free_object("extra_headers")?,
            meta: members.free_object("_meta")?,
        })
    }

    pub(super) fn write(&self, form: Form) -> Object {
        let mut writer = Writer::new(form);
        writer.member("method_id", self.method_id.clone());
        writer.member("bearer_token", self.bearer_token.clone());
        writer.member("api_key_ref", self.api_key_ref.clone());
        writer.member("credential_ref", self.credential_ref.clone());
        writer.member("extra_headers", self.extra_headers.clone());
        writer.member("_meta", self.meta.clone());
        writer.finish()
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

/// The recommended shape of the elements of `params.files` and `params.attachments`. Parsing a
/// request does not demand it. Source: docs/protocols/e2a.md §2.
#[derive(Debug, Clone, PartialEq)]
pub struct FileRef {
    /// Where the file is.
    pub uri: Text,
    /// Its name.
    pub name: Option<Text>,
    /// Its media type.
    pub mime_type: Option<Text>,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Anything else, written as `_meta`.
    pub meta: Object,
}

impl FileRef {
    /// Reads one element.
    ///
    /// # Errors
    /// `not_an_object`; `bad_type` with the member, `uri` when it is missing; `out_of_range` for a
    /// size that is no count of bytes.
    ///
    /// Source: docs/protocols/e2a.md §2.
    pub fn parse(value: &Json) -> Result<Self, E2aError> {
        let object = value.as_object().ok_or(E2aErrorKind::NotAnObject)?;
        let members = Members::nested(object, "");
        let size = match members.get("size") {
            None => None,
            Some(Json::Number(size)) => Some(
                size.as_u64()
                    .ok_or_else(|| members.error(E2aErrorKind::OutOfRange, "size"))?,
            ),
            Some(_) => return Err(members.error(E2aErrorKind::BadType, "size")),
        };
        Ok(Self {
            uri: members
                .string("uri")?
                .ok_or_else(|| members.error(E2aErrorKind::BadType, "uri"))?,
            name: members.text("name")?,
            mime_type: members.text("mime_type")?,
            size,
            meta: members.free_object("_meta")?,
        })
    }

    /// Writes it.
    #[must_use]
    pub fn to_object(&self, form: Form) -> Object {
        let mut writer = Writer::new(form);
        writer.always("uri", self.uri.clone());
        writer.member("name", self.name.clone());
        writer.member("mime_type", self.mime_type.clone());
        writer.member("size", self.size);
        writer.member("_meta", self.meta.clone());
        writer.finish()
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

    pub(super) fn identity_origin(
        self,
        default: IdentityOrigin,
    ) -> Result<IdentityOrigin, E2aError> {
        match self.string("identity_origin")? {
            None => Ok(default),
            Some(word) => IdentityOrigin::from_word(&word)
                .ok_or_else(|| self.error(E2aErrorKind::BadValue, "identity_origin")),
        }
    }
}
