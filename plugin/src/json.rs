//! A JSON reader: one pass, the full grammar, no tree, no recursion, no allocation.
//!
//! The caller visits the members it knows and skips the others. Everything is validated, including skipped values. The
//! reader accepts exactly RFC 8259 (any number, lone surrogate escapes included), within [`Limits`]. The bytes must be
//! UTF-8.

pub(crate) mod scan;

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::ops::Range;

use crate::error::{DecodeError, DecodeErrorKind};
use crate::limits::{DEPTH_CEILING, Limits, MAX_DOCUMENT_BYTES};

/// The type of a JSON value, which its first byte determines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `null`.
    Null = 1,
    /// `true` or `false`.
    Boolean,
    /// A number.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl Kind {
    /// The type of the value that starts with this byte.
    #[inline]
    pub(crate) fn of(first: u8) -> Option<Self> {
        match first {
            b'{' => Some(Self::Object),
            b'[' => Some(Self::Array),
            b'"' => Some(Self::String),
            b'-' | b'0'..=b'9' => Some(Self::Number),
            b't' | b'f' => Some(Self::Boolean),
            b'n' => Some(Self::Null),
            _ => None,
        }
    }
}

/// A value's position in the document, and its type.
///
/// One machine word, so that a result with a position fits into two registers. From the lowest bit on: the kind,
/// whether the value is a string with an escape, the end, and the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(NonZeroU64);

const ESCAPED: u64 = 1 << 3;
const END_FROM: u32 = 4;
const START_FROM: u32 = END_FROM + MAX_DOCUMENT_BYTES.count_ones();

impl Span {
    /// Empty, at the start of the document.
    pub(crate) const NOWHERE: Self = Self::new(0, 0, Kind::Null);

    /// Both offsets fit, because documents are limited to [`MAX_DOCUMENT_BYTES`].
    #[inline]
    const fn new(start: usize, end: usize, kind: Kind) -> Self {
        let word = (start as u64) << START_FROM | (end as u64) << END_FROM | kind as u64;
        match NonZeroU64::new(word) {
            Some(word) => Self(word),
            // No kind is 0.
            None => Self(NonZeroU64::MIN),
        }
    }

    const fn escaped(self) -> Self {
        Self(self.0.saturating_add(ESCAPED))
    }

    /// The type of the value.
    #[must_use]
    #[inline]
    pub const fn kind(self) -> Kind {
        match self.0.get() & (ESCAPED - 1) {
            2 => Kind::Boolean,
            3 => Kind::Number,
            4 => Kind::String,
            5 => Kind::Array,
            6 => Kind::Object,
            _ => Kind::Null,
        }
    }

    /// Whether it is a string with an escape.
    #[must_use]
    #[inline]
    pub const fn is_escaped(self) -> bool {
        self.0.get() & ESCAPED != 0
    }

    /// The offset of its first byte.
    #[must_use]
    #[inline]
    pub const fn start(self) -> usize {
        (self.0.get() >> START_FROM) as usize
    }

    /// Its bytes in the document.
    #[must_use]
    #[inline]
    pub const fn range(self) -> Range<usize> {
        self.start()..self.end()
    }

    #[inline]
    const fn end(self) -> usize {
        (self.0.get() >> END_FROM) as usize & MAX_DOCUMENT_BYTES
    }

    /// The bytes between the quotes of a string.
    #[must_use]
    #[inline]
    pub const fn inside_quotes(self) -> Range<usize> {
        let Range { start, end } = self.range();
        start + 1..end - 1
    }
}

/// The position of a slice of the document. For any other slice, a position outside the document.
#[must_use]
pub fn range_of(document: &[u8], part: &str) -> Range<usize> {
    let start = part.as_ptr().addr().wrapping_sub(document.as_ptr().addr());
    let end = start.saturating_add(part.len());
    if end <= document.len() {
        return start..end;
    }
    let outside = document.len() + 1;
    outside..outside
}

/// Reads a document value by value. See the [module](self).
#[derive(Debug)]
pub struct Reader<'a> {
    document: &'a [u8],
    /// The document, up to the end of reading.
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    max_depth: u32,
    members_left: u32,
    lone_surrogates: LoneSurrogates,
}

/// What becomes of a member name with a lone surrogate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoneSurrogates {
    /// The name stays as it is written.
    Raw,
    /// It is refused.
    Refused,
    /// U+FFFD stands for the surrogate.
    Replaced,
}

