//! JSON-RPC 2.0: requests, notifications and responses, and the ids that connect them.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::json::unescape;
use crate::protocol::dialect::Dialect;
use crate::text::Text;

/// A JSON-RPC 2.0 message. Source: JSON-RPC 2.0 sections 4 and 5, docs/protocols/eventmesh-a2a.md §1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JsonRpc {
    /// Request, notification or response, with its own members.
    pub body: RpcBody,
    /// The `id` member; `None` when there is none.
    pub id: Option<Id>,
    /// Its dialect.
    pub dialect: Dialect,
    /// The token that connects progress to its request: `params._meta.progressToken` of a request,
    /// `params.progressToken` of a notification. Source: MCP, progress.
    pub progress: Option<Box<Id>>,
    /// How long the caller waits, in milliseconds, if an A2A call sets `configuration.timeout`. Source:
    /// docs/protocols/a2a.md §2.
    pub timeout_millis: Option<u64>,
    /// Whether a response also has the other of `result` and `error`, as null. JSON-RPC 2.0 forbids that.
    pub has_null_member: bool,
}

/// The kind of a JSON-RPC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcBody {
    /// A method call: a request if it has an id, a notification if it has none.
    Call {
        /// Whether the method's answer comes in parts.
        streaming: bool,
    },
    /// A result.
    Result(Part),
    /// An error with its code; `None` when the code does not fit 32 bits.
    Error(Option<i32>),
}

/// Whether a result is the whole answer or a part of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Nothing follows.
    Final,
    /// More parts follow.
    Partial,
    /// An unfinished task: the answer to a unary call, or a part of a streamed answer.
    Snapshot,
}

/// A JSON-RPC id as its exact JSON token: `1`, `"1"` and `1.0` are different ids.
/// Source: docs/protocols/eventmesh-a2a.md §D2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Id {
    token: Text,
    start: usize,
    escaped: bool,
}

// === impl JsonRpc ===

impl JsonRpc {
    /// Whether it is a method call; otherwise it is an answer.
    #[must_use]
    pub fn is_call(&self) -> bool {
        matches!(self.body, RpcBody::Call { .. })
    }

    /// Moves the ids behind `at`, where `added` bytes replace `removed` ones.
    pub(crate) fn shift(&mut self, at: usize, added: usize, removed: usize) {
        let ids = self.id.iter_mut().chain(self.progress.as_deref_mut());
        ids.filter(|id| id.start > at)
            .for_each(|id| id.shift(added, removed));
    }
}

// === impl Id ===

impl Id {
    /// `start` is the token's offset within its unit; `escaped` says whether the string has an escape.
    pub(crate) fn new(token: Text, start: usize, escaped: bool) -> Self {
        Self {
            token,
            start,
            escaped,
        }
    }

    /// The exact JSON text.
    #[must_use]
    pub fn token(&self) -> &Text {
        &self.token
    }

    /// The position of the token in the bytes of its unit.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.start..self.start + self.token.len()
    }

    /// The same id, in bytes that have `added` more bytes before it and `removed` fewer.
    fn shift(&mut self, added: usize, removed: usize) {
        self.start = self.start + added - removed;
    }

    /// Whether the id is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.token == "null"
    }

    /// The id as text: a string without quotes, a number as its token; `None` for null.
    #[must_use]
    pub fn text(&self) -> Option<Text> {
        let Some(inside) = self
            .token
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
        else {
            return (!self.is_null()).then(|| self.token.clone());
        };
        if self.escaped {
            return unescape(inside.as_bytes()).map(Text::from);
        }
        Some(Text::from(inside))
    }
}

/// The bytes with the token at `span` replaced; nothing else changes. Copies the body once.
///
/// Used to replace a caller's id by the call id, and to restore it. Returns the bytes unchanged if the span is outside
/// them.
#[must_use]
pub fn splice(body: &Bytes, span: Range<usize>, token: &str) -> Bytes {
    let (Some(before), Some(after)) = (body.get(..span.start), body.get(span.end..)) else {
        return body.clone();
    };
    let mut out = BytesMut::with_capacity(before.len() + token.len() + after.len());
    out.extend_from_slice(before);
    out.extend_from_slice(token.as_bytes());
    out.extend_from_slice(after);
    out.freeze()
}

/// A response with a result. The id and the result are JSON texts, which are copied unchanged.
///
/// ```
/// use a2abus_plugin::protocol::jsonrpc::result;
///
/// assert_eq!(&result("7", "{}")[..], br#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
/// ```
#[must_use]
pub fn result(id: &str, result: &str) -> Bytes {
    response(id, "result", result)
}

/// A response with an error. The id and the error object are JSON texts, which are copied unchanged.
#[must_use]
pub fn error(id: &str, error: &str) -> Bytes {
    response(id, "error", error)
}

fn response(id: &str, member: &str, value: &str) -> Bytes {
    let pieces = [
        r#"{"jsonrpc":"2.0","id":"#,
        id,
        ",\"",
        member,
        "\":",
        value,
        "}",
    ];
    Bytes::from(pieces.concat())
}

/// Codes of the JSON-RPC errors that the project itself returns.
pub mod code {
    /// The body is not JSON. Source: JSON-RPC 2.0 section 5.1.
    pub const PARSE_ERROR: i32 = -32_700;
    /// The body is not a JSON-RPC request. Source: JSON-RPC 2.0 section 5.1.
    pub const INVALID_REQUEST: i32 = -32_600;
    /// The method does not exist. Source: JSON-RPC 2.0 section 5.1.
    pub const METHOD_NOT_FOUND: i32 = -32_601;
    /// Wrong parameters, including an unknown target. Source: JSON-RPC 2.0 section 5.1, docs/protocols/a2a.md §5.
    pub const INVALID_PARAMS: i32 = -32_602;
    /// The bus or the bridge failed, or the deadline passed. Source: JSON-RPC 2.0 section 5.1, docs/protocols/a2a.md
    /// §5.
    pub const INTERNAL_ERROR: i32 = -32_603;
}

/// The JSON-RPC error code for a refused payload. Source: docs/protocols/a2a.md §5.
#[must_use]
pub fn code_of(kind: crate::error::DecodeErrorKind) -> i32 {
    use crate::error::DecodeErrorKind as K;
    match kind {
        K::Empty | K::NotUtf8 | K::NotJson | K::TooDeep => code::PARSE_ERROR,
        K::BadParams | K::BadTarget | K::BadTopic | K::BadSeq => code::INVALID_PARAMS,
        K::TooLarge
        | K::NotAnObject
        | K::EmptyBatch
        | K::UnsupportedVersion
        | K::DuplicateMember
        | K::BadId
        | K::BadMethod
        | K::BadError
        | K::MissingVersion
        | K::MissingId
        | K::MissingCollaborationId
        | K::BadMember
        | K::BadValue
        | K::BothResultAndError
        | K::Invalid
        | K::BadCloudEvent
        | K::Unknown
        | K::WrongFamily
        | K::LinkLocal => code::INVALID_REQUEST,
    }
}
