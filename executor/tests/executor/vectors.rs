//! Do the vectors and the examples of the specification give the expected results?

use a2abus_executor::case::Case;

async fn check(file: &[u8], count: usize) {
    let cases = Case::parse(file).unwrap();
    assert_eq!(cases.len(), count);
    let mut failed = Vec::new();
    for case in &cases {
        let verdict = case.run().await;
        if !verdict.passed() {
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
async fn every_vector_gives_its_expected_result() {
    check(
        include_bytes!("../../../tests/vectors/a2e_execution.json"),
        54,
    )
    .await;
}

#[tokio::test]
async fn every_example_of_the_specification_comes_out_as_decided() {
    check(include_bytes!("examples.json"), 11).await;
}

#[tokio::test]
async fn a_case_with_other_expectations_reports_the_differences() {
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

/// An absent member must be empty, and the difference does not look like one from `null`.
#[tokio::test]
async fn what_a_case_does_not_mention_must_be_empty() {
    let lines = r#""workflow":[
        {"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":5}}},
        {"type":"beginExecution","executionId":"e","operationOrder":["w"]}],"#;
    let expected =
        r#""expected":{"valid":true,"status":"success","results":{"w":null},"waited_ms":5}}"#;
    for (input, differences) in [
        ("", &[][..]),
        (
            r#""input":{"u":[]},"#,
            &[r#"model: expected does not mention it, got {"u":[]}"#],
        ),
    ] {
        let text = format!(r#"{{"name":"x",{lines}{input}{expected}"#);
        let cases = Case::parse(text.as_bytes()).unwrap();
        let verdict = cases[0].run().await;
        assert_eq!(verdict.differences, differences);
    }
}

const CALL: &str = r#"{"name":"calls","workflow":[
    {"type":"operationUpdate","operationId":"c","operation":{"ApiCall":
        {"method":"GET","url":"https://api.example.com/x","outputPath":"/workflow/x"}}},
    {"type":"beginExecution","executionId":"e","operationOrder":["c"]}],
    "http_fixtures":{"GET https://api.example.com/X":[{"status":200,"body":1}]},"#;

#[tokio::test]
async fn a_request_without_a_recorded_answer_is_named_first() {
    let text =
        format!(r#"{CALL}"expected":{{"valid":true,"status":"success","results":{{"c":1}}}}}}"#);
    let cases = Case::parse(text.as_bytes()).unwrap();
    let verdict = cases[0].run().await;
    assert_eq!(
        verdict.differences[..2],
        [
            "the case has no response for GET https://api.example.com/x",
            r#"status: expected "success", got "failed""#,
        ]
    );
    let named = verdict.differences.iter();
    let named = named.filter(|difference| difference.contains("no response for"));
    assert_eq!(named.count(), 1, "however often it was tried");
}

/// The messages about malformed cases, and only those.
async fn malformed(text: &str) -> String {
    let cases = Case::parse(text.as_bytes()).unwrap();
    let verdict = cases[0].run().await;
    assert_eq!(verdict.differences.len(), 1, "{verdict:?}");
    verdict.differences[0].clone()
}

#[tokio::test]
async fn a_case_with_an_unknown_member_fails_and_lists_the_known_ones() {
    let good = format!(
        r#"{CALL}"input":{{}},"note":"for people","case":1,"source":"x","original_observed":7,
        "credentials":{{"k":{{"type":"custom","value":"v","apis":[]}}}},
        "policy":{{"operations":[],"apis":[],"credentials":[],"maxOperations":1,
            "maxExecutionTimeMs":1,"maxLoopItems":1,"fileStorage":false}},
        "options":{{"onError":"stop","level":"strict"}},
        "expected":{{"valid":false,"status":"failed","results":{{}},"model":{{}},"error":{{}},
            "errors":[{{"code":"x","level":"x","operationId":"c"}}],
            "requests":[],"retry_delays_ms":[],"stored":{{}},"waited_ms":0,"skipped":[],
            "warnings":[{{"code":"x","operationId":"c"}}]}}}}"#
    );
    let cases = Case::parse(good.as_bytes()).unwrap();
    let output = cases[0].run().await.differences.join(" ");
    assert!(!output.contains("unknown member"), "{output}");
    for (member, misspelt, reason) in [
        (
            "results",
            "resutls",
            r#"expected: unknown member "resutls"; known are valid, status, results, model, error, errors, requests, retry_delays_ms, stored, waited_ms, skipped, warnings"#,
        ),
        (
            "http_fixtures",
            "http_fixture",
            r#"unknown member "http_fixture"; did you mean "http_fixtures"?"#,
        ),
        (
            "body",
            "bdoy",
            r#"http_fixtures["GET https://api.example.com/X"][0]: unknown member "bdoy"; known are status, headers, body, body_text, error"#,
        ),
        (
            "value",
            "valeu",
            r#"credentials.k: unknown member "valeu"; known are type, value, apis"#,
        ),
        (
            "maxLoopItems",
            "maxLoopItem",
            r#"policy: unknown member "maxLoopItem"; known are operations, "#,
        ),
        (
            "onError",
            "on_error",
            r#"options: unknown member "on_error"; known are onError, level"#,
        ),
        (
            "level",
            "levl",
            r#"options: unknown member "levl"; known are onError, level"#,
        ),
    ] {
        let text = good.replace(&format!("\"{member}\":"), &format!("\"{misspelt}\":"));
        let error = malformed(&text).await;
        assert!(error.starts_with(reason), "{error}");
    }
    for (right, wrong, reason) in [
        (
            r#""code":"x","operationId":"c"}]"#,
            r#""code":"x","operation":"c"}]"#,
            r#"expected.warnings[0]: unknown member "operation"; known are code, level, operationId, severity, message, line, suggestion"#,
        ),
        (
            r#"[{"status":200,"body":1}]"#,
            r#"{"status":200,"body":1}"#,
            r#"http_fixtures["GET https://api.example.com/X"] is not a list"#,
        ),
        (
            r#""status":200,"#,
            r#""error":"slow","#,
            r#"http_fixtures["GET https://api.example.com/X"][0].error: connect or timeout"#,
        ),
        (
            r#""fileStorage":false"#,
            r#""fileStorage":"no""#,
            "policy.fileStorage: true or false",
        ),
        (
            r#""onError":"stop""#,
            r#""onError":1"#,
            "onError: stop or continue",
        ),
    ] {
        let text = good.replace(right, wrong);
        assert_ne!(text, good, "{right}");
        let error = malformed(&text).await;
        assert_eq!(error, reason);
    }
}

#[tokio::test]
async fn a_case_that_is_malformed_fails_and_the_others_run() {
    for (case, reason) in [
        (r#"{"name":"x","expected":{}}"#, "workflow is missing"),
        (r#"{"name":"x","workflow":[]}"#, "expected is missing"),
        (
            r#"{"name":"x","workflow":[],"expected":{},"options":{"onError":"go"}}"#,
            "onError",
        ),
        (
            r#"{"name":"x","workflow":[],"expected":{},"policy":{"apis":["ftp://x"]}}"#,
            "apis",
        ),
        ("7", "it is not an object"),
    ] {
        let good = r#"{"name":"good","workflow":[
            {"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":5}}},
            {"type":"beginExecution","executionId":"e","operationOrder":["w"]}],
            "expected":{"valid":true,"status":"success","results":{"w":null},"model":{},"waited_ms":5}}"#;
        let text = format!(r#"{{"cases":[{case},{good}]}}"#);
        let output = malformed(&text).await;
        assert!(output.contains(reason), "{case}: {output}");
        let cases = Case::parse(text.as_bytes()).unwrap();
        assert!(cases[1].run().await.passed(), "{case}");
    }
}

