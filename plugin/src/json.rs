//! A reader over JSON text: one pass, full grammar, no tree, no recursion, no allocation.
//!
//! The caller walks the members it knows and skips the rest; everything is validated, what is skipped too. It accepts
//! exactly RFC 8259 (any number, lone surrogate escapes included), within [`Limits`]. The bytes must be UTF-8.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::{DecodeError, DecodeErrorKind};
use crate::limits::{DEPTH_CEILING, Limits};

/// The type of a JSON value, told by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Number,
    Boolean,
    Null,
}

/// The largest document that can be read, whatever the limits say: places are 32 bit.
pub(crate) const MAX_DOCUMENT_BYTES: usize = u32::MAX as usize;

/// A value's place in the document, and its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
    pub(crate) kind: Kind,
}

impl Span {
    /// A place; documents are smaller than 4 GiB, which [`MAX_DOCUMENT_BYTES`] sees to.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) const fn new(start: usize, end: usize, kind: Kind) -> Self {
        Self {
            start: start as u32,
            end: end as u32,
            kind,
        }
    }

    pub(crate) const fn start(self) -> usize {
        self.start as usize
    }

    pub(crate) const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The token between the quotes of a string.
    pub(crate) const fn inside_quotes(self) -> Range<usize> {
        self.start as usize + 1..self.end as usize - 1
    }
}

pub(crate) struct Reader<'a> {
    document: &'a [u8],
    /// The document, up to where reading ends.
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    max_depth: u32,
    members_left: u32,
    refuse_lone_surrogates: bool,
}

