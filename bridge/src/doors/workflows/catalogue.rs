//! Descriptions of the operations and their configuration, for agents that search the capabilities.

use a2abus_models::a2e_workflow::OperationType;
use a2abus_models::a2e_workflow::operation::{Operator, Storage, Strategy};
use serde_json::{Value, json};

use super::search::{Kind, SearchItem};

/// An operation, with the JSON Schema of its configuration. Source: docs/protocols/a2e-workflows.md §4.
pub(super) fn operation(operation: OperationType) -> SearchItem {
    let (description, keywords, schema) = match operation {
        OperationType::ApiCall => (
            "Sends an HTTP request to a registered API and stores the body of the answer.",
            "fetch get post put delete patch request url http rest service download send",
            api_call(),
        ),
        OperationType::FilterData => (
            "Keeps the elements of an array that meet every condition.",
            "where select rows records search match condition compare",
            filter_data(),
        ),
        OperationType::TransformData => (
            "Maps, sorts, groups, aggregates or selects from data.",
            "map sort order group aggregate sum average count reduce project fields convert",
            transform_data(),
        ),
        OperationType::Conditional => (
            "Runs one of two branches of operations, by a condition on the data.",
            "if else branch decide exists empty",
            conditional(),
        ),
        OperationType::Loop => (
            "Runs operations once for each element of an array.",
            "for each iterate repeat every batch",
            repeat(),
        ),
        OperationType::StoreData => (
            "Keeps a value in a storage of the agent.",
            "save write persist file cache localStorage sessionStorage",
            store_data(),
        ),
        OperationType::Wait => (
            "Waits for some milliseconds.",
            "sleep delay pause",
            object(
                json!({"duration": {"type": "integer", "minimum": 0, "maximum": 600_000}}),
                &["duration"],
            ),
        ),
        OperationType::MergeData => (
            "Combines several values into one array or object.",
            "concat union intersect join combine deepMerge",
            merge_data(),
        ),
    };
    SearchItem {
        kind: Kind::Operation,
        id: operation.as_str().to_owned(),
        description: description.to_owned(),
        keywords: keywords.to_owned(),
        schema: Some(schema),
    }
}

fn api_call() -> Value {
    object(
        json!({
            "method": {"enum": ["GET", "POST", "PUT", "DELETE", "PATCH"]},
            "url": {"type": "string", "description": "Absolute; {/workflow/...} after the host stands for a value."},
            "outputPath": output("Where the body of the answer goes."),
            "headers": {"type": "object", "description": "Text, {\"path\": ...}, or {\"credentialRef\": {\"id\": ...}}."},
            "body": {"description": "JSON, in which {\"path\": ...} and paths stand for values."},
            "timeout": {"type": "integer", "minimum": 1_000, "maximum": 300_000, "default": 30_000},
        }),
        &["method", "url", "outputPath"],
    )
}

fn filter_data() -> Value {
    let condition = object(
        json!({"field": {"type": "string"}, "operator": {"enum": operators(&[])}, "value": {}}),
        &["field", "operator", "value"],
    );
    object(
        json!({
            "inputPath": input("An array."),
            "conditions": {"type": "array", "items": condition},
            "outputPath": output("Where the array goes."),
        }),
        &["inputPath", "conditions", "outputPath"],
    )
}

fn transform_data() -> Value {
    object(
        json!({
            "inputPath": input("An array; for select an object, too."),
            "transform": {"enum": ["map", "sort", "group", "aggregate", "select"]},
            "config": {"type": "object", "description": "sort: field, order or by; select: field or fields; map: field, fields or template; group: field; aggregate: operation and field, or aggregations; groupBy."},
            "outputPath": output("Where the result goes."),
        }),
        &["inputPath", "transform", "outputPath"],
    )
}

fn conditional() -> Value {
    let condition = object(
        json!({"path": input("What is compared."), "operator": {"enum": operators(&["exists", "empty", "isEmpty"])}, "value": {}}),
        &["path", "operator"],
    );
    object(
        json!({"condition": condition, "ifTrue": ids(), "ifFalse": ids()}),
        &["condition", "ifTrue"],
    )
}

fn repeat() -> Value {
    object(
        json!({
            "inputPath": input("An array; its elements are /workflow/item in turn."),
            "operations": ids(),
            "outputPath": output("Where the values of the turns go."),
        }),
        &["inputPath", "operations"],
    )
}

fn store_data() -> Value {
    object(
        json!({
            "inputPath": input("What is kept."),
            "storage": {"enum": Storage::ALL.iter().map(|storage| storage.as_str()).collect::<Vec<_>>()},
            "key": {"type": "string", "minLength": 1, "maxLength": 256},
        }),
        &["inputPath", "storage", "key"],
    )
}

fn merge_data() -> Value {
    object(
        json!({
            "sources": {"type": "array", "items": input("A value.")},
            "strategy": {"enum": Strategy::ALL.iter().map(|strategy| strategy.as_str()).collect::<Vec<_>>()},
            "outputPath": output("Where the result goes."),
        }),
        &["sources", "strategy", "outputPath"],
    )
}

#[allow(clippy::needless_pass_by_value)] // Callers write json! in place.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

/// A path that is read. It may begin with a storage.
fn input(description: &str) -> Value {
    let pattern = r"^/(workflow/|(localStorage|sessionStorage)[/\[])";
    json!({"type": "string", "pattern": pattern, "description": description})
}

/// A path that is written to.
fn output(description: &str) -> Value {
    json!({"type": "string", "pattern": "^/workflow/", "description": description})
}

fn ids() -> Value {
    json!({"type": "array", "items": {"type": "string"}})
}

fn operators(more: &[&'static str]) -> Vec<&'static str> {
    let common = Operator::ALL.iter().map(|operator| operator.as_str());
    common.chain(more.iter().copied()).collect()
}
