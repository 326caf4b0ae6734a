//! Outstanding deliveries: received and not settled.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::link::jitter;
use crate::delivery::{Outcome, Settle};
use crate::error::{TransportError, TransportErrorKind};

/// Pauses before an abandoned message is delivered again.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The outstanding deliveries, by their sequence in the stream.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    out: HashMap<u64, Out>,
    /// When to send work-in-progress acks, in order.
    progress: VecDeque<Progress>,
    /// Distinguishes a delivery from an earlier one of the same sequence.
    deliveries: u64,
}

#[derive(Debug)]
struct Out {
    delivery: u64,
    /// When the stream stored the message. A stream that was created again uses the same sequences for other messages.
    time: Option<i64>,
    reply: Subject,
}

#[derive(Debug)]
struct Progress {
    when: Instant,
    sequence: u64,
    delivery: u64,
}

/// The result of a delivery, with its permit.
#[derive(Debug)]
pub(super) struct Settlement {
    pub(super) sequence: u64,
    pub(super) delivery: u64,
    pub(super) attempt: u32,
    pub(super) outcome: Outcome,
    _message: OwnedSemaphorePermit,
}

/// Settles one delivery by a message to the reading task.
pub(super) struct ToReader {
    pub(super) sequence: u64,
    pub(super) delivery: u64,
    pub(super) attempt: u32,
    pub(super) message: OwnedSemaphorePermit,
    pub(super) verdicts: mpsc::Sender<Settlement>,
}

// === impl Ledger ===

impl Ledger {
    /// Whether a delivery of that message is outstanding. Then the newer reply subject settles it.
    pub(super) fn renew(&mut self, message: &Info, reply: &Subject) -> bool {
        let out = self.out.get_mut(&message.sequence);
        match out.filter(|out| out.time == message.time) {
            Some(out) => {
                out.reply = reply.clone();
                true
            }
            None => false,
        }
    }

    /// Adds a delivery and returns its number. If it is still outstanding at that time, a work-in-progress ack is due. The
    /// outcome of an outstanding delivery with the same sequence is then ignored.
    pub(super) fn deliver(&mut self, message: &Info, reply: Subject, progress: Instant) -> u64 {
        self.deliveries += 1;
        let delivery = self.deliveries;
        let Info { sequence, time, .. } = *message;
        let out = Out {
            delivery,
            time,
            reply,
        };
        self.out.insert(sequence, out);
        self.expect(Progress {
            when: progress,
            sequence,
            delivery,
        });
        delivery
    }

    /// Ends a delivery; returns its reply subject. `None` for a delivery that has already ended.
    pub(super) fn settle(&mut self, verdict: &Settlement) -> Option<Subject> {
        if self.out.get(&verdict.sequence)?.delivery != verdict.delivery {
            return None;
        }
        self.out.remove(&verdict.sequence).map(|out| out.reply)
    }

