//! The conversions of the typed models by name, from JSON to JSON, for `a2abus convert` and for bindings to other
//! languages.

mod a2e_message;
mod a2e_workflow;
mod conversion;
mod e2a;

use bytes::Bytes;

use crate::json::{Json, without_byte_order_mark};
use a2abus_plugin::Limits;
use a2abus_plugin::Text;

pub use conversion::{Conversion, ConvertContext, ConvertError};

/// The conversions whose input wraps a message, and the member that contains it.
const WRAPPERS: [(&str, &str); 5] = [
    ("envelope_from_jsonrpc_request", "request"),
    ("encode_agent_response_for_wire", "response"),
    ("encode_failure_agent_response", "response"),
    ("encode_agent_chunk_for_wire", "chunk"),
    ("encode_failure_agent_chunk", "chunk"),
];

// === impl Conversion ===

impl Conversion {
    /// All conversions, in the order of the families.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        let families = [
            e2a::CONVERSIONS,
            a2e_message::CONVERSIONS,
            a2e_workflow::CONVERSIONS,
        ];
        families.into_iter().flatten()
    }

    /// The conversion of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::all().find(|conversion| conversion.name == name)
    }

    /// Runs it on a parsed document. For A2E conversions the document may be lines, which need not be JSON.
    ///
    /// # Errors
    /// As for [`Conversion::run`], and the fault of a document that is not JSON.
    pub fn run_on(
        &self,
        document: &[u8],
        limits: &Limits,
        context: &ConvertContext,
    ) -> Result<Json, ConvertError> {
        let document = without_byte_order_mark(document);
        let input = match Json::parse(document, limits) {
            Ok(input) => input,
            Err(error) => match Text::from_utf8(document) {
                Some(lines) if self.takes_lines() => Json::String(lines),
                _ => return Err(error.into()),
            },
        };
        self.run(&input, context)
    }

    /// Runs it on a message in transit, bytes to bytes. A conversion whose input wraps a message, such as
    /// `{request, channel?}`, gets `{"request": MESSAGE}`. If the result is the text of a message, as
    /// with `a2e_message_encode`, that text is returned. `None` if the message has no counterpart.
    ///
    /// # Errors
    /// As [`Conversion::run_on`].
    pub fn run_on_message(
        &self,
        message: &[u8],
        limits: &Limits,
        context: &ConvertContext,
    ) -> Result<Option<Bytes>, ConvertError> {
        let wrapper = WRAPPERS.iter().find(|(name, _)| *name == self.name);
        let converted = match wrapper {
            None => self.run_on(message, limits, context)?,
            Some((_, member)) => {
                let message = Json::parse(without_byte_order_mark(message), limits)?;
                self.run(&Json::object([(*member, message)]), context)?
            }
        };
        Ok(match converted {
            Json::Null => None,
            Json::String(text) if text.starts_with('{') => Some(text.to_bytes()),
            json => Some(Bytes::from(json.to_string())),
        })
    }

    fn takes_lines(&self) -> bool {
        let families = [a2e_message::CONVERSIONS, a2e_workflow::CONVERSIONS];
        families
            .into_iter()
            .flatten()
            .any(|other| other.name == self.name)
    }
}
