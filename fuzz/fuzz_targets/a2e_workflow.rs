//! Is every document judged?
#![no_main]

use a2abus_models::Json;
use a2abus_models::a2e_workflow::{Apis, Document, Policy, Strictness, WorkflowLimits};
use a2abus_plugin::Limits;
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
        Ok(workflow) => assert!(!workflow.operations.is_empty()),
        Err(issues) => assert!(!moderate && !issues.is_empty()),
    }
});
