//! The order of messages that different tasks send: messages for one destination with one key are sent, and sent again,
//! in the order in which they got their places.
//!
//! ```text
//! reader of answers ── answer, Turn ──> task of its request ── waits for its turn ──> bus
//! ```
//! A message has its turn once every earlier one is confirmed, given up, or in the queue of the bus. After a failure,
//! messages that the bus accepted before it do not count: they probably fail, too, and have to be sent first.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Poll, Waker};

use a2abus_transports::Topic;
use bytes::Bytes;
use dashmap::DashMap;

use super::BusId;
use crate::lock::lock;

/// The lines of all destinations that messages wait for. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines(Arc<DashMap<LineKey, Weak<Line>>>);

/// Messages for the same destination with the same key keep their order.
type LineKey = (BusId, Topic, Option<Bytes>);

/// The line of one destination and key.
#[derive(Debug)]
pub(crate) struct Line {
    key: LineKey,
    lines: Lines,
    places: Mutex<Places>,
}

/// A place in a line. It ends when the turn is dropped.
#[derive(Debug)]
pub struct Turn {
    line: Arc<Line>,
    number: u64,
}

#[derive(Debug, Default)]
struct Places {
    /// The number of the first place in the queue.
    first: u64,
    queue: VecDeque<Place>,
    /// Whose turn it is: every earlier message is over, or handed over since the last failure.
    turn: u64,
    /// The number of failures.
    failures: u64,
}

#[derive(Debug)]
enum Place {
    /// The message has to be sent.
    Waiting(Option<Waker>),
    /// The bus has accepted it into its queue, after this number of failures.
    HandedOver(u64),
    Over,
}

// === impl Lines ===

impl Lines {
    /// The line of this destination and key.
    pub(crate) fn line(&self, bus: BusId, topic: Topic, key: Option<Bytes>) -> Arc<Line> {
        let key = (bus, topic, key);
        let mut known = self.0.entry(key.clone()).or_default();
        if let Some(line) = known.upgrade() {
            return line;
        }
        let line = Arc::new(Line {
            key,
            lines: self.clone(),
            places: Mutex::default(),
        });
        *known = Arc::downgrade(&line);
        line
    }
}

// === impl Line ===

impl Line {
    /// The last place in the line.
    pub(crate) fn turn(self: &Arc<Self>) -> Turn {
        let number = self.places().enter();
        Turn {
            line: Arc::clone(self),
            number,
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        lock(&self.places)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Another line with this key may have begun meanwhile.
        let is_gone = |_: &LineKey, line: &Weak<Self>| line.strong_count() == 0;
        self.lines.0.remove_if(&self.key, is_gone);
    }
}

// === impl Turn ===

impl Turn {
    /// Waits for the turn. Cancel-safe.
    pub(crate) async fn come(&self) {
        poll_fn(|context| {
            let mut places = self.line.places();
            if places.turn >= self.number {
                return Poll::Ready(());
            }
            places.set(self.number, Place::Waiting(Some(context.waker().clone())));
            Poll::Pending
        })
        .await;
    }

    /// Waits for the turn, and then for something else. Earlier messages may fail meanwhile: then it waits for both again.
    pub(crate) async fn come_with<W: Future>(&self, wait: impl Fn() -> W) -> W::Output {
        loop {
            self.come().await;
            let waited = wait().await;
            if self.has_come() {
                return waited;
            }
        }
    }

    fn has_come(&self) -> bool {
        self.line.places().turn >= self.number
    }

    /// The bus has accepted the message into its queue.
    pub(crate) fn handed_over(&self) {
        let mut places = self.line.places();
        let place = Place::HandedOver(places.failures);
        places.set(self.number, place);
        places.advance();
    }

