//! Legacy A2A by its facts. Source: docs/protocols/eventmesh-a2a.md §2.

use super::parser::Parser;
use crate::detect::Place;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::extension;
use crate::protocol::legacy::kind_of;
use crate::protocol::{Message, Type};
use crate::text::Text;

/// The members that must not occur twice: those that decide or route.
/// Source: docs/protocols/eventmesh-a2a.md §D10.
const MEMBERS: [Place; 5] = [
    Place::Protocol,
    Place::MessageType,
    Place::SourceAgent,
    Place::TargetAgent,
    Place::Metadata,
];

impl Parser<'_> {
    pub(super) fn legacy(&self) -> Result<Message, DecodeError> {
        self.facts.refuse_repeated(&MEMBERS)?;
        let message_type = self.method(Place::MessageType)?;
        let source = self.scalar(Place::SourceAgentAgentId, DecodeErrorKind::BadMember)?;
        let target = self.target(Place::TargetAgentAgentId)?;
        let correlation = self.scalar(Place::MetadataCorrelationId, DecodeErrorKind::BadMember)?;
        let kind = kind_of(message_type.as_deref(), correlation.is_some());
        let act = Text::from(message_type.as_deref().unwrap_or("unknown").to_lowercase());
        let ty = Type::Named {
            category: "legacy.",
            name: act.clone(),
            suffix: "",
        };
        let mut message = Message::new(kind, ty, "A2A");
        let as_written = message_type.unwrap_or(Text::from_static("UNKNOWN"));
        message.put(extension::MESSAGE_TYPE, as_written);
        message.put(extension::A2A_METHOD, act);
        message.put_if(extension::SOURCE_AGENT, source);
        message.put_if(extension::TARGET_AGENT, target);
        message.put_if(extension::COLLABORATION_ID, correlation);
        Ok(message)
    }
}
