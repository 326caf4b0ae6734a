//! Topics and streams that are not there: the call that needs them fails at once and names them.

use serde_json::Value;
use support::running::Running;
use support::server::{Kind, named, program};
use tokio::process::Command;

use crate::plain::{Plain, unique};
use crate::tls::logged_by;

const REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#;

/// The `reason` and the message of the error that a call of the agent is answered with. The call may take far longer
/// than the test: an answer that comes only at its deadline says so.
async fn failure(bridge: &Running, agent: &str) -> (String, String) {
    let answer = bridge.post(&format!("/rpc/{agent}"), REQUEST).await;
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let text = |pointer: &str| {
        body.pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let reason = text("/error/data/reason").unwrap_or_else(|| panic!("{}", answer.body));
    (reason, text("/error/message").unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_kafka_topic_fails_the_call_at_once() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (there, prefix) = (unique("fixed"), unique("agents"));
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}'] }} }}
routes: [{{ name: fixed, when: {{ targetagent: fixed }}, to: [{{ transport: kafka, topic: {there} }}] }}]
default_route: [{{ transport: kafka, topic: '{prefix}.{{targetagent}}' }}]
calls: {{ timeout: 2m, reply_topic: {prefix}.replies, reply_partitions: 1 }}"
    ))
    .await;
    let chosen = failure(&bridge, "k-typo").await;
    assert_eq!(
        chosen,
        (
            "agent_not_found".to_owned(),
            format!(
                "Kafka topic {prefix}.k-typo does not exist: check the name of the agent, or create it"
            )
        )
    );
    let fixed = failure(&bridge, "fixed").await;
    assert_eq!(
        fixed,
        (
            "agent_unavailable".to_owned(),
            format!("Kafka topic {there} does not exist: create it, or change the route")
        )
    );
    // A topic that is there, and an agent that is not: that one was published.
    plain.create(&format!("{prefix}.k-typo"), 1).await;
    let silent = async {
        loop {
            let url = format!("{}/rpc/k-typo", bridge.door);
            let client = reqwest::Client::builder().no_proxy().build().unwrap();
            let request = client.post(url).header("content-type", "application/json");
            let answer = request.header("x-a2a-timeout", "2000").body(REQUEST).send();
            let body = answer.await.unwrap().text().await.unwrap();
            if !body.contains("does not exist") && !body.contains("not sent within") {
                return body;
            }
        }
    };
    let body = support::battery::within("the topic is found", silent).await;
    let published = format!(
        r#"no answer from agent \"k-typo\" within 2000 ms (published to Kafka topic {prefix}.k-typo)"#
    );
    assert!(body.contains(&published), "{body}");
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_kafka_topic_of_an_attached_agent_is_logged_with_its_fix() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let topic = unique("attached");
    let mut command = Command::new(program());
    command
        .args(["attach", "sums", "--kafka", &kafka, "--topic", &topic])
        .args(["--url", "http://127.0.0.1:9/", "--protocol", "jsonrpc"]);
    let lines = logged_by(command, "a part of the bridge did not start").await;
    let last = lines.last().unwrap();
    let missing = format!("look up the topic {topic}, which does not exist");
    let fix = "create it, or run `a2abus topics apply -c FILE`";
    assert!(last.contains(&missing) && last.contains(fix), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_subject_without_a_stream_fails_the_call_at_once() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let prefix = unique("stored");
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ nats: {{ type: nats, servers: ['{nats}'] }} }}
default_route: [{{ transport: nats, topic: '{prefix}.{{targetagent}}', stored: true }}]
calls: {{ timeout: 2m, reply_topic: {prefix}.replies }}"
    ))
    .await;
    let (reason, message) = failure(&bridge, "typo").await;
    assert_eq!(reason, "agent_not_found");
    assert_eq!(
        message,
        format!(
            "no JetStream stream stores NATS subject {prefix}.typo: check the name of the agent, or create it"
        )
    );
    bridge.stop().await;
}
