//! Do the vectors and the examples of the specification come out as they say?

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use a2abus_executor::case::Case;

async fn check(file: &[u8], count: usize) {
    let cases = Case::parse(file).unwrap();
    assert_eq!(cases.len(), count);
    let mut failed = Vec::new();
    for case in &cases {
        let verdict = case.run().await;
        if !verdict.is_passed() {
            failed.push(format!(
                "{}: {}",
                verdict.name,
                verdict.differences.join("; ")
            ));
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {count} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[tokio::test]
async fn every_vector_comes_out_as_it_says() {
    check(include_bytes!("../../tests/vectors/a2e_execution.json"), 54).await;
}

#[tokio::test]
async fn every_example_of_the_specification_comes_out_as_decided() {
    check(include_bytes!("examples.json"), 11).await;
}

#[tokio::test]
async fn a_case_that_expects_something_else_says_what_differs() {
    let text = r#"{"name":"wrong","workflow":[
        {"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":5}}},
        {"type":"beginExecution","executionId":"e","operationOrder":["w"]}],
        "expected":{"valid":true,"status":"failed","results":{"w":1},"model":{},"waited_ms":6}}"#;
    let cases = Case::parse(text.as_bytes()).unwrap();
    let verdict = cases[0].run().await;
    assert_eq!(
        verdict.differences,
        [
            r#"status: expected "failed", got "success""#,
            r#"results: expected {"w":1}, got {"w":null}"#,
            "waited_ms: expected 6, got 5",
        ]
    );
}

#[test]
fn a_file_that_holds_no_case_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "not JSON"),
        (r#"{"cases":{}}"#, "cases is no array"),
        (r#"{"name":"x","expected":{}}"#, "x: workflow is missing"),
        (r#"{"name":"x","workflow":[]}"#, "x: expected is missing"),
        (
            r#"{"name":"x","workflow":[],"expected":{},"options":{"onError":"go"}}"#,
            "onError",
        ),
        (
            r#"{"name":"x","workflow":[],"expected":{},"policy":{"apis":["ftp://x"]}}"#,
            "x: apis",
        ),
    ] {
        let error = Case::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
