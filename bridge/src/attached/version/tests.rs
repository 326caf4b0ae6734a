//! Requests, answers and cards in both versions of A2A.

use serde_json::{Value, json};

use super::*;

fn request_in(request: &Value, to: Dialect) -> Value {
    let method = request["method"].as_str().unwrap();
    let body = super::request(request.to_string().as_bytes(), method, to).unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn response_in(response: &Value, method: &str, to: Dialect) -> Value {
    let body = Bytes::from(json!({ "jsonrpc": "2.0", "id": 1, "result": response }).to_string());
    let body = super::response(&body, method, to);
    serde_json::from_slice::<Value>(&body).unwrap()["result"].take()
}

fn messages() -> [Value; 2] {
    let v0_3 = json!({
        "kind": "message", "messageId": "m", "role": "user", "contextId": "c", "metadata": { "kind": 1 },
        "parts": [
            { "kind": "text", "text": "hi", "metadata": { "a": 1 } },
            { "kind": "file", "file": { "bytes": "aGk=", "name": "n", "mimeType": "a/b" } },
            { "kind": "file", "file": { "uri": "https://x/y" } },
            { "kind": "data", "data": { "kind": "k" } },
        ],
    });
    let v1_0 = json!({
        "messageId": "m", "role": "ROLE_USER", "contextId": "c", "metadata": { "kind": 1 },
        "parts": [
            { "text": "hi", "metadata": { "a": 1 } },
            { "raw": "aGk=", "filename": "n", "mediaType": "a/b" },
            { "url": "https://x/y" },
            { "data": { "kind": "k" } },
        ],
    });
    [v0_3, v1_0]
}

#[test]
fn requests_have_the_method_and_shape_of_the_other_version() {
    let [v0_3, v1_0] = messages();
    for (old, new) in METHODS {
        let mut v0_3 = json!({
            "jsonrpc": "2.0", "id": "a", "method": old,
            "params": { "id": "t", "message": v0_3, "configuration": { "blocking": false, "historyLength": 2 } },
        });
        let v1_0 = json!({
            "jsonrpc": "2.0", "id": "a", "method": new,
            "params": { "id": "t", "message": v1_0, "configuration": { "returnImmediately": true, "historyLength": 2 } },
        });
        assert_eq!(request_in(&v0_3, Dialect::A2a10), v1_0);
        if old == "message/sendStream" {
            v0_3["method"] = json!("message/stream");
        }
        assert_eq!(request_in(&v1_0, Dialect::A2a03), v0_3);
    }
    let of = |method, configuration| json!({ "method": method, "params": { "configuration": configuration } });
    let webhook = |authentication| json!({ "url": "https://x", "authentication": authentication });
    let v0_3 = webhook(json!({ "schemes": ["Bearer"], "credentials": "c" }));
    let v0_3 = of(
        "message/send",
        json!({ "blocking": true, "pushNotificationConfig": v0_3 }),
    );
    let v1_0 = webhook(json!({ "scheme": "Bearer", "credentials": "c" }));
    let v1_0 = of("SendMessage", json!({ "taskPushNotificationConfig": v1_0 }));
    assert_eq!(request_in(&v0_3, Dialect::A2a10), v1_0);
    assert_eq!(request_in(&v1_0, Dialect::A2a03), v0_3);
    // A webhook without a scheme.
    let without = webhook(json!({ "schemes": [], "credentials": "c" }));
    let without = of("message/send", json!({ "pushNotificationConfig": without }));
    let sent = request_in(&without, Dialect::A2a10);
    let sent = &sent["params"]["configuration"]["taskPushNotificationConfig"];
    assert_eq!(sent, &json!({ "url": "https://x" }));
    // ProtoJSON also accepts the names of the `.proto` file.
    let snake = of(
        "SendMessage",
        json!({ "return_immediately": true, "history_length": 1 }),
    );
    let sent = request_in(&snake, Dialect::A2a03);
    let expected = json!({ "blocking": false, "historyLength": 1 });
    assert_eq!(sent["params"]["configuration"], expected);
    // The bridge calls the webhook itself.
    let taken = of("message/send", json!({ "pushNotificationConfig": null }));
    let sent = request_in(&taken, Dialect::A2a10);
    assert_eq!(sent["params"]["configuration"], json!({}));
    for (method, to) in [
        ("SendMessage", Dialect::A2a10),
        ("message/send", Dialect::A2a03),
        ("add", Dialect::A2a10),
    ] {
        assert_eq!(super::request(b"{}", method, to), None, "{method}");
    }
}

#[test]
fn a_part_loses_nothing_that_the_other_version_has_no_place_for() {
    let part = json!({ "text": "t", "mediaType": "text/x", "kind": "text" });
    let parts = json!({ "method": "SendMessage", "params": { "message": { "parts": [part] } } });
    let sent = request_in(&parts, Dialect::A2a03);
    assert_eq!(sent["params"]["message"]["parts"][0], part);
}

#[test]
fn data_that_is_no_object_is_wrapped_for_0_3() {
    for data in [json!([1, 2]), json!("a"), json!(null), json!(1.5)] {
        let task = |parts: Value| json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_COMPLETED" }, "artifacts": [{ "artifactId": "x", "parts": parts }] });
        let v1_0 = task(json!([{ "data": data, "metadata": { "a": 1 } }, { "data": data }]));
        let v0_3 = response_in(&json!({ "task": v1_0 }), "message/send", Dialect::A2a03);
        let wrapped = json!([
            { "kind": "data", "data": { "value": data }, "metadata": { "a": 1, "data_part_compat": true } },
            { "kind": "data", "data": { "value": data }, "metadata": { "data_part_compat": true } },
        ]);
        assert_eq!(v0_3["artifacts"][0]["parts"], wrapped);
        assert_eq!(response_in(&v0_3, "tasks/get", Dialect::A2a10), v1_0);
    }
}

#[test]
fn what_1_0_leaves_out_is_there_for_0_3() {
    let update = |member: &str, value: Value| json!({ member: { "taskId": "t", "contextId": "c", value["name"].as_str().unwrap(): value["value"] } });
    let artifact = json!({ "name": "artifact", "value": { "artifactId": "x" } });
    let status = |value: Value| json!({ "name": "status", "value": value });
    for (v1_0, pointer, expected) in [
        (
            update("artifactUpdate", artifact),
            "/artifact/parts",
            json!([]),
        ),
        (
            update("statusUpdate", status(json!({}))),
            "/status/state",
            json!("unknown"),
        ),
        (
            update("statusUpdate", status(json!({ "state": 3 }))),
            "/status/state",
            json!("completed"),
        ),
        (
            update("statusUpdate", status(json!({ "state": "TASK_STATE_NEW" }))),
            "/status/state",
            json!("unknown"),
        ),
        (
            json!({ "message": { "messageId": "m" } }),
            "/parts",
            json!([]),
        ),
        (
            json!({ "message": { "messageId": "m" } }),
            "/role",
            json!("agent"),
        ),
        (
            json!({ "message": { "messageId": "m", "role": 1 } }),
            "/role",
            json!("user"),
        ),
        (
            json!({ "message": { "messageId": "m", "role": "ROLE_UNSPECIFIED" } }),
            "/role",
            json!("agent"),
        ),
        (
            json!({ "task": { "id": "t", "context_id": "c" } }),
            "/contextId",
            json!("c"),
        ),
        (
            json!({ "task": { "id": "t", "status": { "state": "completed" } } }),
            "/status/state",
            json!("completed"),
        ),
        (json!({ "task": { "id": "t" } }), "/contextId", json!("")),
        (
            json!({ "task": { "id": "t" } }),
            "/status/state",
            json!("unknown"),
        ),
        (
            json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [] }),
            "/kind",
            json!("message"),
        ),
    ] {
        let v0_3 = response_in(&v1_0, "message/stream", Dialect::A2a03);
        assert_eq!(v0_3.pointer(pointer), Some(&expected), "{v1_0}: {v0_3}");
    }
    // A client without a role gets the server's error.
    for role in [json!(null), json!("ROLE_UNSPECIFIED")] {
        let message = json!({ "messageId": "m", "role": role });
        let request = json!({ "method": "SendMessage", "params": { "message": message } });
        let sent = request_in(&request, Dialect::A2a03);
        assert_eq!(sent["params"]["message"]["role"], role, "{sent}");
    }
}