    /// The sequences of the outstanding deliveries.
    pub(super) fn sequences(&self) -> HashSet<u64> {
        self.out.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Ends all deliveries.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (u64, Subject)> {
        let out = std::mem::take(&mut self.out).into_iter();
        out.map(|(sequence, out)| (sequence, out.reply))
    }

    /// Brings forward the work-in-progress acks that are due later: the ack wait has become shorter.
    pub(super) fn hasten(&mut self, latest: Instant) {
        for progress in &mut self.progress {
            progress.when = progress.when.min(latest);
        }
    }

    /// When the next work-in-progress ack is due.
    pub(super) fn next_progress(&mut self) -> Option<Instant> {
        while let Some(progress) = self.progress.front() {
            if self.is_out(progress) {
                return Some(progress.when);
            }
            self.progress.pop_front();
        }
        None
    }

    /// The reply subject for a work-in-progress ack that is due, after which the next is due at that time.
    pub(super) fn due(&mut self, now: Instant, again: Instant) -> Option<Subject> {
        self.next_progress().filter(|when| *when <= now)?;
        let mut progress = self.progress.pop_front()?;
        let reply = self.out.get(&progress.sequence)?.reply.clone();
        progress.when = again;
        self.expect(progress);
        Some(reply)
    }

    fn expect(&mut self, progress: Progress) {
        if self.progress.len() > 4 * self.out.len() + 1024 {
            // One slow delivery at the front would keep the entries of all quick ones behind it.
            let mut entries = std::mem::take(&mut self.progress);
            entries.retain(|entry| self.is_out(entry));
            self.progress = entries;
        }
        self.progress.push_back(progress);
    }

    fn is_out(&self, progress: &Progress) -> bool {
        self.out
            .get(&progress.sequence)
            .is_some_and(|out| out.delivery == progress.delivery)
    }
}

// === impl ToReader ===

impl Settle for ToReader {
    fn settle(self: Box<Self>, outcome: Outcome) -> Result<(), TransportError> {
        let verdict = Settlement {
            sequence: self.sequence,
            delivery: self.delivery,
            attempt: self.attempt,
            outcome,
            _message: self.message,
        };
        self.verdicts.try_send(verdict).map_err(|_| {
            TransportError::new(
                TransportErrorKind::Closed,
                "settle a delivery of a subscription that has ended",
            )
        })
    }
}

/// The contents of the reply subject of a JetStream message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) sequence: u64,
    pub(super) attempt: u32,
    /// When the stream stored it, in milliseconds since 1970.
    pub(super) time: Option<i64>,
}

// === impl Info ===

