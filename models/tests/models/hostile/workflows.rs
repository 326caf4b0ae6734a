//! A2E workflows, by their typed model: documents with each member wrong in turn.

use a2abus_models::a2e_workflow::{
    Apis, Document, Policy, Severity, Strictness, Workflow, WorkflowLimits,
};
use serde_json::{Value, json};

use super::{
    BEGIN, DEFINITION, Either, HostileKind, Refused, VALUES, kind, replaced, truncated, with_bytes,
};

/// Reads and validates a document. Accepted workflows are written and read again with the same result.
fn read(document: &[u8]) -> Vec<Result<(), &'static str>> {
    let limits = WorkflowLimits::default();
    let parsed = Document::parse(&document.to_vec().into(), &limits);
    assert!(parsed.issues().len() <= limits.max_issues + 1);
    let report = parsed.validate(&policy(), None, Strictness::Moderate);
    let errors: Vec<_> = report
        .errors
        .iter()
        .map(|issue| Err(issue.code.as_str()))
        .collect();
    assert!(
        report
            .warnings
            .iter()
            .all(|issue| issue.severity == Severity::Warning)
    );
    if !errors.is_empty() {
        return errors;
    }
    let workflow = parsed.into_workflow().unwrap();
    let again = Workflow::parse(&workflow.to_jsonl(&"new".into()).into(), &limits).unwrap();
    assert_eq!(again.operations, workflow.operations);
    vec![Ok(())]
}

fn policy() -> Policy {
    Policy {
        operations: ["*"].into_iter().collect(),
        apis: Apis::parse(["https://api.example.com"]).unwrap(),
        credentials: ["*"].into_iter().collect(),
        storages: ["*"].into_iter().collect(),
        ..Policy::default()
    }
}

/// Operations of every type, as an agent may write them.
fn operations() -> Vec<Value> {
    vec![
        json!({"ApiCall": {"method": "POST", "url": "https://api.example.com/a", "headers": {"X-A": "b"}, "body": {"a": 1}, "timeout": 5000, "outputPath": "/workflow/x"}}),
        json!({"FilterData": {"inputPath": "/workflow/users", "conditions": [{"field": "a.b", "operator": "==", "value": 1}], "outputPath": "/workflow/x"}}),
        json!({"TransformData": {"inputPath": "/workflow/users", "transform": "sort", "config": {"field": "a", "order": "asc"}, "outputPath": "/workflow/x"}}),
        json!({"Conditional": {"condition": {"path": "/workflow/users", "operator": "exists"}, "ifTrue": [], "ifFalse": []}}),
        json!({"Loop": {"inputPath": "/workflow/users", "operations": [], "outputPath": "/workflow/x"}}),
        json!({"StoreData": {"inputPath": "/workflow/users", "storage": "localStorage", "key": "k"}}),
        json!({"Wait": {"duration": 5}}),
        json!({"MergeData": {"sources": ["/workflow/users", "/workflow/users"], "strategy": "concat", "outputPath": "/workflow/x"}}),
    ]
}

fn document(operation: &str) -> String {
    let begin = replaced(BEGIN, "operationOrder", "[\"users\",\"op\"]");
    format!(
        "{DEFINITION}\n{{\"type\":\"operationUpdate\",\"operationId\":\"op\",\"operation\":{operation}}}\n{begin}"
    )
}

/// Every operation with every member of its configuration replaced, or one level deeper, by every value.
fn with_values(values: &[&str]) -> Vec<String> {
    let mut documents = Vec::new();
    for operation in operations() {
        let (name, config) = operation.as_object().unwrap().iter().next().unwrap();
        for member in config.as_object().unwrap().keys() {
            for value in values {
                let config = replaced(&config.to_string(), member, value);
                documents.push(document(&format!("{{\"{name}\":{config}}}")));
            }
        }
    }
    documents
}

fn without_members() -> Vec<String> {
    let mut documents = Vec::new();
    for operation in operations() {
        let (name, config) = operation.as_object().unwrap().iter().next().unwrap();
        for member in [
            "method",
            "url",
            "inputPath",
            "conditions",
            "transform",
            "condition",
            "operations",
            "storage",
            "key",
            "duration",
            "sources",
        ] {
            let mut config = config.clone();
            if config.as_object_mut().unwrap().remove(member).is_some() {
                documents.push(document(&json!({name: config}).to_string()));
            }
        }
    }
    documents
}

