//! The typed form of TransformData. Source: docs/protocols/a2e-workflows.md §4.2.

use crate::a2e_workflow::path::{OutputPath, Path, RelativePath};
use crate::a2e_workflow::template::FieldTemplate;
use crate::json::Json;
use a2abus_plugin::Text;

/// Maps, sorts, groups, aggregates or selects.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformData {
    /// The value that is transformed.
    pub input: Path,
    /// How.
    pub transform: Transform,
    /// Where the result is put.
    pub output: OutputPath,
}

/// How a value is transformed.
#[derive(Debug, Clone, PartialEq)]
pub enum Transform {
    /// A value for every element of an array.
    Map(Projection, Slice),
    /// The elements of an array in order of these keys, the first key first.
    Sort(Vec<SortKey>, Slice),
    /// The elements of an array by the text of a field.
    Group(RelativePath),
    /// Figures of an array.
    Aggregate(Aggregate),
    /// Members of an object, or of every element of an array; never with a function or a
    /// template.
    Select(Projection, Slice),
}

words! {
    /// The name of a transform.
    TransformName {
        /// [`Transform::Map`].
        Map = "map",
        /// [`Transform::Sort`].
        Sort = "sort",
        /// [`Transform::Group`].
        Group = "group",
        /// [`Transform::Aggregate`].
        Aggregate = "aggregate",
        /// [`Transform::Select`].
        Select = "select",
    }
}

/// The projection of one element.
#[derive(Debug, Clone, PartialEq)]
pub enum Projection {
    /// One value, with a function applied.
    Field(RelativePath, Option<Function>),
    /// An object of these fields under their texts; missing ones are left out.
    Fields(Vec<RelativePath>, Merge),
    /// An object of computed members.
    Computed(Vec<(Text, Expression)>, Merge),
    /// Text.
    Template(FieldTemplate),
}

/// Whether an element keeps its own members under the new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// It does.
    Keep,
    /// It does not.
    Drop,
}

/// How a member is computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Expression {
    /// A field of the element, with a function applied.
    Field(RelativePath, Option<Function>),
    /// A value.
    Value(Json),
    /// A value of the data model.
    Reference(Path),
    /// Text.
    Template(FieldTemplate),
}

words! {
    /// A function on one value; of the wrong kind it gives null.
    Function {
        /// Upper case.
        Upper = "upper",
        /// Lower case.
        Lower = "lower",
        /// Without white space around it.
        Trim = "trim",
        /// The length of a string, array or object.
        Length = "length",
        /// The number of a text or Boolean.
        Number = "number",
        /// The text of a value.
        String = "string",
        /// Without sign.
        Abs = "abs",
        /// To the nearest integer, half away from zero.
        Round = "round",
        /// To the next lower integer.
        Floor = "floor",
        /// To the next higher integer.
        Ceil = "ceil",
        /// The other Boolean.
        Not = "not",
    }
}

/// A key to sort by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortKey {
    /// The field.
    pub field: RelativePath,
    /// The direction.
    pub order: SortOrder,
}

words! {
    /// A direction of sorting; null and missing are last in both.
    SortOrder {
        /// Smallest first.
        Ascending = "asc",
        /// Largest first.
        Descending = "desc",
    }
}

/// Figures of an array, or of each of its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregate {
    /// The field by which elements are grouped.
    pub group_by: Option<RelativePath>,
    /// The figures.
    pub figures: Figures,
}

/// The figures of an aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Figures {
    /// One value.
    One(Figure),
    /// An object of named values.
    Named(Vec<(Text, Figure)>),
}

/// One figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// The aggregate function.
    pub function: AggregateFunction,
    /// Of which field; `None` for a count of elements alone.
    pub field: Option<RelativePath>,
}

words! {
    /// The aggregate of the values of a field; nulls are ignored.
    AggregateFunction {
        /// How many elements; with a field, how many values.
        Count = "count",
        /// The sum of the numbers.
        Sum = "sum",
        /// The mean of the numbers.
        Average = "avg",
        /// The smallest number, else the smallest string.
        Min = "min",
        /// The largest number, else the largest string.
        Max = "max",
        /// The first value.
        First = "first",
        /// The last value.
        Last = "last",
        /// How many different values.
        CountDistinct = "countDistinct",
    }
}

/// The part of a result that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slice {
    /// Elements left out at the start.
    pub offset: u64,
    /// Most elements kept.
    pub limit: Option<u64>,
}

// === impl Figure ===

impl Figure {
    /// The name it has when none is given, by the word of its function as it was written.
    #[must_use]
    pub fn default_name(&self, function: &str) -> Text {
        match &self.field {
            Some(field) => format!("{function}_{field}").into(),
            None => function.into(),
        }
    }
}
