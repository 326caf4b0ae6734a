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
    /// The transform.
    pub transform: Transform,
    /// Where the result is written.
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
    /// Aggregates of an array.
    Aggregate(Aggregate),
    /// Members of an object, or of every element of an array; never with a function or a
    /// template.
    Select(Projection, Slice),
}

wire_enum! {
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
    /// An object of these fields, named by their texts; missing fields are omitted.
    Fields(Vec<RelativePath>, Merge),
    /// An object of computed members.
    Computed(Vec<(Text, Expression)>, Merge),
    /// Text.
    Template(FieldTemplate),
}

/// Whether an element keeps its own members in addition to the new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// Keep them.
    Keep,
    /// Drop them.
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

wire_enum! {
    /// A function on one value; null for a value of the wrong type.
    Function {
        /// Upper case.
        Upper = "upper",
        /// Lower case.
        Lower = "lower",
        /// Trimmed.
        Trim = "trim",
        /// The length of a string, array or object.
        Length = "length",
        /// The number of a text or Boolean.
        Number = "number",
        /// The text of a value.
        String = "string",
        /// The absolute value.
        Abs = "abs",
        /// To the nearest integer, half away from zero.
        Round = "round",
        /// To the next lower integer.
        Floor = "floor",
        /// To the next higher integer.
        Ceil = "ceil",
        /// Logical negation.
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

wire_enum! {
    /// A direction of sorting; null and missing are last in both.
    SortOrder {
        /// Smallest first.
        Ascending = "asc",
        /// Largest first.
        Descending = "desc",
    }
}

/// Aggregates of an array, or of each of its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregate {
    /// The field by which elements are grouped.
    pub group_by: Option<RelativePath>,
    /// The aggregations.
    pub aggregations: Aggregations,
}

/// The aggregations of an aggregate transform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aggregations {
    /// One value.
    One(Aggregation),
    /// An object of named values.
    Named(Vec<(Text, Aggregation)>),
}

/// One aggregation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregation {
    /// The aggregate function.
    pub function: AggregateFunction,
    /// The aggregated field; `None` only for a count of elements.
    pub field: Option<RelativePath>,
}

wire_enum! {
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

/// The part of a result to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slice {
    /// How many elements to skip.
    pub offset: u64,
    /// The maximum number of elements.
    pub limit: Option<u64>,
}

// === impl Aggregation ===

impl Aggregation {
    /// Its default name, derived from the function name as written.
    #[must_use]
    pub fn default_name(&self, function: &str) -> Text {
        match &self.field {
            Some(field) => format!("{function}_{field}").into(),
            None => function.into(),
        }
    }
}