/// What is said of `\ud800` and its like.
pub(crate) const LONE_SURROGATE: &str = "a lone surrogate escape, which no text can hold";

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], limits: &Limits) -> Self {
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
    pub(crate) fn refusing_lone_surrogates(mut self) -> Self {
        self.refuse_lone_surrogates = true;
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
    pub(crate) fn token(&self, span: Span) -> &'a [u8] {
        self.bytes.get(span.range()).unwrap_or_default()
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(crate) fn skip_white_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// The type of the value that starts here, white space skipped.
    pub(crate) fn kind(&mut self) -> Result<Kind, DecodeError> {
        self.skip_white_space();
        match self.peek() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Boolean),
            Some(b'n') => Ok(Kind::Null),
            Some(_) => Err(self.not_json("expected a JSON value")),
            None => Err(self.not_json("the JSON text ends where a value should start")),
        }
    }

    /// Reads an object; `member` gets each name, unescaped, and must consume the value.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &[u8]) -> Result<(), DecodeError>,
    ) -> Result<Span, DecodeError> {
        let start = self.open(b'{')?;
        self.skip_white_space();
        if self.peek() == Some(b'}') {
            return Ok(self.close(start, Kind::Object));
        }
        loop {
            self.skip_white_space();
            let name = self.member_name()?;
            member(self, &name)?;
            if self.separator(b'}')? == Separator::Close {
                return Ok(self.close(start, Kind::Object));
            }
        }
    }

    /// Reads an array; `element` must consume each value.
    pub(crate) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<Span, DecodeError> {
        let start = self.open(b'[')?;
        self.skip_white_space();
        if self.peek() == Some(b']') {
            return Ok(self.close(start, Kind::Array));
        }
        loop {
            self.skip_white_space();
            self.count_member()?;
            element(self)?;
            if self.separator(b']')? == Separator::Close {
                return Ok(self.close(start, Kind::Array));
            }
        }
    }

    /// Reads a name and its colon.
    fn member_name(&mut self) -> Result<Cow<'a, [u8]>, DecodeError> {
        self.count_member()?;
        if self.peek() != Some(b'"') {
            return Err(self.not_json("expected a member name in quotes"));
        }
        let (span, escaped) = self.string()?;
        let raw = self.bytes.get(span.inside_quotes()).unwrap_or_default();
        self.skip_white_space();
        if self.peek() != Some(b':') {
            return Err(self.not_json("expected ':' after a member name"));
        }
        self.at += 1;
        self.skip_white_space();
        if !escaped {
            return Ok(Cow::Borrowed(raw));
        }
        match unescape(raw) {
            Some(name) => Ok(Cow::Owned(name.into_bytes())),
            None if self.refuse_lone_surrogates => Err(self.not_json(LONE_SURROGATE)),
            // It has no UTF-8 form, and so equals none that we know.
            None => Ok(Cow::Borrowed(raw)),
        }
    }

    /// Skips one value, validating it.
    pub(crate) fn value(&mut self) -> Result<Span, DecodeError> {
        let kind = self.kind()?;
        let start = self.at;
        match kind {
            Kind::Object | Kind::Array => self.container()?,
            Kind::String => {
                self.string()?;
            }
            Kind::Number => self.number()?,
            Kind::Boolean if self.peek() == Some(b't') => self.literal(b"true")?,
            Kind::Boolean => self.literal(b"false")?,
            Kind::Null => self.literal(b"null")?,
        }
        Ok(Span::new(start, self.at, kind))
    }

    /// Skips an object or array of any content: a loop over a stack of one bit per level (1: object).
    fn container(&mut self) -> Result<(), DecodeError> {
        let floor = self.depth;
        let mut stack: u128 = 0;
        loop {
            // A value starts here.
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    self.open(open)?;
                    let is_object = open == b'{';
                    stack = stack << 1 | u128::from(is_object);
                    self.skip_white_space();
                    let close = if is_object { b'}' } else { b']' };
                    if self.peek() != Some(close) {
                        self.begin_member(is_object)?;
                        continue;
                    }
                    self.at += 1;
                    self.depth -= 1;
                    stack >>= 1;
                }
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                Some(_) => return Err(self.not_json("expected a JSON value")),
                None => return Err(self.not_json("the JSON text ends where a value should start")),
            }
            // A value ended here: close what it closes.
            loop {
                if self.depth == floor {
                    return Ok(());
                }
                let is_object = stack & 1 == 1;
                if self.separator(if is_object { b'}' } else { b']' })? == Separator::Comma {
                    self.skip_white_space();
                    self.begin_member(is_object)?;
                    break;
                }
                self.at += 1;
                self.depth -= 1;
                stack >>= 1;
            }
        }
    }

    /// In an object reads a name, in an array nothing; a value starts after it.
    fn begin_member(&mut self, is_object: bool) -> Result<(), DecodeError> {
        if !is_object {
            return self.count_member();
        }
        self.count_member()?;
        if self.peek() != Some(b'"') {
            return Err(self.not_json("expected a member name in quotes"));
        }
        self.string()?;
        self.skip_white_space();
        if self.peek() != Some(b':') {
            return Err(self.not_json("expected ':' after a member name"));
        }
        self.at += 1;
        self.skip_white_space();
        Ok(())
    }

    fn open(&mut self, bracket: u8) -> Result<usize, DecodeError> {
        if self.peek() != Some(bracket) {
            return Err(self.not_json("expected an object or an array"));
        }
        if self.depth == self.max_depth {
            return Err(self.error(
                DecodeErrorKind::TooDeep,
                format!("nested deeper than {} levels", self.max_depth),
            ));
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

    /// Consumes a comma, or stops before the closing bracket.
    fn separator(&mut self, close: u8) -> Result<Separator, DecodeError> {
        self.skip_white_space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(Separator::Comma)
            }
            Some(byte) if byte == close => Ok(Separator::Close),
            Some(_) => Err(self.not_json("expected ',' or the closing bracket")),
            None => Err(self.not_json("the JSON text ends inside an object or array")),
        }
    }

    fn count_member(&mut self) -> Result<(), DecodeError> {
        match self.members_left.checked_sub(1) {
            Some(left) => {
                self.members_left = left;
                Ok(())
            }
            None => Err(self.error(
                DecodeErrorKind::TooLarge,
                "more members and elements than the limit",
            )),
        }
    }

    /// Reads a string; tells whether it holds an escape.
    fn string(&mut self) -> Result<(Span, bool), DecodeError> {
        let start = self.at;
        self.at += 1;
        let mut escaped = false;
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let plain = scan::plain_prefix(rest);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok((Span::new(start, self.at, Kind::String), escaped));
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.not_json("a control character inside a string")),
                None => return Err(self.not_json("the JSON text ends inside a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), DecodeError> {
        let hex = |b: &u8| b.is_ascii_hexdigit();
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u')
                if self
                    .bytes
                    .get(self.at + 2..self.at + 6)
                    .is_some_and(|d| d.iter().all(hex)) =>
            {
                self.at += 6
            }
            _ => return Err(self.not_json("a broken escape inside a string")),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), DecodeError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.not_json("a broken number")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), DecodeError> {
        let before = self.at;
        self.digits();
        if self.at == before {
            Err(self.not_json("a broken number"))
        } else {
            Ok(())
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), DecodeError> {
        if self.bytes.get(self.at..self.at + word.len()) == Some(word) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.not_json("expected a JSON value"))
    }

    pub(crate) fn error(
        &self,
        kind: DecodeErrorKind,
        message: impl Into<Cow<'static, str>>,
    ) -> DecodeError {
        DecodeError::new(kind, self.at, message)
    }

    #[cold]
    pub(crate) fn not_json(&self, message: &'static str) -> DecodeError {
        self.error(DecodeErrorKind::NotJson, message)
    }
}

