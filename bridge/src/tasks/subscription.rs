//! The events of a task, in order, for a subscriber.

use std::sync::Arc;

use a2abus_plugin::Text;

use super::fold::{Event, Task};
use super::model::State;
use crate::state::body;
use crate::state::{Following, Lagged, Position};

/// One event of a task, for a subscriber.
#[derive(Debug, Clone)]
pub(crate) struct Update {
    /// Its position in the log, which is also the id of the event.
    pub(crate) position: Position,
    /// The event.
    pub(crate) event: Arc<Event>,
    /// The call whose answer it comes from, if that is known.
    pub(crate) call: Option<Text>,
    /// Whether it is not the last event for its subscriber, although the task rests.
    pub(crate) goes_on: bool,
}

/// The events of one task from some position on.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The events between the position that the subscriber named and the start of the subscription.
    missed: std::vec::IntoIter<Update>,
    following: Following,
}

// === impl Update, Subscription ===

impl Update {
    /// The state of the task after this event, if the event changes it.
    pub(super) fn state(&self) -> Option<State> {
        match &*self.event {
            Event::Status(status) => Some(status.state),
            _ => None,
        }
    }

    /// Whether the task ends with it.
    pub(crate) fn is_terminal(&self) -> bool {
        self.state().is_some_and(State::is_terminal)
    }

    /// Whether the task ends or pauses with it.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.state().is_some_and(State::is_at_rest)
    }
}

impl Subscription {
    /// These events, and those from now on.
    pub(super) fn new(missed: Vec<Update>, following: Following) -> Self {
        let missed = missed.into_iter();
        Self { missed, following }
    }

    /// Whether there are events that the subscriber has not received yet.
    pub(crate) fn has_missed(&self) -> bool {
        !self.missed.as_slice().is_empty()
    }

    /// The next event; `None` when the bridge shuts down. Cancel-safe.
    ///
    /// # Errors
    /// When the subscriber was too slow. It must subscribe again.
    pub(crate) async fn next(&mut self) -> Result<Option<Update>, Lagged> {
        if let Some(missed) = self.missed.next() {
            return Ok(Some(missed));
        }
        loop {
            let Some(record) = self.following.next().await? else {
                return Ok(None);
            };
            let parted = body::read(&record).map(Event::parted);
            if let Some((event, from)) = parted.filter(|(event, _)| event.is_shown()) {
                return Ok(Some(Update {
                    position: record.position,
                    event: Arc::new(event),
                    call: from.map(|from| from.call),
                    goes_on: false,
                }));
            }
        }
    }
}

impl Task {
    /// The events after a position.
    pub(super) fn steps(&self, after: Position) -> impl Iterator<Item = Update> {
        let events = self.events.iter();
        let steps = events.filter(move |(position, _)| *position > after);
        steps.map(|(position, event)| Update {
            position: *position,
            event: Arc::clone(event),
            call: None,
            goes_on: false,
        })
    }

    /// Whether there are events after a position that subscribers receive.
    pub(crate) fn has_news(&self, after: Position) -> bool {
        let last = self.events.back();
        last.is_some_and(|(position, _)| *position > after)
    }

    /// Whether all events after a position are stored.
    pub(crate) fn remembers(&self, after: Position) -> bool {
        !self.has_forgotten
            || self
                .events
                .front()
                .is_some_and(|(position, _)| *position <= after)
    }
}
