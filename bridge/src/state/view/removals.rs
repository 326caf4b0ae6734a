//! The records that removed a key, in a log that keeps them for ever unless they are deleted.

use std::collections::VecDeque;
use std::time::Duration;

use crate::state::log::Position;

/// How long such a record is kept. Every replica has read it by then, or rebuilds its state.
pub(super) const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// At most this many are deleted at once.
const AT_ONCE: usize = 64;

/// At most this many are known. The others are found at a later start.
const MOST: usize = 16_384;

/// After this many refusals in a row nothing more is deleted: the answer to one question may be lost.
const REFUSALS: u32 = 3;

/// Those that were read and are not deleted yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// The time and the position of each.
    known: VecDeque<(u64, Position)>,
    /// How often their deletion was refused since it last succeeded.
    refusals: u32,
    is_off: bool,
}

// === impl Removals ===

impl Removals {
    /// For logs that delete such records themselves, or do not permit it.
    pub(super) fn turn_off(&mut self) {
        self.is_off = true;
        self.clear();
    }

    /// Notes that their deletion was refused. Returns whether nothing more is deleted.
    pub(super) fn refused(&mut self) -> bool {
        self.refusals += 1;
        let is_final = self.refusals >= REFUSALS;
        if is_final {
            self.turn_off();
        }
        is_final
    }

    pub(super) fn clear(&mut self) {
        self.known = VecDeque::new();
    }

    pub(super) fn note(&mut self, time: u64, position: Position) {
        if !self.is_off && self.known.len() < MOST {
            self.known.push_back((time, position));
        }
    }

    /// The next ones that are older than a time, in a log of one partition that was read up to `next`. Not the last
    /// record of the log: a reader would wait for it.
    pub(super) fn due(&self, oldest: u64, next: u64) -> Vec<Position> {
        let known = self.known.iter();
        let due = known
            .take_while(|(time, position)| *time < oldest && position.offset + 1 < next)
            .take(AT_ONCE);
        due.map(|(_, position)| *position).collect()
    }

    pub(super) fn deleted(&mut self, positions: &[Position]) {
        self.refusals = 0;
        self.known
            .retain(|(_, position)| !positions.contains(position));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_removals_are_deleted_except_the_last_record() {
        let at = Position::at;
        let mut removals = Removals::default();
        for offset in 1..=100 {
            removals.note(offset, at(offset));
        }
        assert_eq!(removals.due(1, 101), []);
        assert_eq!(removals.due(3, 101), [at(1), at(2)]);
        assert_eq!(removals.due(1_000, 3), [at(1)]);
        let first = removals.due(1_000, 101);
        assert_eq!(first.len(), AT_ONCE);
        removals.deleted(&first);
        let rest = removals.due(1_000, 101);
        assert_eq!(rest.first(), Some(&at(65)));
        assert_eq!(rest.last(), Some(&at(99)), "100 is the last record");
        for _ in 0..2 {
            assert!(!removals.refused() && !removals.refused());
            removals.deleted(&[at(65)]);
        }
        assert!(!removals.refused() && !removals.refused());
        assert_eq!(removals.due(1_000, 101).first(), Some(&at(66)));
        assert!(removals.refused());
        removals.note(1, at(101));
        assert_eq!(removals.due(1_000, 1_000), []);
    }
}
