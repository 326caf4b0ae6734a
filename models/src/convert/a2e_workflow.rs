//! The conversions of A2E workflows.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::a2e_workflow::{Allowed, Apis, Document, Policy, Report, Strictness, WorkflowLimits};
use crate::convert::conversion::{Conversion, ConvertContext, ConvertError};
use crate::json::Json;
use a2abus_plugin::Text;

pub(super) const CONVERSIONS: &[Conversion] = &[Conversion {
    name: "a2e_workflow_validate",
    about: "the lines, or {workflow, input?, options?, policy?, credentials?}: {valid, errors, warnings}; \
            workflow is the lines as a string, or an array of its messages",
    run: validate,
}];

/// The API that is registered if the input names none.
const DEFAULT_API: &str = "https://api.example.com";

fn validate(input: &Json, _: &ConvertContext) -> Result<Json, ConvertError> {
    let limits = WorkflowLimits::default();
    let workflow = if input.as_text().is_some() {
        Some(input)
    } else {
        input.get("workflow")
    };
    let document = match workflow {
        Some(Json::String(text)) => Document::parse(&text.to_bytes(), &limits),
        Some(Json::Array(messages)) => Document::from_lines(messages.iter().map(line), &limits),
        _ => {
            return Err(bad_input(
                "workflow",
                "expected the text, or an array of its messages",
            ));
        }
    };
    let report: Report = document.validate(
        &policy(input)?,
        input.get("input").and_then(Json::as_object),
        strictness(input)?,
    );
    Ok(report.to_json())
}

/// A string is the text of a line.
fn line(message: &Json) -> Bytes {
    match message {
        Json::String(text) => text.to_bytes(),
        other => Bytes::from(other.to_string()),
    }
}

fn bad_input(field: &str, message: &'static str) -> ConvertError {
    ConvertError {
        kind: "bad_input",
        field: field.into(),
        message: Cow::Borrowed(message),
    }
}

fn strictness(input: &Json) -> Result<Strictness, ConvertError> {
    match input
        .get("options")
        .and_then(|options| options.get("level"))
    {
        None => Ok(Strictness::default()),
        Some(level) => level
            .as_str()
            .and_then(Strictness::from_name)
            .ok_or_else(|| bad_input("options.level", "expected strict, moderate or lenient")),
    }
}

fn policy(input: &Json) -> Result<Policy, ConvertError> {
    let given = |name: &str| input.get("policy").and_then(|policy| policy.get(name));
    let number = |name: &'static str, default: u64| match given(name) {
        None => Ok(default),
        Some(json) => json
            .as_number()
            .and_then(|number| number.as_u64())
            .ok_or_else(|| bad_input("policy", "expected limits that are integers")),
    };
    let files = given("fileStorage").and_then(Json::as_bool).unwrap_or(true);
    let storages: &[&str] = if files {
        &["*"]
    } else {
        &["localStorage", "sessionStorage"]
    };
    Ok(Policy {
        operations: names(given("operations"), "*")?
            .into_iter()
            .collect::<Allowed>(),
        apis: apis(given("apis"))?,
        credentials: names(given("credentials"), "*")?.into_iter().collect(),
        bindings: bindings(input.get("credentials"))?,
        storages: storages.iter().copied().collect(),
        max_operations: usize::try_from(number("maxOperations", 20)?).unwrap_or(usize::MAX),
        max_execution_time: Duration::from_millis(number("maxExecutionTimeMs", 30_000)?),
    })
}

fn names<'a>(given: Option<&'a Json>, default: &'a str) -> Result<Vec<&'a str>, ConvertError> {
    let Some(given) = given else {
        return Ok(vec![default]);
    };
    given
        .as_array()
        .and_then(|names| names.iter().map(Json::as_str).collect())
        .ok_or_else(|| bad_input("policy", "expected arrays of strings"))
}

fn apis(given: Option<&Json>) -> Result<Apis, ConvertError> {
    Apis::parse(names(given, DEFAULT_API)?).map_err(|_| bad_input("apis", "expected base URLs"))
}

/// The values of credentials are ignored.
fn bindings(credentials: Option<&Json>) -> Result<BTreeMap<Text, Apis>, ConvertError> {
    let credentials = credentials.and_then(Json::as_object).into_iter();
    credentials
        .flat_map(|credentials| credentials.iter())
        .map(|(id, credential)| Ok((id.clone(), apis(credential.get("apis"))?)))
        .collect()
}
