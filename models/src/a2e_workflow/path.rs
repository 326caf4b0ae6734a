//! Paths of the data model, parsed into segments.

use std::fmt;

use bytes::Bytes;

use crate::a2e_workflow::storage::Storage;
use crate::json::Json;
use a2abus_plugin::Limits;
use a2abus_plugin::Text;

/// The maximum number of steps of a path: data is not nested more deeply.
const MAX_STEPS: usize = 64;
/// The maximum length of a path after its root, in bytes: failures repeat it, and an execution may have many.
const MAX_BYTES: usize = 4_096;

/// The beginning of every path of the data model.
const ROOT: &str = "/workflow";
/// The storages that paths may begin with; `file` is write-only.
const STORAGES: [Storage; 2] = [Storage::Local, Storage::Session];

/// One step of a path. Source: docs/protocols/a2e-workflows.md §2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    /// `/key`: the member of an object; an all-digit key is the index of an array.
    Slash(Text),
    /// `.key`: as with a slash; `length` also counts arrays and strings. The first key of a
    /// [`RelativePath`] is one of these.
    Dot(Text),
    /// `[7]`: an element of an array.
    Index(u64),
    /// `["any text"]`: the member of an object.
    Quoted(Text),
}

/// The path of a value in the data model, such as `/workflow/users[0].name`. `Display` writes the original text, except
/// for the escapes of quoted keys. A path that begins with `/localStorage` or `/sessionStorage` finds values that
/// StoreData has stored: its first step is the key. Source: docs/protocols/a2e-workflows.md §2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path {
    /// `None` for the data model.
    storage: Option<Storage>,
    segments: Vec<Segment>,
}

/// A [`Path`] that may be written to: only keys after a slash or dot.
/// Source: docs/protocols/a2e-workflows.md §2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutputPath(Path);

/// A path within an item, such as `addr.city`; `.` is the item itself.
/// Source: docs/protocols/a2e-workflows.md §2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RelativePath {
    text: Text,
    segments: Vec<Segment>,
}

/// Why a text is not a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// It does not begin with `/workflow/`.
    #[error("a path begins with /workflow/")]
    NoRoot,
    /// An empty key, or one with a character that must be quoted.
    #[error("a key is empty or has a character that must be quoted")]
    BadKey,
    /// Brackets that contain neither an index nor a JSON string.
    #[error("brackets hold an index without leading zeros or a JSON string")]
    BadBracket,
    /// Something other than a key or a bracket follows.
    #[error("a key or a bracket is expected")]
    BadEnd,
    /// More than 64 steps or 4,096 bytes.
    #[error("a path has at most {MAX_STEPS} steps and {MAX_BYTES} bytes")]
    TooLong,
    /// Brackets in a path that is written to.
    #[error("an output path must not have brackets")]
    BracketInOutput,
}

// === impl Segment ===

impl Segment {
    /// The key, or the digits of the index.
    #[must_use]
    pub fn key(&self) -> Text {
        match self {
            Self::Slash(key) | Self::Dot(key) | Self::Quoted(key) => key.clone(),
            Self::Index(index) => index.to_string().into(),
        }
    }

    fn is_bracket(&self) -> bool {
        matches!(self, Self::Index(_) | Self::Quoted(_))
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slash(key) => write!(f, "/{key}"),
            Self::Dot(key) => write!(f, ".{key}"),
            Self::Index(index) => write!(f, "[{index}]"),
            Self::Quoted(key) => write!(f, "[{}]", Json::String(key.clone())),
        }
    }
}

// === impl Path ===

impl Path {
    /// Reads a path.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let (path, rest) = Self::parse_prefix(text)?;
        if rest.is_empty() {
            Ok(path)
        } else {
            Err(PathError::BadEnd)
        }
    }

    /// Parses the longest path at the beginning of a text, and returns the rest.
    fn parse_prefix(text: &str) -> Result<(Self, &str), PathError> {
        let (storage, rest) = Self::root(text).ok_or(PathError::NoRoot)?;
        Self::parse_steps(storage, rest)
    }

    /// The same for the text after the brace of a template, where `workflow/x` is read as `/workflow/x`; `None` if it is
    /// not meant as a path.
    pub(super) fn parse_in_braces(text: &str) -> Option<Result<(Self, &str), PathError>> {
        let unslashed = text.strip_prefix(ROOT.trim_start_matches('/'));
        let (storage, rest) = match unslashed.filter(|rest| rest.starts_with('/')) {
            Some(rest) => (None, rest),
            None => Self::root(text)?,
        };
        Some(Self::parse_steps(storage, rest))
    }

    fn parse_steps(storage: Option<Storage>, mut rest: &str) -> Result<(Self, &str), PathError> {
        let (mut segments, whole) = (Vec::new(), rest.len());
        push_segments(&mut segments, &mut rest)?;
        if whole - rest.len() > MAX_BYTES {
            return Err(PathError::TooLong);
        }
        if storage.is_some() && matches!(segments.first(), Some(Segment::Index(_))) {
            return Err(PathError::BadBracket);
        }
        Ok((Self { storage, segments }, rest))
    }

    /// Whether the text is meant as a path, even if malformed.
    pub(super) fn looks_like_path(text: &str) -> bool {
        Self::root(text).is_some()
    }

    /// The beginning of the text, and the rest. Storage keys may need quotes.
    fn root(text: &str) -> Option<(Option<Storage>, &str)> {
        let is_step = |rest: &&str| rest.starts_with('/');
        if let Some(rest) = text.strip_prefix(ROOT).filter(is_step) {
            return Some((None, rest));
        }
        let text = text.strip_prefix('/')?;
        STORAGES.into_iter().find_map(|storage| {
            let rest = text.strip_prefix(storage.as_str())?;
            let is_path = rest.starts_with('/') || rest.starts_with("[\"");
            is_path.then_some((Some(storage), rest))
        })
    }

    /// The storage that it reads; `None` for the data model.
    #[must_use]
    pub fn storage(&self) -> Option<Storage> {
        self.storage
    }

    /// The steps from the root of the data model or the storage, at least one.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.storage {
            None => f.write_str(ROOT)?,
            Some(storage) => write!(f, "/{}", storage.as_str())?,
        }
        self.segments.iter().try_for_each(|segment| segment.fmt(f))
    }
}

