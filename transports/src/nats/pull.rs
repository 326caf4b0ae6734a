//! One pull: a request for messages, and the part of the budget that is reserved for them.

use std::sync::Arc;
use std::time::Duration;

use async_nats::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::api::nanoseconds;
use super::consumer::Limits;

/// One pull asks for at most this many messages. Between two pulls the server sends nothing, so there should be few.
const BATCH: u32 = 2048;

/// One pull asks for at least this part of the budgeted messages. Otherwise a reader whose budget is used up would send a
/// pull for each message that settles.
const LEAST_PART: u32 = 16;

/// How long a pull waits on the server for messages.
const EXPIRES: Duration = Duration::from_secs(30);

/// How often the server shows that a waiting pull is alive; after two missing signs the pull ends.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How late a sign of life may be.
const GRACE: Duration = Duration::from_secs(1);

/// Bytes and messages that may be out.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    bytes: Arc<Semaphore>,
    messages: Arc<Semaphore>,
    all_bytes: u32,
    pub(super) all_messages: u32,
}

/// Part of a budget.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) messages: OwnedSemaphorePermit,
    pub(super) bytes: OwnedSemaphorePermit,
}

/// How much a pull may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// All that is free.
    Free,
    /// One message that is larger than the free budget: it takes the whole budget.
    Oversize,
}

/// A request for messages that is open at the server.
#[derive(Debug)]
pub(super) struct Pull {
    number: u64,
    share: Share,
    size: Size,
    /// Reserved, but not asked for: the server counts the bytes of a message, but not the memory of its headers beyond
    /// their text.
    overhead_bytes: usize,
    heartbeat: Duration,
    received: u32,
    /// When the next sign of life from the server is due.
    pub(super) watchdog: Instant,
}

/// A status message of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Alive,
    /// The pull is over; ask again.
    PullOver,
    /// The next message is larger than the pull allows.
    TooLarge,
    /// The consumer was deleted, or cannot be read in this way.
    ConsumerLost,
}

// === impl Budget ===

impl Budget {
    pub(super) fn new(bytes: usize, messages: u32) -> Self {
        let all_bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        let all_messages = messages.max(1);
        Self {
            bytes: Arc::new(Semaphore::new(all_bytes as usize)),
            messages: Arc::new(Semaphore::new(all_messages as usize)),
            all_bytes,
            all_messages,
        }
    }

    /// Waits until there is room to ask for messages, and reserves it: messages, then bytes. Cancel-safe.
    pub(super) async fn reserve(
        &self,
        size: Size,
        limits: Limits,
        max_payload: usize,
    ) -> Option<Share> {
        if size == Size::Oversize {
            let messages = Arc::clone(&self.messages).acquire_owned().await.ok()?;
            let bytes = Arc::clone(&self.bytes)
                .acquire_many_owned(self.all_bytes)
                .await
                .ok()?;
            return Some(Share { messages, bytes });
        }
        let most = limits.max_batch.unwrap_or(BATCH).min(BATCH);
        let least = (self.all_messages / LEAST_PART).clamp(1, most);
        let mut messages = Arc::clone(&self.messages)
            .acquire_many_owned(least)
            .await
            .ok()?;
        // Enough for the largest message that the server accepts, so that it does not refuse the pull; half of a small
        // budget, so that two pulls can be open.
        let least_bytes = (self.all_bytes / 2).clamp(1, largest_message(max_payload));
        let mut bytes = Arc::clone(&self.bytes)
            .acquire_many_owned(least_bytes)
            .await
            .ok()?;
        extend(&mut messages, &self.messages, most - least);
        extend(
            &mut bytes,
            &self.bytes,
            limits
                .max_bytes
                .unwrap_or(u32::MAX)
                .saturating_sub(least_bytes),
        );
        Some(Share { messages, bytes })
    }

    /// The share of an unrequested message, if it is free.
    pub(super) fn spare(&self, bytes: usize) -> Option<Share> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.all_bytes);
        Some(Share {
            messages: Arc::clone(&self.messages).try_acquire_owned().ok()?,
            bytes: Arc::clone(&self.bytes).try_acquire_many_owned(bytes).ok()?,
        })
    }
}

/// More than any message that the server accepts, by the server's count.
fn largest_message(max_payload: usize) -> u32 {
    u32::try_from(max_payload)
        .unwrap_or(u32::MAX)
        .saturating_add(4096)
}

/// Adds what is free to a permit, up to a number.
fn extend(permit: &mut OwnedSemaphorePermit, semaphore: &Arc<Semaphore>, most: u32) {
    let free = u32::try_from(semaphore.available_permits())
        .unwrap_or(u32::MAX)
        .min(most);
    // Only this reader takes permits, so what is free stays free.
    if free > 0
        && let Ok(more) = Arc::clone(semaphore).try_acquire_many_owned(free)
    {
        permit.merge(more);
    }
}

