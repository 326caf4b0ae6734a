//! Records that hold an event: `{"v":1,"event":…}`.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::log::Record;

#[derive(Serialize, Deserialize)]
struct Body<E> {
    v: u32,
    event: E,
}

const VERSION: u32 = 1;

/// The body of a record. Events are plain data, so serialization cannot fail.
pub(crate) fn write<E: Serialize>(event: &E) -> Bytes {
    let body = Body { v: VERSION, event };
    serde_json::to_vec(&body).unwrap_or_default().into()
}

/// The event of a record; `None` for anything else, such as a record of another version.
pub(crate) fn read<E: DeserializeOwned>(record: &Record) -> Option<E> {
    let body: Body<E> = serde_json::from_slice(record.body.as_deref()?).ok()?;
    (body.v == VERSION).then_some(body.event)
}
