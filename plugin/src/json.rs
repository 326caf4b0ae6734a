//! A reader over JSON text: one pass, full grammar, no tree, no recursion, no allocation.
//!
//! The caller walks the members it knows and skips the rest; everything is validated, what is skipped too. It accepts
//! exactly RFC 8259 (any number, lone surrogate escapes included), within [`Limits`]. The bytes must be UTF-8.

pub(crate) mod scan;

use std::borrow::Cow;
use std::ops::Range;

use crate::error::{DecodeError, DecodeErrorKind};
use crate::limits::{DEPTH_CEILING, Limits};

/// The type of a JSON value, told by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `null`.
    Null,
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

/// A value's place in the document, and its type.
///
/// Two words that are written and read as a whole: a result that is put together of bytes and then read as words makes
/// the processor wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The end in the upper half, the start in the lower.
    bounds: u64,
    /// The kind in the lowest byte; above it whether the value is a string that holds an escape.
    tag: u64,
}

const ESCAPED: u64 = 1 << 8;

impl Span {
    pub(crate) const fn new(start: usize, end: usize, kind: Kind) -> Self {
        Self {
            bounds: (place(end) as u64) << 32 | place(start) as u64,
            tag: kind as u64,
        }
    }

    const fn of_string(start: usize, end: StringEnd) -> Self {
        Self {
            bounds: (end.at as u64) << 32 | place(start) as u64,
            tag: Kind::String as u64 | if end.escaped { ESCAPED } else { 0 },
        }
    }

    /// The type of the value.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self.tag & 0xff {
            1 => Kind::Boolean,
            2 => Kind::Number,
            3 => Kind::String,
            4 => Kind::Array,
            5 => Kind::Object,
            _ => Kind::Null,
        }
    }

    /// Whether it is a string that holds an escape.
    #[must_use]
    pub const fn is_escaped(self) -> bool {
        self.tag & ESCAPED != 0
    }

    /// The offset of its first byte.
    #[must_use]
    pub const fn start(self) -> usize {
        (self.bounds & u32::MAX as u64) as usize
    }

    /// Its bytes in the document.
    #[must_use]
    pub const fn range(self) -> Range<usize> {
        self.start()..(self.bounds >> 32) as usize
    }

    /// The bytes between the quotes of a string.
    #[must_use]
    pub const fn inside_quotes(self) -> Range<usize> {
        let Range { start, end } = self.range();
        start + 1..end - 1
    }
}

/// Reads a document value by value. See the [module](self).
#[derive(Debug)]
pub struct Reader<'a> {
    document: &'a [u8],
    /// The document, up to where reading ends.
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    max_depth: u32,
    members_left: u32,
    refuse_lone_surrogates: bool,
}

/// The message for `\ud800` and its like.
pub const LONE_SURROGATE: &str = "a lone surrogate escape, which no text can hold";

/// Where a string ends, and whether it holds an escape.
#[derive(Clone, Copy)]
struct StringEnd {
    at: u32,
    escaped: bool,
}

/// What is wrong with the text, and where: small enough for two registers, made into an error off the path.
#[derive(Clone, Copy)]
struct Fault {
    at: u32,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    ExpectedValue,
    ExpectedName,
    ExpectedColon,
    ExpectedSeparator,
    EndsBeforeValue,
    EndsInside,
    EndsInString,
    ControlCharacter,
    BrokenEscape,
    BrokenNumber,
}

impl What {
    const fn message(self) -> &'static str {
        match self {
            Self::ExpectedValue => "expected a JSON value",
            Self::ExpectedName => "expected a member name in quotes",
            Self::ExpectedColon => "expected ':' after a member name",
            Self::ExpectedSeparator => "expected ',' or the closing bracket",
            Self::EndsBeforeValue => "the JSON text ends where a value should start",
            Self::EndsInside => "the JSON text ends inside an object or array",
            Self::EndsInString => "the JSON text ends inside a string",
            Self::ControlCharacter => "a control character inside a string",
            Self::BrokenEscape => "a broken escape inside a string",
            Self::BrokenNumber => "a broken number",
        }
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// A reader at the start of the document.
    #[must_use]
    pub fn new(bytes: &'a [u8], limits: &Limits) -> Self {
        Self {
            document: bytes,
            bytes,
            at: 0,
            depth: 0,
            max_depth: limits.max_depth.min(DEPTH_CEILING),
            members_left: limits.max_members,
            refuse_lone_surrogates: false,
        }
    }

