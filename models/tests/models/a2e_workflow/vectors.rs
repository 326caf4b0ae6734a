//! The validity of every shared case, by the library and by name.

use std::collections::BTreeMap;
use std::time::Duration;

use a2abus_models::a2e_workflow::{
    Apis, Document, Issue, Policy, Strictness, Workflow, WorkflowLimits,
};
use a2abus_models::convert::{Conversion, ConvertContext};
use a2abus_plugin::Text;
use bytes::Bytes;
use serde_json::{Value, json};

const VECTORS: &str = include_str!("../../../../tests/vectors/a2e_execution.json");

fn cases() -> Vec<Value> {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    vectors["cases"].as_array().unwrap().clone()
}

fn lines(case: &Value) -> Vec<Bytes> {
    let line = |line: &Value| {
        line.as_str()
            .map_or_else(|| line.to_string(), str::to_owned)
    };
    case["workflow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|json| line(json).into())
        .collect()
}

fn strings(value: &Value, default: &str) -> Vec<String> {
    match value.as_array() {
        Some(strings) => strings
            .iter()
            .map(|s| s.as_str().unwrap().to_owned())
            .collect(),
        None => vec![default.to_owned()],
    }
}

fn apis(value: &Value) -> Apis {
    let bases = strings(value, "https://api.example.com");
    Apis::parse(bases.iter().map(String::as_str)).unwrap()
}

fn policy(case: &Value) -> Policy {
    let given = &case["policy"];
    let credentials = case["credentials"].as_object().into_iter().flatten();
    let bindings: BTreeMap<Text, Apis> = credentials
        .map(|(id, credential)| (id.as_str().into(), apis(&credential["apis"])))
        .collect();
    let files = given["fileStorage"].as_bool().unwrap_or(true);
    Policy {
        operations: strings(&given["operations"], "*").into_iter().collect(),
        apis: apis(&given["apis"]),
        credentials: strings(&given["credentials"], "*").into_iter().collect(),
        bindings,
        storages: [if files { "*" } else { "localStorage" }]
            .into_iter()
            .collect(),
        max_operations: given["maxOperations"]
            .as_u64()
            .unwrap_or(20)
            .try_into()
            .unwrap(),
        max_execution_time: Duration::from_millis(
            given["maxExecutionTimeMs"].as_u64().unwrap_or(30_000),
        ),
    }
}

/// Code, level and operation of each, sorted.
fn identities(issues: &Value) -> Vec<String> {
    let issues = issues.as_array().into_iter().flatten();
    let identity = |i: &Value| format!("{} {} {}", i["code"], i["level"], i["operationId"]);
    let mut identities: Vec<_> = issues.map(identity).collect();
    identities.sort();
    identities
}

/// The code and operation of each warning, sorted: nothing else of it is compared.
fn names(issues: &Value) -> Vec<String> {
    let issues = issues.as_array().into_iter().flatten();
    let mut names: Vec<_> = issues
        .map(|i| format!("{} {}", i["code"], i["operationId"]))
        .collect();
    names.sort();
    names
}

fn judge(case: &Value, report: &Value) {
    let (name, expected) = (&case["name"], &case["expected"]);
    assert_eq!(report["valid"], expected["valid"], "{name}: {report}");
    // The error of a run that fails is not one of validation.
    let errors = if expected["valid"] == true {
        &Value::Null
    } else {
        &expected["errors"]
    };
    assert_eq!(identities(&report["errors"]), identities(errors), "{name}");
    assert_eq!(
        names(&report["warnings"]),
        names(&expected["warnings"]),
        "{name}"
    );
}

fn to_value(issues: &[Issue]) -> Value {
    issues
        .iter()
        .map(|issue| serde_json::from_str::<Value>(&issue.to_json().to_string()).unwrap())
        .collect()
}

#[test]
fn every_case_is_judged_by_the_library() {
    let cases = cases();
    assert_eq!(cases.len(), 54);
    for case in &cases {
        let document = Document::from_lines(lines(case), &WorkflowLimits::default());
        let level = case["options"]["level"].as_str().unwrap_or("moderate");
        let input = super::object(&case.get("input").cloned().unwrap_or(json!({})).to_string());
        let report = document.validate(
            &policy(case),
            Some(&input),
            Strictness::from_name(level).unwrap(),
        );
        let value = json!({
            "valid": report.is_valid(),
            "errors": to_value(&report.errors),
            "warnings": to_value(&report.warnings),
        });
        judge(case, &value);
    }
}

#[test]
fn every_case_is_judged_by_the_conversion() {
    let context = ConvertContext {
        now: "2025-01-01T00:00:00Z".into(),
        converter: "test".into(),
        new_id: "new".into(),
    };
    let conversion = Conversion::find("a2e_workflow_validate").unwrap();
    for case in cases() {
        let report = conversion
            .run(&super::json(&case.to_string()), &context)
            .unwrap();
        judge(&case, &serde_json::from_str(&report.to_string()).unwrap());
        // The text of the whole document is equivalent to its lines.
        let text = lines(&case)
            .iter()
            .map(|line| std::str::from_utf8(line).unwrap().to_owned())
            .collect::<Vec<_>>();
        let mut whole = case.clone();
        whole["workflow"] = text.join("\n").into();
        assert_eq!(
            conversion
                .run(&super::json(&whole.to_string()), &context)
                .unwrap(),
            report
        );
    }
}

#[test]
fn the_conversion_refuses_what_it_cannot_read() {
    let context = ConvertContext {
        now: "".into(),
        converter: "".into(),
        new_id: "".into(),
    };
    let conversion = Conversion::find("a2e_workflow_validate").unwrap();
    let bad = [
        r#"{}"#,
        r#"{"workflow":7}"#,
        r#"{"workflow":"","options":{"level":"none"}}"#,
        r#"{"workflow":"","policy":{"apis":["nowhere"]}}"#,
        r#"{"workflow":"","policy":{"operations":"*"}}"#,
        r#"{"workflow":"","policy":{"maxOperations":-1}}"#,
    ];
    for input in bad {
        assert_eq!(
            conversion
                .run(&super::json(input), &context)
                .unwrap_err()
                .kind,
            "bad_input",
            "{input}"
        );
    }
    let report = conversion
        .run(&super::json(r#"{"workflow":""}"#), &context)
        .unwrap();
    assert_eq!(report.get("valid").unwrap().as_bool(), Some(false));
}

#[test]
fn every_case_of_good_form_is_written_and_read_back() {
    let mut written = 0;
    for case in cases() {
        let Ok(mut workflow) =
            Document::from_lines(lines(&case), &WorkflowLimits::default()).into_workflow()
        else {
            continue;
        };
        let text = workflow.to_jsonl(&"new".into());
        let again = Workflow::parse(&text.into(), &WorkflowLimits::default()).unwrap();
        workflow.execution_id.get_or_insert("new".into());
        workflow.dialect = again.dialect;
        assert_eq!(again, workflow, "{}", case["name"]);
        written += 1;
    }
    assert!(written >= 40, "{written}");
}
