//! The family of one JSON object: one pass notes the members that any family uses, then the ordered rules decide.
//!
//! The pass never stops at a member that is wrong for a family, because only the rules know the family: it notes the
//! position of the member. Rules use top-level members only, never text inside strings.
//!
//! Source: docs/protocols/detection.md §2.

mod e2a;
mod member;

use std::borrow::Cow;
use std::mem;

use crate::error::{DecodeError, DecodeErrorKind};
use crate::hint::Hint;
use crate::json::{Kind, Reader, Span, unescape};
use crate::protocol::Family;
use crate::text::Text;
pub(crate) use e2a::Shape;
pub use e2a::e2a_class;
pub(crate) use member::MemberPath;

/// The notes of one pass over an object.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    document: &'a str,
    /// The value that was read.
    pub(crate) span: Span,
    /// The position of each present member.
    spans: [Option<Span>; MemberPath::COUNT],
    /// One bit for each member that occurred again.
    repeated: u128,
    /// Whether anything has been read yet.
    used: bool,
}

/// The rule that decided the family, and the decisive member.
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

/// No rule of docs/protocols/detection.md §2: the binding's declaration decided. (Rule 9 there means that nothing
/// matched.)
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

impl<'a> Facts<'a> {
    #[inline]
    pub(crate) fn new(document: &'a str) -> Self {
        let nowhere = Span::NOWHERE;
        Self {
            document,
            span: nowhere,
            spans: [None; MemberPath::COUNT],
            repeated: 0,
            used: false,
        }
    }

