//! Finds secrets in results, in any form, and removes them.
//!
//! Source: docs/protocols/a2e-workflows.md §7, credentials.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_models::{Json, Object};
use a2abus_plugin::Text;
use aho_corasick::{AhoCorasick, BuildError};

use crate::agent::Credential;
use crate::call::credential::forms;
use crate::failure::Failure;

/// Removes the secrets that one execution has used so far. `Debug` shows none.
#[derive(Default)]
pub(crate) struct Redactor(Mutex<KnownSecrets>);

#[derive(Default)]
struct KnownSecrets {
    forms: BTreeSet<String>,
    finder: Option<Arc<Finder>>,
}

/// Finds every form of every secret at once.
struct Finder {
    search: AhoCorasick,
    /// Whether one of them could be a number.
    has_numbers: bool,
}

/// The placeholder for a secret.
const REDACTED: &str = "[REDACTED]";

// === impl Redactor ===

impl Redactor {
    /// Registers a secret before it is used.
    pub(super) fn add_secret(&self, credential: &Credential) -> Result<(), BuildError> {
        let forms = forms(credential);
        let mut known = self.lock();
        if forms.iter().all(|form| known.forms.contains(form)) {
            return Ok(());
        }
        known.forms.extend(forms);
        let finder = Finder::new(&known.forms)?;
        known.finder = Some(Arc::new(finder));
        Ok(())
    }

    /// A text without secrets.
    pub(crate) fn text(&self, text: &str) -> String {
        let redacted = self.finder().and_then(|finder| finder.text(text));
        redacted.unwrap_or_else(|| text.to_owned())
    }

    /// A value without secrets; the same value if it contains none.
    pub(crate) fn value(&self, value: Json) -> Json {
        let redacted = self.finder().and_then(|finder| finder.value(&value));
        redacted.unwrap_or(value)
    }

    /// A failure without secrets.
    pub(crate) fn failure(&self, failure: Failure) -> Failure {
        let Some(finder) = self.finder() else {
            return failure;
        };
        Failure {
            message: finder.text(&failure.message).unwrap_or(failure.message),
            details: finder.object(&failure.details).unwrap_or(failure.details),
            ..failure
        }
    }

    fn finder(&self) -> Option<Arc<Finder>> {
        self.lock().finder.clone()
    }

    /// Every change is complete before its lock is released, so a panic elsewhere leaves it usable.
    fn lock(&self) -> MutexGuard<'_, KnownSecrets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

// === impl Finder ===

impl Finder {
    fn new(forms: &BTreeSet<String>) -> Result<Self, BuildError> {
        let of_number = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
        Ok(Self {
            search: AhoCorasick::new(forms.iter().map(|form| form.as_bytes()))?,
            has_numbers: forms.iter().any(|form| form.bytes().all(of_number)),
        })
    }

    /// `None` if nothing changes.
    fn text(&self, text: &str) -> Option<String> {
        let mut found = self.find(text.as_bytes());
        for view in View::all(text) {
            let places = self.find(&view.bytes);
            found.extend(places.into_iter().map(|place| view.origin(&place)));
        }
        replace(text, found)
    }

    fn find(&self, haystack: &[u8]) -> Vec<Range<usize>> {
        let found = self.search.find_overlapping_iter(haystack);
        found.map(|found| found.range()).collect()
    }

    /// `None` if nothing changes. The depth of the value is bounded by that of parsed JSON.
    fn value(&self, value: &Json) -> Option<Json> {
        match value {
            Json::Null | Json::Bool(_) => None,
            Json::Number(_) => {
                let text = self.has_numbers.then(|| value.to_string())?;
                self.search.is_match(&text).then(|| REDACTED.into())
            }
            Json::String(text) => self.text(text).map(Json::from),
            Json::Array(array) => {
                let elements = array.iter().enumerate();
                let changes = elements.filter_map(|(at, element)| Some((at, self.value(element)?)));
                let changes: Vec<_> = changes.collect();
                if changes.is_empty() {
                    return None;
                }
                let mut elements: Vec<Json> = array.iter().cloned().collect();
                for (at, changed) in changes {
                    if let Some(element) = elements.get_mut(at) {
                        *element = changed;
                    }
                }
                Some(elements.into())
            }
            Json::Object(object) => self.object(object).map(Json::from),
        }
    }