// === impl Pull ===

impl Pull {
    pub(super) fn new(
        number: u64,
        share: Share,
        size: Size,
        limits: Limits,
        max_payload: usize,
    ) -> Self {
        let heartbeat = HEARTBEAT.min(expires(limits) / 3);
        let reserved = share.bytes.num_permits();
        // Half, as long as any message fits into the other half: the server refuses a pull that is too small for the
        // next message.
        let pull_bytes = reserved.min((reserved / 2).max(largest_message(max_payload) as usize));
        Self {
            number,
            share,
            size,
            overhead_bytes: reserved - pull_bytes,
            heartbeat,
            received: 0,
            watchdog: Instant::now() + 2 * heartbeat + GRACE,
        }
    }

    /// What to ask the server for. Source: NATS ADR-13.
    pub(super) fn request(&self, limits: Limits) -> Value {
        let mut request = json!({
            "batch": self.share.messages.num_permits(),
            "expires": nanoseconds(expires(limits)),
            "idle_heartbeat": nanoseconds(self.heartbeat),
        });
        if self.size == Size::Free {
            let reserved = self.share.bytes.num_permits();
            let free = reserved.saturating_sub(self.overhead_bytes);
            let most = limits.max_bytes.unwrap_or(u32::MAX) as usize;
            request["max_bytes"] = json!(free.min(most));
        }
        request
    }

    pub(super) fn is_number(&self, number: u64) -> bool {
        self.number == number
    }

    /// Notes a sign of life.
    pub(super) fn alive(&mut self, now: Instant) {
        self.watchdog = now + 2 * self.heartbeat + GRACE;
    }

    /// The share of one received message. Its overhead comes from the part reserved for overhead, so that it does not
    /// use up the bytes of later messages.
    pub(super) fn take(&mut self, bytes: usize, overhead: usize) -> Option<Share> {
        self.received += 1;
        let overhead = overhead.min(self.overhead_bytes);
        self.overhead_bytes -= overhead;
        // A message that is larger than the budget takes all of it.
        let bytes = (bytes + overhead).min(self.share.bytes.num_permits());
        Some(Share {
            messages: self.share.messages.split(1)?,
            bytes: self.share.bytes.split(bytes)?,
        })
    }

    /// Whether everything it asked for has arrived.
    pub(super) fn is_over(&self) -> bool {
        self.share.messages.num_permits() == 0
    }

    /// What to ask for after the server said that the next message is too large. If some messages came before it, only
    /// the rest of the budget was too small for it.
    pub(super) fn after_too_large(&self) -> Size {
        match self.received {
            0 => Size::Oversize,
            _ => Size::Free,
        }
    }
}

fn expires(limits: Limits) -> Duration {
    limits.max_expires.unwrap_or(EXPIRES).min(EXPIRES)
}

// === impl Status ===

