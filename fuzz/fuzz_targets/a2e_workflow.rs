//! Is every document judged, and does a workflow read back as it is written?
#![no_main]

use a2abus_models::a2e_workflow::{
    Apis, Document, Policy, Strictness, Workflow, WorkflowLimits,
};
use a2abus_models::Json;
use a2abus_plugin::{Limits, Text};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = WorkflowLimits::default();
    let document = Document::parse(&Bytes::copy_from_slice(bytes), &limits);
    assert!(document.issues().len() <= limits.max_issues + 1);
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        apis: Apis::parse(["https://api.example.com"]).expect("a base URL"),
        credentials: ["*"].into_iter().collect(),
        storages: ["*"].into_iter().collect(),
        ..Policy::default()
    };
    let judge = |strictness| {
        let report = document.validate(&policy, None, strictness);
        let json = report.to_json();
        assert_eq!(
            json.get("valid").and_then(Json::as_bool),
            Some(report.is_valid())
        );
        let text = json.to_string();
        assert_eq!(
            Json::parse(text.as_bytes(), &Limits::default()).as_ref(),
            Ok(&json)
        );
        report.is_valid()
    };
    let strict = judge(Strictness::Strict);
    let moderate = judge(Strictness::Moderate);
    let lenient = judge(Strictness::Lenient);
    assert!(strict <= moderate && moderate <= lenient);
    match document.into_workflow() {
        Ok(workflow) => assert_round_trip(&workflow),
        Err(issues) => assert!(!moderate && !issues.is_empty()),
    }
});

fn assert_round_trip(workflow: &Workflow) {
    let new_id = Text::from_static("new");
    // A document can be written longer than it came: defaults are spelt out.
    let mut limits = WorkflowLimits::default();
    limits.max_line_bytes = usize::MAX;
    limits.max_bytes = usize::MAX;
    let written = workflow.to_jsonl(&new_id);
    let again = Workflow::parse(&written.clone().into(), &limits);
    let again = again.unwrap_or_else(|issues| panic!("{written}\n{issues:?}"));
    assert_eq!(again.operations, workflow.operations);
    assert_eq!(
        (&again.order, &again.agent),
        (&workflow.order, &workflow.agent)
    );
    assert_eq!(again.to_jsonl(&new_id), written);
}
