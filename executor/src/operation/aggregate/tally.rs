//! One figure while it is counted.

use std::cmp::Ordering;

use a2abus_models::a2e_workflow::transform::AggregateFunction;

use crate::value::{Value, compare_numbers, computed, exact_integer, number};

/// What is known after some values.
#[derive(Clone)]
pub(super) enum Tally<'a> {
    Count(usize),
    Sum(Sum),
    Average(Sum),
    Extreme(Option<&'a Value>, Ordering),
    First(Option<&'a Value>),
    Last(Option<&'a Value>),
}

/// The sum of some numbers.
#[derive(Clone)]
pub(super) struct Sum {
    /// While all of them are integers.
    exact: Option<i128>,
    float: f64,
    count: usize,
}

// === impl Tally ===

impl<'a> Tally<'a> {
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

    /// Takes in the next value.
    pub(super) fn add(&mut self, value: &'a Value) {
        match self {
            Self::Count(count) => *count += 1,
            Self::Sum(sum) | Self::Average(sum) => sum.add(value),
            Self::Extreme(best, wanted) => {
                if is_better(value, *best, *wanted) {
                    *best = Some(value);
                }
            }
            Self::First(first) => {
                first.get_or_insert(value);
            }
            Self::Last(last) => *last = Some(value),
        }
    }

    pub(super) fn finish(self) -> Value {
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

/// Whether a value takes the place of the best so far: numbers go before strings, and nothing else
/// counts.
fn is_better(value: &Value, best: Option<&Value>, wanted: Ordering) -> bool {
    match (value, best) {
        (value, None) => value.is_number() || value.as_str().is_some(),
        (Value::String(text), Some(Value::String(best))) => text.cmp(best) == wanted,
        (value, Some(Value::String(_))) => value.is_number(),
        (value, Some(best)) => compare_numbers(value, best) == Some(wanted),
    }
}

// === impl Sum ===

impl Sum {
    fn add(&mut self, value: &Value) {
        let Some(float) = value.as_f64() else {
            return;
        };
        self.count += 1;
        self.float += float;
        self.exact = self
            .exact
            .zip(exact_integer(value))
            .and_then(|(sum, integer)| sum.checked_add(integer));
    }

    fn total(&self) -> Value {
        match self.exact {
            Some(sum) => number(&sum.to_string()),
            None => computed(self.float),
        }
    }

    #[allow(clippy::cast_precision_loss)] // The nearest double of a quotient is wanted.
    fn mean(&self) -> Value {
        match (i128::try_from(self.count), self.exact) {
            (Ok(0) | Err(_), _) => Value::Null,
            (Ok(count), Some(sum)) if sum % count == 0 => number(&(sum / count).to_string()),
            (Ok(_), Some(sum)) => computed(sum as f64 / self.count as f64),
            (Ok(_), None) => computed(self.float / self.count as f64),
        }
    }
}
