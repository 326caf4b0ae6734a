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
    /// The sum of the numbers times [`SHRINK`], used if `float` overflows on the way.
    shrunk: f64,
    count: usize,
}

/// 2^-64: doubles multiplied by it can be added without overflow.
const SHRINK: f64 = 1.0 / 18_446_744_073_709_551_616.0;

// === impl Accumulator ===

impl<'a> Accumulator<'a> {
    pub(super) fn new(function: AggregateFunction) -> Self {
        let sum = Sum {
            exact: Some(0),
            float: 0.0,
            shrunk: 0.0,
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

    /// The value; `None` if it is beyond the range of doubles.
    pub(super) fn finish(self) -> Option<Json> {
        match self {
            Self::Count(count) => Some(count.into()),
            Self::Sum(sum) => sum.total(),
            Self::Average(sum) => sum.mean(),
            Self::Extreme(value, _) | Self::First(value) | Self::Last(value) => {
                Some(value.cloned().into())
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
        self.shrunk += number.as_f64() * SHRINK;
        self.exact = self
            .exact
            .zip(number.as_i128())
            .and_then(|(sum, integer)| sum.checked_add(integer));
    }

    fn total(&self) -> Option<Json> {
        match self.exact {
            Some(sum) => Some(sum.into()),
            None => self.over(1.0),
        }
    }

    #[allow(clippy::cast_precision_loss)] // The nearest double of a quotient is wanted.
    fn mean(&self) -> Option<Json> {
        match (i128::try_from(self.count), self.exact) {
            (Ok(0) | Err(_), _) => Some(Json::Null),
            (Ok(count), Some(sum)) if sum % count == 0 => Some((sum / count).into()),
            (Ok(_), Some(sum)) => Number::computed(sum as f64 / self.count as f64).map(Json::from),
            (Ok(_), None) => self.over(self.count as f64),
        }
    }

    /// The sum of doubles divided by this.
    fn over(&self, divisor: f64) -> Option<Json> {
        let quotient = match self.float.is_finite() {
            true => self.float / divisor,
            false => self.shrunk / divisor / SHRINK,
        };
        Number::computed(quotient).map(Json::from)
    }
}