/// The message for `\ud800` and similar escapes.
pub const LONE_SURROGATE: &str = "a lone surrogate escape, which has no UTF-8 form";

// A fault and its position.
const EXPECTED_VALUE: &str = "expected a JSON value";
const EXPECTED_NAME: &str = "expected a member name in quotes";
const EXPECTED_COLON: &str = "expected ':' after a member name";
const EXPECTED_SEPARATOR: &str = "expected ',' or the closing bracket";
const ENDS_BEFORE_VALUE: &str = "the JSON text ends where a value should start";
const ENDS_INSIDE: &str = "the JSON text ends inside an object or array";
const ENDS_IN_STRING: &str = "the JSON text ends inside a string";
const CONTROL_CHARACTER: &str = "a control character inside a string";
const BROKEN_ESCAPE: &str = "a broken escape inside a string";
const BROKEN_NUMBER: &str = "a broken number";

// === impl Reader ===

impl<'a> Reader<'a> {
    /// A reader at the start of the document. It reads no more than 1 GiB, as if the document ended there:
    /// [`Limits::check_bytes`] refuses larger ones.
    #[must_use]
    pub fn new(bytes: &'a [u8], limits: &Limits) -> Self {
        let bytes = bytes.get(..MAX_DOCUMENT_BYTES).unwrap_or(bytes);
        Self {
            document: bytes,
            bytes,
            at: 0,
            depth: 0,
            max_depth: limits.max_depth.min(DEPTH_CEILING),
            members_left: limits.max_members,
            lone_surrogates: LoneSurrogates::Raw,
        }
    }

    /// Refuses member names with a lone surrogate.
    #[must_use]
    pub fn refusing_lone_surrogates(mut self) -> Self {
        self.lone_surrogates = LoneSurrogates::Refused;
        self
    }

    /// Passes member names with U+FFFD in place of each lone surrogate.
    #[must_use]
    pub fn replacing_lone_surrogates(mut self) -> Self {
        self.lone_surrogates = LoneSurrogates::Replaced;
        self
    }

    /// Allows one more level, for a wrapper around the document.
    pub(crate) fn one_deeper(mut self) -> Self {
        self.max_depth += 1;
        self
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Continues at another position, outside every container.
    pub(crate) fn seek(&mut self, at: usize) {
        self.at = at;
        self.depth = 0;
    }

    /// Continues at `at`, outside every container, as if the document ended at `end`.
    pub(crate) fn resume(&mut self, at: usize, end: usize) {
        self.seek(at);
        self.bytes = self.document.get(..end).unwrap_or(self.document);
    }

    /// The exact text of a value that has been read.
    #[must_use]
    pub fn token(&self, span: Span) -> &'a [u8] {
        self.bytes.get(span.range()).unwrap_or_default()
    }

    /// The next byte; `None` at the end.
    #[must_use]
    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Moves to the next byte that is not white space.
    #[inline]
    pub fn skip_white_space(&mut self) {
        self.at = white_space_end(self.bytes, self.at);
    }

    /// The type of the value that starts here, after white space.
    ///
    /// # Errors
    /// `NotJson` where no value starts.
    #[inline]
    pub fn kind(&mut self) -> Result<Kind, DecodeError> {
        self.skip_white_space();
        match self.peek().map(Kind::of) {
            Some(Some(kind)) => Ok(kind),
            Some(None) => Err(self.not_json(EXPECTED_VALUE)),
            None => Err(self.not_json(ENDS_BEFORE_VALUE)),
        }
    }

