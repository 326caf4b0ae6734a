//! The values of members: how they are read with the coercions of the SDK, and written.
//!
//! Source: docs/protocols/a2e-messages.md §1.3.

use std::fmt;

use indexmap::IndexMap;

use super::shape::Shape;
use crate::json::{Json, Number, Object};
use crate::words::Words;
use a2abus_plugin::Text;

/// A value of a member.
pub(super) trait Value: Sized {
    const SHAPE: Shape;

    fn read(value: Json) -> Result<Self, Vec<Violation>>;

    /// `None` if the member is left out.
    fn write(&self) -> Option<Json>;

    /// The text of a string.
    fn as_text(&self) -> Option<&str> {
        None
    }
}

/// An integer of any size, as its digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integer(Number);

/// A finite number, as its digits, with a fraction or an exponent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Float(Number);

/// A value whose default each writer generates: an id, or the time. `None` if it was left out, and then it is not
/// written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generated<T>(pub Option<T>);

/// A value that `Debug` does not show.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret<T>(pub T);

/// A member that breaks the rules of its type. Never contains the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
#[non_exhaustive]
pub struct Violation {
    /// The dotted path of the member; elements of lists by their index, those of maps as `*`.
    pub field: Text,
    /// The fault.
    pub problem: Problem,
}

/// The most violations that are listed of one message.
pub(crate) const MAX_VIOLATIONS: usize = 32;

/// The fault of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A required member is missing.
    #[error("is missing")]
    Missing,
    /// The value is not what is expected here.
    #[error("is not {0}")]
    Wrong(&'static str),
    /// It does not hold one of these words.
    #[error("is not one of {}", .0.join(", "))]
    NoWord(&'static [&'static str]),
}

// === impl Violation ===

impl Violation {
    /// A fault of the value itself.
    pub(super) fn wrong(expected: &'static str) -> Vec<Self> {
        vec![Self::new("", Problem::Wrong(expected))]
    }

    pub(super) fn new(field: &str, problem: Problem) -> Self {
        Self {
            field: field.into(),
            problem,
        }
    }

    /// The same violations, with the path extended by the member.
    pub(super) fn inside(mut violations: Vec<Self>, member: &str) -> Vec<Self> {
        for violation in &mut violations {
            violation.field = match violation.field.as_str() {
                "" => member.into(),
                field => format!("{member}.{field}").into(),
            };
        }
        violations
    }

    /// The values, or their faults up to a maximum.
    pub(super) fn all<T, C: FromIterator<T>>(
        values: impl Iterator<Item = Result<T, Vec<Self>>>,
    ) -> Result<C, Vec<Self>> {
        let mut violations = Vec::new();
        let values = values.filter_map(|value| match value {
            Ok(value) => Some(value),
            Err(found) => {
                let room = MAX_VIOLATIONS.saturating_sub(violations.len());
                violations.extend(found.into_iter().take(room));
                None
            }
        });
        let values = values.collect();
        if violations.is_empty() {
            Ok(values)
        } else {
            Err(violations)
        }
    }
}

// === impl Integer ===

impl Integer {
    /// The value if it fits into 64 bits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.0.as_i64()
    }
}

impl Default for Integer {
    fn default() -> Self {
        Self::from(0)
    }
}

impl From<i64> for Integer {
    fn from(value: i64) -> Self {
        Self(value.into())
    }
}

impl Value for Integer {
    const SHAPE: Shape = Shape::Integer;

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        let number = match value {
            Json::Number(number) if number.is_integer() => Some(number),
            Json::Number(number) => whole(number.as_f64()),
            Json::String(text) => integer_in(&text),
            Json::Bool(flag) => Some(i64::from(flag).into()),
            Json::Null | Json::Array(_) | Json::Object(_) => None,
        };
        number.map(Self).ok_or(Violation::wrong("an integer"))
    }

    fn write(&self) -> Option<Json> {
        Some(self.0.clone().into())
    }
}

/// A double as a 64-bit integer, if it has no fraction.
fn whole(value: f64) -> Option<Number> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    let fits = value.fract() == 0.0 && (-END..END).contains(&value);
    fits.then(|| Number::from(value as i64))
}

/// Reads `4`, `+4`, `004` and `4.0`.
fn integer_in(text: &str) -> Option<Number> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all = |text: &str, allowed: fn(u8) -> bool| !text.is_empty() && text.bytes().all(allowed);
    if !all(digits, |b| b.is_ascii_digit()) || !all(fraction, |b| b == b'0') {
        return None;
    }
    match digits.trim_start_matches('0') {
        "" => Some(0_i64.into()),
        digits => Number::parse(&format!("{sign}{digits}")),
    }
}

// === impl Float ===

impl Float {
    /// A finite number; `None` for the others, which JSON cannot write.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        Number::from_f64(value).map(Self)
    }

    /// The nearest double.
    #[must_use]
    pub fn as_f64(&self) -> f64 {
        self.0.as_f64()
    }
}

impl Default for Float {
    fn default() -> Self {
        Self::new(0.0).unwrap_or(Self(0_i64.into()))
    }
}

