//! How much of the memory for tasks may the unfinished tasks of one client take?
//!
//! An unfinished task cannot be removed for lack of memory, so without a limit one client could use all of it. Each
//! replica counts the tasks whose messages it sends. A task counts for the client that began it, as far as the replica
//! knows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use a2abus_plugin::Text;
use tokio::time::Instant;

use crate::lock::lock;
use crate::shares::{Share, Shares};

/// The memory that the unfinished tasks of each client take.
#[derive(Debug)]
pub(super) struct Rooms {
    of_clients: Arc<Shares<Text>>,
    tasks: Mutex<CountedTasks>,
}

#[derive(Debug, Default)]
struct CountedTasks {
    by_id: HashMap<Text, Share<Text>>,
    /// When all of them were last counted.
    counted: Option<Instant>,
}

/// The unfinished tasks of one client may take this part of the memory.
const PART: usize = 2;
/// How often all tasks are counted at most, because a client has reached the limit.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

// === impl Rooms ===

impl Rooms {
    /// For tasks that may take `memory` bytes in all.
    pub(super) fn new(memory: usize) -> Self {
        Self {
            of_clients: Shares::new(memory / PART),
            tasks: Mutex::default(),
        }
    }

    /// Room for a message of a client that takes `bytes`; `None` if its unfinished tasks take too much. A message for an
    /// existing task may use half as much more, so that tasks that wait for their client can end. `size_of` tells what a
    /// task takes, and is `None` for one that has ended.
    pub(super) fn take(
        &self,
        client: &Text,
        (bytes, is_continuation): (usize, bool),
        size_of: impl Fn(&str) -> Option<usize>,
    ) -> Option<Share<Text>> {
        let limit = self.of_clients.limit();
        let fits = |room: &mut Share<Text>| {
            room.grow_large(bytes)
                || (is_continuation && room.grow_within(bytes, limit + limit / 2))
        };
        let mut room = self.of_clients.begin(client);
        if fits(&mut room) {
            return Some(room);
        }
        // Some of them may have ended without a message from here.
        self.count_if_due(size_of);
        fits(&mut room).then_some(room)
    }

    /// Keeps the room of a message that is now in its task, until the task ends.
    pub(super) fn keep(
        &self,
        task: &Text,
        room: Share<Text>,
        size_of: impl Fn(&str) -> Option<usize>,
    ) {
        self.tasks().by_id.entry(task.clone()).or_insert(room);
        self.count(task, size_of);
    }

    /// Counts what a task takes now: nothing once it has ended.
    pub(super) fn count(&self, task: &str, size_of: impl Fn(&str) -> Option<usize>) {
        let mut tasks = self.tasks();
        match (tasks.by_id.get_mut(task), size_of(task)) {
            (Some(room), Some(bytes)) => room.set(bytes),
            (Some(_), None) => drop(tasks.by_id.remove(task)),
            (None, _) => {}
        }
    }

    /// Counts all tasks.
    pub(super) fn count_all(&self, size_of: impl Fn(&str) -> Option<usize>) {
        let mut tasks = self.tasks();
        tasks.by_id.retain(|task, room| match size_of(task) {
            Some(bytes) => {
                room.set(bytes);
                true
            }
            None => false,
        });
        tasks.counted = Some(Instant::now());
    }

    fn count_if_due(&self, size_of: impl Fn(&str) -> Option<usize>) {
        let counted = self.tasks().counted;
        if counted.is_none_or(|at| at.elapsed() >= COUNT_INTERVAL) {
            self.count_all(size_of);
        }
    }

    fn tasks(&self) -> MutexGuard<'_, CountedTasks> {
        lock(&self.tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_unfinished_tasks_of_one_client_take_at_most_half() {
        let rooms = Rooms::new(1_000);
        let (one, other) = (Text::from_static("a"), Text::from_static("b"));
        let of_size = |bytes: usize| move |_: &str| Some(bytes);
        rooms.keep(
            &"t".into(),
            rooms.take(&one, (300, false), of_size(0)).unwrap(),
            of_size(300),
        );
        // A message that creates no task releases its room.
        drop(rooms.take(&one, (200, false), of_size(300)).unwrap());
        let waiting = rooms.take(&one, (200, false), of_size(300)).unwrap();
        assert!(rooms.take(&one, (1, false), of_size(300)).is_none());
        // A message that may end a task still fits.
        let continued = rooms.take(&one, (250, true), of_size(300)).unwrap();
        assert!(rooms.take(&one, (1, true), of_size(300)).is_none());
        drop(continued);
        assert!(rooms.take(&other, (500, false), of_size(300)).is_some());
        drop(waiting);
        // The task grows with the parts of its answer.
        rooms.count("t", of_size(500));
        assert!(rooms.take(&one, (1, false), of_size(500)).is_none());
        // It has ended, which this replica notices when it counts again.
        tokio::time::advance(COUNT_INTERVAL).await;
        assert!(rooms.take(&one, (500, false), |_: &str| None).is_some());
        assert!(rooms.of_clients.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_for_an_existing_task_counts_once() {
        let rooms = Rooms::new(1_000);
        let (client, task) = (Text::from_static("a"), Text::from_static("t"));
        for bytes in [100, 200] {
            let room = rooms.take(&client, (100, false), |_: &str| Some(bytes));
            let room = room.unwrap();
            rooms.keep(&task, room, |_: &str| Some(bytes));
            assert_eq!(rooms.of_clients.held_by(&client), bytes);
        }
        rooms.count(&task, |_: &str| None);
        assert!(rooms.of_clients.is_empty());
    }
}