#[test]
fn answers_of_0_3_get_the_states_and_times_of_1_0() {
    let status = |state: &str, time: &str| json!({ "taskId": "t", "contextId": "c", "status": { "state": state, "timestamp": time } });
    for (state, expected) in [
        ("cancelled", "TASK_STATE_CANCELED"),
        ("new", "TASK_STATE_UNSPECIFIED"),
        ("working", "TASK_STATE_WORKING"),
    ] {
        for time in ["2026-01-01T00:00:00.5", "2026-01-01T02:00:00.500+02:00"] {
            // Without `kind`.
            let update = response_in(&status(state, time), "message/stream", Dialect::A2a10);
            let expected = json!({ "state": expected, "timestamp": "2026-01-01T00:00:00.500Z" });
            assert_eq!(update["statusUpdate"]["status"], expected);
        }
    }
    let unknown = json!({ "kind": "weird", "x": 1 });
    let message = json!({ "role": "agent", "messageId": "m", "parts": [unknown, { "kind": "file", "file": { "name": "x" } }] });
    let answer = response_in(&message, "message/send", Dialect::A2a10);
    assert_eq!(answer["message"]["parts"], message["parts"]);
}

#[test]
fn an_answer_in_an_array_is_translated() {
    let message = json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [] });
    let body = json!([{ "jsonrpc": "2.0", "id": 1, "result": { "message": message } }]);
    let body = super::response(&body.to_string().into(), "message/send", Dialect::A2a03);
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["result"]["role"], "agent", "{answer}");
}

