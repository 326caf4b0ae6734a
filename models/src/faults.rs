//! What breaks the model of its family in a message: everything at once.
//!
//! The models refuse a message at its first fault. To see all of them, what is wrong is replaced in a copy by something
//! that fits, and the copy is read again.

use bytes::Bytes;

use crate::a2e_message::{DecodeOptions, Member, Message, Presence, Reason, Shape, members_of};
use crate::a2e_workflow::{
    Allowed, Apis, Code, Document, Level, Policy, Strictness, WorkflowLimits,
};
use crate::convert::without_byte_order_mark;
use crate::e2a::{
    AgentRequest, AgentResponse, AgentResponseChunk, E2aEnvelope, E2aError, E2aErrorKind,
    E2aResponse, Trust, classify,
};
use crate::json::{Array, Json, Object};
use a2abus_plugin::DecodeError;
use a2abus_plugin::Family;
use a2abus_plugin::Limits;
use a2abus_plugin::Text;
use a2abus_plugin::Unit;

/// One thing that breaks the model of a family. Never holds a value of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{problem}", field, if field.is_empty() { "" } else { ": " })]
#[non_exhaustive]
pub struct Fault {
    /// The dotted path of the member; for a workflow the operation or the line; empty for the message as a whole.
    pub field: Text,
    /// What is wrong with it.
    pub problem: Text,
}

/// What decoding says of it.
impl From<&DecodeError> for Fault {
    fn from(error: &DecodeError) -> Self {
        let path = error.pointer().trim_start_matches('/').replace('/', ".");
        Self::new(path, error.to_string())
    }
}

/// The most faults of one message that are listed: each costs another reading of it.
const MAX_FAULTS: usize = 32;

/// Everything that breaks the model of the unit's family, in the order it was found, 32 faults at most; nothing where
/// the unit keeps its model. Of A2E messages, A2E workflows and E2A; the other families are checked when they are
/// decoded.
///
/// A workflow is judged without regard to what an agent may do. A single line of one is judged alone.
///
/// ```
/// use a2abus_models::e2a::Trust;
/// use a2abus_models::faults_of;
/// use a2abus_plugin::{Hint, Limits, decode};
///
/// let request = r#"{"protocol_version":"1.0","request_id":"r","method":"m","user_id":{},"auth":7}"#;
/// let units = decode(&request.into(), &Hint::default(), &Limits::default());
/// let unit = units.into_only().unwrap().unwrap();
/// let faults = faults_of(&unit, Trust::Untrusted, &Limits::default());
/// let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
/// assert_eq!(faults, ["user_id: bad_type", "auth: bad_type"]);
/// ```
#[must_use]
pub fn faults_of(unit: &Unit, trust: Trust, limits: &Limits) -> Vec<Fault> {
    match unit.because.family {
        Family::CloudEvent | Family::JsonRpc | Family::Legacy => Vec::new(),
        Family::A2eWorkflow => faults_of_workflow(&unit.bytes),
        Family::A2eMessage => each_fault(&unit.bytes, limits, fault_of_message),
        Family::E2a => {
            let mut class = None;
            each_fault(&unit.bytes, limits, |json| {
                // What it is does not change with what is replaced.
                fault_of_e2a(json, class.get_or_insert_with(|| classify(json)), trust)
            })
        }
    }
}

/// A fault, and how to replace it.
type Found = (Fault, fn(&mut Json, &str) -> bool);

fn each_fault(
    bytes: &Bytes,
    limits: &Limits,
    mut next: impl FnMut(&Json) -> Option<Found>,
) -> Vec<Fault> {
    let mut json = match Json::parse(without_byte_order_mark(bytes), limits) {
        Ok(json) => json,
        Err(error) => return vec![Fault::new("", error.to_string())],
    };
    let mut faults: Vec<Fault> = Vec::new();
    while let Some((fault, replace)) = next(&json) {
        let is_new = faults.iter().all(|known| known.field != fault.field);
        let replaced = is_new && replace(&mut json, &fault.field);
        if is_new {
            faults.push(fault);
        }
        if !replaced || faults.len() == MAX_FAULTS {
            break;
        }
    }
    faults
}

// === A2E messages ===

fn fault_of_message(json: &Json) -> Option<Found> {
    let refusal = Message::from_json(json.clone(), &DecodeOptions::default()).err()?;
    let replace: fn(&mut Json, &str) -> bool = match refusal.reason() {
        Reason::MissingMember | Reason::BadMember => replace_member,
        Reason::BadBaseKey => remove_base_key,
        _ => |_, _| false,
    };
    // What is said of a member begins with its path.
    let message = refusal.message();
    let problem = message.strip_prefix(refusal.field().as_str());
    let problem = problem.unwrap_or(message).trim_start();
    Some((Fault::new(refusal.field().clone(), problem), replace))
}

fn remove_base_key(json: &mut Json, field: &str) -> bool {
    let Json::Object(message) = json else {
        return false;
    };
    field != "type" && message.remove(field).is_some()
}

/// Puts something that fits in place of a member that does not, or is missing.
fn replace_member(json: &mut Json, field: &str) -> bool {
    let is_answer = json.get("req_id").and_then(Json::as_str).is_some();
    let ty = match json.get("type").and_then(Json::as_str) {
        // The SDK writes the answer with the type of the request.
        Some("mcp/sample/req") if is_answer => "mcp/sample/resp",
        Some(ty) => ty,
        None => return false,
    };
    let Some(members) = members_of(ty) else {
        return false;
    };
    let path: Vec<&str> = field.split('.').collect();
    replace_in(json, members, &path)
}

