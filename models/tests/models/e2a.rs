//! E2A as typed values: the vectors, the examples of the document, and properties of all messages.

mod adapters;
mod exchange;
mod models;
mod properties;
mod vectors;
mod wire;

use a2abus_models::Json;
use a2abus_models::convert::{Conversion, ConvertContext, ConvertError};
use a2abus_plugin::Limits;

const NOW: &str = "2026-04-01T10:00:00.000000+00:00";
const CONVERTER: &str = "a2abus";
const NEW_ID: &str = "0195f2c4-0000-7000-8000-000000000001";

fn json(text: &str) -> Json {
    Json::parse(text.as_bytes(), &Limits::default()).expect("a test writes JSON")
}

fn run(name: &str, input: &Json) -> Result<Json, ConvertError> {
    let context = ConvertContext {
        now: NOW.into(),
        converter: CONVERTER.into(),
        new_id: NEW_ID.into(),
    };
    let conversion = Conversion::find(name).unwrap_or_else(|| panic!("no conversion {name}"));
    conversion.run(input, &context)
}

/// Runs a conversion on a text; the error is its kind and field.
fn convert(name: &str, input: &str) -> Result<Json, String> {
    run(name, &json(input)).map_err(|error| match error.field.as_str() {
        "" => error.kind.to_owned(),
        field => format!("{}({field})", error.kind),
    })
}

/// The output is this text, digit for digit and in this order.
#[track_caller]
fn check(name: &str, input: &str, output: &str) {
    assert_eq!(
        convert(name, input).unwrap().to_string(),
        output,
        "{name} of {input}"
    );
}

/// The output has at least these members.
#[track_caller]
fn check_members(name: &str, input: &str, members: &str) {
    let output = convert(name, input).unwrap();
    for (member, value) in json(members).as_object().unwrap().iter() {
        assert_eq!(
            output.get(member).map(Json::to_string),
            Some(value.to_string()),
            "{member} of {name} of {input}"
        );
    }
}

#[track_caller]
fn check_error(name: &str, input: &str, error: &str) {
    assert_eq!(
        convert(name, input).unwrap_err(),
        error,
        "{name} of {input}"
    );
}