    /// `None` if nothing changes.
    fn object(&self, object: &Object) -> Option<Object> {
        let mut changes = HashMap::new();
        for (at, (name, value)) in object.iter().enumerate() {
            let changed = (self.text(name).map(Text::from), self.value(value));
            if changed != (None, None) {
                changes.insert(at, changed);
            }
        }
        if changes.is_empty() {
            return None;
        }
        let members = object.iter().enumerate().map(|(at, (name, value))| {
            let (new_name, new_value) = changes.remove(&at).unwrap_or_default();
            let name = new_name.unwrap_or_else(|| name.clone());
            (name, new_value.unwrap_or_else(|| value.clone()))
        });
        Some(members.collect())
    }
}

/// Replaces everything found by the placeholder; overlapping matches count as one.
fn replace(text: &str, mut found: Vec<Range<usize>>) -> Option<String> {
    if found.is_empty() {
        return None;
    }
    found.sort_unstable_by_key(|place| (place.start, place.end));
    let mut redacted = String::with_capacity(text.len());
    let mut end = 0;
    for place in found {
        if place.start >= end {
            redacted.push_str(text.get(end..place.start).unwrap_or_default());
            redacted.push_str(REDACTED);
        }
        end = end.max(place.end);
    }
    redacted.push_str(text.get(end..).unwrap_or_default());
    Some(redacted)
}

/// A text with its escapes decoded, and where each byte comes from.
struct View {
    bytes: Vec<u8>,
    /// Where the escape or character of each byte begins in the text; one more for its end.
    origins: Vec<usize>,
}

// === impl View ===

impl View {
    /// All decoded variants of the text.
    fn all(text: &str) -> Vec<Self> {
        let mut views = Vec::new();
        if text.contains('%') {
            views.push(Self::decode(text, &percent));
        }
        if text.contains('+') {
            views.push(Self::decode(text, &|rest| match rest.as_bytes() {
                [b'+', ..] => Some(Decoded::from((' ', 1))),
                _ => percent(rest),
            }));
        }
        if text.contains('\\') {
            views.push(Self::decode(text, &escape));
        }
        if text.contains('&') {
            views.push(Self::decode(text, &entity));
        }
        views
    }

    fn decode(text: &str, step: &dyn Fn(&str) -> Option<Decoded>) -> Self {
        let mut view = Self {
            bytes: Vec::with_capacity(text.len()),
            origins: Vec::with_capacity(text.len() + 1),
        };
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let at = text.len() - rest.len();
            let decoded = step(rest).unwrap_or_else(|| Decoded::from((c, c.len_utf8())));
            view.bytes.extend_from_slice(&decoded.bytes);
            view.origins.resize(view.bytes.len(), at);
            rest = rest.get(decoded.length..).unwrap_or_default();
        }
        view.origins.push(text.len());
        view
    }

    /// The position in the original text.
    fn origin(&self, place: &Range<usize>) -> Range<usize> {
        let at = |index: usize| self.origins.get(index).copied().unwrap_or_default();
        at(place.start)..at(place.end)
    }
}

/// The character at the beginning of a text, and the number of bytes it takes.
struct Decoded {
    bytes: Vec<u8>,
    length: usize,
}

impl From<(char, usize)> for Decoded {
    fn from((c, length): (char, usize)) -> Self {
        Self {
            bytes: c.to_string().into_bytes(),
            length,
        }
    }
}

/// `%2F`
fn percent(rest: &str) -> Option<Decoded> {
    let digits = rest.strip_prefix('%')?.get(..2)?;
    let byte = u8::from_str_radix(digits, 16).ok()?;
    Some(Decoded {
        bytes: vec![byte],
        length: 3,
    })
}

/// `&quot;`, `&#39;` or `&#x27;`, as in HTML.
fn entity(rest: &str) -> Option<Decoded> {
    /// The longest name of a character that is decoded, as in `&#x10FFFF;`.
    const MAX_BYTES: usize = 8;
    let rest = rest.strip_prefix('&')?;
    let end = rest.bytes().take(MAX_BYTES + 1).position(|b| b == b';')?;
    let name = rest.get(..end)?;
    let c = match name {
        "quot" => '"',
        "amp" => '&',
        "apos" => '\'',
        "lt" => '<',
        "gt" => '>',
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)?
        }
    };
    Some((c, name.len() + 2).into())
}

/// `\/`, `\n` or `\u002f`, as in a JSON string.
fn escape(rest: &str) -> Option<Decoded> {
    let c = rest.strip_prefix('\\')?.chars().next()?;
    let plain = match c {
        '"' | '\\' | '/' => c,
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        _ => return unicode_escape(rest),
    };
    Some((plain, 2).into())
}

fn unicode_escape(rest: &str) -> Option<Decoded> {
    let unit = |at: usize| {
        let digits = rest.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let first = unit(0)?;
    if let Some(c) = char::from_u32(first.into()) {
        return Some((c, 6).into());
    }
    let c = char::decode_utf16([first, unit(6)?]).next()?.ok()?;
    Some((c, 12).into())
}
