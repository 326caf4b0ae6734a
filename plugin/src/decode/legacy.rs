//! Decodes legacy A2A from its facts. Source: docs/protocols/eventmesh-a2a.md §2.

use super::parser::Parser;
use crate::detect::MemberPath;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::extension;
use crate::protocol::legacy::kind_of;
use crate::protocol::{Draft, event_type};
use crate::text::Text;

/// The members that must not occur twice: those that affect detection or routing.
/// Source: docs/protocols/eventmesh-a2a.md §D10.
const MEMBERS: [MemberPath; 5] = [
    MemberPath::Protocol,
    MemberPath::MessageType,
    MemberPath::SourceAgent,
    MemberPath::TargetAgent,
    MemberPath::Metadata,
];

impl Parser<'_> {
    pub(super) fn legacy(&self) -> Result<Draft, DecodeError> {
        self.facts.refuse_repeated(&MEMBERS)?;
        let message_type = self.method(MemberPath::MessageType)?;
        let source = self.legacy_id(MemberPath::SourceAgentAgentId)?;
        let target = self.target(MemberPath::TargetAgentAgentId)?;
        let correlation = self.legacy_id(MemberPath::MetadataCorrelationId)?;
        let kind = kind_of(message_type.as_deref(), correlation.is_some());
        let act = Text::from(message_type.as_deref().unwrap_or("unknown").to_lowercase());
        let mut draft = Draft::new(kind, event_type("legacy.", &act, ""));
        let as_written = message_type.unwrap_or(Text::from_static("UNKNOWN"));
        draft.put(extension::MESSAGE_TYPE, as_written);
        draft.put(extension::A2A_METHOD, act);
        draft.put_if(extension::SOURCE_AGENT, source);
        draft.put_if(extension::TARGET_AGENT, target);
        draft.put_if(extension::COLLABORATION_ID, correlation);
        Ok(draft.of_protocol("A2A", None))
    }

    /// An id that does not route. As in the other families, an empty one counts as absent.
    fn legacy_id(&self, path: MemberPath) -> Result<Option<Text>, DecodeError> {
        if self.facts.equals(path, "") {
            return self.facts.refuse_repeated(&[path]).map(|()| None);
        }
        self.scalar(path, DecodeErrorKind::BadMember)
    }
}