    /// Reads an object; `member` gets each name, unescaped, and must consume the value. A name with a lone surrogate is
    /// passed as it is written, unless the reader refuses or replaces those.
    ///
    /// # Errors
    /// Errors of `member`; `NotJson`, `TooDeep` or `TooLarge`.
    pub fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &[u8]) -> Result<(), DecodeError>,
    ) -> Result<Span, DecodeError> {
        let start = self.open(b'{')?;
        self.skip_white_space();
        if self.peek() == Some(b'}') {
            return Ok(self.close(start, Kind::Object));
        }
        loop {
            self.count_member()?;
            let name = string(self.bytes, self.at)?;
            self.at = value_start(self.bytes, name.end())?;
            let raw = self.bytes.get(name.inside_quotes()).unwrap_or_default();
            if name.is_escaped() {
                let unescaped = self.unescaped_name(raw, name.start())?;
                member(self, &unescaped)?;
            } else {
                member(self, raw)?;
            }
            if self.separator(b'}')? == Separator::Close {
                return Ok(self.close(start, Kind::Object));
            }
        }
    }

    #[cold]
    fn unescaped_name<'n>(&self, raw: &'n [u8], at: usize) -> Result<Cow<'n, [u8]>, DecodeError> {
        let name = match self.lone_surrogates {
            LoneSurrogates::Raw | LoneSurrogates::Refused => unescape(raw),
            LoneSurrogates::Replaced => unescape_lossy(raw),
        };
        match name {
            Some(name) => Ok(Cow::Owned(name.into_bytes())),
            None if self.lone_surrogates == LoneSurrogates::Refused => Err(DecodeError::new(
                DecodeErrorKind::NotJson,
                at,
                LONE_SURROGATE,
            )),
            // It has no UTF-8 form, so it equals no known name.
            None => Ok(Cow::Borrowed(raw)),
        }
    }

    /// Reads an array; `element` must consume each value.
    ///
    /// # Errors
    /// Errors of `element`; `NotJson`, `TooDeep` or `TooLarge`.
    pub fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<Span, DecodeError> {
        let start = self.open(b'[')?;
        self.skip_white_space();
        if self.peek() == Some(b']') {
            return Ok(self.close(start, Kind::Array));
        }
        loop {
            self.count_member()?;
            element(self)?;
            if self.separator(b']')? == Separator::Close {
                return Ok(self.close(start, Kind::Array));
            }
        }
    }

    /// Reads an object, and calls `note` with the position of each member that the tree names, also in nested objects.
    /// Inner members come first.
    ///
    /// # Errors
    /// `NotJson`, `TooDeep` or `TooLarge`.
    pub(crate) fn tree<T: Tree>(
        &mut self,
        node: T,
        note: &mut impl FnMut(T, Span),
    ) -> Result<Span, DecodeError> {
        let bytes = self.bytes;
        let start = self.open(b'{')?;
        let mut at = white_space_end(bytes, start + 1);
        if bytes.get(at) != Some(&b'}') {
            loop {
                self.at = at;
                self.count_member()?;
                let (member, end) = match short_string(bytes, at) {
                    Some(name) => (node.member(name), at + name.len() + 2),
                    None => long_member(node, bytes, at)?,
                };
                at = value_start(bytes, end)?;
                let span = match (bytes.get(at), member) {
                    (Some(b'"'), _) => string(bytes, at)?,
                    (Some(b'{'), Some(member)) if member.has_members() => {
                        self.at = at;
                        self.tree(member, note)?
                    }
                    _ => {
                        self.at = at;
                        self.value()?
                    }
                };
                if let Some(member) = member {
                    note(member, span);
                }
                at = white_space_end(bytes, span.end());
                match bytes.get(at) {
                    Some(b',') => at = white_space_end(bytes, at + 1),
                    Some(b'}') => break,
                    Some(_) => return Err(broken(at, EXPECTED_SEPARATOR)),
                    None => return Err(broken(at, ENDS_INSIDE)),
                }
            }
        }
        self.at = at;
        Ok(self.close(start, Kind::Object))
    }

    /// Skips one value, validating it.
    ///
    /// # Errors
    /// `NotJson`, `TooDeep` or `TooLarge`.
    pub fn value(&mut self) -> Result<Span, DecodeError> {
        self.skip_white_space();
        let (bytes, at) = (self.bytes, self.at);
        let span = match bytes.get(at) {
            Some(b'"') => string(bytes, at)?,
            Some(b'{' | b'[') => self.container()?,
            Some(b'-' | b'0'..=b'9') => Span::new(at, number_end(bytes, at)?, Kind::Number),
            Some(b't' | b'f') => Span::new(at, literal_end(bytes, at)?, Kind::Boolean),
            Some(b'n') => Span::new(at, literal_end(bytes, at)?, Kind::Null),
            Some(_) => return Err(broken(at, EXPECTED_VALUE)),
            None => return Err(broken(at, ENDS_BEFORE_VALUE)),
        };
        self.at = span.end();
        Ok(span)
    }

    /// Skips the object or array that starts here.
    fn container(&mut self) -> Result<Span, DecodeError> {
        let start = self.at;
        let is_object = self.peek() == Some(b'{');
        let kind = if is_object { Kind::Object } else { Kind::Array };
        let mut left = self.members_left;
        let end = self.container_end(&mut left);
        self.members_left = left;
        Ok(Span::new(start, end?, kind))
    }

    /// The end of the object or array that starts here: a loop with a stack of one bit per level (1: object). Does not
    /// read beyond a limit.
    fn container_end(&self, left: &mut u32) -> Result<usize, DecodeError> {
        let bytes = self.bytes;
        let room = self.max_depth - self.depth;
        let (mut at, mut depth, mut stack) = (self.at, 0u32, 0u128);
        loop {
            // A value starts at `at`.
            at = match bytes.get(at) {
                Some(b'"') => string_end(bytes, at)?,
                Some(b'-' | b'0'..=b'9') => number_end(bytes, at)?,
                Some(open @ (b'{' | b'[')) => {
                    if depth == room {
                        *left = self.members_left;
                        return Err(self.too_deep(at));
                    }
                    let is_object = *open == b'{';
                    depth += 1;
                    stack = stack << 1 | u128::from(is_object);
                    at = white_space_end(bytes, at + 1);
                    // In ASCII the closing bracket is the opening one plus two.
                    if bytes.get(at) == Some(&(open + 2)) {
                        depth -= 1;
                        stack >>= 1;
                        at + 1
                    } else {
                        at = begin_member(bytes, at, is_object)?;
                        self.count(left)?;
                        continue;
                    }
                }
                Some(b't' | b'f' | b'n') => literal_end(bytes, at)?,
                Some(_) => return Err(broken(at, EXPECTED_VALUE)),
                None => return Err(broken(at, ENDS_BEFORE_VALUE)),
            };
            // A value ended before `at`: close the containers that it completes.
            loop {
                if depth == 0 {
                    return Ok(at);
                }
                let is_object = stack & 1 == 1;
                at = white_space_end(bytes, at);
                match bytes.get(at) {
                    Some(b',') => {
                        at = white_space_end(bytes, at + 1);
                        at = begin_member(bytes, at, is_object)?;
                        self.count(left)?;
                        break;
                    }
                    Some(b'}') if is_object => {}
                    Some(b']') if !is_object => {}
                    Some(_) => return Err(broken(at, EXPECTED_SEPARATOR)),
                    None => return Err(broken(at, ENDS_INSIDE)),
                }
                at += 1;
                depth -= 1;
                stack >>= 1;
            }
        }
    }

    /// Counts a member or element of this container.
    #[inline]
    fn count(&self, left: &mut u32) -> Result<(), DecodeError> {
        match left.checked_sub(1) {
            Some(rest) => {
                *left = rest;
                Ok(())
            }
            None => {
                *left = self.members_left;
                Err(self.too_many())
            }
        }
    }

    fn open(&mut self, bracket: u8) -> Result<usize, DecodeError> {
        if self.peek() != Some(bracket) {
            return Err(self.not_json("expected an object or an array"));
        }
        if self.depth == self.max_depth {
            return Err(self.too_deep(self.at));
        }
        self.depth += 1;
        self.at += 1;
        Ok(self.at - 1)
    }

    fn close(&mut self, start: usize, kind: Kind) -> Span {
        self.at += 1;
        self.depth -= 1;
        Span::new(start, self.at, kind)
    }

    /// Consumes a comma and the white space after it, or stops before the closing bracket.
    fn separator(&mut self, close: u8) -> Result<Separator, DecodeError> {
        self.skip_white_space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.skip_white_space();
                Ok(Separator::Comma)
            }
            Some(byte) if byte == close => Ok(Separator::Close),
            Some(_) => Err(self.not_json(EXPECTED_SEPARATOR)),
            None => Err(self.not_json(ENDS_INSIDE)),
        }
    }

    #[inline]
    fn count_member(&mut self) -> Result<(), DecodeError> {
        match self.members_left.checked_sub(1) {
            Some(left) => {
                self.members_left = left;
                Ok(())
            }
            None => Err(self.too_many()),
        }
    }

    #[cold]
    fn too_many(&self) -> DecodeError {
        let message = "more members and elements than the limit";
        self.error(DecodeErrorKind::TooLarge, message)
    }

    #[cold]
    fn too_deep(&self, at: usize) -> DecodeError {
        let message = format!("nested deeper than {} levels", self.max_depth);
        DecodeError::new(DecodeErrorKind::TooDeep, at, message)
    }

    pub(crate) fn error(
        &self,
        kind: DecodeErrorKind,
        message: impl Into<Cow<'static, str>>,
    ) -> DecodeError {
        DecodeError::new(kind, self.at, message)
    }

    /// A `NotJson` error at the next byte.
    #[cold]
    #[must_use]
    pub fn not_json(&self, message: &'static str) -> DecodeError {
        self.error(DecodeErrorKind::NotJson, message)
    }
}

