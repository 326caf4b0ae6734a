//! The functions of TransformData. Source: docs/protocols/a2e-workflows.md §4.2.

use a2abus_models::a2e_workflow::transform::Function;

use super::text::{text, write_plain};
use crate::failure::Failure;
use crate::meter::Meter;
use crate::value::{Rounding, VALUE_WEIGHT, Value, absolute, number, rounded};

/// What a function makes of a value, counted; of the wrong kind it makes null.
pub(super) fn apply(
    function: Function,
    value: &Value,
    meter: &Meter<'_>,
) -> Result<Value, Failure> {
    meter.scan(value.weight())?;
    match (function, value) {
        (Function::Upper, Value::String(text)) => changed(text, str::to_uppercase, meter),
        (Function::Lower, Value::String(text)) => changed(text, str::to_lowercase, meter),
        (Function::String, Value::String(_)) => meter.keep(value.clone()),
        (Function::String, value) if !value.is_null() => {
            meter.weigh(VALUE_WEIGHT)?;
            text(meter, |out| write_plain(out, value)).map(Value::from)
        }
        _ => meter.keep(small(function, value).unwrap_or_default()),
    }
}

/// A text in another case.
fn changed(text: &str, change: fn(&str) -> String, meter: &Meter<'_>) -> Result<Value, Failure> {
    // No character becomes more than three of its length.
    let most = text
        .len()
        .saturating_mul(if text.is_ascii() { 1 } else { 3 });
    meter.weigh(most)?;
    let changed = change(text);
    meter.release(most);
    meter.keep(changed.into())
}

/// What is no larger than it was; `None` of the wrong kind.
fn small(function: Function, value: &Value) -> Option<Value> {
    match (function, value) {
        (Function::Trim, Value::String(text)) => Some(text.trim().into()),
        (Function::Length, Value::String(text)) => Some(text.chars().count().into()),
        (Function::Length, Value::Array(array)) => Some(array.len().into()),
        (Function::Length, Value::Object(object)) => Some(object.len().into()),
        (Function::Number, Value::Bool(value)) => Some(i64::from(*value).into()),
        (Function::Number, Value::String(text)) => read_number(text.trim()),
        (Function::Number, value) if value.is_number() => Some(value.clone()),
        (Function::Abs, value) => absolute(value),
        (Function::Round, value) => rounded(value, Rounding::Nearest),
        (Function::Floor, value) => rounded(value, Rounding::Down),
        (Function::Ceil, value) => rounded(value, Rounding::Up),
        (Function::Not, Value::Bool(value)) => Some((!value).into()),
        _ => None,
    }
}

/// The number of a text that is one in JSON.
fn read_number(text: &str) -> Option<Value> {
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
    is_number.then(|| number(text))
}

#[cfg(test)]
mod tests {
    use crate::operation::testing::{operation, parse, run};
    use crate::value::Value;

    #[test]
    fn functions_give_null_of_the_wrong_kind() {
        let input = r#"[" Straße É ",2.5,-3,true,null,[1,2],{"a":1.0},"-1.50e2",-0.5]"#;
        for (function, expected) in [
            (
                "upper",
                r#"[" STRASSE É ",null,null,null,null,null,null,"-1.50E2",null,null]"#,
            ),
            (
                "lower",
                r#"[" straße é ",null,null,null,null,null,null,"-1.50e2",null,null]"#,
            ),
            (
                "trim",
                r#"["Straße É",null,null,null,null,null,null,"-1.50e2",null,null]"#,
            ),
            ("length", "[10,null,null,null,null,2,1,7,null,null]"),
            ("number", "[null,2.5,-3,1,null,null,null,-150,-0.5,null]"),
            (
                "string",
                r#"[" Straße É ","2.5","-3","true",null,"[1,2]","{\"a\":1.0}","-1.50e2","-0.5",null]"#,
            ),
            ("abs", "[null,2.5,3,null,null,null,null,null,0.5,null]"),
            ("round", "[null,3,-3,null,null,null,null,null,-1,null]"),
            ("floor", "[null,2,-3,null,null,null,null,null,-1,null]"),
            ("ceil", "[null,3,-3,null,null,null,null,null,0,null]"),
            (
                "not",
                "[null,null,null,false,null,null,null,null,null,null]",
            ),
        ] {
            let rows = parse(input);
            let rows = rows.as_array().unwrap().iter();
            let mut rows: Vec<_> = rows.map(|v| Value::object([("v", v.clone())])).collect();
            rows.push(parse("{}"));
            let model = Value::object([("rows", Value::from(rows))]);
            let config = format!(
                r#"{{"inputPath":"/workflow/rows","transform":"map","config":{{"field":"v","function":"{function}"}},"outputPath":"/workflow/o"}}"#
            );
            let made = run(&operation("TransformData", &config), &model);
            assert_eq!(made, Ok(parse(expected)), "{function}");
        }
    }

    #[test]
    fn numeric_text_is_what_json_calls_a_number() {
        for (text, expected) in [
            ("0", Some("0")),
            ("-0", Some("0")),
            (" 12\t", Some("12")),
            ("1E+2", Some("100")),
            ("12345678901234567890123", Some("12345678901234567890123")),
            ("9007199254740993", Some("9007199254740993")),
            ("", None),
            ("-", None),
            ("+1", None),
            ("01", None),
            (".5", None),
            ("5.", None),
            ("1e", None),
            ("1e5.0", None),
            ("0x10", None),
            ("1_000", None),
            ("1 000", None),
            ("inf", None),
            ("NaN", None),
            ("١", None),
        ] {
            assert_eq!(
                super::read_number(text.trim()),
                expected.map(parse),
                "{text:?}"
            );
        }
    }
}
