//! The comparisons of FilterData and Conditional.
//! Source: docs/protocols/a2e-workflows.md §4.1 and §D11.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::rc::Rc;

use a2abus_models::a2e_workflow::Operand;
use a2abus_models::a2e_workflow::operation::Operator;
use a2abus_models::{Array, Json};

use super::distinct::Distinct;
use super::scope::Scope;
use crate::failure::Failure;
use crate::meter::Meter;

/// An operator and its operand, prepared for many comparisons.
pub(super) struct Comparison {
    operator: Operator,
    value: Json,
    /// The elements of the operand, if many are searched for.
    elements: Option<Rc<Distinct<'static>>>,
}

/// The long arrays that `in` searches, each prepared once for all conditions.
#[derive(Default)]
pub(super) struct Lists(Vec<(Array, Rc<Distinct<'static>>)>);

/// Arrays with at least this many elements are prepared for the search.
const LONG: usize = 8;

/// The value of an operand; a reference must exist.
fn value(operand: &Operand, scope: &Scope<'_>) -> Result<Json, Failure> {
    match operand {
        Operand::Literal(json) => Ok(json.by_value()),
        Operand::Reference(path) => scope.model.read(path),
    }
}

// === impl Comparison ===

impl Comparison {
    /// For a single value.
    pub(super) fn once(
        operator: Operator,
        operand: &Operand,
        scope: &Scope<'_>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            operator,
            value: value(operand, scope)?,
            elements: None,
        })
    }

    /// For many values.
    pub(super) fn for_many(
        operator: Operator,
        operand: &Operand,
        lists: &mut Lists,
        scope: &Scope<'_>,
    ) -> Result<Self, Failure> {
        let mut comparison = Self::once(operator, operand, scope)?;
        if let (Operator::In, Json::Array(array)) = (operator, &comparison.value)
            && array.len() >= LONG
        {
            comparison.elements = Some(lists.prepare(array, scope.meter)?);
        }
        Ok(comparison)
    }

    /// Whether the comparison is true for a value.
    pub(super) fn holds(&self, field: &Json, meter: &Meter<'_>) -> Result<bool, Failure> {
        if let Some(elements) = &self.elements {
            return Ok(elements.find(field, meter)?.is_some());
        }
        meter.scan(self.work(field))?;
        let value = &self.value;
        Ok(match self.operator {
            Operator::Equal => field == value,
            Operator::NotEqual => field != value,
            Operator::Greater => order(field, value).is_some_and(Ordering::is_gt),
            Operator::Less => order(field, value).is_some_and(Ordering::is_lt),
            Operator::GreaterOrEqual => order(field, value).is_some_and(Ordering::is_ge),
            Operator::LessOrEqual => order(field, value).is_some_and(Ordering::is_le),
            Operator::In => match (value, field) {
                (Json::Array(array), _) => array.iter().any(|element| element == field),
                (Json::String(text), Json::String(part)) => text.contains(part.as_str()),
                _ => false,
            },
            Operator::Contains => match (field, value) {
                (Json::String(text), Json::String(part)) => text.contains(part.as_str()),
                (Json::Array(array), _) => array.iter().any(|element| element == value),
                (Json::Object(object), Json::String(name)) => object.get(name).is_some(),
                _ => false,
            },
            Operator::StartsWith => {
                texts(field, value).is_some_and(|(text, part)| text.starts_with(part))
            }
            Operator::EndsWith => {
                texts(field, value).is_some_and(|(text, part)| text.ends_with(part))
            }
        })
    }

    /// How many bytes a comparison reads.
    fn work(&self, field: &Json) -> usize {
        match self.operator {
            Operator::In => self.value.weight(),
            Operator::Contains => field.weight(),
            Operator::Equal
            | Operator::NotEqual
            | Operator::Greater
            | Operator::Less
            | Operator::GreaterOrEqual
            | Operator::LessOrEqual
            | Operator::StartsWith
            | Operator::EndsWith => self.value.weight().min(field.weight()),
        }
    }
}

/// The order of two numbers or two strings; `None` for other values.
fn order(a: &Json, b: &Json) -> Option<Ordering> {
    match texts(a, b) {
        // The byte order of UTF-8 is the order of code points.
        Some((a, b)) => Some(a.cmp(b)),
        None => Some(a.as_number()?.cmp(b.as_number()?)),
    }
}

fn texts<'v>(a: &'v Json, b: &'v Json) -> Option<(&'v str, &'v str)> {
    a.as_str().zip(b.as_str())
}

// === impl Lists ===

impl Lists {
    fn prepare(
        &mut self,
        array: &Array,
        meter: &Meter<'_>,
    ) -> Result<Rc<Distinct<'static>>, Failure> {
        for (known, elements) in &self.0 {
            meter.step()?;
            if known.is(array) {
                return Ok(Rc::clone(elements));
            }
        }
        let mut elements = Distinct::new();
        for element in array {
            elements.put(Cow::Owned(element.clone()), meter)?;
        }
        let elements = Rc::new(elements);
        self.0.push((array.clone(), Rc::clone(&elements)));
        Ok(elements)
    }
}
