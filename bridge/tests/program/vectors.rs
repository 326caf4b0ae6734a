//! Do `a2abus map` and `a2abus convert` say what the library says, for every payload of the vectors?

use std::io::Write as _;
use std::process::{Command, Stdio};

use a2abus_models::convert::{Conversion, ConvertContext};
use a2abus_plugin::{EventId, Hint, Ids, Limits, MapContext, MapOptions, Source, format, map};
use bytes::Bytes;
use serde_json::{Value, json};

/// The exit status and the JSON lines that a command prints.
fn run(args: &[&str], stdin: &[u8]) -> (i32, Vec<Value>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2abus"));
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line));
    (output.status.code().unwrap(), lines.collect())
}

fn cases(file: &str) -> Vec<Value> {
    let vectors: Value = serde_json::from_str(file).unwrap();
    vectors["cases"].as_array().unwrap().clone()
}

const A2A: &str = include_str!("../../../tests/vectors/a2a.json");
const E2A: &str = include_str!("../../../tests/vectors/e2a.json");
const A2E_MESSAGE: &str = include_str!("../../../tests/vectors/a2e_message.json");
const A2E_EXECUTION: &str = include_str!("../../../tests/vectors/a2e_execution.json");

/// What the library says of a payload, as the command should print it.
fn reported(payload: &[u8], hint: &Hint) -> Vec<Value> {
    let context = MapContext {
        source: Source::new("/a2abus/map").unwrap(),
        time: Some("0001-01-01T00:00:00Z".try_into().unwrap()),
        ids: Ids::Payload(&|| EventId::new("<new>").unwrap()),
    };
    let payload = Bytes::copy_from_slice(payload);
    let units = map(
        &payload,
        hint,
        &Limits::default(),
        &MapOptions::default(),
        &context,
    );
    let line = |unit: Result<a2abus_plugin::Mapped, a2abus_plugin::Refused>| match unit {
        Ok(a2abus_plugin::Mapped {
            index,
            detection,
            kind,
            json_rpc,
            event,
            ..
        }) => {
            let mut structured = Vec::new();
            format::write(&event, &mut structured);
            let mut line = json!({
                "index": index, "ok": true, "family": detection.family.as_str(),
                "rule": detection.rule, "kind": kind.as_str(),
                "event": serde_json::from_slice::<Value>(&structured).unwrap(),
            });
            // The command says so of events that take the time of mapping.
            if line["event"]["time"] == "0001-01-01T00:00:00Z" {
                line["event"]["time"] = "<now>".into();
            }
            if let Some(message) = json_rpc {
                line["dialect"] = message.dialect.as_str().into();
                line["id_raw"] = json!(message.id.map(|id| id.token().to_string()));
            }
            line
        }
        Err(refused) => json!({"index": refused.index, "ok": false, "error": {
            "kind": refused.error.kind().as_str(), "message": refused.error.to_string(),
            "pointer": refused.error.pointer(), "offset": refused.error.offset(),
        }}),
    };
    units.into_iter().map(line).collect()
}

/// A payload with the headers that came with it.
type Payload = (Vec<u8>, Vec<(String, String)>);

