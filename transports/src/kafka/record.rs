//! From a record in librdkafka's memory to a message of our own.

use std::ops::Range;
use std::panic::catch_unwind;

use a2abus_plugin::Text;
use bytes::Bytes;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Header, Headers as _, Message as _};

use crate::message::{Headers, Message};

/// Copies a record, in one allocation that key, headers and body share.
pub(super) fn message(record: &BorrowedMessage<'_>) -> Message {
    let headers = record.headers().map(readable).unwrap_or_default();
    let names_and_values = headers
        .iter()
        .map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len));
    let size = record.key_len() + record.payload_len() + names_and_values.sum::<usize>();
    let mut copy = Copy(Vec::with_capacity(size));

    let key = record.key().map(|key| copy.add(key));
    let body = record.payload().map(|body| copy.add(body));
    let headers: Vec<_> = headers
        .iter()
        .map(|header| {
            let name = copy.add(header.key.as_bytes());
            (name, header.value.map(|value| copy.add(value)))
        })
        .collect();

    let bytes = Bytes::from(copy.0);
    let mut ours = Headers::with_capacity(headers.len());
    for (name, value) in headers {
        // It was text when it was copied.
        let name = bytes
            .get(name)
            .and_then(Text::from_utf8)
            .unwrap_or_default();
        match value {
            Some(value) => ours.push(name, bytes.slice(value)),
            None => ours.push_null(name),
        }
    }
    Message {
        key: key.map(|range| bytes.slice(range)),
        headers: ours,
        body: body.map(|range| bytes.slice(range)),
    }
}

struct Copy(Vec<u8>);

impl Copy {
    fn add(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.0.len();
        self.0.extend_from_slice(bytes);
        start..self.0.len()
    }
}

/// The headers whose names are text. Others cannot be named here, and are left out.
///
/// rdkafka 0.39 panics on them instead of saying so, and gives no other way to the bytes without `unsafe`; a record must
/// not be able to end the thread that reads it.
fn readable(headers: &BorrowedHeaders) -> Vec<Header<'_, &[u8]>> {
    let count = headers.count();
    let mut readable = Vec::with_capacity(count);
    for index in 0..count {
        match catch_unwind(|| headers.try_get(index)) {
            Ok(Some(header)) => readable.push(header),
            Ok(None) => {}
            Err(_) => tracing::debug!(index, "a header whose name is not UTF-8 is left out"),
        }
    }
    readable
}
