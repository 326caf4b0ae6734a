//! The memory that copies use until they are confirmed.
//!
//! The budget of a subscription counts received messages. One message can become many copies, each with the key and the
//! headers of the message, so the copies are limited as well: a message whose copies would repeat too much is refused.
//! While the unconfirmed copies need too much memory besides the messages themselves, each lane reads one message at a
//! time. So a Kafka partition whose destination is missing does not stop the others: its messages stay unread until
//! they use up the budget of the subscription, which then pauses it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use a2abus_transports::{Header, Message};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::bus::outbound::Outgoing;

/// Maximum number of bytes of keys and headers that the elements of one message may repeat.
const MAX_REPEATED: usize = 4 << 20;
/// Each lane reads one message at a time while the copies of a binding use more bytes than this, and more than the
/// overhead of two copies of each message of its budget. So they use at most this and one message with its copies per
/// lane.
const MAX_IN_HAND: usize = 64 << 20;
/// The overhead of a copy, in bytes.
const COPY: usize = 1 << 10;

/// The memory that the unconfirmed copies of one binding use.
#[derive(Debug)]
pub(crate) struct CopiesInHand(Arc<InHand>);

#[derive(Debug)]
struct InHand {
    bytes: AtomicUsize,
    max_bytes: usize,
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
    /// No copies, of a binding that receives up to this many messages.
    pub(crate) fn new(budget_messages: usize) -> Self {
        let overhead = budget_messages.saturating_mul(2 * COPY);
        Self(Arc::new(InHand {
            bytes: AtomicUsize::new(0),
            max_bytes: MAX_IN_HAND.max(overhead),
            freed: Notify::new(),
        }))
    }

    /// Whether there is room for the copies of one more message.
    pub(super) fn has_room(&self) -> bool {
        self.0.bytes.load(Ordering::Relaxed) < self.0.max_bytes
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

    /// Counts what the copies of a message use beyond the message, which the budget of the subscription counts.
    pub(super) fn hold<'a>(
        &self,
        message: &Message,
        copies: impl IntoIterator<Item = &'a Outgoing>,
    ) -> Weight {
        let (mut bytes, mut last) = (0, message.body.as_ref());
        for Outgoing { message: copy, .. } in copies {
            let own = copy.body.as_ref();
            let own = own.filter(|body| {
                let mut known = [message.body.as_ref(), last].into_iter().flatten();
                !known.any(|whole| is_part_of(body, whole))
            });
            last = own.or(last);
            bytes += COPY + carried(copy) + own.map_or(0, Bytes::len);
        }
        let bytes = bytes.saturating_sub(message.size_bytes());
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
        let max_bytes = self.all.max_bytes;
        if before >= max_bytes && before - self.bytes < max_bytes {
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

/// Whether these bytes are in the same buffer, and so use no memory of their own.
fn is_part_of(part: &Bytes, whole: &Bytes) -> bool {
    let (part, whole) = (part.as_ptr_range(), whole.as_ptr_range());
    whole.start <= part.start && part.end <= whole.end
}

/// The bytes of the key and the headers.
fn carried(message: &Message) -> usize {
    let key = message.key.as_ref().map_or(0, Bytes::len);
    let header = |header: &Header| header.name.len() + header.value.as_ref().map_or(0, Bytes::len);
    message.headers.iter().map(header).sum::<usize>() + key
}

#[cfg(test)]
mod tests {
    use a2abus_transports::{Address, Topic};

    use super::*;
    use crate::bus::BusId;

    #[test]
    fn the_body_of_the_message_is_counted_for_no_copy() {
        const SIZE: usize = 10_000;
        let received = Bytes::from(vec![b'r'; SIZE]);
        let rewritten = Bytes::from(vec![b'w'; SIZE]);
        let message = Message::plain(received.clone());
        let copies = [rewritten, received].map(|body| {
            let to = Address::topic(Topic::from_static("out"));
            Outgoing::new(BusId::FIRST, to, Message::plain(body))
        });
        let weight = CopiesInHand::new(1).hold(&message, &copies);
        assert_eq!(weight.bytes, 2 * COPY);
    }
}
