//! The memory that copies use until they are confirmed.
//!
//! The budget of a subscription counts received messages. One message can become many copies, each with the key and the
//! headers of the message, so these are limited as well: a message whose copies would repeat too much is refused, and
//! no other message is read while the unconfirmed copies use too much.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use a2abus_transports::{Header, Message};
use tokio::sync::Notify;

use crate::bus::outbound::Outgoing;

/// Maximum number of bytes of keys and headers that the elements of one message may repeat.
const MAX_REPEATED: usize = 4 << 20;
/// If the copies of a binding use more bytes, no other message is read.
const MAX_IN_HAND: usize = 64 << 20;
/// The overhead of a copy, in bytes.
const COPY: usize = 1 << 10;

/// The memory that the unconfirmed copies of one binding use.
#[derive(Debug, Default)]
pub(crate) struct CopiesInHand(Arc<InHand>);

#[derive(Debug, Default)]
struct InHand {
    bytes: AtomicUsize,
    /// Tells the workers of the binding when there is room again.
    freed: Notify,
}

/// The memory that the copies of one message use, released when it is dropped.
#[derive(Debug)]
pub(super) struct Weight {
    all: Arc<InHand>,
    bytes: usize,
}

// === impl CopiesInHand ===

impl CopiesInHand {
    /// Whether there is room for the copies of one more message.
    pub(super) fn has_room(&self) -> bool {
        self.0.bytes.load(Ordering::Relaxed) < MAX_IN_HAND
    }

    /// Waits for such room.
    pub(super) async fn room(&self) {
        let mut freed = pin!(self.0.freed.notified());
        loop {
            freed.as_mut().enable();
            if self.has_room() {
                return;
            }
            freed.as_mut().await;
            freed.set(self.0.freed.notified());
        }
    }

    /// Counts the copies of a message.
    pub(super) fn hold(&self, copies: &[Outgoing]) -> Weight {
        let weight = |copy: &Outgoing| {
            COPY + carried(&copy.message) + copy.message.body.as_ref().map_or(0, bytes::Bytes::len)
        };
        let bytes = copies.iter().map(weight).sum();
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        Weight {
            all: Arc::clone(&self.0),
            bytes,
        }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        let before = self.all.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if before >= MAX_IN_HAND && before - self.bytes < MAX_IN_HAND {
            self.all.freed.notify_waiters();
        }
    }
}

/// Why a message with so many elements is refused, if they would repeat too much together.
pub(super) fn repeats_too_much(message: &Message, elements: usize) -> Option<String> {
    if elements < 2 {
        return None;
    }
    let carried = carried(message);
    (carried.saturating_mul(elements) > MAX_REPEATED).then(|| {
        format!(
            "each of its {elements} elements would carry its key and headers, {carried} bytes, and all together more than \
             {MAX_REPEATED}: send fewer elements, or a shorter key and headers"
        )
    })
}

/// The bytes of the key and the headers.
fn carried(message: &Message) -> usize {
    let key = message.key.as_ref().map_or(0, bytes::Bytes::len);
    let header =
        |header: &Header| header.name.len() + header.value.as_ref().map_or(0, bytes::Bytes::len);
    message.headers.iter().map(header).sum::<usize>() + key
}