fn payload_of(case: &Value) -> Option<Payload> {
    let headers = case["headers"].as_object();
    let headers = headers.into_iter().flatten();
    let headers = headers.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
    let lines = |messages: &Vec<Value>| {
        let line = |message: &Value| match message {
            Value::String(line) => line.clone(),
            message => message.to_string(),
        };
        messages.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    let payload = match (&case["payload_raw"], &case["wire"], &case["workflow"]) {
        (Value::String(raw), _, _) | (_, Value::String(raw), _) => raw.clone(),
        (_, _, Value::Array(messages)) => lines(messages),
        _ if case["payload"].is_null() && case["input"].is_null() => return None,
        _ if case["payload"].is_null() => case["input"].to_string(),
        _ => case["payload"].to_string(),
    };
    Some((payload.into_bytes(), headers.collect()))
}

#[test]
fn map_agrees_with_the_library_on_every_payload_of_the_vectors() {
    let files = [A2A, E2A, A2E_MESSAGE, A2E_EXECUTION];
    let payloads = files
        .into_iter()
        .flat_map(cases)
        .filter_map(|case| payload_of(&case));
    let mut counted = 0;
    for (payload, headers) in payloads {
        let mut hint = Hint::default();
        let mut args = vec!["map".to_owned()];
        for (name, value) in &headers {
            hint.header(name, value);
            args.push(format!("--header={name}={value}"));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let expected = reported(&payload, &hint);
        let all_mapped = expected.iter().all(|line| line["ok"] == true);
        let excerpt = String::from_utf8_lossy(&payload).into_owned();
        assert_eq!(
            run(&args, &payload),
            (i32::from(!all_mapped), expected),
            "{excerpt}"
        );
        counted += 1;
    }
    assert!(counted > 270, "{counted}");
}

/// What the library says of one conversion, as the command should print it.
fn converted(name: &str, input: &[u8]) -> (i32, Vec<Value>) {
    let context = ConvertContext {
        now: "<now>".into(),
        converter: "<converter>".into(),
        new_id: "<new>".into(),
    };
    let conversion = Conversion::find(name).expect(name);
    match conversion.run_on(input, &Limits::default(), &context) {
        Ok(output) => (0, vec![serde_json::from_str(&output.to_string()).unwrap()]),
        Err(error) => {
            let message = error.message.as_ref();
            let error = json!({"kind": error.kind, "field": error.field, "message": message});
            (1, vec![json!({"error": error})])
        }
    }
}

#[test]
fn convert_agrees_with_the_library_on_every_vector() {
    let mut inputs = Vec::new();
    for case in cases(E2A) {
        let name = case["function"].as_str().unwrap().to_owned();
        inputs.push((name, case["input"].to_string().into_bytes()));
    }
    for case in cases(A2E_MESSAGE)
        .iter()
        .filter(|case| case["wire"].is_string())
    {
        for name in ["a2e_message_decode", "a2e_message_encode"] {
            // As the line itself, and as a JSON string that holds it.
            let wire = case["wire"].as_str().unwrap().as_bytes().to_vec();
            inputs.push((name.to_owned(), wire));
            inputs.push((name.to_owned(), case["wire"].to_string().into_bytes()));
        }
    }
    for case in cases(A2E_EXECUTION) {
        inputs.push((
            "a2e_workflow_validate".to_owned(),
            case.to_string().into_bytes(),
        ));
        let lines = payload_of(&case).unwrap().0;
        inputs.push(("a2e_workflow_validate".to_owned(), lines));
    }
    for (name, input) in inputs {
        let excerpt = String::from_utf8_lossy(&input).into_owned();
        assert_eq!(
            run(&["convert", &name], &input),
            converted(&name, &input),
            "{name} {excerpt}"
        );
    }
}

#[test]
fn convert_lists_every_conversion_of_the_vectors() {
    let output = Command::new(env!("CARGO_BIN_EXE_a2abus"))
        .args(["convert", "--list"])
        .output();
    let list = String::from_utf8(output.unwrap().stdout).unwrap();
    let listed: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    for case in cases(E2A) {
        assert!(
            listed.contains(&case["function"].as_str().unwrap()),
            "{list}"
        );
    }
}

#[test]
fn convert_reports_every_fault() {
    for (args, input, status) in [
        (&["convert", "no_such"] as &[&str], "{}", 2),
        (&["convert"], "{}", 2),
        (&["convert", "envelope_normalize", "/no/such/file"], "", 2),
        (&["convert", "envelope_normalize"], "{", 1),
        (&["convert", "envelope_normalize"], "[]", 1),
    ] {
        let (ended, lines) = run(args, input.as_bytes());
        assert_eq!(ended, status, "{args:?} {input}");
        assert_eq!(lines.len(), usize::from(status == 1));
        for line in lines {
            assert!(line["error"]["kind"].is_string() && line["error"]["message"].is_string());
        }
    }
}