#[derive(PartialEq, Eq)]
enum Separator {
    Comma,
    Close,
}

/// The members of a document to visit: a tree of objects.
pub(crate) trait Tree: Copy {
    /// The member to visit for an unescaped name, if any.
    fn member(self, name: &[u8]) -> Option<Self>;
    /// Whether to visit its own members.
    fn has_members(self) -> bool;
}

// The grammar below uses local positions instead of the reader, so that the compiler keeps them in registers.

#[cold]
#[inline(never)]
fn broken(at: usize, message: &'static str) -> DecodeError {
    DecodeError::new(DecodeErrorKind::NotJson, at, message)
}

#[inline]
fn white_space_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// Reads a name in an object, and nothing in an array. Returns where the value starts.
#[inline]
fn begin_member(bytes: &[u8], at: usize, is_object: bool) -> Result<usize, DecodeError> {
    if !is_object {
        return Ok(at);
    }
    value_start(bytes, string_end(bytes, at)?)
}

/// Skips the colon after a name. Returns where the value starts.
#[inline]
fn value_start(bytes: &[u8], end_of_name: usize) -> Result<usize, DecodeError> {
    let colon = white_space_end(bytes, end_of_name);
    if bytes.get(colon) != Some(&b':') {
        return Err(broken(colon, EXPECTED_COLON));
    }
    Ok(white_space_end(bytes, colon + 1))
}

