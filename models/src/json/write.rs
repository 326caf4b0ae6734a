//! Writes values as compact JSON.

use std::fmt::{self, Display, Write};

use super::{Json, Object};
use a2abus_plugin::Text;

/// How a value is written.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// Unchanged.
    Plain,
    /// With non-ASCII characters escaped.
    Ascii,
    /// So that equal values give equal text: members sorted by name, numbers in one form.
    Canonical,
}

impl Json {
    /// Writes it so that equal values give equal text.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn write_canonical(&self, out: &mut impl Write) -> fmt::Result {
        value(out, self, Style::Canonical)
    }
}

impl Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value(f, self, style_of(f))
    }
}

impl Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        members(f, self.iter(), style_of(f))
    }
}

fn style_of(f: &fmt::Formatter<'_>) -> Style {
    if f.alternate() {
        Style::Ascii
    } else {
        Style::Plain
    }
}

fn value(out: &mut impl Write, value: &Json, style: Style) -> fmt::Result {
    match value {
        Json::Null => out.write_str("null"),
        Json::Bool(true) => out.write_str("true"),
        Json::Bool(false) => out.write_str("false"),
        Json::Number(number) if style == Style::Canonical => write!(out, "{}", number.canonical()),
        Json::Number(number) => write!(out, "{number}"),
        Json::String(text) => string(out, text, style),
        Json::Array(elements) => {
            out.write_char('[')?;
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.write_char(',')?;
                }
                self::value(out, element, style)?;
            }
            out.write_char(']')
        }
        Json::Object(object) if style == Style::Canonical => {
            let mut sorted: Vec<_> = object.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| name.as_str());
            members(out, sorted, style)
        }
        Json::Object(object) => members(out, object, style),
    }
}

fn members<'a>(
    out: &mut impl Write,
    members: impl IntoIterator<Item = (&'a Text, &'a Json)>,
    style: Style,
) -> fmt::Result {
    out.write_char('{')?;
    for (index, (name, value)) in members.into_iter().enumerate() {
        if index > 0 {
            out.write_char(',')?;
        }
        string(out, name, style)?;
        out.write_char(':')?;
        self::value(out, value, style)?;
    }
    out.write_char('}')
}

/// Writes a string with its quotes.
fn string(out: &mut impl Write, text: &str, style: Style) -> fmt::Result {
    out.write_char('"')?;
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escape = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            c if c < ' ' || (c > '~' && style == Style::Ascii) => "",
            _ => continue,
        };
        out.write_str(text.get(plain..at).unwrap_or_default())?;
        out.write_str(escape)?;
        if escape.is_empty() {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        plain = at + c.len_utf8();
    }
    out.write_str(text.get(plain..).unwrap_or_default())?;
    out.write_char('"')
}
