//! Where an answer was first read, by which it is recognised when it comes again.
//!
//! A replica that takes over a partition reads again what its predecessor had not committed, and so forwards or hands
//! over some answers a second time. A forwarded answer therefore names the record that was read, and a call takes each
//! record once. A record may overtake an earlier one that a bus did not accept at first, so it is not enough to
//! remember the last position. Source: docs/design.md §2.

use std::collections::VecDeque;

use a2abus_plugin::Text;
use a2abus_transports::Message;

/// The header of a forwarded answer that names the record from which it was read: `POSITION@TIME#UNIT`, where
/// `POSITION@TIME` is the [identity](a2abus_transports::Origin::identity) of the record. On a bus that numbers no
/// messages it names the topic.
pub(crate) const FORWARDED_FROM: &str = "bus-forwarded-from";

/// Maximum number of positions that a call remembers. Of each partition, those below the oldest that it still remembers
/// count as known.
const MAX_POSITIONS: usize = 1_024;
/// Maximum number of partitions of which a call remembers positions.
const MAX_PLACES: usize = 64;
/// The longest name of a partition, with its topic.
const MAX_PLACE: usize = 512;

/// The unit of a record from which an answer was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnswerSource {
    /// The partition or stream.
    place: Text,
    position: Position,
}

/// The number of a record in its partition, its time, and the number of a unit in it. A topic that is created again
/// numbers its records anew, but they have other times.
type Position = (u64, i64, usize);

/// The records of which a call has taken the answer.
#[derive(Debug, Default)]
pub(crate) struct KnownSources(Vec<KnownPlace>);

#[derive(Debug)]
struct KnownPlace {
    place: Text,
    /// All positions up to this one count as known.
    passed: Option<Position>,
    /// Later positions, in ascending order.
    known: VecDeque<Position>,
}

// === impl AnswerSource ===

impl AnswerSource {
    /// A unit of the record with this identity, if the bus numbers its records.
    pub(crate) fn new(identity: &str, unit: usize) -> Option<Self> {
        let (place, rest) = identity.rsplit_once('/')?;
        let (number, time) = rest.split_once('@').unwrap_or((rest, ""));
        let position = (number.parse().ok()?, time.parse().unwrap_or_default(), unit);
        (place.len() <= MAX_PLACE).then(|| Self {
            place: place.into(),
            position,
        })
    }

    /// The source that a forwarded answer names.
    pub(crate) fn of_forwarded(message: &Message) -> Option<Self> {
        let source = std::str::from_utf8(message.headers.get(FORWARDED_FROM)?).ok()?;
        let (identity, unit) = source.rsplit_once('#')?;
        Self::new(identity, unit.parse().ok()?)
    }

    /// The value of [`FORWARDED_FROM`].
    pub(crate) fn header(identity: &str, unit: usize) -> String {
        format!("{identity}#{unit}")
    }
}

// === impl KnownSources ===

impl KnownSources {
    /// Remembers a source. Returns whether it is new. Beyond [`MAX_PLACES`], every source counts as new.
    pub(crate) fn note(&mut self, AnswerSource { place, position }: AnswerSource) -> bool {
        let known = self.0.iter().position(|known| known.place == place);
        let index = match known {
            Some(index) => index,
            None if self.0.len() == MAX_PLACES => return true,
            None => {
                let (passed, known) = (None, VecDeque::new());
                self.0.push(KnownPlace {
                    place,
                    passed,
                    known,
                });
                self.0.len() - 1
            }
        };
        if !self
            .0
            .get_mut(index)
            .is_none_or(|known| known.note(position))
        {
            return false;
        }
        let count: usize = self.0.iter().map(|place| place.known.len()).sum();
        if count > MAX_POSITIONS
            && let Some(most) = self.0.iter_mut().max_by_key(|place| place.known.len())
        {
            most.passed = most.known.pop_front();
        }
        true
    }
}

// === impl KnownPlace ===

impl KnownPlace {
    fn note(&mut self, position: Position) -> bool {
        if self.passed.is_some_and(|passed| position <= passed) {
            return false;
        }
        let Err(index) = self.known.binary_search(&position) else {
            return false;
        };
        self.known.insert(index, position);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(position: &str, unit: usize) -> AnswerSource {
        AnswerSource::new(position, unit).unwrap()
    }

    #[test]
    fn a_forwarded_answer_names_its_source() {
        let mut message = Message::plain("x");
        assert_eq!(AnswerSource::of_forwarded(&message), None);
        let header = AnswerSource::header("j:a#b/7", 2);
        message.headers.put(FORWARDED_FROM, header);
        let named = AnswerSource::of_forwarded(&message);
        assert_eq!(named, Some(source("j:a#b/7", 2)));
        for unusable in ["", "#", "7#0", "k:t/0/x#0", "k:t/0/7", "k:t/0/7#x"] {
            message.headers.put(FORWARDED_FROM, unusable);
            assert_eq!(AnswerSource::of_forwarded(&message), None, "{unusable}");
        }
    }

    #[test]
    fn each_unit_of_each_record_is_new_once_in_any_order() {
        let mut known = KnownSources::default();
        let sources = [
            ("k:t/0/7", 0),
            ("k:t/0/7", 1),
            ("k:t/0/9", 0),
            ("k:t/0/8", 0),
            ("k:t/1/7", 0),
            ("k:u/0/7", 0),
            ("k:t/0/7@1700000000000", 0),
        ];
        for is_new in [true, false] {
            for (position, unit) in sources {
                assert_eq!(known.note(source(position, unit)), is_new, "{position}");
            }
        }
    }

    #[test]
    fn few_positions_are_remembered_and_those_below_count_as_known() {
        let mut known = KnownSources::default();
        let at = |number: usize| source(&format!("k:t/0/{number}"), 0);
        for number in 10..10 + 2 * MAX_POSITIONS {
            assert!(known.note(at(number)));
        }
        for number in 0..10 + 2 * MAX_POSITIONS {
            assert!(!known.note(at(number)), "{number}");
        }
        for number in [9, 8] {
            let late = source(&format!("k:t/1/{number}"), 0);
            assert!(
                known.note(late),
                "its partition came late, and may have overtaken records"
            );
        }
        for partition in 2..2 * MAX_PLACES {
            assert!(known.note(source(&format!("k:t/{partition}/0"), 0)));
        }
        let remembered: usize = known.0.iter().map(|place| place.known.len()).sum();
        assert!(remembered <= MAX_POSITIONS, "{remembered}");
        assert_eq!(known.0.len(), MAX_PLACES);
    }
}