fn replace_in(json: &mut Json, members: &[Member], path: &[&str]) -> bool {
    let (Some((name, rest)), Json::Object(object)) = (path.split_first(), json) else {
        return false;
    };
    let Some(member) = members.iter().find(|member| member.name == *name) else {
        // A base key of a message inside a message.
        return object.remove(name).is_some();
    };
    if object.contains(name) {
        return object.change(&Text::from(*name), |value| {
            replace_value(value, &member.shape, rest)
        });
    }
    object.insert(*name, sample(&member.shape));
    true
}

fn replace_value(value: &mut Json, shape: &Shape, path: &[&str]) -> bool {
    let Some((index, rest)) = path.split_first() else {
        *value = sample(shape);
        return true;
    };
    match (shape, value) {
        (Shape::Nullable(inner), value) => replace_value(value, inner, path),
        (Shape::List(inner) | Shape::Pair(inner), Json::Array(elements)) => {
            let replaced = index.parse().ok().and_then(|at: usize| {
                elements.change(at, |element| replace_value(element, inner, rest))
            });
            replaced.unwrap_or_default()
        }
        (Shape::Record(members) | Shape::Message(_, members), value) => {
            replace_in(value, members(), path)
        }
        // Which member of a map it is, the path does not say.
        (Shape::Map(_), value) => {
            *value = sample(shape);
            true
        }
        _ => false,
    }
}

/// A value of that shape.
fn sample(shape: &Shape) -> Json {
    match shape {
        Shape::Text => "x".into(),
        Shape::Boolean => false.into(),
        Shape::Integer | Shape::Float => Json::from(1_i64),
        Shape::Any | Shape::Nullable(_) => Json::Null,
        Shape::Object | Shape::Map(_) => Object::new().into(),
        Shape::Word(words) => words.first().copied().unwrap_or_default().into(),
        Shape::List(_) => Array::default().into(),
        Shape::Pair(inner) => vec![sample(inner), sample(inner)].into(),
        Shape::Record(members) => record(members()).into(),
        Shape::Message(ty, members) => {
            let mut message = record(members());
            message.insert("type", *ty);
            message.into()
        }
    }
}

fn record(members: &[Member]) -> Object {
    let mut object = Object::new();
    for member in members {
        if member.presence == Presence::Required {
            object.insert(member.name, sample(&member.shape));
        }
    }
    object
}

// === E2A ===

fn fault_of_e2a(json: &Json, class: &str, trust: Trust) -> Option<Found> {
    let read = match class {
        "e2a.request" => E2aEnvelope::parse(json, trust).map(drop),
        "e2a.response" => E2aResponse::parse(json).map(drop),
        "e2a.legacy_request" => AgentRequest::parse(json).map(drop),
        "e2a.legacy_response" => AgentResponse::parse(json).map(drop),
        "e2a.legacy_chunk" => AgentResponseChunk::parse(json).map(drop),
        _ => Ok(()),
    };
    let E2aError { kind, field, .. } = read.err()?;
    let replace: fn(&mut Json, &str) -> bool = match kind {
        E2aErrorKind::BadType
        | E2aErrorKind::BadValue
        | E2aErrorKind::OutOfRange
        | E2aErrorKind::DuplicateMember => remove,
        _ => |_, _| false,
    };
    Some((Fault::new(field, kind.as_str()), replace))
}

/// Takes a member away, and with it what was noted of members that stand there twice.
fn remove(json: &mut Json, field: &str) -> bool {
    let Json::Object(object) = json else {
        return false;
    };
    let (name, rest) = match field.split_once('.') {
        // Members of free objects may have dots in their names.
        Some((name, rest)) if !object.contains(field) => (name, rest),
        _ => (field, ""),
    };
    if !rest.is_empty() {
        return object.contains(name) && object.change(&name.into(), |inner| remove(inner, rest));
    }
    object.remove(name).is_some()
}

// === A2E workflows ===

fn faults_of_workflow(bytes: &Bytes) -> Vec<Fault> {
    let document = Document::parse(bytes, &WorkflowLimits::default());
    let lines = bytes.split(|byte| *byte == b'\n');
    let is_whole = lines.filter(|line| !line.trim_ascii().is_empty()).count() > 1;
    let report = document.validate(&everything(), None, Strictness::Moderate);
    let is_meant = |level: Level, code: Code| match level {
        Level::Permission | Level::Warning => false,
        Level::Structural => {
            is_whole || !matches!(code, Code::MissingBeginExecution | Code::EmptyWorkflow)
        }
        Level::Operation | Level::Type => true,
        Level::Dependency => is_whole,
    };
    let issues = report.errors.into_iter();
    issues
        .filter(|issue| is_meant(issue.level(), issue.code))
        .take(MAX_FAULTS)
        .map(|issue| {
            let line = || issue.line.map(|line| Text::from(format!("line {line}")));
            let field = issue.operation_id.clone().or_else(line);
            let problem = format!("{} ({})", issue.message, issue.code.as_str());
            Fault::new(field.unwrap_or_default(), problem)
        })
        .collect()
}

/// The rights of nobody in particular: what an agent may do is not the model's to say.
fn everything() -> Policy {
    Policy {
        operations: Allowed::All,
        apis: Apis {
            any: true,
            bases: Vec::new(),
        },
        credentials: Allowed::All,
        storages: Allowed::All,
        max_operations: usize::MAX,
        max_execution_time: std::time::Duration::from_secs(u64::from(u32::MAX)),
        ..Policy::default()
    }
}

// === impl Fault ===

impl Fault {
    fn new(field: impl Into<Text>, problem: impl Into<Text>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}
