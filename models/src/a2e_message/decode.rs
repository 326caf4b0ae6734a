//! Decodes a line into a message.
//!
//! ```text
//! line ── JSON ──> value ── base keys ──> header, type, members ── schema ──> Message
//!        parse_error       invalid_message, version_mismatch     schema_violation
//! ```

use bytes::Bytes;

use super::body::{Body, Unknown};
use super::header::Parts;
use super::message::Message;
use super::refusal::{LineIds, Reason, Refusal};
use super::value::{Problem, Violation};
use crate::json::without_byte_order_mark;
use crate::json::{Json, Object};
use a2abus_plugin::Limits;
use a2abus_plugin::Text;
use a2abus_plugin::protocol::a2e_message::is_version_1;
use a2abus_plugin::{DecodeError, DecodeErrorKind};

/// How lines are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecodeOptions {
    /// Bounds on a line, and on the lines of a payload (default: 8 MiB a line).
    pub limits: Limits,
    /// Whether a message may leave out its `id` (default: yes).
    pub ids: Ids,
    /// How much of a message is checked (default: all).
    pub checks: Checks,
}

/// Whether a message may leave out its `id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ids {
    /// Yes. No answer can be matched to such a message.
    Optional,
    /// No.
    Required,
}

/// How much of a message is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checks {
    /// Also the members of known types. For endpoints.
    Schema,
    /// Only JSON and base keys. For bridges: a known type with invalid members stays [`Unknown`].
    BaseKeys,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        let mut limits = Limits::default();
        limits.max_bytes = 8 << 20;
        Self {
            limits,
            ids: Ids::Optional,
            checks: Checks::Schema,
        }
    }
}

/// The members that must not be repeated, because they decide what a message is and where it goes.
const DECIDING: [&str; 8] = [
    "type",
    "id",
    "req_id",
    "version",
    "a2e",
    "session_id",
    "_agentId",
    "_topic",
];

/// Reads one line, with optional line end and white space around it; `None` for a blank line.
///
/// # Errors
/// The fault, with the ids needed to answer it.
///
/// ```
/// use a2abus_models::a2e_message::{Body, DecodeOptions, decode};
///
/// let line = r#"{"type":"tool/call/req","id":"a1","tool_name":"ls","arguments":{}}"#;
/// let message = decode(&line.into(), &DecodeOptions::default()).unwrap().unwrap();
/// let Body::ToolCallRequest(call) = message.body else { panic!() };
/// assert_eq!(call.tool_name, "ls");
/// assert_eq!(call.timeout.as_i64(), Some(30));
/// ```
pub fn decode(line: &Bytes, options: &DecodeOptions) -> Result<Option<Message>, Refusal> {
    if line.iter().all(|b| b" \t\r\n".contains(b)) {
        return Ok(None);
    }
    let value = parse(line, &options.limits)?;
    Message::from_json(value, options).map(Some)
}

/// Reads a payload of lines, skips blank ones and one byte order mark at the start. A refused line does not
/// affect the others. After `max_units` lines, decoding ends with a final refusal.
pub fn decode_lines(payload: &Bytes, options: &DecodeOptions) -> Vec<Result<Message, Refusal>> {
    let mut results = Vec::new();
    for line in without_byte_order_mark(payload).split(|byte| *byte == b'\n') {
        let result = decode(&payload.slice_ref(line), options).transpose();
        if result.is_some() && results.len() == options.limits.max_units {
            let message = "more lines than the limit";
            results.push(Err(Refusal::new(Reason::TooLarge, message)));
            break;
        }
        results.extend(result);
    }
    results
}

fn parse(line: &Bytes, limits: &Limits) -> Result<Json, Refusal> {
    let error = match Json::parse(line, limits) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let tolerated = (error.kind() == DecodeErrorKind::NotJson)
        .then(|| without_non_finite_texts(line))
        .flatten();
    match tolerated.map(|line| Json::parse(&line, limits)) {
        Some(Ok(value)) => Err(non_finite(&value)),
        Some(Err(_)) | None => Err(error.into()),
    }
}

/// The words that Python writes for numbers that JSON cannot represent.
const NON_FINITE_TEXTS: [&[u8]; 2] = [b"NaN", b"Infinity"];

/// The line with each of the words replaced by zero, except inside strings; `None` if there are none.
fn without_non_finite_texts(line: &[u8]) -> Option<Bytes> {
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    let mut inside_string = false;
    while let Some((&byte, after)) = rest.split_first() {
        let literal = NON_FINITE_TEXTS
            .iter()
            .find(|literal| !inside_string && rest.starts_with(literal));
        if let Some(literal) = literal {
            out.push(b'0');
            rest = rest.get(literal.len()..).unwrap_or_default();
            continue;
        }
        // An escaped character is copied with its backslash, so that an escaped quote ends nothing.
        let length = if inside_string && byte == b'\\' { 2 } else { 1 };
        inside_string ^= byte == b'"';
        let (copied, left) = rest.split_at_checked(length).unwrap_or((rest, after));
        out.extend_from_slice(copied);
        rest = left;
    }
    (out.len() < line.len()).then(|| out.into())
}

fn non_finite(value: &Json) -> Refusal {
    let refusal = Refusal::new(Reason::NonFiniteNumber, "a number that is not finite");
    match value.as_object() {
        Some(object) => refusal.about(LineIds::of(object)),
        None => refusal,
    }
}

