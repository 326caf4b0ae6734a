//! Writes members, with every default or without empty ones.

use std::fmt::{self, Display, Write};

use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// How a message is written. Source: docs/protocols/e2a.md §2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Every member, with its default.
    Full,
    /// Without the members that are null, `{}`, `[]` or a false `is_stream`.
    Compact,
}

/// Writes the members of one object. Source: docs/protocols/e2a.md §2.
pub(super) struct Writer {
    form: Form,
    members: Object,
}

impl Writer {
    pub(super) fn new(form: Form) -> Self {
        Self {
            form,
            members: Object::new(),
        }
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Writes a member in both forms.
    pub(super) fn always(&mut self, name: &'static str, value: impl Into<Json>) {
        self.members.insert(Text::from_static(name), value);
    }

    /// Writes a member; the compact form leaves out null, `{}` and `[]`.
    pub(super) fn member(&mut self, name: &'static str, value: impl Into<Json>) {
        let value = value.into();
        if self.form == Form::Full || !is_empty(&value) {
            self.always(name, value);
        }
    }

    pub(super) fn finish(self) -> Object {
        self.members
    }
}

/// An object of these members.
pub(super) fn object<const N: usize>(members: [(&'static str, Json); N]) -> Object {
    members
        .into_iter()
        .map(|(name, value)| (Text::from_static(name), value))
        .collect()
}

/// A text block of a prompt.
pub(super) fn text_block(text: Text) -> Json {
    Json::object([("type", Json::from("text")), ("text", text.into())])
}

/// Whether it is null, `{}` or `[]`.
pub(super) fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Array(elements) => elements.is_empty(),
        Json::Object(object) => object.is_empty(),
        Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

/// The length of the JSON text, without allocating it.
pub(super) fn json_bytes(value: &impl Display) -> usize {
    let mut counter = Counter(0);
    // Counting cannot fail.
    let _ = write!(counter, "{value}");
    counter.0
}

struct Counter(usize);

impl Write for Counter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}