/// Reads a string.
#[inline]
fn string(bytes: &[u8], start: usize) -> Result<Span, DecodeError> {
    match short_string(bytes, start) {
        Some(inside) => Ok(Span::new(start, start + inside.len() + 2, Kind::String)),
        None => long_string(bytes, start),
    }
}

/// The end of a string.
#[inline]
fn string_end(bytes: &[u8], start: usize) -> Result<usize, DecodeError> {
    match short_string(bytes, start) {
        Some(inside) => Ok(start + inside.len() + 2),
        None => Ok(long_string(bytes, start)?.end()),
    }
}

/// The text between the quotes of a string that ends within one block and has no escape, which is the common case.
#[inline]
fn short_string(bytes: &[u8], start: usize) -> Option<&[u8]> {
    let (b'"', rest) = bytes.get(start..)?.split_first()? else {
        return None;
    };
    let block = rest.first_chunk()?;
    let at = scan::special_in(block)?;
    (block.get(at) == Some(&b'"')).then(|| block.get(..at))?
}

/// The member of a longer name, and where the name ends.
#[inline(never)]
fn long_member<T: Tree>(
    node: T,
    bytes: &[u8],
    at: usize,
) -> Result<(Option<T>, usize), DecodeError> {
    let name = long_string(bytes, at)?;
    let raw = bytes.get(name.inside_quotes()).unwrap_or_default();
    let member = if name.is_escaped() {
        // A name without a UTF-8 form equals no known name.
        unescape(raw).and_then(|name| node.member(name.as_bytes()))
    } else {
        node.member(raw)
    };
    Ok((member, name.end()))
}

#[inline(never)]
fn long_string(bytes: &[u8], start: usize) -> Result<Span, DecodeError> {
    if bytes.get(start) != Some(&b'"') {
        return Err(broken(start, EXPECTED_NAME));
    }
    let at = scan::plain_end(bytes, start + 1);
    if bytes.get(at) == Some(&b'"') {
        return Ok(Span::new(start, at + 1, Kind::String));
    }
    let end = rest_of_string(bytes, at)?;
    Ok(Span::new(start, end, Kind::String).escaped())
}

/// Continues in a string at an escape or a control character.
fn rest_of_string(bytes: &[u8], mut at: usize) -> Result<usize, DecodeError> {
    loop {
        match bytes.get(at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => at = escape_end(bytes, at)?,
            Some(_) => return Err(broken(at, CONTROL_CHARACTER)),
            None => return Err(broken(at, ENDS_IN_STRING)),
        }
        at = scan::plain_end(bytes, at);
    }
}

#[inline]
fn escape_end(bytes: &[u8], at: usize) -> Result<usize, DecodeError> {
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u')
            if bytes
                .get(at + 2..at + 6)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) =>
        {
            Ok(at + 6)
        }
        _ => Err(broken(at, BROKEN_ESCAPE)),
    }
}

