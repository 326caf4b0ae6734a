//! Copies a record from librdkafka's memory into our own message.

use std::ops::Range;
use std::panic::{RefUnwindSafe, catch_unwind};

use a2abus_plugin::Text;
use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _};

use crate::message::{Headers, Message};

/// At most this many headers of one record may have unreadable names; the headers after them are left out too. Each
/// such header costs a panic, which the process reports even if it is caught, so a record full of them must not fill
/// the log.
const MAX_UNREADABLE: usize = 8;

/// Copies a record, in one allocation that key, headers and body share.
pub(super) fn message(record: &BorrowedMessage<'_>) -> Message {
    let headers = record.headers().map_or_else(Vec::new, |headers| {
        readable(headers.count(), |index| headers.try_get(index))
    });
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
        // The copied bytes were checked as UTF-8.
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

/// The headers with readable names. Others cannot be named here and are left out; after [`MAX_UNREADABLE`] of them, so
/// are the remaining headers. The size of the record bounds the number of headers, and the budget is charged for them.
///
/// rdkafka 0.39 panics on them instead of returning an error, and gives no other access to the bytes without `unsafe`.
/// A record must not be able to end the reading thread.
fn readable<'a>(
    count: usize,
    get: impl Fn(usize) -> Option<Header<'a, &'a [u8]>> + RefUnwindSafe,
) -> Vec<Header<'a, &'a [u8]>> {
    let mut readable = Vec::with_capacity(count);
    let mut unreadable = 0;
    for index in 0..count {
        match catch_unwind(|| get(index)) {
            Ok(header) => readable.extend(header),
            Err(_) => unreadable += 1,
        }
        if unreadable == MAX_UNREADABLE {
            tracing::debug!(
                left_out = count - readable.len(),
                "headers are left out: many names are not UTF-8"
            );
            return readable;
        }
    }
    if unreadable > 0 {
        tracing::debug!(
            left_out = unreadable,
            "headers are left out: their names are not UTF-8"
        );
    }
    readable
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Reads headers, of which those at `unreadable` panic as in rdkafka; returns how many were read, and how many were
    /// visited.
    fn read(count: usize, unreadable: impl Fn(usize) -> bool + RefUnwindSafe) -> (usize, usize) {
        let looked_at = AtomicUsize::new(0);
        let get = |index| {
            looked_at.fetch_add(1, Ordering::Relaxed);
            assert!(!unreadable(index), "not UTF-8, as this test wants it");
            Some(Header {
                key: "a",
                value: None,
            })
        };
        let read = readable(count, get).len();
        (read, looked_at.load(Ordering::Relaxed))
    }

    #[test]
    fn headers_around_an_unreadable_one_are_read() {
        assert_eq!(read(5_000, |_| false), (5_000, 5_000));
        assert_eq!(read(100, |index| index == 50), (99, 100));
    }

    #[test]
    fn a_record_full_of_unreadable_headers_is_not_read_completely() {
        assert_eq!(read(100_000, |_| true), (0, MAX_UNREADABLE));
        let (read, looked_at) = read(100_000, |index| index % 2 == 1);
        assert_eq!((read, looked_at), (MAX_UNREADABLE, 2 * MAX_UNREADABLE));
    }
}