impl Info {
    /// Reads `$JS.ACK.STREAM.CONSUMER.DELIVERED.STREAM_SEQ.CONSUMER_SEQ.TIME.PENDING`, or the longer form with domain
    /// and account before the stream. Source: NATS ADR-15.
    pub(super) fn parse(reply: &str) -> Option<Self> {
        let tokens = reply.strip_prefix("$JS.ACK.")?;
        let count = tokens.split('.').count();
        let skip = match count {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let mut tokens = tokens.split('.').skip(skip);
        let attempt = tokens.next()?.parse().ok()?;
        let sequence = tokens.next()?.parse().ok()?;
        let nanoseconds = tokens.nth(1).and_then(|time| time.parse::<i64>().ok());
        Some(Self {
            sequence,
            attempt,
            time: nanoseconds.map(|time| time / 1_000_000),
        })
    }
}

/// Negative acknowledgement: again after 250 ms, doubled with each attempt up to a minute, of which the second half is
/// random.
pub(super) fn nak(attempt: u32) -> Bytes {
    let pause = FIRST_PAUSE
        .saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1).min(16)))
        .min(MAX_PAUSE);
    let pause = pause / 2 + jitter(pause / 2);
    Bytes::from(format!("-NAK {{\"delay\":{}}}", pause.as_nanos()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn reply_subjects_of_all_servers_are_read() {
        let info = Some(Info {
            sequence: 100,
            attempt: 3,
            time: Some(1_790_230_470_084),
        });
        for (reply, expected) in [
            (
                "$JS.ACK.events.durable.3.100.7.1790230470084404000.42",
                info,
            ),
            (
                "$JS.ACK._.acc.events.durable.3.100.7.1790230470084404000.42",
                info,
            ),
            (
                "$JS.ACK.hub.acc.events.durable.3.100.7.1790230470084404000.42.rand",
                info,
            ),
            ("$JS.ACK.events.durable.3.100.7.1", None),
            ("$JS.ACK.events.durable.3.abc.7.1.1", None),
            ("_INBOX.a.b", None),
        ] {
            assert_eq!(Info::parse(reply), expected, "{reply}");
        }
    }

    #[test]
    fn pauses_grow_with_the_attempts_and_are_capped() {
        let pause = |attempt| {
            let nak = nak(attempt);
            let text = std::str::from_utf8(&nak).unwrap();
            let nanos = text.strip_prefix("-NAK {\"delay\":").unwrap();
            Duration::from_nanos(nanos.strip_suffix('}').unwrap().parse().unwrap())
        };
        for (attempt, most) in [
            (0, 250),
            (1, 250),
            (2, 500),
            (5, 4000),
            (9, 60_000),
            (u32::MAX, 60_000),
        ] {
            let most = Duration::from_millis(most);
            assert!((most / 2..=most).contains(&pause(attempt)), "{attempt}");
        }
    }

    fn verdict(sequence: u64, delivery: u64, outcome: Outcome) -> Settlement {
        Settlement {
            sequence,
            delivery,
            attempt: 1,
            outcome,
            _message: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
        }
    }

    /// The message with this sequence, stored at a time.
    fn message(sequence: u64, time: i64) -> Info {
        Info {
            sequence,
            attempt: 1,
            time: Some(time),
        }
    }

    #[test]
    fn a_message_of_a_stream_that_was_created_again_is_not_the_one_in_progress() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let (old, new) = (message(7, 1), message(7, 2));
        let first = ledger.deliver(&old, "old".into(), now);
        assert!(!ledger.renew(&new, &"new".into()));
        let second = ledger.deliver(&new, "new".into(), now);
        let outcome = verdict(7, first, Outcome::Settled);
        assert!(ledger.settle(&outcome).is_none(), "the new one is not read");
        assert!(ledger.renew(&new, &"again".into()));
        let reply = ledger.settle(&verdict(7, second, Outcome::Settled));
        assert_eq!(reply.unwrap().as_str(), "again");
    }

    #[test]
    fn a_redelivery_replaces_the_delivery_and_its_old_outcome_is_ignored() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let seventh = message(7, 1);
        assert!(!ledger.renew(&seventh, &"a".into()));
        let first = ledger.deliver(&seventh, "a".into(), now);
        assert!(ledger.renew(&seventh, &"b".into()));
        let reply = ledger.settle(&verdict(7, first, Outcome::Abandoned));
        assert_eq!(reply.unwrap().as_str(), "b");
        let second = ledger.deliver(&seventh, "c".into(), now);
        assert!(
            ledger
                .settle(&verdict(7, first, Outcome::Settled))
                .is_none()
        );
        assert!(!ledger.is_empty());
        assert!(
            ledger
                .settle(&verdict(7, second, Outcome::Settled))
                .is_some()
        );
        assert!(ledger.is_empty());
    }

    #[test]
    fn a_shorter_ack_wait_applies_to_earlier_deliveries() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let second = Duration::from_secs(1);
        for (sequence, seconds) in [(1, 10), (2, 20), (3, 30)] {
            ledger.deliver(&message(sequence, 1), "a".into(), now + seconds * second);
        }
        ledger.hasten(now + 15 * second);
        let progress = ledger.progress.iter();
        let due: Vec<u64> = progress.map(|it| (it.when - now).as_secs()).collect();
        assert_eq!(due, [10, 15, 15]);
    }

    #[test]
    fn progress_is_reported_for_unsettled_messages_and_stays_bounded() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let second = Duration::from_secs(1);
        ledger.deliver(&message(1, 1), "slow".into(), now + second);
        for sequence in 2..100_000 {
            let delivery = ledger.deliver(&message(sequence, 1), "quick".into(), now + second);
            ledger.settle(&verdict(sequence, delivery, Outcome::Settled));
        }
        assert!(ledger.progress.len() < 2000);
        assert!(ledger.due(now, now + 2 * second).is_none());
        let due = ledger.due(now + second, now + 2 * second);
        assert_eq!(due.unwrap().as_str(), "slow");
        assert!(ledger.due(now + second, now + 2 * second).is_none());
        assert_eq!(ledger.next_progress(), Some(now + 2 * second));
    }
}
