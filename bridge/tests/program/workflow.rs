//! `a2abus workflow` as a shell sees it: output, errors, exit status.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

const VECTORS: &str = "../tests/vectors/a2e_execution.json";
const EXAMPLES: &str = "../executor/tests/executor/examples.json";

/// Exit status, standard output, standard error.
fn run(args: &[&str], stdin: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2abus"));
    let mut child = command
        .arg("workflow")
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that is misused ends without reading.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn workflow(operations: &[(&str, Value)], order: &[&str]) -> String {
    let lines = operations.iter().map(|(id, operation)| {
        json!({"type": "operationUpdate", "operationId": id, "operation": operation}).to_string()
    });
    let begin = json!({"type": "beginExecution", "executionId": "e-1", "operationOrder": order});
    lines
        .chain([begin.to_string()])
        .collect::<Vec<_>>()
        .join("\n")
}

fn filter() -> String {
    let filter = json!({"FilterData": {"inputPath": "/workflow/users", "outputPath": "/workflow/best",
        "conditions": [{"field": "points", "operator": ">", "value": 100}]}});
    workflow(&[("best", filter)], &["best"])
}

#[test]
fn test_runs_every_vector_and_example() {
    let (status, out, err) = run(&["test", VECTORS, EXAMPLES], "");
    assert_eq!(status, 0, "{out}{err}");
    assert_eq!(out.lines().count(), 54 + 11 + 1);
    assert_eq!(out.lines().last(), Some("65 passed, 0 failed"));
    assert!(out.starts_with("ok apicall-get-then-filter-eq\n"), "{out}");
}

#[test]
fn test_reads_one_case_and_says_what_differs() {
    let case = json!({"name": "waits", "workflow": [
            {"type": "operationUpdate", "operationId": "w", "operation": {"Wait": {"duration": 5}}},
            {"type": "beginExecution", "executionId": "e", "operationOrder": ["w"]}],
        "expected": {"valid": true, "status": "success", "results": {"w": null}, "model": {}, "waited_ms": 6}});
    let file = file(&case.to_string());
    let (status, out, _) = run(&["test", file.path().to_str().unwrap()], "");
    assert_eq!(status, 1);
    assert_eq!(
        out,
        "FAIL waits: waited_ms: expected 6, got 5\n0 passed, 1 failed\n"
    );
}

#[test]
fn test_counts_a_file_without_cases_as_failed_and_runs_the_others() {
    let (no_json, empty) = (file("{"), file(r#"{"cases":[]}"#));
    let path = |file: &NamedTempFile| file.path().to_str().unwrap().to_owned();
    let (no_json, empty) = (path(&no_json), path(&empty));
    let (status, out, _) = run(&["test", &no_json, EXAMPLES, &empty], "");
    assert_eq!(status, 1, "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with(&format!("FAIL {no_json}: not JSON: ")),
        "{out}"
    );
    assert_eq!(
        lines[12],
        format!("FAIL {empty}: the file contains no case")
    );
    assert_eq!(lines[13], "11 passed, 2 failed");
}

#[test]
fn validate_reports_all_problems_with_their_lines() {
    let api = json!({"ApiCall": {"method": "GET", "url": "http://10.0.0.1/x", "outputPath": "/workflow/x"}});
    let check = json!({"Conditional": {"condition": {"path": "/workflow/x", "operator": "exists"}, "ifTrue": ["nowhere"]}});
    let text = workflow(&[("a", api), ("c", check)], &["a", "c"]);
    let (status, out, _) = run(&["validate"], &text);
    assert_eq!(status, 1);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(
        lines[0].starts_with(
            "standard input:1: error forbidden_target (a): url: 10.0.0.1 may not be called: its scheme is http, "
        ),
        "{out}"
    );
    assert!(
        lines[1].starts_with("standard input:2: error unknown_operation (c): "),
        "{out}"
    );
    assert_eq!(lines[2], "standard input is not valid: 2 errors");

    let (status, out, _) = run(&["validate", "--json"], &text);
    let verdict: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &verdict["valid"]), (1, &json!(false)));
    assert_eq!(verdict["errors"][1]["operationId"], "c");
}

#[test]
fn validate_knows_the_input() {
    let (status, out, err) = run(&["validate"], &filter());
    assert_eq!(status, 1, "{out}");
    assert!(
        err.starts_with("hint: ") && err.contains("--input"),
        "{err}"
    );
    let (_, _, err) = run(&["validate", "--input", r#"{"other":[]}"#], &filter());
    assert_eq!(err, "");
    let (_, _, err) = run(&["validate", "--json"], &filter());
    assert_eq!(err, "");
    let (status, out, err) = run(&["validate", "--input", r#"{"users":[]}"#], &filter());
    assert_eq!(
        (status, out.as_str()),
        (0, "standard input is valid\n"),
        "{err}"
    );
    let (status, ..) = run(&["validate", "--level", "lenient"], &filter());
    assert_eq!(status, 0);
}

#[test]
fn run_prints_the_answer_and_shows_operations_when_asked() {
    let input = file(r#"{"users":[{"points":120},{"points":80}]}"#);
    let input = format!("@{}", input.path().display());
    let (status, out, err) = run(&["run", "--progress", "--input", &input], &filter());
    assert_eq!(status, 0, "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["results"], json!({"best": [{"points": 120}]}));
    assert_eq!(
        (&answer["execution_id"], &answer["status"]),
        (&json!("e-1"), &json!("success"))
    );
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 2, "{err}");
    assert_eq!(lines[0], "begin  best (FilterData)");
    assert!(lines[1].starts_with("ok     best (FilterData) "), "{err}");
}

#[test]
fn run_ends_with_1_when_the_workflow_fails_or_is_not_valid() {
    let (status, out, err) = run(&["run", "--input", r#"{"users":{}}"#], &filter());
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(status, 1);
    assert_eq!(answer["error"]["type"], "ValidationError");
    assert!(err.contains("error type_mismatch (best)"), "{err}");

    let lenient = ["run", "--level", "lenient", "--on-error", "continue"];
    let (status, out, _) = run(&lenient, &filter());
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &answer["status"]), (1, &json!("failed")));
    assert_eq!(answer["errors"][0]["code"], "path_not_found");
}

#[test]
fn run_takes_the_permissions_of_an_agent_from_a_configuration() {
    let policy = file(
        "
workflows:
  enabled: true
  agents:
    - { id: waiter, operations: [Wait] }
    - { id: reporter, operations: ['*'] }
",
    );
    let policy = policy.path().to_str().unwrap().to_owned();
    let run_as = |agent: &[&str]| {
        let args = [
            &["run", "--input", r#"{"users":[]}"#, "--policy", &policy],
            agent,
        ]
        .concat();
        run(&args, &filter())
    };
    let (status, out, err) = run_as(&["--agent", "waiter"]);
    assert_eq!(status, 1, "{err}");
    assert!(out.contains("operation_not_permitted"), "{out}");
    let (status, _, err) = run_as(&["--agent", "reporter"]);
    assert_eq!(status, 0, "{err}");
    for (agent, reported) in [
        (&[] as &[&str], "waiter, reporter"),
        (&["--agent", "nobody"], "waiter, reporter"),
    ] {
        let (status, _, err) = run_as(agent);
        assert_eq!(status, 2, "{err}");
        assert!(err.contains(reported), "{err}");
    }
}

#[test]
fn an_address_that_is_forbidden_for_its_network_comes_with_the_policy_that_permits_it() {
    let call = |url: &str| {
        let call = json!({"ApiCall": {"method": "GET", "url": url, "outputPath": "/workflow/x"}});
        workflow(&[("a", call)], &["a"])
    };
    let reported = "hint: to permit an API that is not globally reachable by HTTPS, register its base URL in a policy: \
        --policy FILE; `a2abus workflow run --help` shows one";
    // In the text, and by a value that only the run has.
    let address = "http://127.0.0.1:1/x";
    let input = json!({"url": address}).to_string();
    for (command, url) in [
        ("validate", address),
        ("run", address),
        ("run", "{/workflow/url}"),
    ] {
        let (status, _, err) = run(&[command, "--input", &input], &call(url));
        assert_eq!(status, 1, "{err}");
        let hints = err.lines().filter(|line| line.starts_with("hint")).count();
        assert_eq!(
            (hints, err.lines().last()),
            (1, Some(reported)),
            "{command} {url}"
        );
    }
    let (_, _, err) = run(&["validate", "--json"], &call(address));
    assert_eq!(err, "");
    let (_, _, err) = run(&["run"], &call("https://api.example.com/{/workflow/x}"));
    assert!(!err.contains("hint"), "{err}");

    // What the help shows does permit it: nothing is forbidden, but nobody listens.
    let (_, help, _) = run(&["run", "--help"], "");
    let (_, example) = help.split_once("on this machine:\n").unwrap();
    let (example, _) = example.split_once("\n\n").unwrap();
    let policy = file(&format!(
        "{}\n    max_retries: 0\n",
        example.replace(":8080", ":1")
    ));
    let path = policy.path().to_str().unwrap();
    let policy = ["validate", "--policy", path];
    let (status, out, err) = run(&policy, &call(address));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let (_, _, err) = run(&policy, &call("http://127.0.0.1:2/x"));
    assert!(err.ends_with("shows one\n"), "{err}");
    // Its answer does not say why there is no connection.
    let (status, _, err) = run(&["run", "--policy", path], &call(address));
    let cause = err.contains("Connection refused");
    assert!(status == 1 && cause, "{err}");
}

#[test]
fn misuse_ends_with_2() {
    for args in [
        &["run", "/no/such/file"] as &[&str],
        &["run", "--input", "[]"],
        &["run", "--input", "@/no/such/file"],
        &["run", "--on-error", "perhaps"],
        &["run", "--agent", "reporter"],
        &["run", "--policy", "/no/such/file"],
        &["validate", "--level", "easy"],
        &["test"],
        &["test", "/no/such/file"],
    ] {
        let (status, out, err) = run(args, "");
        assert_eq!(status, 2, "{args:?}: {out}{err}");
        assert!(!err.is_empty(), "{args:?}");
    }
}
