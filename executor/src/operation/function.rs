//! The functions of TransformData. Source: docs/protocols/a2e-workflows.md §4.2.

use a2abus_models::a2e_workflow::transform::Function;
use a2abus_models::{Json, Number, Rounding};

use super::text::{text, write_plain};
use crate::failure::Failure;
use crate::meter::Meter;

/// The result of a function, with its memory counted; null for a value of the wrong kind.
pub(super) fn apply(function: Function, value: &Json, meter: &Meter<'_>) -> Result<Json, Failure> {
    meter.scan(value.weight())?;
    match (function, value) {
        (Function::Upper, Json::String(text)) => changed(text, str::to_uppercase, meter),
        (Function::Lower, Json::String(text)) => changed(text, str::to_lowercase, meter),
        (Function::String, Json::String(_)) => meter.keep(value.clone()),
        (Function::String, value) if !value.is_null() => {
            meter.weigh(Json::WEIGHT)?;
            text(meter, |out| write_plain(out, value)).map(Json::from)
        }
        _ => meter.keep(small(function, value).unwrap_or_default()),
    }
}

/// A text in another case.
fn changed(text: &str, change: fn(&str) -> String, meter: &Meter<'_>) -> Result<Json, Failure> {
    // Case conversion makes no character longer than three times its length.
    let max = text
        .len()
        .saturating_mul(if text.is_ascii() { 1 } else { 3 });
    meter.weigh(max)?;
    let changed = change(text);
    meter.release(max);
    meter.keep(changed.into())
}

/// A result that is no larger than its input; `None` for the wrong kind.
fn small(function: Function, value: &Json) -> Option<Json> {
    match (function, value) {
        (Function::Trim, Json::String(text)) => Some(text.trim().into()),
        (Function::Length, Json::String(text)) => Some(text.chars().count().into()),
        (Function::Length, Json::Array(array)) => Some(array.len().into()),
        (Function::Length, Json::Object(object)) => Some(object.len().into()),
        (Function::Number, Json::Bool(value)) => Some(i64::from(*value).into()),
        (Function::Number, Json::String(text)) => {
            Some(Number::parse(text.trim())?.as_computed()?.into())
        }
        (Function::Number, Json::Number(number)) => {
            let computed = number.as_computed();
            Some(computed.unwrap_or_else(|| number.clone()).into())
        }
        (Function::Abs, Json::Number(number)) => Some(number.abs().into()),
        (Function::Round, Json::Number(number)) => Some(number.rounded(Rounding::Nearest).into()),
        (Function::Floor, Json::Number(number)) => Some(number.rounded(Rounding::Down).into()),
        (Function::Ceil, Json::Number(number)) => Some(number.rounded(Rounding::Up).into()),
        (Function::Not, Json::Bool(value)) => Some((!value).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::operation::testing::{operation, parse, run};
    use a2abus_models::Json;

    #[test]
    fn functions_return_null_for_values_of_the_wrong_kind() {
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
            let mut rows: Vec<_> = rows.map(|v| Json::object([("v", v.clone())])).collect();
            rows.push(parse("{}"));
            let model = Json::object([("rows", Json::from(rows))]);
            let config = format!(
                r#"{{"inputPath":"/workflow/rows","transform":"map","config":{{"field":"v","function":"{function}"}},"outputPath":"/workflow/o"}}"#
            );
            let made = run(&operation("TransformData", &config), &model);
            assert_eq!(made, Ok(parse(expected)), "{function}");
        }
    }

    #[test]
    fn number_makes_integers_and_no_number_that_readers_cannot_hold() {
        let input = r#"["5.0","1e2","-0.0","2.50","1e400","-1e400",5.0,1e400]"#;
        let rows = parse(input);
        let rows = rows.as_array().unwrap().iter();
        let rows: Vec<_> = rows.map(|v| Json::object([("v", v.clone())])).collect();
        let model = Json::object([("rows", Json::from(rows))]);
        let config = r#"{"inputPath":"/workflow/rows","transform":"map","config":{"field":"v","function":"number"},"outputPath":"/workflow/o"}"#;
        let made = run(&operation("TransformData", config), &model).unwrap();
        // Compared as text, because 5 and 5.0 are equal.
        let expected = "[5,100,0,2.5,null,null,5,1e400]";
        assert_eq!(made.to_string(), expected);
    }

    #[test]
    fn number_accepts_exactly_the_numbers_of_json() {
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
                a2abus_models::Number::parse(text.trim()).map(Json::from),
                expected.map(parse),
                "{text:?}"
            );
        }
    }
}
