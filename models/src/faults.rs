//! Lists every violation of the model of a message's family.

use bytes::Bytes;

use crate::a2e_message::{DecodeOptions, Message};
use crate::a2e_workflow::{
    Allowed, Apis, Code, Document, Level, Policy, Strictness, WorkflowLimits,
};
use crate::e2a::{
    AgentRequest, AgentResponse, AgentResponseChunk, E2aEnvelope, E2aError, E2aErrorKind,
    E2aResponse, Trust, classify,
};
use crate::json::Json;
use crate::json::without_byte_order_mark;
use a2abus_plugin::DecodeError;
use a2abus_plugin::Family;
use a2abus_plugin::Limits;
use a2abus_plugin::Text;
use a2abus_plugin::Unit;

/// One violation of the model of a family. Never contains a value of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{problem}", field, if field.is_empty() { "" } else { ": " })]
#[non_exhaustive]
pub struct Fault {
    /// The dotted path of the member; for a workflow the operation or the line; empty for the message as a whole.
    pub field: Text,
    /// The problem.
    pub problem: Text,
}

/// The error of the decoder.
impl From<&DecodeError> for Fault {
    fn from(error: &DecodeError) -> Self {
        let path = error.pointer().trim_start_matches('/').replace('/', ".");
        Self::new(path, error.to_string())
    }
}

/// The maximum number of faults listed for one message.
const MAX_FAULTS: usize = 32;

/// All violations of the model of the unit's family, at most 32, in the order in which they are found; empty
/// if the unit is valid. Covers A2E messages, A2E workflows and E2A; the other families are checked when they are
/// decoded.
///
/// A workflow is validated without permissions. A single line of a workflow is validated by itself.
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
    match unit.detection.family {
        Family::CloudEvent | Family::JsonRpc | Family::Legacy => Vec::new(),
        Family::A2eWorkflow => faults_of_workflow(&unit.bytes),
        Family::A2eMessage | Family::E2a => {
            match Json::parse(without_byte_order_mark(&unit.bytes), limits) {
                Err(error) => vec![Fault::new("", error.to_string())],
                Ok(json) if unit.detection.family == Family::E2a => faults_of_e2a(json, trust),
                Ok(json) => faults_of_message(json),
            }
        }
    }
}

// === A2E messages ===

fn faults_of_message(json: Json) -> Vec<Fault> {
    let Err(refusal) = Message::from_json(json, &DecodeOptions::default()) else {
        return Vec::new();
    };
    let mut faults: Vec<Fault> = Vec::new();
    for violation in refusal.violations().iter().take(MAX_FAULTS) {
        let fault = Fault::new(violation.field.clone(), violation.problem.to_string());
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    if faults.is_empty() {
        faults.push(Fault::new(refusal.field().clone(), refusal.message()));
    }
    faults
}

// === E2A ===

/// The parser stops at the first fault. To find all faults, each faulty member is removed, and the rest is parsed
/// again.
fn faults_of_e2a(mut json: Json, trust: Trust) -> Vec<Fault> {
    // Removing a member does not change the kind of record.
    let class = classify(&json);
    let mut faults: Vec<Fault> = Vec::new();
    while let Err(E2aError { kind, field, .. }) = read_e2a(&json, class, trust) {
        if faults.iter().any(|known| known.field == field) {
            break;
        }
        let is_removed = matches!(
            kind,
            E2aErrorKind::BadType
                | E2aErrorKind::BadValue
                | E2aErrorKind::OutOfRange
                | E2aErrorKind::DuplicateMember
        ) && remove(&mut json, &field);
        faults.push(Fault::new(field, kind.as_str()));
        if !is_removed || faults.len() == MAX_FAULTS {
            break;
        }
    }
    faults
}

fn read_e2a(json: &Json, class: &str, trust: Trust) -> Result<(), E2aError> {
    match class {
        "e2a.request" => E2aEnvelope::parse(json, trust).map(drop),
        "e2a.response" => E2aResponse::parse(json).map(drop),
        "e2a.legacy_request" => AgentRequest::parse(json).map(drop),
        "e2a.legacy_response" => AgentResponse::parse(json).map(drop),
        "e2a.legacy_chunk" => AgentResponseChunk::parse(json).map(drop),
        _ => Ok(()),
    }
}

/// Removes a member, and the note that it was repeated.
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
    let report = document.validate(&all_permissions(), None, Strictness::Moderate);
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

/// A policy that permits everything, because permissions are not part of the model.
fn all_permissions() -> Policy {
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
