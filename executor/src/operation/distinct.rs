//! Finds equal values without comparing all pairs.

use std::borrow::Cow;
use std::hash::RandomState;

use a2abus_models::Json;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::failure::Failure;
use crate::meter::Meter;

/// Distinct values by JSON equality, numbered in the order of arrival.
pub(super) struct Distinct<'a> {
    state: RandomState,
    values: Vec<Cow<'a, Json>>,
    /// The hash and the number of each value.
    places: HashTable<(u64, usize)>,
}

/// Where a value was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueSlot {
    /// The first of its kind, with this number.
    New(usize),
    /// It equals the value with this number.
    Known(usize),
}

// === impl Distinct ===

impl<'a> Distinct<'a> {
    pub(super) fn new() -> Self {
        Self {
            state: RandomState::new(),
            values: Vec::new(),
            places: HashTable::new(),
        }
    }

    /// Adds a value, unless it equals an existing one.
    pub(super) fn put(
        &mut self,
        value: Cow<'a, Json>,
        meter: &Meter<'_>,
    ) -> Result<ValueSlot, Failure> {
        meter.scan(value.weight())?;
        let hash = value.hash_in(&self.state);
        let values = &self.values;
        let is_it = |&(other, number): &(u64, usize)| {
            other == hash && values.get(number).is_some_and(|known| **known == *value)
        };
        Ok(match self.places.entry(hash, is_it, |&(hash, _)| hash) {
            Entry::Occupied(known) => ValueSlot::Known(known.get().1),
            Entry::Vacant(place) => {
                let number = self.values.len();
                place.insert((hash, number));
                self.values.push(value);
                ValueSlot::New(number)
            }
        })
    }

    /// The number of the value that equals this one.
    pub(super) fn find(&self, value: &Json, meter: &Meter<'_>) -> Result<Option<usize>, Failure> {
        meter.scan(value.weight())?;
        let hash = value.hash_in(&self.state);
        let known = self.places.find(hash, |&(other, number)| {
            other == hash
                && self
                    .values
                    .get(number)
                    .is_some_and(|known| **known == *value)
        });
        Ok(known.map(|&(_, number)| number))
    }

    /// The values by their numbers.
    pub(super) fn into_values(self) -> Vec<Cow<'a, Json>> {
        self.values
    }
}