// === impl OutputPath ===

impl OutputPath {
    /// Reads a path that may be written to.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let path = Path::parse(text)?;
        if path.storage.is_some() {
            return Err(PathError::NoRoot);
        }
        if path.segments.iter().any(Segment::is_bracket) {
            return Err(PathError::BracketInOutput);
        }
        Ok(Self(path))
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for OutputPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl RelativePath ===

impl RelativePath {
    /// The item itself: `.`.
    #[must_use]
    pub fn item() -> Self {
        Self {
            text: Text::from_static("."),
            segments: Vec::new(),
        }
    }

    /// Reads a path within an item.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let (path, rest) = Self::parse_prefix(text)?;
        if rest.is_empty() {
            Ok(path)
        } else {
            Err(PathError::BadEnd)
        }
    }

    /// Parses the longest path at the beginning of a text, and returns the rest.
    pub(super) fn parse_prefix(text: &str) -> Result<(Self, &str), PathError> {
        let mut segments = Vec::new();
        let mut rest = text;
        if let Some(after) = text.strip_prefix('.') {
            rest = after;
        } else {
            if !text.starts_with('[') {
                segments.push(Segment::Dot(next_key(&mut rest)?));
            }
            push_segments(&mut segments, &mut rest)?;
        }
        let length = text.len() - rest.len();
        if length > MAX_BYTES {
            return Err(PathError::TooLong);
        }
        let text = Text::from(text.get(..length).unwrap_or_default());
        Ok((Self { text, segments }, rest))
    }

    /// The original text: a member of exactly this name takes precedence over the path.
    #[must_use]
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// The steps from the item; none for the item itself.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// === the grammar ===

fn push_segments(segments: &mut Vec<Segment>, rest: &mut &str) -> Result<(), PathError> {
    while let Some(segment) = next_segment(rest)? {
        if segments.len() == MAX_STEPS {
            return Err(PathError::TooLong);
        }
        segments.push(segment);
    }
    Ok(())
}

fn next_segment(rest: &mut &str) -> Result<Option<Segment>, PathError> {
    let Some(first @ ('/' | '.' | '[')) = rest.chars().next() else {
        return Ok(None);
    };
    *rest = rest.get(1..).unwrap_or_default();
    match first {
        '/' => next_key(rest).map(Segment::Slash).map(Some),
        '.' => next_key(rest).map(Segment::Dot).map(Some),
        _ => next_bracket(rest).map(Some),
    }
}

fn next_key(rest: &mut &str) -> Result<Text, PathError> {
    let end = rest.find(|c| !is_key_char(c)).unwrap_or(rest.len());
    let (key, after) = rest.split_at(end);
    if key.is_empty() {
        return Err(PathError::BadKey);
    }
    *rest = after;
    Ok(key.into())
}

fn is_key_char(c: char) -> bool {
    !c.is_control() && !"/.[]{}\"\\~ ".contains(c)
}

/// The text up to the closing bracket.
fn next_bracket(rest: &mut &str) -> Result<Segment, PathError> {
    let end = match rest.strip_prefix('"') {
        Some(inside) => 1 + closing_quote(inside)? + 1,
        None => rest.find(']').ok_or(PathError::BadBracket)?,
    };
    let (inside, after) = rest.split_at(end);
    *rest = after.strip_prefix(']').ok_or(PathError::BadBracket)?;
    if !inside.starts_with('"') {
        return index(inside)
            .map(Segment::Index)
            .ok_or(PathError::BadBracket);
    }
    let json = Bytes::copy_from_slice(inside.as_bytes());
    match Json::parse(&json, &Limits::default()) {
        Ok(Json::String(key)) => Ok(Segment::Quoted(key)),
        _ => Err(PathError::BadBracket),
    }
}

fn closing_quote(inside: &str) -> Result<usize, PathError> {
    let mut escaped = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok(at),
            _ => {}
        }
    }
    Err(PathError::BadBracket)
}

/// `0`, or up to ten digits without a leading zero.
fn index(digits: &str) -> Option<u64> {
    let plain = digits.len() <= 10 && digits.bytes().all(|b| b.is_ascii_digit());
    let leading_zero = digits.len() > 1 && digits.starts_with('0');
    if plain && !leading_zero {
        digits.parse().ok()
    } else {
        None
    }
}
