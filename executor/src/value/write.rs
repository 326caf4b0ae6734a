//! Values as compact JSON.

use std::fmt::{self, Write};

use super::Value;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(integer) => write!(f, "{integer}"),
            // The shortest text that reads back as the same number.
            Self::Float(float) => write!(f, "{float:?}"),
            Self::Digits(digits) => f.write_str(digits),
            Self::String(text) => write_string(f, text),
            Self::Array(array) => {
                f.write_char('[')?;
                for (index, value) in array.iter().enumerate() {
                    if index > 0 {
                        f.write_char(',')?;
                    }
                    value.fmt(f)?;
                }
                f.write_char(']')
            }
            Self::Object(object) => {
                f.write_char('{')?;
                for (index, (name, value)) in object.iter().enumerate() {
                    if index > 0 {
                        f.write_char(',')?;
                    }
                    write_string(f, name)?;
                    f.write_char(':')?;
                    value.fmt(f)?;
                }
                f.write_char('}')
            }
        }
    }
}

impl Value {
    /// Writes it so that equal values give equal text: members sorted by name, numbers in one
    /// form.
    pub(crate) fn write_canonical(&self, out: &mut impl Write) -> fmt::Result {
        match self {
            Self::Array(array) => {
                out.write_char('[')?;
                for (index, value) in array.iter().enumerate() {
                    if index > 0 {
                        out.write_char(',')?;
                    }
                    value.write_canonical(out)?;
                }
                out.write_char(']')
            }
            Self::Object(object) => {
                let mut members: Vec<_> = object.iter().collect();
                members.sort_unstable_by_key(|(name, _)| name.as_str());
                out.write_char('{')?;
                for (index, (name, value)) in members.into_iter().enumerate() {
                    if index > 0 {
                        out.write_char(',')?;
                    }
                    write_string(out, name)?;
                    out.write_char(':')?;
                    value.write_canonical(out)?;
                }
                out.write_char('}')
            }
            Self::Float(float) => match super::number::computed(*float) {
                Self::Integer(integer) => write!(out, "{integer}"),
                _ => write!(out, "{float:?}"),
            },
            other => write!(out, "{other}"),
        }
    }
}

/// Writes a string with its quotes.
pub(crate) fn write_string(out: &mut impl Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..0x20 => "",
            _ => continue,
        };
        out.write_str(text.get(plain..at).unwrap_or_default())?;
        if escape.is_empty() {
            write!(out, "\\u{byte:04x}")?;
        } else {
            out.write_str(escape)?;
        }
        plain = at + 1;
    }
    out.write_str(text.get(plain..).unwrap_or_default())?;
    out.write_char('"')
}
