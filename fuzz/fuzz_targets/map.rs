//! Does every payload become units, whatever is known of it before, and does every event hold the bytes it came from?
#![no_main]

use std::sync::LazyLock;

use a2abus_plugin::{
    DecodeErrorKind, Event, Family, Hint, Ids, Limits, MapContext, MapOptions, Mapped, Source,
    Text, Units, decode, format, map,
};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

static HINTS: LazyLock<Vec<Hint>> = LazyLock::new(hints);

fuzz_target!(|bytes: &[u8]| {
    let payload = Bytes::copy_from_slice(bytes);
    for hint in HINTS.iter() {
        check(&payload, hint);
    }
});

/// Nothing known, lines, each family declared and demanded, and all the other switches.
fn hints() -> Vec<Hint> {
    let mut lines = Hint::default();
    lines.header("content-type", "application/x-ndjson");
    let mut all = vec![Hint::default(), lines.clone()];
    for family in Family::ALL {
        let mut declared = Hint::default();
        declared.family = Some(family);
        let mut strict = lines.clone();
        strict.family = Some(family);
        strict.strict = true;
        strict.strict_ids = true;
        strict.e2a_versions_only = true;
        all.extend([declared, strict]);
    }
    let mut headers = Hint::default();
    headers.header("a2a-version", "1.0");
    headers.header("collaborationid", "workflow-1");
    headers.executor = Some(Text::from_static("executor"));
    headers.validate_workflows = true;
    headers.e2a_trusted = true;
    all.push(headers);
    all
}

fn check(payload: &Bytes, hint: &Hint) {
    let units = mapped(payload, hint);
    assert!(!units.is_empty());
    assert_eq!(
        units,
        mapped(payload, hint),
        "mapping twice gives two things"
    );
    let decoded = decode(payload, hint, &Limits::default());
    assert_eq!(decoded.len(), units.len());
    for (index, (unit, decoded)) in units.iter().zip(decoded.iter()).enumerate() {
        match (unit, decoded) {
            (Ok(unit), Ok(decoded)) => {
                assert_eq!(unit.index, index);
                assert_inside(payload, &unit.bytes);
                assert_eq!(
                    (&unit.bytes, unit.detection),
                    (&decoded.bytes, decoded.detection)
                );
                if hint.strict {
                    assert_eq!(Some(unit.detection.family), hint.family);
                }
                if unit.detection.family != Family::CloudEvent {
                    let body = unit.event.body();
                    assert_eq!(
                        body.as_ptr_range(),
                        unit.bytes.as_ptr_range(),
                        "a copied body"
                    );
                }
                check_structured(&unit.event);
            }
            (Err(refused), Err(decoded)) => {
                assert_eq!(refused, decoded);
                assert_eq!(refused.index, index);
                assert!(refused.error.offset() <= payload.len());
                assert_inside(payload, &refused.bytes);
            }
            _ => panic!("decoding and mapping differ in what they refuse"),
        }
    }
}

fn mapped(payload: &Bytes, hint: &Hint) -> Units<Mapped> {
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::default(),
        time: None,
        ids: Ids::Payload(&new_id),
    };
    let options = MapOptions::default();
    map(payload, hint, &Limits::default(), &options, &context)
}

fn assert_inside(payload: &Bytes, part: &Bytes) {
    let (whole, part) = (payload.as_ptr_range(), part.as_ptr_range());
    assert!(part.is_empty() || (whole.start <= part.start && part.end <= whole.end));
}

/// The event in structured mode is the event again, and its data are those it had.
fn check_structured(event: &Event) {
    let mut written = Vec::new();
    format::write(event, &mut written);
    let mut limits = Limits::default();
    limits.max_bytes = usize::MAX;
    limits.max_members = u32::MAX;
    let again = format::read(&Bytes::from(written.clone()), &limits);
    let again =
        again.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&written)));
    assert!(event.core_attributes().eq(again.core_attributes()));
    assert!(event.extensions().eq(again.extensions()));
    let (before, after) = (event.body(), again.body());
    let value = before.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&before);
    assert_eq!(value.trim_ascii(), after.as_ref().trim_ascii());
    let payload = Bytes::from(written);
    let unit = mapped(&payload, &Hint::default()).into_only();
    match unit.expect("one event is one unit") {
        Ok(unit) => assert_eq!(unit.event, again),
        // As a payload the event counts whole: it is longer than its data, and one level deeper.
        Err(refused) => assert!(matches!(
            refused.error.kind(),
            DecodeErrorKind::TooLarge | DecodeErrorKind::TooDeep
        )),
    }
}
