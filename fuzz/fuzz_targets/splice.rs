//! Does an id that is taken out and put back restore the bytes?
#![no_main]

use a2abus_plugin::protocol::jsonrpc::{Id, splice};
use a2abus_plugin::{Hint, Limits, Unit, decode};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

const CALL_ID: &str = "\"0198c0ffee00000000000000ab\"";

fuzz_target!(|bytes: &[u8]| {
    let payload = Bytes::copy_from_slice(bytes);
    let units = decode(&payload, &Hint::default(), &Limits::default());
    for unit in units.into_iter().flatten() {
        if let Some(id) = id_of(&unit) {
            check(&unit.bytes, id);
        }
    }
});

fn id_of(unit: &Unit) -> Option<&Id> {
    unit.json_rpc.as_ref()?.id.as_ref()
}

fn check(body: &Bytes, id: &Id) {
    assert_eq!(&body[id.span()], id.token().as_bytes());
    let sent = splice(body, id.span(), CALL_ID);
    assert_eq!(sent.len() - CALL_ID.len(), body.len() - id.token().len());
    let mut limits = Limits::default();
    limits.max_bytes = usize::MAX;
    let units = decode(&sent, &Hint::default(), &limits).into_only();
    let unit = units.expect("one unit").expect("a good unit");
    let sent_id = id_of(&unit).expect("JSON-RPC with an id");
    assert_eq!(sent_id.token(), &CALL_ID);
    assert_eq!(sent_id.span().start, id.span().start);
    assert_eq!(splice(&sent, sent_id.span(), id.token()), *body);
}
