//! Numbers: their canonical form, and their order.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use a2abus_plugin::Text;

/// A JSON number. `Display` writes its digits. Equal, ordered and hashed by value, exactly.
#[derive(Clone)]
pub struct Number(Form);

#[derive(Clone)]
enum Form {
    Integer(i64),
    /// Finite, with the shortest text that parses to the same double.
    Float(f64),
    /// Any other text. Behind one pointer, so that a value stays three machine words long.
    Digits(Arc<Text>),
}

/// How a number is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, half away from zero.
    Nearest,
    /// To the next lower.
    Down,
    /// To the next higher.
    Up,
}

/// The largest magnitude up to which a double represents every integer.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The largest exponent that counts, so that the number of digits can be added to it.
const MAX_EXPONENT: i64 = i64::MAX / 2;

/// The largest number of zeros at the end of a canonical whole number. An integer of 64 bits has fewer.
const MAX_ZEROS: usize = 40;

/// A decomposed decimal number: digits without leading and trailing zeros, and the decimal exponent of a point before
/// the first digit.
struct Decimal<'a> {
    is_negative: bool,
    digits: Cow<'a, str>,
    exponent: i64,
}

// === impl Number ===

impl Number {
    /// Parses a JSON number, and keeps its digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (unsigned, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_number = digits(whole)
            && (whole == "0" || !whole.starts_with('0'))
            && fraction.is_none_or(digits)
            && exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)));
        is_number.then(|| Self::read(text))
    }

    /// Reads valid number text, and keeps its digits.
    pub(super) fn read(text: &str) -> Self {
        match text.parse() {
            Ok(integer) if text != "-0" => return Self(Form::Integer(integer)),
            _ => {}
        }
        match text.parse() {
            Ok(float) if is_text_of(float, text) => Self(Form::Float(float)),
            _ => Self(Form::Digits(Arc::new(text.into()))),
        }
    }

    /// Reads valid number text into the canonical form of its value.
    pub(super) fn of_value(text: &str) -> Self {
        if let Ok(integer) = text.parse() {
            return Self(Form::Integer(integer));
        }
        let float: f64 = text.parse().unwrap_or(f64::INFINITY);
        if float.is_finite() {
            let shortest = format!("{float:e}");
            if Decimal::read(text)
                .compare(&Decimal::read(&shortest))
                .is_eq()
            {
                return Self(Form::Float(float));
            }
        }
        Self(Form::Digits(Arc::new(text.into())))
    }

    /// The same value in canonical form: an integer, else a double, else its digits.
    #[must_use]
    pub fn by_value(&self) -> Self {
        match &self.0 {
            Form::Digits(digits) => Self::of_value(digits),
            Form::Integer(_) | Form::Float(_) => self.clone(),
        }
    }

    /// The same value in the canonical form, which is identical for equal numbers: a whole number is written with all
    /// its digits, unless it ends in many zeros.
    pub(super) fn canonical(&self) -> Self {
        let number = self.by_value();
        match number.0 {
            Form::Integer(_) => number,
            Form::Float(float) if float.fract() != 0.0 || float.abs() < EXACT => {
                Self::computed(float).unwrap_or(number)
            }
            Form::Float(_) | Form::Digits(_) => {
                let text = number.decimal_text();
                Self(Form::Digits(Arc::new(Decimal::read(&text).text().into())))
            }
        }
    }

    /// A finite number; `None` for other values, which JSON cannot represent.
    #[must_use]
    pub fn from_f64(number: f64) -> Option<Self> {
        number.is_finite().then_some(Self(Form::Float(number)))
    }

    /// The number for a computed double: an integer if it is integral and exact; `None` if it is not finite.
    #[must_use]
    pub fn computed(float: f64) -> Option<Self> {
        if float.fract() == 0.0 && float.abs() < EXACT {
            #[allow(clippy::cast_possible_truncation)] // Integral, and in range by far.
            return Some(Self(Form::Integer(float as i64)));
        }
        Self::from_f64(float)
    }

    /// The same value as a computation writes it: an integer if it is integral and exact. `None` if no double is near
    /// it, so that most readers cannot hold it.
    #[must_use]
    pub fn as_computed(&self) -> Option<Self> {
        let number = self.by_value();
        match number.0 {
            Form::Float(float) => Self::computed(float),
            Form::Integer(_) | Form::Digits(_) => number.as_f64().is_finite().then_some(number),
        }
    }

    /// Whether it is written as an integer: without a fraction or an exponent.
    #[must_use]
    pub fn is_integer(&self) -> bool {
        match &self.0 {
            Form::Integer(_) => true,
            Form::Float(_) => false,
            Form::Digits(digits) => !digits.contains(['.', 'e', 'E']),
        }
    }

    /// The value, if it is written as an integer that fits into 64 bits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.as_i128()?.try_into().ok()
    }

    /// The value, if it is written as an unsigned integer that fits into 64 bits.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128()?.try_into().ok()
    }

    /// The value, if it is written as an integer that fits into 128 bits.
    #[must_use]
    pub fn as_i128(&self) -> Option<i128> {
        match &self.0 {
            Form::Integer(integer) => Some((*integer).into()),
            Form::Float(_) => None,
            Form::Digits(digits) => digits.parse().ok(),
        }
    }

    /// The nearest double; infinite if it is out of range.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // The nearest double is intended.
    pub fn as_f64(&self) -> f64 {
        match &self.0 {
            Form::Integer(integer) => *integer as f64,
            Form::Float(float) => *float,
            // The standard library can parse every JSON number.
            Form::Digits(digits) => digits.parse().unwrap_or(f64::NAN),
        }
    }

    /// The absolute value, in canonical form.
    #[must_use]
    pub fn abs(&self) -> Self {
        match &self.0 {
            Form::Integer(integer) => i128::from(*integer).abs().into(),
            Form::Float(float) => Self::computed(float.abs()).unwrap_or_else(|| self.clone()),
            Form::Digits(digits) => Self::of_value(digits.trim_start_matches('-')),
        }
    }

    /// Rounds exactly.
    #[must_use]
    pub fn rounded(&self, rounding: Rounding) -> Self {
        let rounded = match &self.0 {
            Form::Integer(_) => None,
            Form::Float(float) => Self::computed(match rounding {
                Rounding::Nearest => float.round(),
                Rounding::Down => float.floor(),
                Rounding::Up => float.ceil(),
            }),
            Form::Digits(digits) => Decimal::read(digits)
                .rounded(rounding)
                .map(|text| Self::of_value(&text)),
        };
        rounded.unwrap_or_else(|| self.clone())
    }

    /// The heap size of its text, in bytes.
    pub(super) fn weight(&self) -> usize {
        match &self.0 {
            Form::Integer(_) | Form::Float(_) => 0,
            Form::Digits(digits) => digits.len(),
        }
    }

    fn is_digits(&self) -> bool {
        matches!(self.0, Form::Digits(_))
    }

    /// A decimal text of its value; short for doubles.
    fn decimal_text(&self) -> String {
        match self.0 {
            Form::Float(float) => format!("{float:e}"),
            Form::Integer(_) | Form::Digits(_) => self.to_string(),
        }
    }
}

