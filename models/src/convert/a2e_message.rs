//! Conversions of A2E messages.

use std::borrow::Cow;

use super::conversion::{Conversion, ConvertContext, ConvertError};
use crate::a2e_message::{DecodeOptions, Message, Refusal, decode};
use crate::json::Json;

pub(super) const CONVERSIONS: &[Conversion] = &[
    Conversion {
        name: "a2e_message_decode",
        about: "a line (a string) or a message -> the message with its defaults; null for a blank line",
        run: read,
    },
    Conversion {
        name: "a2e_message_encode",
        about: "a line (a string) or a message -> its line; null for a blank line",
        run: write,
    },
];

fn read(input: &Json, context: &ConvertContext) -> Result<Json, ConvertError> {
    let message = message(input, context)?;
    Ok(message.map(|message| message.to_object()).into())
}

fn write(input: &Json, context: &ConvertContext) -> Result<Json, ConvertError> {
    let message = message(input, context)?;
    Ok(message.map(|message| message.to_string()).into())
}

/// The message, with a new id if it has none.
fn message(input: &Json, context: &ConvertContext) -> Result<Option<Message>, ConvertError> {
    let options = DecodeOptions::default();
    let message = match input {
        Json::String(line) => decode(&line.to_bytes(), &options)?,
        message => Some(Message::from_json(message.clone(), &options)?),
    };
    Ok(message.map(|mut message| {
        message.header.id.get_or_insert(context.new_id.clone());
        message
    }))
}

impl From<Refusal> for ConvertError {
    fn from(refusal: Refusal) -> Self {
        Self {
            kind: refusal.kind().as_str(),
            message: Cow::Owned(refusal.to_string()),
            field: refusal.field().clone(),
        }
    }
}
