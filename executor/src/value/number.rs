//! Numbers: which of the forms holds what was written, and which of two is larger.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use super::Value;

/// How a number is made integral.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To the nearest, half away from zero.
    Nearest,
    /// To the next lower.
    Down,
    /// To the next higher.
    Up,
}

/// The largest magnitude below which a double holds every integer.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A decimal number taken apart: digits without zeros at either end, and the exponent of ten of
/// the point before the first of them.
struct Decimal<'a> {
    is_negative: bool,
    digits: std::borrow::Cow<'a, str>,
    exponent: i64,
}

/// The number of a JSON text that is one.
pub(crate) fn number(text: &str) -> Value {
    if let Ok(integer) = text.parse() {
        return Value::Integer(integer);
    }
    let float: f64 = text.parse().unwrap_or(f64::INFINITY);
    if float.is_finite() {
        let shortest = format!("{float:e}");
        if Decimal::read(text)
            .compare(&Decimal::read(&shortest))
            .is_eq()
        {
            return Value::Float(float);
        }
    }
    Value::Digits(text.into())
}

/// A computed number: an integer when it is integral and doubles are exact there, `null` when it
/// is not finite.
pub(crate) fn computed(float: f64) -> Value {
    if float.fract() == 0.0 && float.abs() < EXACT {
        #[allow(clippy::cast_possible_truncation)] // Integral, and in range by far.
        return Value::Integer(float as i64);
    }
    if float.is_finite() {
        Value::Float(float)
    } else {
        Value::Null
    }
}

/// The value of a number that is written as an integer, if it has not too many digits.
pub(crate) fn exact_integer(value: &Value) -> Option<i128> {
    match value {
        Value::Integer(integer) => Some((*integer).into()),
        Value::Digits(digits) => digits.parse().ok(),
        _ => None,
    }
}

/// A number without its sign; `None` if it is none.
pub(crate) fn absolute(value: &Value) -> Option<Value> {
    match value {
        Value::Integer(integer) => Some(match integer.checked_abs() {
            Some(integer) => Value::Integer(integer),
            None => number(&integer.unsigned_abs().to_string()),
        }),
        Value::Float(float) => Some(computed(float.abs())),
        Value::Digits(digits) => Some(number(digits.trim_start_matches('-'))),
        _ => None,
    }
}

/// A number made integral, exactly; `None` if it is none.
pub(crate) fn rounded(value: &Value, rounding: Rounding) -> Option<Value> {
    match value {
        Value::Integer(integer) => Some(Value::Integer(*integer)),
        Value::Float(float) => Some(computed(match rounding {
            Rounding::Nearest => float.round(),
            Rounding::Down => float.floor(),
            Rounding::Up => float.ceil(),
        })),
        Value::Digits(digits) => Some(
            Decimal::read(digits)
                .rounded(rounding)
                .map_or_else(|| value.clone(), |text| number(&text)),
        ),
        _ => None,
    }
}

pub(super) fn as_f64(value: &Value) -> Option<f64> {
    value.is_number().then(|| nearest(value))
}

/// The nearest double of a number.
#[allow(clippy::cast_precision_loss)] // The nearest is what is asked for.
pub(super) fn nearest(value: &Value) -> f64 {
    match value {
        Value::Integer(integer) => *integer as f64,
        Value::Float(float) => *float,
        Value::Digits(digits) => digits.parse().unwrap_or(f64::NAN),
        _ => f64::NAN,
    }
}

/// Compares two numbers by value, exactly; `None` when one is none.
pub(crate) fn compare_numbers(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        _ if a.is_number() && b.is_number() => {
            let (x, y) = (nearest(a), nearest(b));
            if x.abs() < EXACT && y.abs() < EXACT && !is_digits(a) && !is_digits(b) {
                return x.partial_cmp(&y);
            }
            let (x, y) = (text(a), text(b));
            Some(Decimal::read(&x).compare(&Decimal::read(&y)))
        }
        _ => None,
    }
}

/// Feeds a hasher so that equal numbers feed the same, and others hardly ever do: many numbers of
/// many digits may have one nearest double.
pub(super) fn feed(value: &Value, hasher: &mut impl Hasher) {
    let read;
    let value = match value {
        Value::Digits(digits) => {
            read = number(digits);
            &read
        }
        other => other,
    };
    let nearest = nearest(value);
    if nearest.abs() < EXACT && !is_digits(value) {
        // Zero has one sign here.
        (nearest + 0.0).to_bits().hash(hasher);
    } else {
        let text = text(value);
        let decimal = Decimal::read(&text);
        (decimal.is_negative, decimal.exponent, decimal.digits).hash(hasher);
    }
}

fn is_digits(value: &Value) -> bool {
    matches!(value, Value::Digits(_))
}

fn text(value: &Value) -> String {
    match value {
        Value::Float(float) => format!("{float:e}"),
        other => other.to_string(),
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
            i64::MIN / 2
        } else {
            i64::MAX / 2
        });
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits: std::borrow::Cow<'_, str> = if fraction.is_empty() {
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
                std::borrow::Cow::Borrowed(digits) => digits.trim_matches('0').into(),
                std::borrow::Cow::Owned(digits) => digits.trim_matches('0').to_owned().into(),
            },
        }
    }

    /// The text of the nearest integer; `None` if it is one already.
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
    use proptest::prelude::*;

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
            assert_eq!(compare_numbers(&a, &b), Some(Ordering::Less), "{a} < {b}");
            assert_eq!(
                compare_numbers(&b, &a),
                Some(Ordering::Greater),
                "{b} > {a}"
            );
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
                let result = rounded(&number(text), rounding);
                assert_eq!(result, Some(number(expected)), "{rounding:?} {text}");
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
            assert_eq!(absolute(&number(text)), Some(number(expected)));
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
                prop_assert_eq!(x.hash_in(&state), y.hash_in(&state), "{}", text);
            }
        }

        #[test]
        fn doubles_compare_as_the_machine_does(a: f64, b: f64) {
            prop_assume!(a.is_finite() && b.is_finite());
            let (x, y) = (number(&format!("{a:?}")), number(&format!("{b:e}")));
            prop_assert_eq!(compare_numbers(&x, &y), a.partial_cmp(&b));
        }

        #[test]
        fn integers_compare_with_digits(a: i64, b: i64) {
            let x = number(&a.to_string());
            let y = Value::Digits(b.to_string().into());
            prop_assert_eq!(compare_numbers(&x, &y), Some(a.cmp(&b)));
        }
    }
}
