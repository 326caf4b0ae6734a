//! Short notation for workflows, and for the issues found in them.

use a2abus_models::a2e_workflow::{Policy, Strictness};

use super::{all_issues, document, object, policy};

/// Data that all cases have.
const INPUT: &str = r#"{"x":1,"xs":[1],"o":{}}"#;

pub(crate) fn check_with(policy: &Policy, text: &str, expected: &[&str]) {
    let report = document(text).validate(policy, Some(&object(INPUT)), Strictness::Moderate);
    assert_eq!(all_issues(&report), expected, "{text}\n{report:?}");
}

pub(crate) fn check(text: &str, expected: &[&str]) {
    check_with(&policy(), text, expected);
}

/// Definitions as `(id, operation)` in the flat dialect, and an order.
pub(crate) fn flat(operations: &[(&str, &str)], order: &str) -> String {
    let mut text = String::new();
    for (id, operation) in operations {
        let operation = operation.replace('\n', "");
        text += &format!(
            r#"{{"type":"operationUpdate","operationId":"{id}","operation":{operation}}}"#
        );
        text.push('\n');
    }
    text + &format!(r#"{{"type":"beginExecution","executionId":"e","operationOrder":{order}}}"#)
}

pub(crate) fn one(operation: &str) -> String {
    flat(&[("a", operation)], r#"["a"]"#)
}

pub(crate) fn filter(conditions: &str, input: &str) -> String {
    format!(
        r#"{{"FilterData":{{"inputPath":"{input}","conditions":{conditions},
            "outputPath":"/workflow/f"}}}}"#
    )
}

pub(crate) fn call(members: &str) -> String {
    format!(r#"{{"ApiCall":{{{members},"outputPath":"/workflow/r"}}}}"#)
}

pub(crate) fn get(url: &str) -> String {
    call(&format!(r#""method":"GET","url":"{url}""#))
}

pub(crate) fn with_header(name: &str, value: &str) -> String {
    call(&format!(
        r#""method":"GET","url":"https://api.example.com/","headers":{{"{name}":{value}}}"#
    ))
}

pub(crate) fn transform(name: &str, config: &str) -> String {
    format!(
        r#"{{"TransformData":{{"inputPath":"/workflow/xs","transform":"{name}","config":{config},
            "outputPath":"/workflow/t"}}}}"#
    )
}

pub(crate) const WAIT: &str = r#"{"Wait":{"duration":1}}"#;
pub(crate) const CONDITION: &str = r#"{"field":"a","operator":"==","value":1}"#;

pub(crate) fn conditional(path: &str, branch: &str) -> String {
    format!(
        r#"{{"Conditional":{{"condition":{{"path":"{path}","operator":"==","value":1}},
            "ifTrue":{branch}}}}}"#
    )
}

pub(crate) fn loop_over(input: &str, body: &str) -> String {
    format!(r#"{{"Loop":{{"inputPath":"{input}","operations":{body}}}}}"#)
}

pub(crate) fn merge(sources: &str, strategy: &str, output: &str) -> String {
    format!(
        r#"{{"MergeData":{{"sources":{sources},"strategy":"{strategy}","outputPath":"{output}"}}}}"#
    )
}

pub(crate) fn store(storage: &str, key: &str) -> String {
    format!(r#"{{"StoreData":{{"inputPath":"/workflow/x","storage":"{storage}","key":"{key}"}}}}"#)
}