impl Value for Float {
    const SHAPE: Shape = Shape::Float;

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        let number = match value {
            // All digits are kept, and the text shows the type of the member.
            Json::Number(number) if number.is_integer() => Number::parse(&format!("{number}.0")),
            Json::Number(number) => Some(number),
            Json::String(text) => text.trim().parse().ok().and_then(Number::from_f64),
            Json::Bool(flag) => Number::from_f64(f64::from(u8::from(flag))),
            Json::Null | Json::Array(_) | Json::Object(_) => None,
        };
        number
            .filter(|number| number.as_f64().is_finite())
            .map(Self)
            .ok_or(Violation::wrong("a finite number"))
    }

    fn write(&self) -> Option<Json> {
        Some(self.0.clone().into())
    }
}

// === the other values ===

impl Value for Text {
    const SHAPE: Shape = Shape::Text;

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        match value {
            Json::String(text) => Ok(text),
            _ => Err(Violation::wrong("a string")),
        }
    }

    fn write(&self) -> Option<Json> {
        Some(self.clone().into())
    }

    fn as_text(&self) -> Option<&str> {
        Some(self)
    }
}

/// The words the SDK reads as a Boolean, in any case.
const TRUE_WORDS: [&str; 6] = ["1", "on", "t", "true", "y", "yes"];
const FALSE_WORDS: [&str; 6] = ["0", "off", "f", "false", "n", "no"];

impl Value for bool {
    const SHAPE: Shape = Shape::Boolean;

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        let flag = match &value {
            Json::Bool(flag) => Some(*flag),
            Json::Number(number) => flag_of(number.as_f64()),
            Json::String(text) => flag_in(text),
            Json::Null | Json::Array(_) | Json::Object(_) => None,
        };
        flag.ok_or(Violation::wrong("a Boolean"))
    }

    fn write(&self) -> Option<Json> {
        Some((*self).into())
    }
}

fn flag_of(number: f64) -> Option<bool> {
    [(0.0, false), (1.0, true)]
        .into_iter()
        .find_map(|(value, flag)| (number == value).then_some(flag))
}

fn flag_in(text: &str) -> Option<bool> {
    let is_one_of = |words: [&str; 6]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is_one_of(TRUE_WORDS) {
        Some(true)
    } else {
        is_one_of(FALSE_WORDS).then_some(false)
    }
}

impl Value for Json {
    const SHAPE: Shape = Shape::Any;

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        Ok(value)
    }

    fn write(&self) -> Option<Json> {
        Some(self.clone())
    }
}

impl Value for Object {
    const SHAPE: Shape = Shape::Object;

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        match value {
            Json::Object(object) => Ok(object),
            _ => Err(Violation::wrong("an object")),
        }
    }

    fn write(&self) -> Option<Json> {
        Some(self.clone().into())
    }
}

/// A value of a closed set of words.
pub(super) fn parse_word<W: Words>(value: &Json) -> Result<W, Vec<Violation>> {
    let word = value.as_str().and_then(W::parse);
    word.ok_or_else(|| vec![Violation::new("", Problem::NoWord(W::WORDS))])
}

/// The value of the default in a table.
pub(super) fn preset<T: Value + Default>(default: impl Into<Json>) -> T {
    T::read(default.into()).unwrap_or_default()
}

impl<T: Value> Value for Vec<T> {
    const SHAPE: Shape = Shape::List(&T::SHAPE);

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        let Json::Array(elements) = value else {
            return Err(Violation::wrong("an array"));
        };
        let read = |(index, element): (usize, &Json)| {
            let value = T::read(element.clone());
            value.map_err(|violations| Violation::inside(violations, &index.to_string()))
        };
        Violation::all(elements.iter().enumerate().map(read))
    }

    fn write(&self) -> Option<Json> {
        let elements = self.iter().filter_map(T::write);
        Some(elements.collect())
    }
}

impl Value for [Integer; 2] {
    const SHAPE: Shape = Shape::Pair(&Integer::SHAPE);

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        Vec::read(value)?
            .try_into()
            .map_err(|_| Violation::wrong("an array of two"))
    }

    fn write(&self) -> Option<Json> {
        let elements = self.iter().filter_map(Value::write);
        Some(elements.collect())
    }
}

/// Values by name, in the order they were written.
impl<T: Value> Value for IndexMap<Text, T> {
    const SHAPE: Shape = Shape::Map(&T::SHAPE);

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        let read = |(name, value): (&Text, &Json)| {
            let value = T::read(value.clone());
            let value = value.map_err(|violations| Violation::inside(violations, "*"))?;
            Ok((name.clone(), value))
        };
        Violation::all(Object::read(value)?.iter().map(read))
    }

    fn write(&self) -> Option<Json> {
        let members = self.iter();
        let members = members.filter_map(|(name, value)| Some((name.clone(), value.write()?)));
        Some(Json::Object(members.collect()))
    }
}

impl<T: Value> Value for Option<T> {
    const SHAPE: Shape = Shape::Nullable(&T::SHAPE);

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        match value {
            Json::Null => Ok(None),
            value => T::read(value).map(Some),
        }
    }

    fn write(&self) -> Option<Json> {
        self.as_ref().map_or(Some(Json::Null), T::write)
    }
}

impl<T: Value> Value for Generated<T> {
    const SHAPE: Shape = T::SHAPE;

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        T::read(value).map(|value| Self(Some(value)))
    }

    fn write(&self) -> Option<Json> {
        self.0.as_ref().and_then(T::write)
    }
}

impl<T: Value> Value for Secret<T> {
    const SHAPE: Shape = T::SHAPE;

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        T::read(value).map(Self)
    }

    fn write(&self) -> Option<Json> {
        self.0.write()
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
