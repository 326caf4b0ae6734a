//! Legacy A2A: messages marked `"protocol":"A2A"` that carry a FIPA act.

use crate::protocol::Kind;

/// A FIPA communicative act. Source: docs/protocols/eventmesh-a2a.md §2, FIPA ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are FIPA's own.
pub enum Act {
    AcceptProposal,
    Agree,
    Cancel,
    Cfp,
    Confirm,
    Disconfirm,
    Failure,
    Inform,
    InformIf,
    InformRef,
    NotUnderstood,
    Propose,
    QueryIf,
    QueryRef,
    Refuse,
    RejectProposal,
    Request,
    RequestWhen,
    RequestWhenever,
    Subscribe,
    Proxy,
    Propagate,
}

/// The acts by their names in upper case with underscores.
const ACTS: [(&str, Act); 22] = [
    ("ACCEPT_PROPOSAL", Act::AcceptProposal),
    ("AGREE", Act::Agree),
    ("CANCEL", Act::Cancel),
    ("CFP", Act::Cfp),
    ("CONFIRM", Act::Confirm),
    ("DISCONFIRM", Act::Disconfirm),
    ("FAILURE", Act::Failure),
    ("INFORM", Act::Inform),
    ("INFORM_IF", Act::InformIf),
    ("INFORM_REF", Act::InformRef),
    ("NOT_UNDERSTOOD", Act::NotUnderstood),
    ("PROPOSE", Act::Propose),
    ("QUERY_IF", Act::QueryIf),
    ("QUERY_REF", Act::QueryRef),
    ("REFUSE", Act::Refuse),
    ("REJECT_PROPOSAL", Act::RejectProposal),
    ("REQUEST", Act::Request),
    ("REQUEST_WHEN", Act::RequestWhen),
    ("REQUEST_WHENEVER", Act::RequestWhenever),
    ("SUBSCRIBE", Act::Subscribe),
    ("PROXY", Act::Proxy),
    ("PROPAGATE", Act::Propagate),
];

// === impl Act ===

impl Act {
    /// The act of a message type, in any case, with hyphens or underscores.
    #[must_use]
    pub fn from_message_type(text: &str) -> Option<Self> {
        let same = |name: &str| {
            name.len() == text.len()
                && name
                    .bytes()
                    .zip(text.bytes())
                    .all(|(a, b)| a == b.to_ascii_uppercase() || (a == b'_' && b == b'-'))
        };
        ACTS.into_iter()
            .find(|(name, _)| same(name))
            .map(|(_, act)| act)
    }

    /// Whether the act is a request.
    #[must_use]
    pub fn is_request(self) -> bool {
        match self {
            Self::Request
            | Self::RequestWhen
            | Self::RequestWhenever
            | Self::QueryIf
            | Self::QueryRef
            | Self::Cfp
            | Self::Subscribe
            | Self::Proxy
            | Self::Propagate
            | Self::Propose
            | Self::Cancel => true,
            Self::AcceptProposal
            | Self::Agree
            | Self::Confirm
            | Self::Disconfirm
            | Self::Failure
            | Self::Inform
            | Self::InformIf
            | Self::InformRef
            | Self::NotUnderstood
            | Self::Refuse
            | Self::RejectProposal => false,
        }
    }
}

/// The role of a message in its exchange, from its type and whether it refers to another message. An unknown act is a
/// notification.
#[must_use]
pub fn kind_of(message_type: Option<&str>, correlated: bool) -> Kind {
    match message_type.and_then(Act::from_message_type) {
        Some(act) if act.is_request() => Kind::Request,
        Some(_) if correlated => Kind::Response,
        Some(_) | None => Kind::Notification,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_are_known_in_any_case_and_with_hyphens() {
        assert_eq!(
            Act::from_message_type("Accept-Proposal"),
            Some(Act::AcceptProposal)
        );
        assert_eq!(Act::from_message_type("cfp"), Some(Act::Cfp));
        assert_eq!(Act::from_message_type("DANCE"), None);
        assert_eq!(
            ACTS.into_iter().filter(|(_, act)| act.is_request()).count(),
            11
        );
    }
}
