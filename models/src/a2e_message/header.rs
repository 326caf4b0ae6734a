//! The keys that every message has. Source: docs/protocols/a2e-messages.md §1.2.

use super::record::Content;
use super::shape::Shape;
use super::value::{Float, Problem, Value, Violation};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// The supported version, which is also the default for messages without one.
pub const VERSION: Text = Text::from_static("1.0");

/// The base keys of a message, besides its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The id. Answers to a request name it as `req_id`. `None` if it is absent or empty.
    pub id: Option<Text>,
    /// The protocol version, from either key.
    pub version: Text,
    /// The keys that contain the version.
    pub version_keys: VersionKeys,
    /// The creation time, in seconds since 1970; `None` if the message has none.
    pub ts: Option<Float>,
}

/// The keys that contain the version. The SDK reads and writes one; its documents specify the
/// other. Source: docs/protocols/a2e-messages.md §1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionKeys {
    /// `version` alone, as the SDK writes it.
    Version,
    /// `version` and `a2e`, which every peer reads.
    Both,
}

/// A whole message inside another message.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedded<T> {
    /// Its base keys.
    pub header: Header,
    /// Its other members.
    pub content: T,
}

/// A decomposed object.
pub(super) struct Parts {
    pub(super) type_name: Option<Text>,
    pub(super) id: Option<Text>,
    pub(super) version: Option<Text>,
    pub(super) a2e: Option<Text>,
    pub(super) ts: Option<Float>,
    pub(super) members: Object,
}

// === impl Header ===

impl Header {
    /// The base keys of a new message, with both version keys.
    #[must_use]
    pub fn new(id: impl Into<Text>, ts: Option<Float>) -> Self {
        Self {
            id: Some(id.into()),
            version: VERSION,
            version_keys: VersionKeys::Both,
            ts,
        }
    }

    /// A message of this type and these members: `type`, `id`, `version`, `ts`, then the members.
    pub(super) fn join(&self, type_name: &str, members: &Object) -> Object {
        let mut object = Object::new();
        object.insert("type", type_name);
        if let Some(id) = &self.id {
            object.insert("id", id.clone());
        }
        object.insert("version", self.version.clone());
        if self.version_keys == VersionKeys::Both {
            object.insert("a2e", self.version.clone());
        }
        if let Some(ts) = self.ts.as_ref().and_then(Value::write) {
            object.insert("ts", ts);
        }
        object.extend(members);
        object
    }
}

// === impl Parts ===

impl Parts {
    /// Removes the base keys from an object, and lists the invalid ones.
    pub(super) fn of(mut members: Object) -> (Self, Vec<Violation>) {
        let mut wrong = Vec::new();
        let parts = Self {
            type_name: base_key(&mut members, "type", &mut wrong),
            id: base_key(&mut members, "id", &mut wrong).filter(|id: &Text| !id.is_empty()),
            version: base_key(&mut members, "version", &mut wrong),
            a2e: base_key(&mut members, "a2e", &mut wrong),
            ts: base_key(&mut members, "ts", &mut wrong),
            members,
        };
        (parts, wrong)
    }

    /// The header and the members, once the type is known.
    pub(super) fn into_header(self) -> (Header, Object) {
        let version_keys = match self.a2e {
            Some(_) => VersionKeys::Both,
            None => VersionKeys::Version,
        };
        let header = Header {
            id: self.id,
            version: self.version.or(self.a2e).unwrap_or(VERSION),
            version_keys,
            ts: self.ts,
        };
        (header, self.members)
    }
}

fn base_key<T: Value>(members: &mut Object, name: &str, wrong: &mut Vec<Violation>) -> Option<T> {
    let read = T::read(members.remove(name)?);
    read.map_err(|violations| wrong.extend(Violation::inside(violations, name)))
        .ok()
}

// === impl Embedded ===

impl<T: Content> Value for Embedded<T> {
    const SHAPE: Shape = Shape::Message(T::TYPE, T::members);

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        let (parts, mut wrong) = Parts::of(Object::read(value)?);
        if parts.type_name.as_ref().is_some_and(|name| name != T::TYPE) {
            let problem = Problem::Wrong("the type of this message");
            wrong.push(Violation::new("type", problem));
        }
        let (header, members) = parts.into_header();
        match T::from_object(members) {
            Ok(content) if wrong.is_empty() => Ok(Self { header, content }),
            read => {
                wrong.extend(read.err().unwrap_or_default());
                Err(wrong)
            }
        }
    }

    fn write(&self) -> Option<Json> {
        let object = self.header.join(T::TYPE, &self.content.to_object());
        Some(object.into())
    }
}