#[inline]
fn number_end(bytes: &[u8], start: usize) -> Result<usize, DecodeError> {
    let mut at = start + usize::from(bytes.get(start) == Some(&b'-'));
    match bytes.get(at) {
        Some(b'0') => at += 1,
        Some(b'1'..=b'9') => at = digits_end(bytes, at + 1),
        _ => return Err(broken(at, BROKEN_NUMBER)),
    }
    if bytes.get(at) == Some(&b'.') {
        at = some_digits_end(bytes, at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at += 1;
        at += usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
        at = some_digits_end(bytes, at)?;
    }
    Ok(at)
}

#[inline]
fn digits_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b'0'..=b'9') = bytes.get(at) {
        at += 1;
    }
    at
}

#[inline]
fn some_digits_end(bytes: &[u8], at: usize) -> Result<usize, DecodeError> {
    let end = digits_end(bytes, at);
    if end == at {
        Err(broken(at, BROKEN_NUMBER))
    } else {
        Ok(end)
    }
}

#[inline]
fn literal_end(bytes: &[u8], at: usize) -> Result<usize, DecodeError> {
    match bytes.get(at..).unwrap_or_default() {
        [b't', b'r', b'u', b'e', ..] | [b'n', b'u', b'l', b'l', ..] => Ok(at + 4),
        [b'f', b'a', b'l', b's', b'e', ..] => Ok(at + 5),
        _ => Err(broken(at, EXPECTED_VALUE)),
    }
}

/// The text of a JSON string token without its quotes; `None` for a lone surrogate, which has no UTF-8 form.
///
/// The token must have been read by [`Reader`]: escapes are known to be complete.
#[must_use]
pub fn unescape(raw: &[u8]) -> Option<String> {
    unescape_with(raw, None)
}

/// The same with U+FFFD in place of each lone surrogate; `None` only for a token that was not read.
#[must_use]
pub fn unescape_lossy(raw: &[u8]) -> Option<String> {
    unescape_with(raw, Some(char::REPLACEMENT_CHARACTER))
}

/// `lone` stands for each lone surrogate.
fn unescape_with(raw: &[u8], lone: Option<char>) -> Option<String> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|b| *b == b'\\') {
        out.extend_from_slice(rest.get(..at)?);
        let code = *rest.get(at + 1)?;
        rest = rest.get(at + 2..)?;
        let c = match code {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (c, used) = unicode_escape(rest, lone)?;
                rest = rest.get(used..)?;
                c
            }
            other => char::from(other),
        };
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    out.extend_from_slice(rest);
    String::from_utf8(out).ok()
}

/// The character for the four digits after `\u`, with its low surrogate if needed, and the number of bytes used. `lone`
/// stands for a lone surrogate.
fn unicode_escape(rest: &[u8], lone: Option<char>) -> Option<(char, usize)> {
    let unit = |at: usize| -> Option<u32> {
        let digits = std::str::from_utf8(rest.get(at..at + 4)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    let high = unit(0)?;
    if !(0xd800..0xdc00).contains(&high) {
        return char::from_u32(high).or(lone).map(|c| (c, 4));
    }
    let next = rest.get(4..).filter(|next| next.starts_with(b"\\u"));
    match next.and_then(|_| unit(6)) {
        Some(low) if (0xdc00..0xe000).contains(&low) => {
            char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)).map(|c| (c, 10))
        }
        _ => lone.map(|c| (c, 4)),
    }
}

/// U+FEFF, which some writers put before JSON. Source: docs/protocols/detection.md §1.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The bytes as text.
///
/// # Errors
/// `NotUtf8`, with the offset of the first invalid byte.
pub fn check_utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| {
        let offset = simdutf8::compat::from_utf8(bytes)
            .err()
            .map_or(0, |error| error.valid_up_to());
        DecodeError::new(DecodeErrorKind::NotUtf8, offset, "not UTF-8")
    })
}

/// Whether the bytes are one JSON value in UTF-8; white space around it is allowed.
pub(crate) fn is_one_json_value(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(
        bytes,
        &Limits {
            max_bytes: usize::MAX,
            max_members: u32::MAX,
            ..Limits::default()
        },
    );
    let read = bytes.len() <= MAX_DOCUMENT_BYTES
        && simdutf8::basic::from_utf8(bytes).is_ok()
        && reader.value().is_ok();
    reader.skip_white_space();
    read && reader.peek().is_none()
}

#[cfg(test)]
mod tests;