#[derive(PartialEq, Eq)]
enum Separator {
    Comma,
    Close,
}

/// The text of a JSON string token without its quotes; `None` for a lone surrogate, which no text can hold.
///
/// The token must have been read by [`Reader`]: escapes are known to be complete.
pub(crate) fn unescape(raw: &[u8]) -> Option<String> {
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

/// How far a string runs without a byte that needs a decision: eight bytes at a time in one register, no unsafe code.
pub(crate) mod scan {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

    const fn is_special(byte: u8) -> bool {
        byte == b'"' || byte == b'\\' || byte < 0x20
    }

    /// The high bit of each byte that is special. The lowest one set is exact; those above it may be borrows.
    const fn special_bits(word: u64) -> u64 {
        let quote = word ^ (ONES * b'"' as u64);
        let backslash = word ^ (ONES * b'\\' as u64);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        (quote.wrapping_sub(ONES) & !quote | backslash.wrapping_sub(ONES) & !backslash | control)
            & HIGH_BITS
    }

    /// Length of the longest prefix without a quote, a backslash or a control character.
    pub(crate) fn plain_prefix(bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
            let special = special_bits(u64::from_le_bytes(*chunk));
            if special != 0 {
                return at + (special.trailing_zeros() / 8) as usize;
            }
            at += 8;
        }
        let tail = bytes.get(at..).unwrap_or_default();
        at + tail
            .iter()
            .position(|b| is_special(*b))
            .unwrap_or(tail.len())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        proptest::proptest! {
            #[test]
            fn the_prefix_is_the_longest_plain_one(bytes: Vec<u8>) {
                let scalar = bytes.iter().position(|b| is_special(*b)).unwrap_or(bytes.len());
                proptest::prop_assert_eq!(plain_prefix(&bytes), scalar);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The verdict of this reader on a whole document.
    fn accepts(text: &[u8]) -> bool {
        let limits = Limits {
            max_depth: 128,
            max_members: u32::MAX,
            ..Limits::default()
        };
        let mut reader = Reader::new(text, &limits);
        let ok = reader.value().is_ok();
        reader.skip_white_space();
        ok && reader.peek().is_none() && std::str::from_utf8(text).is_ok()
    }

    /// The verdict of the reference: the grammar by serde_json, UTF-8 by the standard library.
    fn reference(text: &[u8]) -> bool {
        std::str::from_utf8(text).is_ok()
            && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
    }

    #[test]
    fn agrees_with_the_reference_on_hand_made_documents() {
        for text in [
            "{}",
            "[]",
            " { \"a\" : [ 1 , -0.5e+10 , true , false , null , \"x\" ] } ",
            "1e999",
            "-0",
            "\"\\ud800\"",
            "123456789012345678901234567890",
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
            "tru",
            "nulll",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"a",
            "\"\t\"",
            "{}{}",
            "[1 2]",
            "{\"a\" 1}",
            "[}",
            "{]",
            "\u{feff}{}",
            "\"\u{7f}\"",
            "[[[[]]],{}]",
            "\"é\"",
        ] {
            assert_eq!(
                accepts(text.as_bytes()),
                reference(text.as_bytes()),
                "{text}"
            );
        }
    }

    #[test]
    fn depth_is_bounded_without_recursion() {
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(accepts(deep(128).as_bytes()));
        assert!(!accepts(deep(129).as_bytes()));
        let bomb = "[".repeat(1_000_000);
        let error = Reader::new(bomb.as_bytes(), &Limits::default())
            .value()
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.offset()),
            (DecodeErrorKind::TooDeep, 128)
        );
    }

    #[test]
    fn names_are_unescaped() {
        let text = br#"{"\u005fagentId":1,"\ud83d\ude00":2,"\ud800":3,"a\"\\\/\b\f\n\r\tz":4}"#;
        let mut names = Vec::new();
        Reader::new(text, &Limits::default())
            .object(|reader, name| {
                names.push(name.to_vec());
                reader.value().map(|_| ())
            })
            .unwrap();
        assert_eq!(names[0], b"_agentId");
        assert_eq!(names[1], "😀".as_bytes());
        assert_eq!(names[2], b"\\ud800");
        assert_eq!(names[3], b"a\"\\/\x08\x0c\n\r\tz");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn agrees_with_the_reference_on_json_like_text(text in "[\\[\\]{}:,\"\\\\u0-9eE+.\\-tfnrualse aé\u{1}]{0,40}") {
            prop_assert_eq!(accepts(text.as_bytes()), reference(text.as_bytes()));
        }

        #[test]
        fn agrees_with_the_reference_on_bytes(bytes: Vec<u8>) {
            prop_assert_eq!(accepts(&bytes), reference(&bytes));
        }
    }
}
