//! Everything that breaks the model of a record is found at once, whatever the record.

use a2abus_models::a2e_message::{Shape, WhenAbsent, members_of};
use a2abus_models::e2a::Trust;
use a2abus_models::faults_of;
use a2abus_plugin::{Hint, Limits, Unit, decode};
use serde_json::{Value, json};

fn unit(payload: &str) -> Unit {
    let units = decode(
        &payload.to_owned().into(),
        &Hint::default(),
        &Limits::default(),
    );
    units.into_only().unwrap().unwrap()
}

fn faults(payload: &Value) -> Vec<String> {
    let faults = faults_of(
        &unit(&payload.to_string()),
        Trust::Untrusted,
        &Limits::default(),
    );
    let mut faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    faults.sort();
    faults
}

const TYPES: [&str; 12] = [
    "tool/call/req",
    "tool/call/resp",
    "skill/call/req",
    "skill/discover/resp",
    "proc/status/resp",
    "memory/retrieve/req",
    "chain/event",
    "multi_agent/delegate",
    "planning/task/add",
    "env/batch_step/resp",
    "env/state/push",
    "learn/feedback/req",
];

/// Nothing but what holds anything, or any object, holds a list of a list of a list.
fn holds_it(shape: &Shape) -> bool {
    match shape {
        Shape::Any => true,
        Shape::Nullable(inner) => holds_it(inner),
        Shape::List(inner) => matches!(inner, Shape::Any),
        _ => false,
    }
}

#[test]
fn every_member_that_does_not_hold_what_it_should_is_found() {
    for ty in TYPES {
        let mut message = json!({"type":ty,"id":"1","version":"1.0","ts":1});
        let mut wrong = 0;
        for member in members_of(ty).unwrap() {
            // The values of attributes are checked before.
            if !["req_id", "seq"].contains(&member.name) {
                message[member.name] = json!([[["x"]]]);
                wrong += usize::from(!holds_it(&member.shape));
            }
        }
        let found = faults(&message);
        assert_eq!(found.len(), wrong, "{ty}: {found:?}");
        assert!(wrong > 0);
    }
}

#[test]
fn every_member_that_is_missing_is_found() {
    for ty in TYPES {
        let message = json!({"type":ty,"id":"1","version":"1.0","ts":1});
        let required = members_of(ty).unwrap().iter();
        let required = required.filter(|member| member.presence == WhenAbsent::Required);
        let mut expected: Vec<String> = required
            .map(|member| format!("{}: is missing", member.name))
            .collect();
        expected.sort();
        assert_eq!(faults(&message), expected, "{ty}");
    }
}

#[test]
fn faults_deep_inside_are_found_with_their_paths() {
    let message = json!({"type":"tool/list/resp","id":"1","version":"1.0","ts":1,"req_id":"0",
        "tools":[{"name":"a","description":1},{"description":"b","idempotent":{},
            "input_parameters":[{"name":"p","type":"t","description":"d","enum":7}]}]});
    let expected = [
        "tools.0.description: is not a string",
        "tools.1.idempotent: is not a Boolean",
        "tools.1.input_parameters.0.enum: is not a list",
        "tools.1.name: is missing",
    ];
    let found = faults(&message);
    for (found, expected) in found.iter().zip(expected) {
        let (path, _) = expected.split_once(':').unwrap();
        assert!(found.starts_with(path), "{found}");
    }
    assert_eq!(found.len(), expected.len(), "{found:?}");
}

#[test]
fn checking_a_record_with_a_thousand_faults_is_bounded() {
    let tools: Vec<Value> = (0..1_000).map(|_| json!({"name":{}})).collect();
    let message =
        json!({"type":"tool/list/resp","id":"1","version":"1.0","ts":1,"req_id":"0","tools":tools});
    assert_eq!(faults(&message).len(), 32);
}

#[test]
fn valid_records_have_no_faults() {
    for payload in [
        json!({"jsonrpc":"2.0","id":1,"method":"m","params":{}}),
        json!({"protocol":"A2A","messageType":"REQUEST"}),
        json!({"type":"ping","id":"1","version":"1.0","ts":1}),
        json!({"type":"no/such/req","id":"1","version":"1.0","ts":1,"x":[]}),
        json!({"protocol_version":"1.0","request_id":"r","method":"m"}),
        json!({"request_id":"r","channel_id":"c","ok":true,"payload":{}}),
        json!({"type":"beginExecution","executionId":"e","operationOrder":["a"]}),
    ] {
        assert_eq!(faults(&payload), [""; 0], "{payload}");
    }
}
