//! The running state of one aggregate.

use std::cmp::Ordering;

use a2abus_models::a2e_workflow::transform::AggregateFunction;
use a2abus_models::{Json, Number};

/// The state after some values.
#[derive(Clone)]
pub(super) enum Accumulator<'a> {
    Count(usize),
    Sum(Sum),
    Average(Sum),
    Extreme(Option<&'a Json>, Ordering),
    First(Option<&'a Json>),
    Last(Option<&'a Json>),
}

/// The sum of some numbers.
#[derive(Clone)]
pub(super) struct Sum {
    /// As long as all are integers.
    exact: Option<i128>,
    float: f64,
    count: usize,
}

// === impl Accumulator ===

impl<'a> Accumulator<'a> {
    pub(super) fn new(function: AggregateFunction) -> Self {
        let sum = Sum {
            exact: Some(0),
            float: 0.0,
            count: 0,
        };
        match function {
            AggregateFunction::Count | AggregateFunction::CountDistinct => Self::Count(0),
            AggregateFunction::Sum => Self::Sum(sum),
            AggregateFunction::Average => Self::Average(sum),
            AggregateFunction::Min => Self::Extreme(None, Ordering::Less),
            AggregateFunction::Max => Self::Extreme(None, Ordering::Greater),
            AggregateFunction::First => Self::First(None),
            AggregateFunction::Last => Self::Last(None),
        }
    }

    /// Adds a value.
    pub(super) fn add(&mut self, value: &'a Json) {
        match self {
            Self::Count(count) => *count += 1,
            Self::Sum(sum) | Self::Average(sum) => sum.add(value),
            Self::Extreme(best, direction) => {
                if is_better(value, *best, *direction) {
                    *best = Some(value);
                }
            }
            Self::First(first) => {
                first.get_or_insert(value);
            }
            Self::Last(last) => *last = Some(value),
        }
    }

    pub(super) fn finish(self) -> Json {
        match self {
            Self::Count(count) => count.into(),
            Self::Sum(sum) => sum.total(),
            Self::Average(sum) => sum.mean(),
            Self::Extreme(value, _) | Self::First(value) | Self::Last(value) => {
                value.cloned().into()
            }
        }
    }
}

/// Whether a value replaces the current best: numbers precede strings, and other values do not count.
fn is_better(value: &Json, best: Option<&Json>, direction: Ordering) -> bool {
    match (value, best) {
        (value, None) => value.as_number().is_some() || value.as_str().is_some(),
        (Json::String(text), Some(Json::String(best))) => text.cmp(best) == direction,
        (value, Some(Json::String(_))) => value.as_number().is_some(),
        (value, Some(best)) => value
            .as_number()
            .zip(best.as_number())
            .is_some_and(|(number, best)| number.cmp(best) == direction),
    }
}

// === impl Sum ===

impl Sum {
    fn add(&mut self, value: &Json) {
        let Some(number) = value.as_number() else {
            return;
        };
        self.count += 1;
        self.float += number.as_f64();
        self.exact = self
            .exact
            .zip(number.as_i128())
            .and_then(|(sum, integer)| sum.checked_add(integer));
    }

    fn total(&self) -> Json {
        match self.exact {
            Some(sum) => sum.into(),
            None => Number::computed(self.float).into(),
        }
    }

    #[allow(clippy::cast_precision_loss)] // The nearest double of a quotient is wanted.
    fn mean(&self) -> Json {
        match (i128::try_from(self.count), self.exact) {
            (Ok(0) | Err(_), _) => Json::Null,
            (Ok(count), Some(sum)) if sum % count == 0 => (sum / count).into(),
            (Ok(_), Some(sum)) => Number::computed(sum as f64 / self.count as f64).into(),
            (Ok(_), None) => Number::computed(self.float / self.count as f64).into(),
        }
    }
}