    /// The message has to be sent again.
    pub(crate) fn failed(&self) {
        self.line.places().fail(self.number);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut places = self.line.places();
        places.set(self.number, Place::Over);
        places.advance();
    }
}

// === impl Places ===

impl Places {
    fn enter(&mut self) -> u64 {
        self.queue.push_back(Place::Waiting(None));
        self.first + self.queue.len() as u64 - 1
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Place> {
        let index = number.checked_sub(self.first)?;
        self.queue.get_mut(usize::try_from(index).ok()?)
    }

    fn set(&mut self, number: u64, place: Place) {
        if let Some(old) = self.get_mut(number) {
            *old = place;
        }
    }

    fn fail(&mut self, number: u64) {
        let failures = self.failures;
        let Some(place) = self.get_mut(number) else {
            return;
        };
        let before = std::mem::replace(place, Place::Waiting(None));
        // Those that the bus accepted before a failure that is known belong to it.
        if matches!(before, Place::HandedOver(at) if at == failures) {
            self.failures += 1;
            self.turn = self.first;
        }
        self.advance();
    }

    /// Finds out whose turn it is, and wakes its task.
    fn advance(&mut self) {
        while let Some(Place::Over) = self.queue.front() {
            self.queue.pop_front();
            self.first += 1;
        }
        self.turn = self.turn.max(self.first);
        let failures = self.failures;
        loop {
            let turn = self.turn;
            match self.get_mut(turn) {
                Some(Place::Over) => self.turn += 1,
                Some(Place::HandedOver(at)) if *at == failures => self.turn += 1,
                Some(Place::Waiting(waker)) => {
                    return waker.take().into_iter().for_each(Waker::wake);
                }
                Some(Place::HandedOver(_)) | None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn line(lines: &Lines) -> Arc<Line> {
        lines.line(BusId::FIRST, Topic::new("t").unwrap(), None)
    }

    #[tokio::test]
    async fn turns_come_in_the_order_in_which_they_were_taken() {
        let lines = Lines::default();
        let line = line(&lines);
        let [first, second, third] = [line.turn(), line.turn(), line.turn()];
        let mut waits = Box::pin(third.come());
        assert!(waits.as_mut().now_or_never().is_none());
        first.come().await;
        first.handed_over();
        assert!(waits.as_mut().now_or_never().is_none());
        // Whoever leaves the line lets the next one through.
        drop(second);
        waits.await;
    }

    #[test]
    fn after_a_failure_messages_are_sent_again_in_the_order_of_their_places() {
        let lines = Lines::default();
        let line = line(&lines);
        let turns: Vec<_> = (0..5).map(|_| line.turn()).collect();
        let [first, second, third, fourth, fifth] = &turns[..] else {
            unreachable!()
        };
        for turn in [first, second, third, fourth] {
            assert!(turn.has_come());
            turn.handed_over();
        }
        assert!(fifth.has_come());
        // The others were handed over before it failed, and will fail.
        third.failed();
        assert!(!third.has_come() && !fifth.has_come());
        second.failed();
        first.failed();
        assert!(first.has_come() && !second.has_come());
        first.handed_over();
        assert!(second.has_come() && !third.has_come());
        second.handed_over();
        assert!(third.has_come() && !fifth.has_come());
        third.handed_over();
        // The fourth is late: the fifth waits until it has failed, or is confirmed.
        assert!(!fifth.has_come());
        fourth.failed();
        assert!(fourth.has_come() && !fifth.has_come());
        fourth.handed_over();
        assert!(fifth.has_come());
    }

    #[test]
    fn each_failure_makes_those_before_it_uncertain() {
        let lines = Lines::default();
        let line = line(&lines);
        let [first, second] = [line.turn(), line.turn()];
        first.handed_over();
        second.handed_over();
        second.failed();
        assert!(!second.has_come());
        drop(first);
        assert!(second.has_come());
        second.handed_over();
        second.failed();
        assert!(second.has_come());
    }

    #[test]
    fn a_line_is_shared_while_somebody_stands_in_it() {
        let lines = Lines::default();
        let first = line(&lines);
        let turn = first.turn();
        drop(first);
        assert!(!line(&lines).turn().has_come());
        drop(turn);
        assert!(lines.0.is_empty());
    }
}