/// Whether the shortest text of a double is this one.
fn is_text_of(float: f64, text: &str) -> bool {
    // No shortest text of a finite double is longer.
    float.is_finite() && text.len() <= 32 && format!("{float:?}") == text
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Integer(integer) => write!(f, "{integer}"),
            // The shortest text that parses to the same number.
            Form::Float(float) => write!(f, "{float:?}"),
            Form::Digits(digits) => f.write_str(digits),
        }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Number {}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Form::Integer(a), Form::Integer(b)) => return a.cmp(b),
            (Form::Digits(_), _) | (_, Form::Digits(_)) => {}
            _ => {
                let (x, y) = (self.as_f64(), other.as_f64());
                let both_floats = matches!((&self.0, &other.0), (Form::Float(_), Form::Float(_)));
                if both_floats || (x.abs() < EXACT && y.abs() < EXACT) {
                    return x.partial_cmp(&y).unwrap_or(Ordering::Equal);
                }
            }
        }
        let (x, y) = (self.decimal_text(), other.decimal_text());
        Decimal::read(&x).compare(&Decimal::read(&y))
    }
}

/// Equal numbers hash equally, and different ones rarely do: many long numbers may have the same nearest double.
impl Hash for Number {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let number = self.by_value();
        let nearest = number.as_f64();
        if nearest.abs() < EXACT && !number.is_digits() {
            // Zero has one sign here.
            (nearest + 0.0).to_bits().hash(hasher);
        } else {
            let text = number.decimal_text();
            let decimal = Decimal::read(&text);
            (decimal.is_negative, decimal.exponent, decimal.digits).hash(hasher);
        }
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Self {
        Self(Form::Integer(number))
    }
}