#[test]
fn what_is_equal_in_both_versions_keeps_its_bytes() {
    let body = br#"{"id":1,"method":"message/send","params":{"message":{"parts":[{"kind":"data","data":{ "n":1.0e2 }}]}}}"#;
    let body = super::request(body, "message/send", Dialect::A2a10).unwrap();
    assert_eq!(
        body,
        r#"{"id":1,"method":"SendMessage","params":{"message":{"parts":[{"data":{ "n":1.0e2 }}]}}}"#
    );
}

#[test]
fn results_have_the_shape_of_the_other_version() {
    let [message_0_3, message_1_0] = messages();
    let status_0_3 = json!({ "state": "input-required", "message": message_0_3 });
    let status_1_0 = json!({ "state": "TASK_STATE_INPUT_REQUIRED", "message": message_1_0 });
    let artifact_0_3 = json!({ "artifactId": "x", "parts": [{ "kind": "text", "text": "t" }] });
    let artifact_1_0 = json!({ "artifactId": "x", "parts": [{ "text": "t" }] });
    let task_0_3 = json!({
        "kind": "task", "id": "t", "contextId": "c", "status": status_0_3,
        "history": [message_0_3], "artifacts": [artifact_0_3],
    });
    let task_1_0 = json!({
        "id": "t", "contextId": "c", "status": status_1_0,
        "history": [message_1_0], "artifacts": [artifact_1_0],
    });
    let status = json!({ "kind": "status-update", "taskId": "t", "contextId": "c", "status": status_0_3, "final": true });
    let artifact = json!({ "kind": "artifact-update", "taskId": "t", "contextId": "c", "artifact": artifact_0_3, "append": true });
    for (v0_3, v1_0, method) in [
        (
            &message_0_3,
            json!({ "message": message_1_0 }),
            "message/send",
        ),
        (&task_0_3, json!({ "task": task_1_0 }), "SendMessage"),
        (&task_0_3, task_1_0, "tasks/get"),
        (
            &status,
            json!({ "statusUpdate": { "taskId": "t", "contextId": "c", "status": status_1_0 } }),
            "message/stream",
        ),
        (
            &artifact,
            json!({ "artifactUpdate": { "taskId": "t", "contextId": "c", "artifact": artifact_1_0, "append": true } }),
            "tasks/resubscribe",
        ),
    ] {
        assert_eq!(&response_in(&v1_0, method, Dialect::A2a03), v0_3);
        assert_eq!(response_in(v0_3, method, Dialect::A2a10), v1_0);
    }
    let other = json!({ "sum": 3 });
    assert_eq!(response_in(&other, "message/send", Dialect::A2a03), other);
    let error = Bytes::from_static(br#"{ "id":1, "error":{} }"#);
    assert_eq!(
        super::response(&error, "message/send", Dialect::A2a03),
        error
    );
}

#[test]
fn a_card_says_whether_its_server_speaks_one_version() {
    let interface = |binding, version| json!({ "url": "http://x", "protocolBinding": binding, "protocolVersion": version });
    for (card, expected) in [
        (json!({ "protocolVersion": "0.3.0" }), Some(Dialect::A2a03)),
        (
            json!({ "supportedInterfaces": [interface("JSONRPC", "1.0")] }),
            Some(Dialect::A2a10),
        ),
        (
            json!({ "supportedInterfaces": [interface("JSONRPC", "1.0"), interface("HTTP+JSON", "0.3")] }),
            Some(Dialect::A2a10),
        ),
        (
            json!({ "supportedInterfaces": [interface("JSONRPC", "1.0"), interface("JSONRPC", "0.3")] }),
            None,
        ),
        (
            json!({ "protocolVersion": "0.3.0", "supportedInterfaces": [interface("JSONRPC", "1.0")] }),
            None,
        ),
        (json!({}), None),
        (json!({ "protocolVersion": 7 }), None),
    ] {
        assert_eq!(
            single_version(card.to_string().as_bytes()),
            expected,
            "{card}"
        );
    }
}
