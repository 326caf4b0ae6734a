//! Workflows over real Kafka, sent by a client that knows nothing of us.

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, named};
use support::service::Service;

use crate::path::serve;
use crate::plain::{Plain, Record, nats_client, next, unique};

/// The lines of a workflow with these operations.
fn workflow(execution: &str, operations: &[(&str, Value)]) -> String {
    let lines = operations.iter().map(|(id, operation)| {
        json!({"type": "operationUpdate", "operationId": id, "operation": operation}).to_string()
    });
    let order: Vec<&str> = operations.iter().map(|(id, _)| *id).collect();
    let begin =
        json!({"type": "beginExecution", "executionId": execution, "operationOrder": order});
    let lines: Vec<String> = lines.chain([begin.to_string()]).collect();
    lines.join("\n")
}

fn config(
    kafka: &str,
    inbox: &str,
    outbox: &str,
    service: &Service,
    data: &std::path::Path,
) -> String {
    format!(
        "
instance: test
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}'], session_timeout: 6s }} }}
bindings:
  - {{ name: work, role: workflows, transport: kafka, topics: [{inbox}], group: {inbox}, run_as: reporter, dead_letter: {{ topic: {inbox}.dlq }} }}
routes: [{{ name: reporter, when: {{ targetagent: reporter }}, to: [{{ transport: kafka, topic: {outbox} }}] }}]
calls: {{ enabled: false }}
workflows:
  enabled: true
  data_directory: '{data}'
  apis: [{{ id: service, base_url: '{base}' }}]
  agents: [{{ id: reporter, operations: ['*'], apis: [service] }}]",
        data = data.display(),
        base = service.base,
    )
}

fn header<'a>(record: &'a Record, name: &str) -> &'a str {
    let value = record
        .headers
        .get(name)
        .map(Vec::as_slice)
        .unwrap_or_default();
    std::str::from_utf8(value).unwrap()
}

fn is_answer(record: &Record) -> bool {
    header(record, "ce_mcptype") == "response"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_of_a_plain_client_is_executed_once_though_it_comes_twice() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (inbox, outbox) = (unique("workflows"), unique("reporter"));
    plain.create(&inbox, 1).await;
    plain.create(&outbox, 1).await;
    let (service, data) = (Service::open().await, tempfile::tempdir().unwrap());
    let bridge = Running::start(&config(&kafka, &inbox, &outbox, &service, data.path())).await;
    let consumer = plain.read(&outbox, 1);
    let lines = workflow(
        "e-1",
        &[
            ("users", service.get("/users")),
            ("order", service.post("/orders")),
        ],
    );
    for _ in 0..2 {
        plain.publish(&inbox, None, &lines).await;
    }
    let (mut output, mut answers) = (Vec::new(), Vec::new());
    while answers.len() < 2 {
        let record = within("the executor says something", next(&consumer)).await;
        assert_eq!(header(&record, "ce_collaborationid"), "e-1");
        assert_eq!(header(&record, "ce_targetagent"), "reporter");
        if is_answer(&record) {
            answers.push(record);
        } else if answers.is_empty() {
            output.push(record);
        }
    }
    let seq: Vec<&str> = output
        .iter()
        .map(|record| header(record, "ce_seq"))
        .collect();
    assert_eq!(seq, ["0", "1", "2", "3", "4"]);
    assert_eq!(
        header(&output[0], "ce_type"),
        "org.apache.eventmesh.a2a.a2e.execution.started"
    );
    for answer in &answers {
        assert_eq!(header(answer, "ce_id"), header(&answers[0], "ce_id"));
        assert_eq!(header(answer, "ce_seq"), "5");
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer["status"], "success");
        assert_eq!(answer["results"]["order"], json!({"posts": 1}));
    }
    assert_eq!(service.posts(), 1);
    bridge.stop().await;
}

