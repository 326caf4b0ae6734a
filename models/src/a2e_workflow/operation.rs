//! The eight operations, typed.

use std::fmt;
use std::time::Duration;

pub use crate::a2e_workflow::storage::Storage;

use crate::a2e_workflow::path::{OutputPath, Path, RelativePath};
use crate::a2e_workflow::target::UrlTemplate;
use crate::a2e_workflow::template::{Body, Operand, Template};
use crate::a2e_workflow::transform::TransformData;
use a2abus_plugin::Text;

/// The action of an operation. Source: docs/protocols/a2e-workflows.md §4.
#[derive(Debug, Clone, PartialEq)]
pub enum OperationKind {
    /// Makes an HTTP request.
    ApiCall(ApiCall),
    /// Keeps the elements of an array that match all conditions.
    FilterData(FilterData),
    /// Maps, sorts, groups, aggregates or selects.
    TransformData(TransformData),
    /// Runs one of two branches.
    Conditional(Conditional),
    /// Runs operations for every element of an array.
    Loop(Loop),
    /// Stores a value.
    StoreData(StoreData),
    /// Waits.
    Wait(Wait),
    /// Merges several values.
    MergeData(MergeData),
}

wire_enum! {
    /// The type of an operation. Source: docs/protocols/a2e-workflows.md §4.
    OperationType {
        /// [`ApiCall`].
        ApiCall = "ApiCall",
        /// [`FilterData`].
        FilterData = "FilterData",
        /// [`TransformData`].
        TransformData = "TransformData",
        /// [`Conditional`].
        Conditional = "Conditional",
        /// [`Loop`].
        Loop = "Loop",
        /// [`StoreData`].
        StoreData = "StoreData",
        /// [`Wait`].
        Wait = "Wait",
        /// [`MergeData`].
        MergeData = "MergeData",
    }

    /// The method of a call.
    Method {
        Get = "GET",
        Post = "POST",
        Put = "PUT",
        Delete = "DELETE",
        Patch = "PATCH",
    }

    /// How a field is compared with a value. Source: docs/protocols/a2e-workflows.md §4.1.
    Operator {
        /// JSON equality.
        Equal = "==",
        /// JSON inequality.
        NotEqual = "!=",
        /// Both numbers or both strings.
        Greater = ">",
        /// Both numbers or both strings.
        Less = "<",
        /// Both numbers or both strings.
        GreaterOrEqual = ">=",
        /// Both numbers or both strings.
        LessOrEqual = "<=",
        /// The value contains the field.
        In = "in",
        /// The field contains the value.
        Contains = "contains",
        /// Both strings.
        StartsWith = "startsWith",
        /// Both strings.
        EndsWith = "endsWith",
    }

    /// How values are merged. Source: docs/protocols/a2e-workflows.md §4.3.
    Strategy {
        /// Arrays one after the other.
        Concat = "concat",
        /// Like `concat`, without duplicates.
        Union = "union",
        /// The elements that occur in all arrays.
        Intersect = "intersect",
        /// Objects by member and arrays by position.
        DeepMerge = "deepMerge",
    }
}

/// Makes an HTTP request. Source: docs/protocols/a2e-workflows.md §4.8.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiCall {
    /// The method.
    pub method: Method,
    /// The URL.
    pub url: UrlTemplate,
    /// The headers by their names as written, in order.
    pub headers: Vec<(Text, HeaderValue)>,
    /// The body to send, as JSON; never with GET.
    pub body: Option<Body>,
    /// The timeout of each attempt, 1 s to 300 s.
    pub timeout: Duration,
    /// Where the response is written.
    pub output: OutputPath,
}

/// The value of a header.
#[derive(Clone, PartialEq)]
pub enum HeaderValue {
    /// Text with scalar values inserted, not encoded.
    Template(Template),
    /// A scalar of the data model.
    Reference(Path),
    /// The credential of this id.
    Credential(Text),
}

/// Keeps the elements of an array that match all conditions.
/// Source: docs/protocols/a2e-workflows.md §4.1.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterData {
    /// The array.
    pub input: Path,
    /// The conditions; without any, everything is kept.
    pub conditions: Vec<FilterCondition>,
    /// Where the elements are written.
    pub output: OutputPath,
}

/// One condition on an element.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterCondition {
    /// The field of the element.
    pub field: RelativePath,
    /// How it is compared.
    pub operator: Operator,
    /// The value to compare with.
    pub value: Operand,
}

/// Runs one of two branches. Source: docs/protocols/a2e-workflows.md §4.4.
#[derive(Debug, Clone, PartialEq)]
pub struct Conditional {
    /// The value that is tested.
    pub path: Path,
    /// The test.
    pub test: Test,
    /// The ids of the branch for a true condition.
    pub if_true: Vec<Text>,
    /// The ids of the branch for a false condition.
    pub if_false: Vec<Text>,
}

/// The test that a Conditional applies to a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// A comparison.
    Compare(Operator, Operand),
    /// It exists and is not null.
    Exists,
    /// It is missing, null, or an empty string, array or object.
    Empty,
}

/// Runs operations for every element of an array. Source: docs/protocols/a2e-workflows.md §4.5.
#[derive(Debug, Clone, PartialEq)]
pub struct Loop {
    /// The array.
    pub input: Path,
    /// The ids of the operations, in order.
    pub operations: Vec<Text>,
    /// Where the array of their values is written.
    pub output: Option<OutputPath>,
}

/// Stores a value. Source: docs/protocols/a2e-workflows.md §4.6.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreData {
    /// The value.
    pub input: Path,
    /// Where.
    pub storage: Storage,
    /// The key: 1 to 256 characters without control characters, but not `.` or `..`; for a file a relative path.
    pub key: Text,
}

/// Waits. Source: docs/protocols/a2e-workflows.md §4.7.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// How long, at most 600 s.
    pub duration: Duration,
}

/// Merges several values. Source: docs/protocols/a2e-workflows.md §4.3.
#[derive(Debug, Clone, PartialEq)]
pub struct MergeData {
    /// The values, at least two.
    pub sources: Vec<Path>,
    /// How.
    pub strategy: Strategy,
    /// Where the result is written.
    pub output: OutputPath,
}

/// The default timeout of an attempt.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

// === impl OperationKind ===

impl OperationKind {
    /// Its type.
    #[must_use]
    pub fn operation_type(&self) -> OperationType {
        match self {
            Self::ApiCall(_) => OperationType::ApiCall,
            Self::FilterData(_) => OperationType::FilterData,
            Self::TransformData(_) => OperationType::TransformData,
            Self::Conditional(_) => OperationType::Conditional,
            Self::Loop(_) => OperationType::Loop,
            Self::StoreData(_) => OperationType::StoreData,
            Self::Wait(_) => OperationType::Wait,
            Self::MergeData(_) => OperationType::MergeData,
        }
    }
}

// === impl HeaderValue ===

/// Prints no text, because headers may contain secrets.
impl fmt::Debug for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(_) => f.write_str("Template(..)"),
            Self::Reference(path) => write!(f, "Reference({path})"),
            Self::Credential(id) => write!(f, "Credential({id:?})"),
        }
    }
}
