//! Replicas come and go while requests wait: every requester gets its answer.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, named};

use crate::plain::{Plain, next, unique};

fn request(id: usize) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"_agentId": "weather"}})
}

fn id_of(body: &[u8]) -> usize {
    let body: Value = serde_json::from_slice(body).unwrap();
    let is_answer = body["result"].is_object();
    assert!(is_answer, "{body}");
    usize::try_from(body["id"].as_u64().unwrap()).unwrap()
}

fn answer_to(request: &[u8]) -> String {
    let request: Value = serde_json::from_slice(request).unwrap();
    json!({"jsonrpc": "2.0", "id": request["id"], "result": {}}).to_string()
}

/// How long a revocation of the test below may wait for what is out: half of the session timeout.
const REVOCATION: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_its_agent_does_not_delay_a_rebalance_and_is_answered_once() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (topic, replies, subject) = (unique("requests"), unique("replies"), unique("agent"));
    plain.create(&topic, 2).await;
    plain.create(&replies, 1).await;
    let client = async_nats::connect(&nats).await.unwrap();
    let mut agent = client.subscribe(subject.clone()).await.unwrap();
    client.flush().await.unwrap();
    let config = format!(
        "
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'], session_timeout: 120s }}
  nats: {{ type: nats, servers: ['{nats}'] }}
bindings: [{{ name: in, transport: kafka, topics: [{topic}], group: {topic}, replies: {replies}, dead_letter: {{ topic: {topic}.dead }} }}]
routes: [{{ name: weather, when: {{ targetagent: weather }}, to: [{{ transport: nats, topic: {subject} }}] }}]
calls: {{ reply_topic: {subject}.replies, timeout: 200s, max_timeout: 200s }}"
    );
    let first = Running::start(&config).await;
    let ask = async |partition: i32, id: usize| {
        plain
            .publish(&topic, Some(partition), &request(id).to_string())
            .await;
    };
    let mut asked = Vec::new();
    for partition in [0, 1] {
        ask(partition, usize::try_from(partition).unwrap()).await;
        asked.push(
            within("the agent has a request", agent.next())
                .await
                .unwrap(),
        );
    }
    let began = Instant::now();
    let second = Running::start(&config).await;
    // The second replica reads the request of the partition that it got.
    asked.push(
        within("the agent has a request again", agent.next())
            .await
            .unwrap(),
    );
    let took = began.elapsed();
    println!("a replica took a partition over after {took:?}");
    assert!(took < REVOCATION / 2, "{took:?}");
    for request in asked {
        let answer = answer_to(&request.payload);
        client
            .publish(request.reply.unwrap(), answer.into())
            .await
            .unwrap();
    }
    let heard = plain.read(&replies, 1);
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(id_of(&within("the answer", next(&heard)).await.body));
    }
    for id in [2, 3] {
        ask(i32::try_from(id - 2).unwrap(), id).await;
        let request = within("the agent has a later request", agent.next())
            .await
            .unwrap();
        let answer = answer_to(&request.payload);
        client
            .publish(request.reply.unwrap(), answer.into())
            .await
            .unwrap();
        ids.push(id_of(&within("the answer", next(&heard)).await.body));
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3], "each once");
    first.stop().await;
    second.stop().await;
}
