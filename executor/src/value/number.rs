//! Numbers: which of the forms holds what was written, and which of two is larger.

use std::cmp::Ordering;

use super::Value;

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

    proptest! {
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