#[tokio::test]
async fn a_case_with_a_duplicate_member_fails_and_names_it() {
    let good = r#"{"name":"x","workflow":[
        {"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":5}}},
        {"type":"beginExecution","executionId":"e","operationOrder":["w"]}],
        "expected":{"valid":true,"status":"success","results":{"w":null},"model":{},"waited_ms":5}}"#;
    assert!(
        Case::parse(good.as_bytes()).unwrap()[0]
            .run()
            .await
            .passed()
    );
    for (member, twice, place) in [
        (
            r#""duration""#,
            r#""duration":6"#,
            "workflow[0].operation.Wait.duration",
        ),
        (r#""expected""#, r#""expected":{}"#, "expected"),
        (r#""waited_ms""#, r#""waited_ms":6"#, "expected.waited_ms"),
        (r#""w":null"#, r#""w":1"#, "expected.results.w"),
    ] {
        let text = good.replacen(member, &format!("{twice},{member}"), 1);
        let output = malformed(&text).await;
        assert_eq!(output, format!("duplicate member {place}"));
    }
}

#[test]
fn a_file_that_holds_no_case_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "not JSON"),
        (r#"{"cases":{}}"#, "cases is not an array"),
        (r#"{"cases":[]}"#, "the file contains no case"),
        (r#"{"cases":[7],"cases":[7]}"#, "duplicate member cases"),
        ("7", "a case must be an object"),
    ] {
        let error = Case::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