impl From<i32> for Number {
    fn from(number: i32) -> Self {
        Self(Form::Integer(number.into()))
    }
}

impl From<u32> for Number {
    fn from(number: u32) -> Self {
        Self(Form::Integer(number.into()))
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        i64::try_from(number).map_or_else(|_| Self::read(&number.to_string()), Self::from)
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        u64::try_from(number).unwrap_or(u64::MAX).into()
    }
}

impl From<i128> for Number {
    fn from(number: i128) -> Self {
        match i64::try_from(number) {
            Ok(integer) => Self(Form::Integer(integer)),
            Err(_) => Self::of_value(&number.to_string()),
        }
    }
}

// === impl Decimal ===

impl<'a> Decimal<'a> {
    fn read(text: &'a str) -> Self {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent = exponent.parse().unwrap_or(if exponent.starts_with('-') {
            -MAX_EXPONENT
        } else {
            MAX_EXPONENT
        });
        let exponent = exponent.clamp(-MAX_EXPONENT, MAX_EXPONENT);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits: Cow<'_, str> = if fraction.is_empty() {
            whole.into()
        } else {
            format!("{whole}{fraction}").into()
        };
        let leading = digits.len() - digits.trim_start_matches('0').len();
        let point = |digits: usize| i64::try_from(digits).unwrap_or(i64::MAX / 4);
        Self {
            is_negative,
            exponent: exponent + point(whole.len()) - point(leading),
            digits: match digits {
                Cow::Borrowed(digits) => digits.trim_matches('0').into(),
                Cow::Owned(digits) => digits.trim_matches('0').to_owned().into(),
            },
        }
    }

    /// The digits and the zeros of an integer, unless there are many zeros; else the digits with an exponent.
    fn text(&self) -> String {
        let sign = if self.is_negative { "-" } else { "" };
        let digits = &self.digits;
        let length = i64::try_from(digits.len()).unwrap_or(i64::MAX / 4);
        let exponent = self.exponent - length;
        match usize::try_from(exponent) {
            Ok(zeros) if zeros <= MAX_ZEROS => format!("{sign}{digits}{}", "0".repeat(zeros)),
            _ => format!("{sign}{digits}e{exponent}"),
        }
    }

    /// The text of the rounded integer; `None` if it already is an integer.
    fn rounded(&self, rounding: Rounding) -> Option<String> {
        let whole_digits = usize::try_from(self.exponent).unwrap_or(0);
        if whole_digits >= self.digits.len() {
            return None;
        }
        let (whole, fraction) = self.digits.split_at(whole_digits);
        let away_from_zero = match rounding {
            Rounding::Nearest => self.exponent >= 0 && fraction.as_bytes() >= b"5".as_slice(),
            Rounding::Down => self.is_negative,
            Rounding::Up => !self.is_negative,
        };
        let sign = if self.is_negative { "-" } else { "" };
        if !away_from_zero {
            return Some(format!(
                "{sign}{}",
                if whole.is_empty() { "0" } else { whole }
            ));
        }
        let stays = whole.trim_end_matches('9');
        let carried = "0".repeat(whole.len() - stays.len());
        let (head, last) = stays.split_at(stays.len().saturating_sub(1));
        let next = last.parse::<u8>().unwrap_or(0) + 1;
        Some(format!("{sign}{head}{next}{carried}"))
    }

    fn compare(&self, other: &Self) -> Ordering {
        let sign = |decimal: &Self| match (decimal.digits.is_empty(), decimal.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let magnitude = || {
            self.exponent
                .cmp(&other.exponent)
                .then_with(|| self.digits.cmp(&other.digits))
        };
        sign(self).cmp(&sign(other)).then_with(|| match sign(self) {
            0 => Ordering::Equal,
            1 => magnitude(),
            _ => magnitude().reverse(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        Number::of_value(text)
    }

    use proptest::prelude::*;
    use std::hash::BuildHasher;

    #[test]
    fn order_is_exact_where_doubles_are_not() {
        for (smaller, larger) in [
            ("9007199254740992", "9007199254740993"),
            ("9007199254740992.0", "9007199254740993"),
            ("12345678901234567890", "12345678901234567891"),
            ("-1e400", "-1e399"),
            ("-1e400", "1e-400"),
            ("1e-401", "1e-400"),
            ("0", "1e-400"),
            ("1.5", "2"),
            ("-2", "-1.5"),
        ] {
            let (a, b) = (number(smaller), number(larger));
            assert_eq!(a.cmp(&b), Ordering::Less, "{a} < {b}");
            assert_eq!(b.cmp(&a), Ordering::Greater, "{b} > {a}");
        }
    }

    #[test]
    fn rounding_is_exact_where_doubles_are_not() {
        for (text, nearest, down, up) in [
            ("2.5", "3", "2", "3"),
            ("-2.5", "-3", "-3", "-2"),
            ("0.49999999999999999999", "0", "0", "1"),
            ("-0.49999999999999999999", "0", "-1", "0"),
            ("0.50000000000000000001", "1", "0", "1"),
            ("0.05000000000000000000001", "0", "0", "1"),
            ("999.99999999999999999999", "1000", "999", "1000"),
            (
                "12345678901234567890.5",
                "12345678901234567891",
                "12345678901234567890",
                "12345678901234567891",
            ),
            ("1e400", "1e400", "1e400", "1e400"),
            ("-1e-400", "0", "-1", "0"),
        ] {
            for (rounding, expected) in [
                (Rounding::Nearest, nearest),
                (Rounding::Down, down),
                (Rounding::Up, up),
            ] {
                let result = number(text).rounded(rounding);
                assert_eq!(
                    result.to_string(),
                    number(expected).to_string(),
                    "{rounding:?} {text}"
                );
            }
        }
    }

    #[test]
    fn the_absolute_value_of_the_least_integer_is_exact() {
        for (text, expected) in [
            ("-9223372036854775808", "9223372036854775808"),
            ("-12345678901234567890123", "12345678901234567890123"),
            ("-0.5", "0.5"),
            ("-7", "7"),
        ] {
            assert_eq!(number(text).abs(), number(expected));
        }
    }

    proptest! {
        #[test]
        fn equal_numbers_have_equal_hashes(a in -40_i64..40, shift in 0_u32..40) {
            let zeros = "0".repeat(shift as usize);
            let state = std::hash::RandomState::new();
            let x = number(&format!("{a}{zeros}"));
            for text in [format!("{a}e{shift}"), format!("{a}{zeros}.0"), format!("{a}00{zeros}e-2")] {
                let y = number(&text);
                prop_assert_eq!(&x, &y);
                prop_assert_eq!(state.hash_one(&x), state.hash_one(&y), "{}", text);
            }
        }

        #[test]
        fn doubles_compare_as_the_machine_does(a: f64, b: f64) {
            prop_assume!(a.is_finite() && b.is_finite());
            let (x, y) = (number(&format!("{a:?}")), number(&format!("{b:e}")));
            prop_assert_eq!(Some(x.cmp(&y)), a.partial_cmp(&b));
        }

        #[test]
        fn integers_compare_with_digits(a: i64, b: i64) {
            let x = number(&a.to_string());
            let y = Number(Form::Digits(Arc::new(b.to_string().into())));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        }
    }
}
