//! The members found in one pass over an object.

use std::borrow::Cow;
use std::mem;

use super::member::MemberPath;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::json::{Kind, Reader, Span, unescape};
use crate::text::Text;

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
    pub(super) fn is_non_empty_string(&self, path: MemberPath) -> bool {
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

    pub(crate) fn unsupported(&self, path: MemberPath, message: &'static str) -> DecodeError {
        let offset = self.get(path).map_or(0, Span::start);
        DecodeError::new(DecodeErrorKind::UnsupportedVersion, offset, message).at(path.pointer())
    }
}

#[cold]
fn unescaped(raw: &str) -> Cow<'_, str> {
    unescape(raw.as_bytes()).map_or(Cow::Borrowed(raw), Cow::Owned)
}
