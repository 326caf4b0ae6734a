//! Is every conversion of E2A total, and is a message that was normalised normal?
#![no_main]

use a2abus_models::convert::{Conversion, ConvertContext};
use a2abus_models::e2a::{E2aEnvelope, E2aResponse, Form, Trust};
use a2abus_models::{Json, Object};
use a2abus_plugin::{Limits, Text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(input) = Json::parse(bytes, &Limits::default()) else {
        return;
    };
    let context = ConvertContext {
        now: Text::from_static("2026-03-28T12:00:00Z"),
        converter: Text::from_static("fuzz"),
        new_id: Text::from_static("new"),
    };
    let run = |name: &str, input: &Json| {
        let conversion = Conversion::find(name).expect("the conversion");
        conversion.run(input, &context)
    };
    for conversion in Conversion::all().filter(|conversion| !conversion.name.starts_with("a2e")) {
        match conversion.run(&input, &context) {
            Ok(output) => assert!(!output.to_string().is_empty()),
            Err(error) => assert!(!error.kind.is_empty()),
        }
    }
    for name in ["envelope_normalize", "response_normalize"] {
        if let Ok(once) = run(name, &input) {
            assert_eq!(run(name, &once).as_ref(), Ok(&once), "{name}");
        }
    }
    for trust in [Trust::Untrusted, Trust::Trusted] {
        if let Ok(mut envelope) = E2aEnvelope::parse(&input, trust) {
            envelope.extras = Object::new();
            for form in [Form::Full, Form::Compact] {
                let written = Json::Object(envelope.to_object(form));
                assert_eq!(E2aEnvelope::parse(&written, trust).as_ref(), Ok(&envelope));
            }
        }
    }
    if let Ok(mut record) = E2aResponse::parse(&input) {
        record.extras = Object::new();
        for form in [Form::Full, Form::Compact] {
            let written = Json::Object(record.to_object(form));
            assert_eq!(E2aResponse::parse(&written).as_ref(), Ok(&record));
        }
    }
});
