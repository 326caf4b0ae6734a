//! Is reading A2E messages total, and do they read back as they are written?
#![no_main]

use a2abus_models::a2e_message::{Checks, DecodeOptions, Ids, Message, decode, decode_lines};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let payload = Bytes::copy_from_slice(bytes);
    for ids in [Ids::Optional, Ids::Required] {
        for checks in [Checks::Schema, Checks::BaseKeys] {
            let mut options = DecodeOptions::default();
            options.ids = ids;
            options.checks = checks;
            for result in decode_lines(&payload, &options) {
                match result {
                    Ok(message) => assert_round_trip(&message, &options),
                    Err(refusal) => {
                        assert!(!refusal.kind().as_str().is_empty());
                        for error in [refusal.to_error(), refusal.in_place_of_answer()] {
                            assert!(error.is_none_or(|error| !format!("{error:?}").is_empty()));
                        }
                    }
                }
            }
        }
    }
});

fn assert_round_trip(message: &Message, options: &DecodeOptions) {
    let line = message.to_string();
    assert!(line.is_ascii() && !line.contains('\n'));
    let again = decode(&line.clone().into(), options)
        .expect("what was written")
        .expect("no blank");
    assert_eq!(again.to_string(), line);
    assert_eq!(&again, message);
}
