//! Detects the family of a JSON object: one pass records the members that any family uses, then ordered rules decide.
//!
//! The pass records the position of each member, and never stops at one that is invalid for a family, because only the
//! rules know the family. Rules use top-level members only, never text inside strings.
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

/// The members found in one pass over an object.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    document: &'a str,
    /// The value itself.
    pub(crate) span: Span,
    /// The position of each present member.
    spans: [Option<Span>; MemberPath::COUNT],
    /// One bit for each repeated member.
    repeated: u128,
    /// Whether anything has been read yet.
    used: bool,
}

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

    /// Reads the value at the reader's position, and discards the previous one. A value that is not an object has a
    /// span, but no members.
    pub(crate) fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        if mem::replace(&mut self.used, true) {
            self.spans = [None; MemberPath::COUNT];
            self.repeated = 0;
        }
        self.span = if reader.kind()? == Kind::Object {
            let (spans, repeated) = (&mut self.spans, &mut self.repeated);
            reader.tree(MemberPath::Root, &mut |path, span| {
                if let Some(known) = spans.get_mut(path as usize)
                    && known.replace(span).is_some()
                {
                    *repeated |= path.bit();
                }
            })?
        } else {
            reader.value()?
        };
        Ok(())
    }

    /// The position of a member; the last one if it is repeated.
    #[inline]
    pub(crate) fn get(&self, path: MemberPath) -> Option<Span> {
        self.spans.get(path as usize).copied().flatten()
    }

    #[inline]
    pub(crate) fn has(&self, path: MemberPath) -> bool {
        self.get(path).is_some()
    }

    /// Like [`Facts::get`]; null counts as absent.
    pub(crate) fn non_null(&self, path: MemberPath) -> Option<Span> {
        self.get(path).filter(|span| span.kind() != Kind::Null)
    }

    pub(crate) fn is(&self, path: MemberPath, kind: Kind) -> bool {
        self.get(path).is_some_and(|span| span.kind() == kind)
    }

    /// The raw text between the quotes of a string member, and whether it contains escapes.
    #[inline]
    fn raw(&self, path: MemberPath) -> Option<(&'a str, bool)> {
        let span = self.get(path).filter(|span| span.kind() == Kind::String)?;
        let raw = self.document.get(span.inside_quotes())?;
        Some((raw, span.is_escaped()))
    }

    /// The unescaped text of a string member; the raw text if it has no UTF-8 form.
    #[inline]
    pub(crate) fn string(&self, path: MemberPath) -> Option<Cow<'a, str>> {
        match self.raw(path)? {
            (raw, false) => Some(Cow::Borrowed(raw)),
            (raw, true) => Some(unescaped(raw)),
        }
    }

    /// Whether the member is this string.
    #[inline]
    pub(crate) fn equals(&self, path: MemberPath, text: &str) -> bool {
        match self.raw(path) {
            Some((raw, false)) => raw == text,
            Some((raw, true)) => unescaped(raw) == text,
            None => false,
        }
    }

    /// Whether the member is a string that is not empty.
    fn is_non_empty_string(&self, path: MemberPath) -> bool {
        self.raw(path).is_some_and(|(raw, _)| !raw.is_empty())
    }

    /// The text of a string member; `None` also if it has no UTF-8 form.
    pub(crate) fn text(&self, path: MemberPath) -> Option<Text> {
        match self.raw(path)? {
            (raw, false) => Some(Text::from(raw)),
            (raw, true) => unescape(raw.as_bytes()).map(Text::from),
        }
    }

    /// The exact JSON text at a position.
    pub(crate) fn token(&self, span: Span) -> &'a str {
        self.document.get(span.range()).unwrap_or_default()
    }

    /// The value of a Boolean member.
    pub(crate) fn flag(&self, path: MemberPath) -> Option<bool> {
        let span = self.get(path).filter(|span| span.kind() == Kind::Boolean)?;
        Some(self.document.as_bytes().get(span.start()) == Some(&b't'))
    }

    /// Refuses the object if one of the members is repeated.
    #[inline]
    pub(crate) fn refuse_repeated(&self, paths: &[MemberPath]) -> Result<(), DecodeError> {
        if self.repeated == 0 {
            return Ok(());
        }
        self.find_repeated(paths)
    }

    #[cold]
    fn find_repeated(&self, paths: &[MemberPath]) -> Result<(), DecodeError> {
        let twice = paths.iter().find(|path| self.repeated & path.bit() != 0);
        twice.map_or(Ok(()), |path| {
            let offset = self.get(*path).map_or(0, Span::start);
            let message = format!("the member {:?} occurs twice", path.name());
            let error = DecodeError::new(DecodeErrorKind::DuplicateMember, offset, message);
            Err(error.at(path.pointer()))
        })
    }

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
        if has_type && self.is_known_a2e_type() {
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

    pub(crate) fn unsupported(&self, path: MemberPath, message: &'static str) -> DecodeError {
        let offset = self.get(path).map_or(0, Span::start);
        DecodeError::new(DecodeErrorKind::UnsupportedVersion, offset, message).at(path.pointer())
    }
}

#[cold]
fn unescaped(raw: &str) -> Cow<'_, str> {
    unescape(raw.as_bytes()).map_or(Cow::Borrowed(raw), Cow::Owned)
}