const ANY: &[&str] = &[
    "invalid_json",
    "not_an_object",
    "unknown_message_type",
    "missing_field",
    "invalid_field",
    "empty_workflow",
    "missing_begin_execution",
    "multiple_begin_execution",
    "update_after_begin",
    "mixed_dialects",
    "invalid_path",
    "multiple_operation_types",
    "unknown_operation_type",
    "unknown_operation",
    "path_not_found",
    "type_mismatch",
    "api_not_permitted",
    "forbidden_target",
    "exceeds_execution_time",
    "credential_not_found",
];

pub(super) fn kinds() -> Vec<HostileKind> {
    let whole = format!("{DEFINITION}\n{BEGIN}");
    let samples = [whole.as_str()];
    let paths = [
        "\"\"",
        "\"workflow\"",
        "\"/\"",
        "\"/workflow\"",
        "\"/workflow/\"",
        "\"/workflow//a\"",
        "\"/workflow/a[\"",
        "\"/workflow/a]\"",
        "\"/workflow/a[-1]\"",
        "\"/workflow/a[1\"",
        "\"/workflow/a..b\"",
        "\"/other/a\"",
        "\"/workflow/a[99999999999999999999]\"",
        "\"/workflow/\\u0000\"",
    ];
    let urls = [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost/",
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://[::ffff:127.0.0.1]/",
        "https://api.example.com@evil.example/",
        "https://api.example.com.evil.example/",
        "https://evil.example/api.example.com",
        "file:///etc/passwd",
        "gopher://api.example.com/",
        "javascript:alert(1)",
        "//api.example.com/",
        "",
        "https://user:secret@api.example.com/",
        "https://api.example.com:444/",
        "HTTP://LOCALHOST/",
        "http://api.example.com\\@localhost/",
    ];
    let permission: &[&str] = &["api_not_permitted", "forbidden_target", "invalid_field"];
    vec![
        kind("workflow: any value of any member", Either(ANY), read, with_values(&VALUES)),
        kind("workflow: a required member is missing", Refused(&["missing_field", "path_not_found"]), read, without_members()),
        kind("workflow: no path", Refused(&["invalid_path", "invalid_field", "reserved_path", "path_not_found"]), read, {
            let each = |path: &str| document(&format!(r#"{{"Loop":{{"inputPath":{path},"operations":[]}}}}"#));
            paths.map(each)
        }),
        kind("workflow: a target that may not be called", Refused(permission), read, urls.map(|url| {
            document(&json!({"ApiCall": {"method": "GET", "url": url, "outputPath": "/workflow/x"}}).to_string())
        })),
        kind(
            "workflow: an operation that controls itself",
            Refused(&["cyclic_reference", "order_conflict"]),
            read,
            (1..60).map(|length: usize| {
                let line = |at: usize| {
                    let next = (at + 1) % length;
                    json!({"type": "operationUpdate", "operationId": format!("op{at}"), "operation": {"Loop": {"inputPath": "/workflow/users", "operations": [format!("op{next}")]}}}).to_string()
                };
                let lines: Vec<String> = (0..length.min(18)).map(line).collect();
                let last = json!({"type": "operationUpdate", "operationId": format!("op{}", length.min(18)), "operation": {"Loop": {"inputPath": "/workflow/users", "operations": ["op0"]}}});
                format!("{DEFINITION}\n{}\n{last}\n{}", lines.join("\n"), replaced(BEGIN, "operationOrder", "[\"users\",\"op0\"]"))
            }).filter(|text| !text.is_empty()).take(17),
        ),
        kind("workflow: no operation of the catalog", Refused(&["unknown_operation_type", "multiple_operation_types", "invalid_field", "missing_field"]), read,
            ["{}", "{\"Exec\":{}}", "{\"apicall\":{}}", "{\"Wait\":{\"duration\":1},\"Loop\":{}}", "[]", "null", "7", "\"Wait\"", "{\"\":{}}"].map(document)),
        kind("workflow: truncated at every byte", Refused(ANY), read, truncated(&samples)),
        kind("workflow: bad UTF-8 at every byte", Refused(&["invalid_json", "empty_workflow", "missing_begin_execution", "unknown_operation"]), read, with_bytes(&samples, b"\xff")),
        kind("workflow: a line end at every byte", Either(ANY), read, with_bytes(&samples, b"\n")),
        kind("workflow: any value of the members of a line", Either(ANY), read, {
            let mut documents = Vec::new();
            for value in VALUES {
                for name in ["type", "operationId", "operation"] {
                    documents.push(format!("{}\n{BEGIN}", replaced(DEFINITION, name, value)));
                }
                for name in ["type", "executionId", "operationOrder", "_agentId"] {
                    documents.push(format!("{DEFINITION}\n{}", replaced(BEGIN, name, value)));
                }
            }
            documents
        }),
    ]
}