impl Status {
    /// Reads a status of a pull. Source: NATS ADR-13 (pull subscribe internals).
    pub(super) fn read(status: StatusCode, description: &str) -> Self {
        let is = |start: &str| {
            description
                .get(..start.len())
                .is_some_and(|found| found.eq_ignore_ascii_case(start))
        };
        match status {
            StatusCode::IDLE_HEARTBEAT => Self::Alive,
            StatusCode::NO_RESPONDERS => Self::ConsumerLost,
            StatusCode::REQUEST_TERMINATED if is("Message Size Exceeds") => Self::TooLarge,
            StatusCode::REQUEST_TERMINATED
                if is("Consumer Deleted")
                    || is("Consumer is push based")
                    || is("Exceeded MaxRequest")
                    || is("Exceeded MaxWaiting") =>
            {
                Self::ConsumerLost
            }
            // The other 409: leadership change, server shutdown, batch completed.
            StatusCode::TIMEOUT | StatusCode::REQUEST_TERMINATED => Self::PullOver,
            // A bad request would be refused again at once. So would one that gets 404, which the server sends only for
            // pulls with `no_wait`; ours have none.
            _ => Self::ConsumerLost,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn statuses_of_a_pull() {
        for (code, description, expected) in [
            (100, "Idle Heartbeat", Status::Alive),
            (408, "Request Timeout", Status::PullOver),
            (409, "Message Size Exceeds MaxBytes", Status::TooLarge),
            (409, "Batch Completed", Status::PullOver),
            (409, "Leadership Change", Status::PullOver),
            (409, "Server Shutdown", Status::PullOver),
            (409, "Consumer Deleted", Status::ConsumerLost),
            (409, "Exceeded MaxRequestBatch of 10", Status::ConsumerLost),
            (
                400,
                "Bad Request - Priority Group missing",
                Status::ConsumerLost,
            ),
            (404, "No Messages", Status::ConsumerLost),
            (423, "Nats-Pin-Id mismatch", Status::ConsumerLost),
            (503, "", Status::ConsumerLost),
        ] {
            let code = StatusCode::from_u16(code).unwrap();
            assert_eq!(Status::read(code, description), expected, "{description}");
        }
    }

    fn no_limits() -> Limits {
        Limits {
            ack_wait: Duration::from_secs(30),
            max_batch: None,
            max_bytes: None,
            max_expires: None,
        }
    }

    #[tokio::test]
    async fn a_pull_reserves_what_is_free_and_no_more_than_a_batch() {
        let budget = Budget::new(10_000_000, 10_000);
        let Share { messages, bytes } = budget
            .reserve(Size::Free, no_limits(), 1 << 20)
            .await
            .unwrap();
        assert_eq!(
            (messages.num_permits(), bytes.num_permits()),
            (2048, 10_000_000)
        );
        assert!(
            budget
                .reserve(Size::Free, no_limits(), 1 << 20)
                .now_or_never()
                .is_none()
        );
        drop(bytes);
        let Share {
            messages: rest,
            bytes: _bytes,
        } = budget
            .reserve(Size::Free, no_limits(), 1 << 20)
            .await
            .unwrap();
        assert_eq!(rest.num_permits(), 2048);
        assert_eq!(budget.messages.available_permits(), 10_000 - 4096);
    }

    #[tokio::test]
    async fn a_pull_waits_for_more_than_a_message_only_if_the_budget_has_more() {
        for (all, least) in [(1, 1), (16, 1), (1000, 62), (100_000, 2048)] {
            let budget = Budget::new(10_000_000, all);
            let semaphore = Arc::clone(&budget.messages);
            let mut out = semaphore.acquire_many_owned(all).await.unwrap();
            drop(out.split(least - 1));
            let reserve = || budget.reserve(Size::Free, no_limits(), 1000);
            assert!(reserve().now_or_never().is_none(), "{all}");
            drop(out.split(1));
            let share = reserve().now_or_never().unwrap().unwrap();
            assert_eq!(share.messages.num_permits(), least, "{all}");
        }
        // The limit of the consumer is smaller.
        let limits = Limits {
            max_batch: Some(10),
            ..no_limits()
        };
        let budget = Budget::new(10_000_000, 1000);
        let share = budget.reserve(Size::Free, limits, 1000).await.unwrap();
        assert_eq!(share.messages.num_permits(), 10);
    }

    #[tokio::test]
    async fn a_message_larger_than_the_budget_waits_for_all_of_it() {
        let budget = Budget::new(1000, 100);
        let Share {
            mut messages,
            bytes,
        } = budget.reserve(Size::Free, no_limits(), 500).await.unwrap();
        assert_eq!((messages.num_permits(), bytes.num_permits()), (100, 1000));
        drop(messages.split(9));
        assert!(
            budget
                .reserve(Size::Oversize, no_limits(), 500)
                .now_or_never()
                .is_none()
        );
        drop(bytes);
        let Share {
            messages: one,
            bytes: all,
        } = budget
            .reserve(Size::Oversize, no_limits(), 500)
            .await
            .unwrap();
        assert_eq!((one.num_permits(), all.num_permits()), (1, 1000));
    }

    #[tokio::test]
    async fn tiny_headers_are_charged_to_the_overhead() {
        let budget = Budget::new(100_000, 1000);
        let share = budget.reserve(Size::Free, no_limits(), 1000).await.unwrap();
        let mut pull = Pull::new(1, share, Size::Free, no_limits(), 1000);
        assert_eq!(pull.request(no_limits())["max_bytes"], 50_000);
        let taken: Vec<_> = (0..10).map(|_| pull.take(100, 30_000).unwrap()).collect();
        let charged: usize = taken.iter().map(|share| share.bytes.num_permits()).sum();
        assert_eq!(charged, 10 * 100 + 50_000);
        // The messages that the server may still send fit.
        assert_eq!(pull.share.bytes.num_permits(), 50_000 - 10 * 100);

        let small = Budget::new(2000, 10);
        let share = small.reserve(Size::Free, no_limits(), 1000).await.unwrap();
        let pull = Pull::new(1, share, Size::Free, no_limits(), 1000);
        assert_eq!(pull.request(no_limits())["max_bytes"], 2000);
    }
}
