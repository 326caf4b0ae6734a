//! Detects the family of a JSON object: one pass records the members that any family uses, then ordered rules decide.
//!
//! The pass records the position of each member, and never stops at one that is invalid for a family, because only the
//! rules know the family. Rules use top-level members only, never text inside strings.
//!
//! Source: docs/protocols/detection.md §2.

mod e2a;
mod facts;
mod member;

use crate::error::DecodeError;
use crate::hint::Hint;
use crate::json::Kind;
use crate::protocol::Family;
pub(crate) use e2a::Shape;
pub use e2a::{e2a_class, is_e2a_version_1};
pub(crate) use facts::Facts;
pub(crate) use member::MemberPath;

/// The detected family, with the rule and the member that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detection {
    /// The family.
    pub family: Family,
    /// The rule of docs/protocols/detection.md §2, or 10 if the binding declares the family and no rule matched.
    pub rule: u8,
    /// The top-level member that decided.
    pub member: &'static str,
}

/// The family was declared by the binding, because no rule of docs/protocols/detection.md §2 matched. (Rule 9 there
/// means that nothing matched.)
const DECLARED: u8 = 10;

// === impl Detection ===

impl Detection {
    /// A CloudEvent, detected by rule 1.
    pub(crate) const EVENT: Self = Self {
        family: Family::CloudEvent,
        rule: 1,
        member: "specversion",
    };
}

// === impl Facts ===

impl Facts<'_> {
    /// The family of the object; `None` when no rule matches.
    ///
    /// # Errors
    /// `UnsupportedVersion` if a member names an unsupported version.
    pub(crate) fn family(&self, hint: &Hint) -> Result<Option<Detection>, DecodeError> {
        let detection = |family, rule, path: MemberPath| {
            let member = path.name();
            Ok(Some(Detection {
                family,
                rule,
                member,
            }))
        };
        if self.has(MemberPath::Specversion) {
            if !self.equals(MemberPath::Specversion, crate::event::SPEC_VERSION) {
                let message = "only specversion \"1.0\" is supported";
                return Err(self.unsupported(MemberPath::Specversion, message));
            }
            let required = [MemberPath::Id, MemberPath::Source, MemberPath::Type];
            if required.into_iter().all(|path| self.is(path, Kind::String)) {
                return detection(Family::CloudEvent, 1, MemberPath::Specversion);
            }
        }
        if self.has(MemberPath::Jsonrpc) {
            if !self.equals(MemberPath::Jsonrpc, "2.0") {
                let message = "jsonrpc must be the string \"2.0\"";
                return Err(self.unsupported(MemberPath::Jsonrpc, message));
            }
            return detection(Family::JsonRpc, 2, MemberPath::Jsonrpc);
        }
        if self.equals(MemberPath::Protocol, "A2A") {
            return detection(Family::Legacy, 3, MemberPath::Protocol);
        }
        let has_type = self.is_non_empty_string(MemberPath::Type);
        if has_type && self.is(MemberPath::A2e, Kind::String) {
            return detection(Family::A2eMessage, 4, MemberPath::A2e);
        }
        if let Some(path) = self.workflow_mark() {
            return detection(Family::A2eWorkflow, 5, path);
        }
        if has_type && self.is_a2e_message_without_mark() {
            return detection(Family::A2eMessage, 6, MemberPath::Ts);
        }
        let has_id = [MemberPath::Id, MemberPath::ReqId]
            .into_iter()
            .any(|path| self.is(path, Kind::String));
        if has_type && has_id && self.is_known_a2e_type() {
            return detection(Family::A2eMessage, 7, MemberPath::Type);
        }
        if let Some((_, path)) = self.e2a(hint)? {
            return detection(Family::E2a, 8, path);
        }
        // A binding that declares A2E messages also accepts those without their usual markers.
        if has_type && hint.family == Some(Family::A2eMessage) {
            return detection(Family::A2eMessage, DECLARED, MemberPath::Type);
        }
        Ok(None)
    }

    fn workflow_mark(&self) -> Option<MemberPath> {
        if self.has(MemberPath::Type) {
            let typed = ["operationUpdate", "beginExecution"];
            let is_line = typed
                .into_iter()
                .any(|word| self.equals(MemberPath::Type, word));
            return is_line.then_some(MemberPath::Type);
        }
        [MemberPath::OperationUpdate, MemberPath::BeginExecution]
            .into_iter()
            .find(|path| self.is(*path, Kind::Object))
    }

    /// Whether an object of no family would be an A2E message if it had a string `id`.
    #[cold]
    pub(crate) fn is_a2e_message_without_id(&self) -> bool {
        self.is_non_empty_string(MemberPath::Type)
            && !self.is(MemberPath::Id, Kind::String)
            && (self.has_a2e_version_and_time() || self.is_known_a2e_type())
    }

    fn is_a2e_message_without_mark(&self) -> bool {
        self.is(MemberPath::Id, Kind::String) && self.has_a2e_version_and_time()
    }

    fn has_a2e_version_and_time(&self) -> bool {
        self.is(MemberPath::Version, Kind::String) && self.is(MemberPath::Ts, Kind::Number)
    }

    fn is_known_a2e_type(&self) -> bool {
        self.string(MemberPath::Type)
            .is_some_and(|ty| ty.contains('/') && crate::protocol::a2e_message::is_known(&ty))
    }
}