    /// Refuses member names that no text can hold, which are passed over otherwise.
    #[must_use]
    pub fn refusing_lone_surrogates(mut self) -> Self {
        self.refuse_lone_surrogates = true;
        self
    }

    /// Allows one level more: what wraps a document is not part of it.
    pub(crate) fn one_deeper(mut self) -> Self {
        self.max_depth += 1;
        self
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Goes on reading at another place, outside every container.
    pub(crate) fn seek(&mut self, at: usize) {
        self.at = at;
        self.depth = 0;
    }

    /// Goes on reading at `at`, outside every container, as if the document ended at `end`.
    pub(crate) fn resume(&mut self, at: usize, end: usize) {
        self.seek(at);
        self.bytes = self.document.get(..end).unwrap_or(self.document);
    }

    /// The exact text of a value that was read.
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

    /// Goes to the next byte that is not white space.
    #[inline]
    pub fn skip_white_space(&mut self) {
        self.at = white_space_end(self.bytes, self.at);
    }

    /// The type of the value that starts here, white space skipped.
    ///
    /// # Errors
    /// `NotJson` where no value starts.
    #[inline]
    pub fn kind(&mut self) -> Result<Kind, DecodeError> {
        self.skip_white_space();
        match self.peek().map(Kind::of) {
            Some(Some(kind)) => Ok(kind),
            Some(None) => Err(self.here(What::ExpectedValue)),
            None => Err(self.here(What::EndsBeforeValue)),
        }
    }

    /// Reads an object; `member` gets each name, unescaped, and must consume the value.
    ///
    /// # Errors
    /// What `member` returns; `NotJson`, `TooDeep` or `TooLarge`.
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
            let name = self.at;
            let end = string_end(self.bytes, name).map_err(|fault| self.fault(fault))?;
            let value = value_start(self.bytes, end.at as usize);
            self.at = value.map_err(|fault| self.fault(fault))? as usize;
            let raw = self.bytes.get(name + 1..end.at as usize - 1);
            let raw = raw.unwrap_or_default();
            if end.escaped {
                let unescaped = self.unescaped_name(raw, name)?;
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
        match unescape(raw) {
            Some(name) => Ok(Cow::Owned(name.into_bytes())),
            None if self.refuse_lone_surrogates => Err(DecodeError::new(
                DecodeErrorKind::NotJson,
                at,
                LONE_SURROGATE,
            )),
            // It has no UTF-8 form, and so equals none that we know.
            None => Ok(Cow::Borrowed(raw)),
        }
    }

    /// Reads an array; `element` must consume each value.
    ///
    /// # Errors
    /// What `element` returns; `NotJson`, `TooDeep` or `TooLarge`.
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

    /// Skips one value, validating it.
    ///
    /// # Errors
    /// `NotJson`, `TooDeep` or `TooLarge`.
    pub fn value(&mut self) -> Result<Span, DecodeError> {
        let kind = self.kind()?;
        let start = self.at;
        self.at = match kind {
            Kind::Object | Kind::Array => return self.container(kind),
            Kind::String => {
                let end = string_end(self.bytes, start).map_err(|fault| self.fault(fault))?;
                self.at = end.at as usize;
                return Ok(Span::of_string(start, end));
            }
            Kind::Number => number_end(self.bytes, start),
            Kind::Boolean | Kind::Null => literal_end(self.bytes, start),
        }
        .map_err(|fault| self.fault(fault))? as usize;
        Ok(Span::new(start, self.at, kind))
    }

    /// Skips an object or array of any content: a loop over a stack of one bit per level (1: object).
    fn container(&mut self, kind: Kind) -> Result<Span, DecodeError> {
        let start = self.at;
        let bytes = self.bytes;
        let room = self.max_depth - self.depth;
        let (mut at, mut depth, mut left) = (start, 0u32, self.members_left);
        let mut stack: u128 = 0;
        let result = loop {
            // A value starts at `at`.
            let end = match bytes.get(at) {
                Some(b'"') => string_end(bytes, at).map(|end| end.at),
                Some(b'-' | b'0'..=b'9') => number_end(bytes, at),
                Some(open @ (b'{' | b'[')) => {
                    if depth == room {
                        self.at = at;
                        return Err(self.too_deep());
                    }
                    let is_object = *open == b'{';
                    depth += 1;
                    stack = stack << 1 | u128::from(is_object);
                    at = white_space_end(bytes, at + 1);
                    // The closing bracket is two after the opening one in ASCII.
                    if bytes.get(at) == Some(&(open + 2)) {
                        depth -= 1;
                        stack >>= 1;
                        Ok(place(at + 1))
                    } else {
                        match begin_member(bytes, at, is_object) {
                            Ok(value) => at = value as usize,
                            Err(fault) => break Err(fault),
                        }
                        let Some(rest) = left.checked_sub(1) else {
                            return Err(self.too_many());
                        };
                        left = rest;
                        continue;
                    }
                }
                Some(b't' | b'f' | b'n') => literal_end(bytes, at),
                Some(_) => Err(fault(at, What::ExpectedValue)),
                None => Err(fault(at, What::EndsBeforeValue)),
            };
            at = match end {
                Ok(end) => end as usize,
                Err(fault) => break Err(fault),
            };
            // A value ended before `at`: close what it closes.
            let next = loop {
                if depth == 0 {
                    break None;
                }
                let is_object = stack & 1 == 1;
                at = white_space_end(bytes, at);
                match bytes.get(at) {
                    Some(b',') => {
                        at = white_space_end(bytes, at + 1);
                        break Some(begin_member(bytes, at, is_object));
                    }
                    Some(b'}') if is_object => {}
                    Some(b']') if !is_object => {}
                    Some(_) => break Some(Err(fault(at, What::ExpectedSeparator))),
                    None => break Some(Err(fault(at, What::EndsInside))),
                }
                at += 1;
                depth -= 1;
                stack >>= 1;
            };
            match next {
                None => break Ok(at),
                Some(Ok(value)) => at = value as usize,
                Some(Err(fault)) => break Err(fault),
            }
            let Some(rest) = left.checked_sub(1) else {
                return Err(self.too_many());
            };
            left = rest;
        };
        self.members_left = left;
        self.at = result.map_err(|fault| self.fault(fault))?;
        Ok(Span::new(start, self.at, kind))
    }

    fn open(&mut self, bracket: u8) -> Result<usize, DecodeError> {
        if self.peek() != Some(bracket) {
            return Err(self.not_json("expected an object or an array"));
        }
        if self.depth == self.max_depth {
            return Err(self.too_deep());
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
            Some(_) => Err(self.here(What::ExpectedSeparator)),
            None => Err(self.here(What::EndsInside)),
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
    fn too_deep(&self) -> DecodeError {
        let message = format!("nested deeper than {} levels", self.max_depth);
        self.error(DecodeErrorKind::TooDeep, message)
    }

    #[cold]
    fn fault(&self, fault: Fault) -> DecodeError {
        DecodeError::new(
            DecodeErrorKind::NotJson,
            fault.at as usize,
            fault.what.message(),
        )
    }

    #[cold]
    fn here(&self, what: What) -> DecodeError {
        self.not_json(what.message())
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

// The grammar below works on places, not on the reader: the compiler keeps them in registers.

#[cold]
const fn fault(at: usize, what: What) -> Fault {
    Fault {
        at: place(at),
        what,
    }
}

/// Documents are smaller than 4 GiB, which [`MAX_DOCUMENT_BYTES`] sees to.
#[allow(clippy::cast_possible_truncation)]
const fn place(at: usize) -> u32 {
    at as u32
}

#[inline]
fn white_space_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// In an object reads a name, in an array nothing; gives where the value starts.
#[inline]
fn begin_member(bytes: &[u8], at: usize, is_object: bool) -> Result<u32, Fault> {
    if !is_object {
        return Ok(place(at));
    }
    value_start(bytes, string_end(bytes, at)?.at as usize)
}

/// From the end of a name over the colon to the value.
#[inline]
fn value_start(bytes: &[u8], end_of_name: usize) -> Result<u32, Fault> {
    let colon = white_space_end(bytes, end_of_name);
    if bytes.get(colon) != Some(&b':') {
        return Err(fault(colon, What::ExpectedColon));
    }
    Ok(place(white_space_end(bytes, colon + 1)))
}

/// Reads a string, its quotes included.
#[inline]
fn string_end(bytes: &[u8], start: usize) -> Result<StringEnd, Fault> {
    if bytes.get(start) != Some(&b'"') {
        return Err(fault(start, What::ExpectedName));
    }
    // Most strings end within one block; the others are left to a function that needs more registers.
    if let Some(at) = scan::special_in_block(bytes, start + 1)
        && bytes.get(at) == Some(&b'"')
    {
        return Ok(StringEnd {
            at: place(at + 1),
            escaped: false,
        });
    }
    long_string_end(bytes, start)
}

#[inline(never)]
fn long_string_end(bytes: &[u8], start: usize) -> Result<StringEnd, Fault> {
    let at = scan::plain_end(bytes, start + 1);
    if bytes.get(at) == Some(&b'"') {
        return Ok(StringEnd {
            at: place(at + 1),
            escaped: false,
        });
    }
    rest_of_string(bytes, at)
}

/// Goes on in a string at a byte that is neither plain nor a quote.
fn rest_of_string(bytes: &[u8], mut at: usize) -> Result<StringEnd, Fault> {
    loop {
        match bytes.get(at) {
            Some(b'"') => {
                return Ok(StringEnd {
                    at: place(at + 1),
                    escaped: true,
                });
            }
            Some(b'\\') => at = escape_end(bytes, at)? as usize,
            Some(_) => return Err(fault(at, What::ControlCharacter)),
            None => return Err(fault(at, What::EndsInString)),
        }
        at = scan::plain_end(bytes, at);
    }
}

#[inline]
fn escape_end(bytes: &[u8], at: usize) -> Result<u32, Fault> {
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(place(at + 2)),
        Some(b'u')
            if bytes
                .get(at + 2..at + 6)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) =>
        {
            Ok(place(at + 6))
        }
        _ => Err(fault(at, What::BrokenEscape)),
    }
}

#[inline]
fn number_end(bytes: &[u8], start: usize) -> Result<u32, Fault> {
    let mut at = start + usize::from(bytes.get(start) == Some(&b'-'));
    match bytes.get(at) {
        Some(b'0') => at += 1,
        Some(b'1'..=b'9') => at = digits_end(bytes, at + 1),
        _ => return Err(fault(at, What::BrokenNumber)),
    }
    if bytes.get(at) == Some(&b'.') {
        at = some_digits_end(bytes, at + 1)? as usize;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at += 1;
        at += usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
        at = some_digits_end(bytes, at)? as usize;
    }
    Ok(place(at))
}

#[inline]
fn digits_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b'0'..=b'9') = bytes.get(at) {
        at += 1;
    }
    at
}

#[inline]
fn some_digits_end(bytes: &[u8], at: usize) -> Result<u32, Fault> {
    let end = digits_end(bytes, at);
    if end == at {
        Err(fault(at, What::BrokenNumber))
    } else {
        Ok(place(end))
    }
}

#[inline]
fn literal_end(bytes: &[u8], at: usize) -> Result<u32, Fault> {
    let word: &[u8] = match bytes.get(at) {
        Some(b't') => b"true",
        Some(b'f') => b"false",
        _ => b"null",
    };
    let end = at + word.len();
    if bytes.get(at..end) == Some(word) {
        Ok(place(end))
    } else {
        Err(fault(at, What::ExpectedValue))
    }
}

/// The text of a JSON string token without its quotes; `None` for a lone surrogate, which no text can hold.
///
/// The token must have been read by [`Reader`]: escapes are known to be complete.
#[must_use]
pub fn unescape(raw: &[u8]) -> Option<String> {
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
                let (c, used) = unicode_escape(rest)?;
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

/// The character of the four digits after `\u`, with its low surrogate where it needs one, and the bytes used.
fn unicode_escape(rest: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| -> Option<u32> {
        let digits = std::str::from_utf8(rest.get(at..at + 4)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    let high = unit(0)?;
    if !(0xd800..0xdc00).contains(&high) {
        return char::from_u32(high).map(|c| (c, 4));
    }
    if rest.get(4..6)? != b"\\u" {
        return None;
    }
    let low = unit(6)?;
    if !(0xdc00..0xe000).contains(&low) {
        return None;
    }
    char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)).map(|c| (c, 10))
}

/// U+FEFF, which some writers put before JSON. Source: docs/protocols/detection.md §1.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The bytes as text.
///
/// # Errors
/// `NotUtf8`, with the offset of the first byte that is not.
pub fn check_utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| {
        let offset = simdutf8::compat::from_utf8(bytes)
            .err()
            .map_or(0, |error| error.valid_up_to());
        DecodeError::new(DecodeErrorKind::NotUtf8, offset, "not UTF-8")
    })
}

/// Whether the bytes are one JSON value in UTF-8, white space around it allowed.
pub(crate) fn is_one_json_value(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(
        bytes,
        &Limits {
            max_bytes: usize::MAX,
            max_members: u32::MAX,
            ..Limits::default()
        },
    );
    let read = simdutf8::basic::from_utf8(bytes).is_ok() && reader.value().is_ok();
    reader.skip_white_space();
    read && reader.peek().is_none()
}

#[cfg(test)]
mod tests;
