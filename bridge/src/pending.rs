//! The table of calls that wait for an answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use a2abus_plugin::Text;
use dashmap::DashMap;
use prometheus::IntGauge;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use crate::bus::BusId;
use crate::callid::CallId;
use crate::calls::{CallError, Part};

/// Calls that wait for an answer, by call id.
#[derive(Debug)]
pub struct PendingCalls {
    table: DashMap<CallId, Entry>,
    count: AtomicUsize,
    max: usize,
    emptied: Notify,
    gauge: IntGauge,
}

/// One call that waits for an answer.
#[derive(Debug)]
pub struct Entry {
    /// Takes the parts to the caller.
    pub parts: mpsc::Sender<Result<Part, CallError>>,
    /// The caller's own id, as its JSON token.
    pub token: Text,
    /// Whether the method's answer comes in parts.
    pub streamed: bool,
    /// The buses the request went to.
    pub buses: Vec<BusId>,
}

/// What became of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed {
    /// The caller has it.
    Over,
    /// Nobody waits for it any more.
    Late,
}

// === impl PendingCalls ===

impl PendingCalls {
    /// An empty table of at most `max` calls; `gauge` shows how many there are.
    #[must_use]
    pub fn new(max: usize, gauge: IntGauge) -> Self {
        Self {
            table: DashMap::new(),
            count: AtomicUsize::new(0),
            max,
            emptied: Notify::new(),
            gauge,
        }
    }

    /// Waits until no call waits.
    pub async fn until_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Puts a call in; `false` when the table is full.
    #[must_use]
    pub fn register(&self, call: CallId, entry: Entry) -> bool {
        let grown = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < self.max).then_some(count + 1)
            });
        if grown.is_err() {
            return false;
        }
        let old = self.table.insert(call, entry);
        debug_assert!(old.is_none(), "call ids are unique");
        self.gauge.inc();
        true
    }

    /// Takes a call out; whether it was there.
    pub fn remove(&self, call: CallId) -> bool {
        let removed = self.table.remove(&call).is_some();
        if removed {
            self.gauge.dec();
            if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.emptied.notify_waiters();
            }
        }
        removed
    }

    /// How many calls wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether no call waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands a part to the caller that waits for it. `part` is made from the entry only when there is one; after the
    /// last part, or an error, the call is out of the table, so that nothing is delivered twice.
    pub fn hand_over(
        &self,
        call: CallId,
        part: impl FnOnce(&Entry) -> Result<Part, CallError>,
    ) -> Handed {
        let Some(entry) = self.table.get(&call) else {
            return Handed::Late;
        };
        let part = part(&entry);
        let ends = part.as_ref().map_or(true, |part| part.last);
        let sender = entry.parts.clone();
        drop(entry);
        // Whoever takes the entry out delivers the end: of two last parts one comes too late.
        if ends && !self.remove(call) {
            return Handed::Late;
        }
        match sender.try_send(part) {
            Ok(()) => Handed::Over,
            Err(TrySendError::Closed(_)) => Handed::Late,
            Err(TrySendError::Full(_)) => {
                // Its caller finds the channel closed after what it holds, which says that parts are missing.
                self.remove(call);
                Handed::Late
            }
        }
    }

    /// Fails the calls that match; how many.
    pub fn fail_where(&self, matches: impl Fn(&Entry) -> bool, error: &CallError) -> usize {
        let calls: Vec<CallId> = self
            .table
            .iter()
            .filter(|entry| matches(entry.value()))
            .map(|entry| *entry.key())
            .collect();
        calls
            .into_iter()
            .filter(|call| self.hand_over(*call, |_| Err(error.clone())) == Handed::Over)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callid::Replica;
    use bytes::Bytes;

    fn entry(capacity: usize) -> (Entry, mpsc::Receiver<Result<Part, CallError>>) {
        let (parts, receiver) = mpsc::channel(capacity);
        (
            Entry {
                parts,
                token: Text::from_static("1"),
                streamed: true,
                buses: Vec::new(),
            },
            receiver,
        )
    }

    fn gauge() -> IntGauge {
        IntGauge::new("pending", "Calls.").unwrap()
    }

    fn part(last: bool) -> Result<Part, CallError> {
        Ok(Part {
            body: Bytes::from_static(b"{}"),
            last,
        })
    }

    #[test]
    fn a_last_part_is_delivered_once() {
        let (table, call) = (
            PendingCalls::new(8, gauge()),
            CallId::new(Replica(0)).unwrap(),
        );
        let (entry, mut receiver) = entry(8);
        assert!(table.register(call, entry));
        assert_eq!(table.hand_over(call, |_| part(false)), Handed::Over);
        assert_eq!(table.hand_over(call, |_| part(true)), Handed::Over);
        assert_eq!(table.hand_over(call, |_| part(true)), Handed::Late);
        assert!(!receiver.try_recv().unwrap().unwrap().last);
        assert!(receiver.try_recv().unwrap().unwrap().last);
        assert!(receiver.try_recv().is_err());
        assert!(table.is_empty());
    }

    #[test]
    fn a_full_table_refuses_and_a_slow_caller_is_cut_off() {
        let table = PendingCalls::new(1, gauge());
        let (first, second) = (
            CallId::new(Replica(0)).unwrap(),
            CallId::new(Replica(0)).unwrap(),
        );
        let (entry_1, receiver) = entry(1);
        assert!(table.register(first, entry_1));
        assert!(!table.register(second, entry(1).0));
        assert_eq!(table.hand_over(first, |_| part(false)), Handed::Over);
        assert_eq!(table.hand_over(first, |_| part(false)), Handed::Late);
        assert!(table.is_empty());
        drop(receiver);
    }

    #[test]
    fn calls_fail_with_the_cause_of_their_bus() {
        let table = PendingCalls::new(8, gauge());
        let call = CallId::new(Replica(0)).unwrap();
        let (entry, mut receiver) = entry(1);
        assert!(table.register(call, entry));
        let error = CallError::Unavailable(Text::from_static("gone"));
        assert_eq!(table.fail_where(|entry| entry.streamed, &error), 1);
        assert_eq!(receiver.try_recv().unwrap(), Err(error));
    }
}