    /// Reads the value at the reader's position, and forgets the one before. A value that is not an object has a span
    /// and no members.
    pub(crate) fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        if mem::replace(&mut self.used, true) {
            self.spans = [None; MemberPath::COUNT];
            self.repeated = 0;
        }
        self.span = if reader.kind()? == Kind::Object {
            let (spans, repeated) = (&mut self.spans, &mut self.repeated);
            reader.tree(MemberPath::Root, &mut |place, span| {
                if let Some(known) = spans.get_mut(place as usize)
                    && known.replace(span).is_some()
                {
                    *repeated |= place.bit();
                }
            })?
        } else {
            reader.value()?
        };
        Ok(())
    }

    /// The position of a member; the last one if it is repeated.
    #[inline]
    pub(crate) fn get(&self, place: MemberPath) -> Option<Span> {
        self.spans.get(place as usize).copied().flatten()
    }

    #[inline]
    pub(crate) fn has(&self, place: MemberPath) -> bool {
        self.get(place).is_some()
    }

    /// Like [`Facts::get`]; null counts as absent.
    pub(crate) fn set(&self, place: MemberPath) -> Option<Span> {
        self.get(place).filter(|span| span.kind() != Kind::Null)
    }

    pub(crate) fn is(&self, place: MemberPath, kind: Kind) -> bool {
        self.get(place).is_some_and(|span| span.kind() == kind)
    }

    /// The raw text between the quotes of a string member, and whether it contains escapes.
    #[inline]
    fn raw(&self, place: MemberPath) -> Option<(&'a str, bool)> {
        let span = self.get(place).filter(|span| span.kind() == Kind::String)?;
        let raw = self.document.get(span.inside_quotes())?;
        Some((raw, span.is_escaped()))
    }

    /// The text of a string member without escapes; the raw text if it cannot be UTF-8.
    #[inline]
    pub(crate) fn string(&self, place: MemberPath) -> Option<Cow<'a, str>> {
        match self.raw(place)? {
            (raw, false) => Some(Cow::Borrowed(raw)),
            (raw, true) => Some(unescaped(raw)),
        }
    }

    /// Whether the member is this string.
    #[inline]
    pub(crate) fn equals(&self, place: MemberPath, text: &str) -> bool {
        match self.raw(place) {
            Some((raw, false)) => raw == text,
            Some((raw, true)) => unescaped(raw) == text,
            None => false,
        }
    }

    /// Whether the member is a string that is not empty.
    fn is_word(&self, place: MemberPath) -> bool {
        self.raw(place).is_some_and(|(raw, _)| !raw.is_empty())
    }

    /// The text of a string member; `None` also if it cannot be UTF-8.
    pub(crate) fn text(&self, place: MemberPath) -> Option<Text> {
        match self.raw(place)? {
            (raw, false) => Some(Text::from(raw)),
            (raw, true) => unescape(raw.as_bytes()).map(Text::from),
        }
    }

    /// The exact JSON text of a member.
    pub(crate) fn token(&self, span: Span) -> &'a str {
        self.document.get(span.range()).unwrap_or_default()
    }

    /// The value of a Boolean member.
    pub(crate) fn flag(&self, place: MemberPath) -> Option<bool> {
        let span = self
            .get(place)
            .filter(|span| span.kind() == Kind::Boolean)?;
        Some(self.document.as_bytes().get(span.start()) == Some(&b't'))
    }

    /// Refuses the object if one of the members is repeated.
    #[inline]
    pub(crate) fn refuse_repeated(&self, places: &[MemberPath]) -> Result<(), DecodeError> {
        if self.repeated == 0 {
            return Ok(());
        }
        self.find_repeated(places)
    }

    #[cold]
    fn find_repeated(&self, places: &[MemberPath]) -> Result<(), DecodeError> {
        let twice = places.iter().find(|place| self.repeated & place.bit() != 0);
        twice.map_or(Ok(()), |place| {
            let offset = self.get(*place).map_or(0, Span::start);
            let message = format!("the member {:?} occurs twice", place.name());
            let error = DecodeError::new(DecodeErrorKind::DuplicateMember, offset, message);
            Err(error.at(place.pointer()))
        })
    }

    /// The family of the object; `None` when no rule matches.
    ///
    /// # Errors
    /// `UnsupportedVersion` if a member names an unsupported version.
    pub(crate) fn family(&self, hint: &Hint) -> Result<Option<Detection>, DecodeError> {
        let because = |family, rule, place: MemberPath| {
            let member = place.name();
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
            if required
                .into_iter()
                .all(|place| self.is(place, Kind::String))
            {
                return because(Family::CloudEvent, 1, MemberPath::Specversion);
            }
        }
        if self.has(MemberPath::Jsonrpc) {
            if !self.equals(MemberPath::Jsonrpc, "2.0") {
                let message = "jsonrpc must be the string \"2.0\"";
                return Err(self.unsupported(MemberPath::Jsonrpc, message));
            }
            return because(Family::JsonRpc, 2, MemberPath::Jsonrpc);
        }
        if self.equals(MemberPath::Protocol, "A2A") {
            return because(Family::Legacy, 3, MemberPath::Protocol);
        }
        let has_type = self.is_word(MemberPath::Type);
        if has_type && self.is(MemberPath::A2e, Kind::String) {
            return because(Family::A2eMessage, 4, MemberPath::A2e);
        }
        if let Some(place) = self.workflow_mark() {
            return because(Family::A2eWorkflow, 5, place);
        }
        if has_type && self.is_a2e_message_without_mark() {
            return because(Family::A2eMessage, 6, MemberPath::Ts);
        }
        if has_type && self.is_known_a2e_type() {
            return because(Family::A2eMessage, 7, MemberPath::Type);
        }
        if let Some((_, place)) = self.e2a(hint)? {
            return because(Family::E2a, 8, place);
        }
        // A binding that declares A2E messages also accepts those without their usual markers.
        if has_type && hint.family == Some(Family::A2eMessage) {
            return because(Family::A2eMessage, DECLARED, MemberPath::Type);
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
            .find(|place| self.is(*place, Kind::Object))
    }

    fn is_a2e_message_without_mark(&self) -> bool {
        self.is(MemberPath::Id, Kind::String)
            && self.is(MemberPath::Version, Kind::String)
            && self.is(MemberPath::Ts, Kind::Number)
    }

    fn is_known_a2e_type(&self) -> bool {
        let known = self
            .string(MemberPath::Type)
            .is_some_and(|ty| ty.contains('/') && crate::protocol::a2e_message::is_known(&ty));
        known && (self.is(MemberPath::Id, Kind::String) || self.is(MemberPath::ReqId, Kind::String))
    }

    pub(crate) fn unsupported(&self, place: MemberPath, message: &'static str) -> DecodeError {
        let offset = self.get(place).map_or(0, Span::start);
        DecodeError::new(DecodeErrorKind::UnsupportedVersion, offset, message).at(place.pointer())
    }
}

#[cold]
fn unescaped(raw: &str) -> Cow<'_, str> {
    unescape(raw.as_bytes()).map_or(Cow::Borrowed(raw), Cow::Owned)
}
