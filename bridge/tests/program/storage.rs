//! `a2abus workflow storage` as a shell sees it, against a bridge in this process.

use std::process::Command;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const CONFIG: &str = "
instance: test
calls: { enabled: false }
http: { listen: '127.0.0.1:0' }
admin: { enabled: false }
workflows:
  enabled: true
  agents:
    - id: reporter
      keys: [{ sha256: 2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683 }]
      operations: ['*']
      storages: [localStorage, sessionStorage]
";

/// Exit status, standard output, standard error.
fn storage(door: &str, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2abus"));
    let output = command
        .args(["workflow", "storage"])
        .args(args)
        .args(["--url", door, "--key-env", "REPORTER_KEY"])
        .env("REPORTER_KEY", "key")
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let status = output.status.code().unwrap();
    (status, text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_a_workflow_stored_are_listed_read_and_removed() {
    let config = Config::read("test.yaml", CONFIG, []).unwrap();
    let bridge = Bridge::build(config).await.unwrap();
    let door = format!("http://{}", bridge.door_address().unwrap());
    let stop = CancellationToken::new();
    let running = tokio::spawn(bridge.run(stop.clone()));

    let store = |storage: &str, key: &str| {
        let store =
            json!({"StoreData": {"inputPath": "/workflow/x", "storage": storage, "key": key}});
        json!({"type": "operationUpdate", "operationId": storage, "operation": store}).to_string()
    };
    let begin = json!({"type": "beginExecution", "executionId": "e-1",
        "operationOrder": ["localStorage", "sessionStorage"], "input": {"x": [1, 2.5]}});
    let lines = [
        store("localStorage", "a b/c"),
        store("sessionStorage", "k"),
        begin.to_string(),
    ];
    let request = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = request
        .post(format!("{door}/api/v1/workflows/execute"))
        .header("x-api-key", "key")
        .json(&json!({"workflow": lines.join("\n"), "session": "s/1"}));
    let answer: serde_json::Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["status"], "success", "{answer}");

    let run = |args: &'static [&str]| storage(&door, args);
    let (status, listed, errors) = run(&["ls"]);
    assert_eq!(
        (status, listed.as_str(), errors.as_str()),
        (0, "         7  a b/c\n", "")
    );
    let (_, listed, _) = run(&["ls", "--storage", "sessionStorage"]);
    assert_eq!(listed, "         7  s/1  k\n");
    let of_session: &[&str] = &["--storage", "sessionStorage", "--session", "s/1"];
    let (_, value, _) = storage(&door, &[&["get", "k"], of_session].concat());
    assert_eq!(value, "[1,2.5]\n");
    let (_, value, _) = run(&["get", "a b/c"]);
    assert_eq!(value, "[1,2.5]\n");

    let (status, _, errors) = run(&["get", "other"]);
    assert_eq!(status, 1);
    assert!(errors.contains("no value with this key"), "{errors}");
    let (status, _, errors) = run(&["get", "k", "--storage", "sessionStorage"]);
    assert_eq!(status, 2, "{errors}");

    for key in ["", ".", ".."] {
        for command in ["get", "rm"] {
            let (status, shown, errors) = storage(&door, &[command, key]);
            assert_eq!((status, shown.as_str()), (2, ""), "{command} {key:?}");
            assert!(errors.contains("is not the key"), "{errors}");
        }
    }

    assert_eq!(run(&["rm", "a b/c"]), (0, String::new(), String::new()));
    assert_eq!(run(&["ls"]).1, "");
    assert_eq!(run(&["rm", "a b/c"]).0, 1);
    stop.cancel();
    running.await.unwrap();
}

#[test]
fn a_missing_key_names_both_options() {
    let output = Command::new(env!("CARGO_BIN_EXE_a2abus"))
        .args(["workflow", "storage", "ls"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    let options = "<--key-env <NAME>|--key-file <FILE>>";
    assert!(errors.contains(options), "{errors}");
}