fn contains_non_finite(value: &Json) -> bool {
    match value {
        // An integer is exact at any size.
        Json::Number(number) => !number.is_integer() && number.as_f64().is_infinite(),
        Json::Array(elements) => elements.iter().any(contains_non_finite),
        Json::Object(members) => members.iter().any(|(_, value)| contains_non_finite(value)),
        Json::Null | Json::Bool(_) | Json::String(_) => false,
    }
}

// === impl Message ===

impl Message {
    /// Decodes a message that is already parsed as JSON.
    ///
    /// # Errors
    /// As [`decode`].
    pub fn from_json(value: Json, options: &DecodeOptions) -> Result<Self, Refusal> {
        if contains_non_finite(&value) {
            return Err(non_finite(&value));
        }
        let Json::Object(object) = value else {
            let message = format!("expected an object, found {}", value.kind());
            return Err(Refusal::new(Reason::NotAnObject, message));
        };
        let names = LineIds::of(&object);
        Self::from_object(object, options).map_err(|refusal| refusal.about(names))
    }

    fn from_object(object: Object, options: &DecodeOptions) -> Result<Self, Refusal> {
        if object.get("jsonrpc").and_then(Json::as_str) == Some("2.0") {
            return Err(Refusal::new(Reason::JsonRpc, "a JSON-RPC message"));
        }
        let repeated = object.repeated().iter();
        if let Some(name) = repeated
            .map(Text::as_str)
            .find(|name| DECIDING.contains(name))
        {
            let message = format!("`{name}` occurs twice");
            return Err(Refusal::new(Reason::DuplicateMember, message).at(name));
        }
        let (mut parts, mut wrong) = Parts::of(object);
        let type_name = parts.type_name.take().filter(|name| !name.is_empty());
        let Some(type_name) = type_name else {
            wrong.push(Violation::new("type", Problem::Missing));
            return Err(Refusal::of(Reason::BadBaseKey, wrong));
        };
        if !wrong.is_empty() {
            wrong.extend(
                Body::read(type_name, parts.members)
                    .err()
                    .into_iter()
                    .flatten(),
            );
            return Err(Refusal::of(Reason::BadBaseKey, wrong));
        }
        if parts.id.is_none() && options.ids == Ids::Required {
            return Err(Refusal::new(Reason::MissingId, "`id` is missing").at("id"));
        }
        check_version(&parts)?;
        let (header, members) = parts.into_header();
        let body = match options.checks {
            Checks::Schema => Body::read(type_name, members)?,
            Checks::BaseKeys => Body::read(type_name.clone(), members.clone())
                .unwrap_or(Body::Unknown(Unknown { type_name, members })),
        };
        Ok(Self { header, body })
    }
}

/// Checks for major version 1 under either key, and for equal versions under both.
/// Source: docs/protocols/a2e-messages.md §1.1 and §6.
fn check_version(parts: &Parts) -> Result<(), Refusal> {
    if let (Some(version), Some(a2e)) = (&parts.version, &parts.a2e)
        && version != a2e
    {
        let message = "`version` and `a2e` differ";
        return Err(Refusal::new(Reason::UnsupportedVersion, message).at("a2e"));
    }
    let (key, version) = match (&parts.version, &parts.a2e) {
        (Some(version), _) => ("version", version),
        (None, Some(a2e)) => ("a2e", a2e),
        (None, None) => return Ok(()),
    };
    if is_version_1(version) {
        return Ok(());
    }
    let message = "the major version is not 1";
    Err(Refusal::new(Reason::UnsupportedVersion, message).at(key))
}

// === impl Refusal ===

impl Refusal {
    /// The refusal of a message whose type an endpoint does not support. Source: docs/protocols/a2e-messages.md §6.
    #[must_use]
    pub fn unknown_type(message: &Message) -> Self {
        let names = LineIds {
            id: message.header.id.clone().unwrap_or_default(),
            req_id: message.body.req_id().into(),
            type_name: message.body.type_name().into(),
        };
        Self::new(Reason::UnknownType, "an unknown type")
            .at("type")
            .about(names)
    }

    /// The refusal of a message with these members.
    fn of(reason: Reason, violations: Vec<Violation>) -> Self {
        let refusal = match violations.first() {
            Some(first) => Self::new(reason, first.to_string()).at(first.field.clone()),
            None => Self::new(reason, ""),
        };
        refusal.with(violations)
    }
}

impl LineIds {
    /// The value of a member of an object. A repeated member counts as absent.
    fn of(object: &Object) -> Self {
        let text = |name: &str| {
            let is_repeated = object.repeated().iter().any(|repeated| *repeated == name);
            let value = object.get(name).filter(|_| !is_repeated);
            value.and_then(Json::as_text).cloned().unwrap_or_default()
        };
        Self {
            id: text("id"),
            req_id: text("req_id"),
            type_name: text("type"),
        }
    }
}

impl From<Vec<Violation>> for Refusal {
    fn from(violations: Vec<Violation>) -> Self {
        let reason = match violations.first().map(|first| first.problem) {
            Some(Problem::Missing) => Reason::MissingMember,
            _ => Reason::BadMember,
        };
        Self::of(reason, violations)
    }
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        let reason = match error.kind() {
            DecodeErrorKind::NotUtf8 => Reason::NotUtf8,
            DecodeErrorKind::TooDeep => Reason::Depth,
            DecodeErrorKind::TooLarge => Reason::TooLarge,
            _ => Reason::NotJson,
        };
        Self::new(reason, error.to_string())
    }
}
