//! Does a malicious workflow end with a failure, and nothing worse?

use a2abus_executor::case::Case;

/// Runs a workflow with an input. Returns the differences from the expectation.
async fn run(operations: &str, order: &str, input: &str, expected: &str) -> Vec<String> {
    let case = format!(
        r#"{{"name":"hostile","workflow":[{operations},{{"type":"beginExecution","executionId":"e","operationOrder":[{order}]}}],
            "input":{input},"expected":{expected}}}"#
    );
    let cases = Case::parse(case.as_bytes()).unwrap();
    cases[0].run().await.differences
}

fn operation(id: &str, operation: &str) -> String {
    format!(r#"{{"type":"operationUpdate","operationId":"{id}","operation":{{{operation}}}}}"#)
}

/// Whether the test ignores all the differences.
fn only(differences: &[String], what: &[&str]) -> bool {
    differences
        .iter()
        .all(|difference| what.iter().any(|what| difference.starts_with(what)))
}

#[tokio::test]
async fn a_path_of_a_hundred_thousand_steps_or_bytes_is_refused() {
    let path = format!("/workflow{}", "/a".repeat(100_000));
    for broken in [
        format!(
            r#""MergeData":{{"sources":["/workflow/x","/workflow/x"],"strategy":"concat","outputPath":"{path}"}}"#
        ),
        format!(r#""StoreData":{{"inputPath":"{path}","storage":"localStorage","key":"k"}}"#),
        format!(
            r#""FilterData":{{"inputPath":"/workflow/x","conditions":[{{"field":"a{}","operator":"==","value":1}}],"outputPath":"/workflow/y"}}"#,
            ".a".repeat(50_000)
        ),
        format!(
            r#""StoreData":{{"inputPath":"/workflow/x/{}","storage":"localStorage","key":"k"}}"#,
            "a".repeat(200_000)
        ),
    ] {
        let expected = r#"{"valid":false,"errors":[{"code":"invalid_path","level":"structural","operationId":"o"}]}"#;
        let differences = run(&operation("o", &broken), r#""o""#, r#"{"x":[]}"#, expected).await;
        assert!(differences.is_empty(), "{differences:?}");
    }
}

#[tokio::test]
async fn a_value_that_grows_deeper_with_every_turn_ends_at_the_limit() {
    let grow = r#""TransformData":{"inputPath":"/workflow/one","transform":"map","config":{"fields":{"x":{"path":"/workflow/deep"}}},"outputPath":"/workflow/deep"}"#;
    let turns = r#""Loop":{"inputPath":"/workflow/many","operations":["grow"]}"#;
    let many = vec!["0"; 900].join(",");
    let expected = r#"{"valid":true,"status":"failed","results":{},
        "error":{"type":"ExecutionError","code":"limit_exceeded","operationId":"grow","details":{"limit":"data_model_levels"}}}"#;
    let operations = [operation("turns", turns), operation("grow", grow)].join(",");
    let input = format!(r#"{{"many":[{many}],"one":[1],"deep":null}}"#);
    let differences = run(&operations, r#""turns""#, &input, expected).await;
    assert!(only(&differences, &["model: "]), "{differences:?}");
}

#[tokio::test]
async fn a_value_that_doubles_with_every_turn_ends_at_the_limit() {
    let double = r#""MergeData":{"sources":["/workflow/big","/workflow/big"],"strategy":"concat","outputPath":"/workflow/big"}"#;
    let turns = r#""Loop":{"inputPath":"/workflow/many","operations":["double"]}"#;
    let many = vec!["0"; 100].join(",");
    let expected = r#"{"valid":true,"status":"failed","results":{},
        "error":{"type":"ExecutionError","code":"limit_exceeded","operationId":"turns","details":{"limit":"data_model_bytes"}}}"#;
    let operations = [operation("turns", turns), operation("double", double)].join(",");
    let input = format!(r#"{{"many":[{many}],"big":["sixteen letters."]}}"#);
    let differences = run(&operations, r#""turns""#, &input, expected).await;
    assert!(only(&differences, &["model: "]), "{differences:?}");
}

#[tokio::test]
async fn more_runs_than_permitted_end_an_execution_that_goes_on_after_failures() {
    let turns = r#""Loop":{"inputPath":"/workflow/many","operations":["inner"]}"#;
    let inner = r#""Loop":{"inputPath":"/workflow/many","operations":["a"]}"#;
    let many = vec!["0"; 150].join(",");
    let wait = r#""Wait":{"duration":0}"#;
    let operations = [
        operation("turns", turns),
        operation("inner", inner),
        operation("a", wait),
    ]
    .join(",");
    let expected = r#"{"valid":true,"status":"failed","results":{},
        "error":{"type":"ExecutionError","code":"limit_exceeded","details":{"limit":"operation_runs","max":20000}}}"#;
    let differences = run(
        &operations,
        r#""turns""#,
        &format!(r#"{{"many":[{many}]}}"#),
        expected,
    )
    .await;
    assert!(only(&differences, &["model: "]), "{differences:?}");
}

#[tokio::test]
async fn loops_within_loops_end_at_three() {
    let body = |id: &str, next: &str| {
        operation(
            id,
            &format!(r#""Loop":{{"inputPath":"/workflow/many","operations":["{next}"]}}"#),
        )
    };
    let operations = [
        body("a", "b"),
        body("b", "c"),
        body("c", "d"),
        body("d", "w"),
    ]
    .join(",");
    let operations = [operations, operation("w", r#""Wait":{"duration":0}"#)].join(",");
    let expected = r#"{"valid":true,"status":"failed","results":{},"model":{"many":[1]},
        "error":{"type":"ExecutionError","code":"limit_exceeded","operationId":"d","details":{"limit":"loop_depth","max":3}}}"#;
    let differences = run(&operations, r#""a""#, r#"{"many":[1]}"#, expected).await;
    assert!(differences.is_empty(), "{differences:?}");
}