/// The first thing a second process says of a workflow during which the first was killed.
async fn after_a_kill(
    kafka: &str,
    operations: impl Fn(&Service) -> Vec<(&'static str, Value)>,
) -> (Value, Service) {
    let plain = Plain::new(kafka);
    let (inbox, outbox) = (unique("workflows"), unique("reporter"));
    plain.create(&inbox, 1).await;
    plain.create(&outbox, 1).await;
    let (service, data) = (Service::open().await, tempfile::tempdir().unwrap());
    let file = data.path().join("a2abus.yaml");
    let text = config(kafka, &inbox, &outbox, &service, data.path());
    std::fs::write(
        &file,
        format!("{text}\nhttp: {{ enabled: false }}\nadmin: {{ enabled: false }}\n"),
    )
    .unwrap();

    let mut first = serve(&file);
    plain
        .publish(&inbox, None, &workflow("e-1", &operations(&service)))
        .await;
    service.until_held(1).await;
    first.kill().await.unwrap();
    service.release(2);
    let mut second = serve(&file);
    let consumer = plain.read(&outbox, 1);
    let answer = loop {
        let record = within("the answer", next(&consumer)).await;
        if is_answer(&record) {
            assert_eq!(header(&record, "ce_collaborationid"), "e-1");
            break serde_json::from_slice(&record.body).unwrap();
        }
    };
    second.kill().await.unwrap();
    (answer, service)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_is_killed_in_a_workflow_posts_nothing_twice() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    // What may have acted is not done again.
    let operations = |service: &Service| {
        vec![
            ("order", service.post("/orders")),
            ("held", service.get("/held")),
        ]
    };
    let (answer, service) = after_a_kill(&kafka, operations).await;
    assert_eq!(answer["status"], "failed", "{answer}");
    assert_eq!(answer["error"]["code"], "interrupted");
    assert_eq!(service.posts(), 1);

    // What has only read is.
    let operations = |service: &Service| {
        vec![
            ("held", service.get("/held")),
            ("order", service.post("/orders")),
        ]
    };
    let (answer, service) = after_a_kill(&kafka, operations).await;
    assert_eq!(answer["status"], "success", "{answer}");
    assert_eq!(service.posts(), 1);
}

/// Publishes requests, from this number on, until nobody reads them. Those that are read are answered at once.
async fn until_unread(
    client: &async_nats::Client,
    first: usize,
    publish: &impl AsyncFn(usize, &str),
) {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.unwrap();
    within("no reader", async {
        for number in first.. {
            publish(number, &inbox).await;
            // One that the server sends while the bridge unsubscribes may be lost.
            let soon = std::time::Duration::from_secs(2);
            let Ok(message) = tokio::time::timeout(soon, answers.next()).await else {
                continue;
            };
            let message = message.unwrap();
            if message.status == Some(async_nats::StatusCode::NO_RESPONDERS) {
                break;
            }
            let answer: Value = serde_json::from_slice(&message.payload).unwrap();
            assert_eq!(answer["error"]["code"], "stopped", "{answer}");
        }
    })
    .await;
}

/// Nothing brings such a request to another bridge, so its requester would wait for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_every_workflow_from_core_nats() {
    /// More than run at once.
    const REQUESTS: usize = 24;
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let subject = unique("workflows");
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ nats: {{ type: nats, servers: ['{nats}'] }} }}
bindings: [{{ name: work, role: workflows, transport: nats, topics: [{subject}], run_as: reporter }}]
calls: {{ enabled: false }}
workflows: {{ enabled: true, agents: [{{ id: reporter, operations: ['*'] }}] }}"
    ))
    .await;
    let client = nats_client(&nats).await;
    let wait = json!({"Wait": {"duration": 25_000}});
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.unwrap();
    let publish = async |number: usize, reply: &str| {
        let lines = workflow(&format!("e-{number}"), &[("wait", wait.clone())]);
        let (to, reply) = (subject.clone(), reply.to_owned());
        client
            .publish_with_reply(to, reply, lines.into())
            .await
            .unwrap();
        client.flush().await.unwrap();
    };
    for number in 0..REQUESTS {
        publish(number, &inbox).await;
    }
    let is_running = |bridge: &Running| {
        let metrics = bridge.metrics.render().unwrap();
        metrics.contains("a2abus_workflow_executions 16")
    };
    within("some run", async {
        while !is_running(&bridge) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    bridge.begin_to_stop();
    // The first ones still run, and another replica would get later ones: this one stops reading at once.
    until_unread(&client, REQUESTS, &publish).await;
    assert!(is_running(&bridge), "it stops reading before they end");
    let mut codes = Vec::new();
    while codes.len() < REQUESTS {
        let message = within("an answer", answers.next()).await.unwrap();
        let answer: Value = serde_json::from_slice(&message.payload).unwrap();
        if answer["status"] == "failed" {
            codes.push(answer["error"]["code"].clone());
        }
    }
    assert!(codes.iter().all(|code| code == "stopped"), "{codes:?}");
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_partition_that_does_not_exist_goes_to_another_one() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (inbox, place) = (unique("workflows"), unique("answers"));
    plain.create(&inbox, 1).await;
    plain.create(&place, 1).await;
    let (service, data) = (Service::open().await, tempfile::tempdir().unwrap());
    let text = config(&kafka, &inbox, &place, &service, data.path());
    let options = format!("run_as: reporter, reply_topics: ['{place}']");
    let bridge = Running::start(&text.replace("run_as: reporter", &options)).await;
    let answers = plain.read(&place, 1);
    let headers = [
        ("ce_replyto", Some(place.as_str())),
        ("ce_replypartition", Some("99")),
    ];
    let lines = workflow("e-1", &[("order", service.post("/orders"))]);
    plain.publish_with(&inbox, &headers, &lines).await;
    let answer = within("the answer", next(&answers)).await;
    assert!(is_answer(&answer), "{answer:?}");
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["status"], "success", "{answer}");
    bridge.stop().await;
}
