//! Who may answer a call, between accounts that the servers themselves tell apart.

use std::path::Path;
use std::process::Stdio;

use async_nats::{Client, ConnectOptions};
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, Private, named, program};
use support::service::Service;
use tokio::process::Command;

use crate::plain::{Plain, nats_client, next, patient, subscribed, unique};

/// The first 26 characters of the id that an agent repeats are the call id, the rest is the token.
const CALL_ID: usize = 26;
const REQUEST: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_agentId":"weather"}}"#;
const ANSWERED: &str = r#"{"jsonrpc":"2.0","id":1,"result":7}"#;

fn answer(id: &str, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

fn count(bridge: &Running, series: &str) -> u64 {
    let text = bridge.metrics.render().unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(series));
    found.map_or(0, |count| count.trim().parse().unwrap())
}

/// At least once: a client without a timely confirmation publishes again.
async fn until_counted(bridge: &Running, series: &str, expected: u64) {
    within(series, async {
        while count(bridge, series) < expected {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

const FORGED: &str = r#"a2abus_replies_total{outcome="forged"}"#;
const UNKNOWN: &str = r#"a2abus_replies_total{outcome="unknown"}"#;

async fn connect(address: &str, user: &str) -> Client {
    let options = ConnectOptions::with_user_and_password(user.into(), "secret".into());
    patient(options).connect(address).await.unwrap()
}

/// On NATS the auditor has an account of its own, which gets the second copy and may publish where answers belong.
#[tokio::test(flavor = "multi_thread")]
async fn on_nats_only_the_agent_of_a_call_can_answer_it() {
    let accounts = r#"accounts {
        AGENTS {
            users: [ { user: bridge, password: secret }, { user: agent, password: secret } ],
            exports: [ { stream: audit }, { service: "a2abus.replies.>" } ] },
        AUDIT {
            users: [ { user: auditor, password: secret } ],
            imports: [
                { stream: { account: AGENTS, subject: audit } },
                { service: { account: AGENTS, subject: "a2abus.replies.>" } } ] } }"#
        .replace('\n', " ");
    let Some(server) = Private::start_with(Kind::Nats, &[&accounts]).await else {
        return;
    };
    let (agent, auditor) = (
        connect(&server.address(), "agent").await,
        connect(&server.address(), "auditor").await,
    );
    let mut requests = agent.subscribe("agents.weather").await.unwrap();
    let mut audit = auditor.subscribe("audit").await.unwrap();
    let mut all = auditor.subscribe(">").await.unwrap();
    agent.flush().await.unwrap();
    auditor.flush().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "secret").unwrap();
    let bridge = Running::start(&format!(
        "
transports: {{ bus: {{ type: nats, servers: ['nats://{}'], auth: {{ user: bridge, password: {{ file: '{}' }} }} }} }}
default_route: [{{ transport: bus, topic: audit }}, {{ transport: bus, topic: 'agents.{{targetagent}}', answers: true }}]",
        server.address(),
        password.display()
    ))
    .await;

    let others = async {
        let request = within("the request", requests.next()).await.unwrap();
        let copy = within("the copy", audit.next()).await.unwrap();
        assert!(copy.reply.is_none());
        let reply = request.reply.clone().unwrap().to_string();
        let id = reply.rsplit('.').next().unwrap().to_owned();
        let (call, token) = id.split_at(CALL_ID);
        let text = format!("{:?} {:?}", copy.headers, copy.payload);
        assert!(!text.contains(call) && !text.contains("replyto"), "{text}");
        assert_eq!(copy.payload, REQUEST.as_bytes());
        // Nothing else reaches the account.
        let other = within("the copy again", all.next()).await.unwrap();
        assert_eq!(other.subject.as_str(), "audit");

        // The call id and the reply address are not enough to answer a call.
        let subject = reply.strip_suffix(token).unwrap().to_owned();
        auditor
            .publish(subject.clone(), answer(call, &json!("forged")).into())
            .await
            .unwrap();
        until_counted(&bridge, FORGED, 1).await;
        let forged = answer(&format!("{call}{call}"), &json!("forged"));
        auditor.publish(subject, forged.into()).await.unwrap();
        until_counted(&bridge, FORGED, 2).await;
        agent.publish(reply, "7".into()).await.unwrap();
    };
    let (answered, ()) = tokio::join!(bridge.post("/rpc/weather", REQUEST), others);
    assert_eq!(answered.body, ANSWERED);
    bridge.stop().await;
}

/// On Kafka the auditor reads the second copy and may write the reply topic; it may not read the agent's topic.
#[tokio::test(flavor = "multi_thread")]
async fn on_kafka_only_the_agent_of_a_call_can_answer_it() {
    let Some((broker, sasl)) = Private::start_kafka_with_user("auditor").await else {
        return;
    };
    let plain = Plain::new(&broker.address());
    for topic in ["audit", "agents.weather"] {
        plain.create(topic, 1).await;
    }
    let bridge = Running::start(&format!(
        "
transports: {{ bus: {{ type: kafka, brokers: ['{}'] }} }}
default_route: [{{ transport: bus, topic: 'agents.{{targetagent}}' }}, {{ transport: bus, topic: audit }}]
calls: {{ reply_partitions: 1 }}",
        broker.address()
    ))
    .await;
    for (operation, topic) in [("Read", "audit"), ("Write", "a2abus.replies")] {
        let rights = [
            "--add",
            "--allow-principal",
            "User:auditor",
            "--operation",
            operation,
            "--topic",
            topic,
        ];
        broker
            .kafka_tool("org.apache.kafka.tools.AclCommand", &rights)
            .await;
    }
    let auditor = Plain::as_user(&sasl, "auditor", "secret");
    let (audit, agent) = (auditor.read("audit", 1), plain.read("agents.weather", 1));

    let others = async {
        let request = within("the request", next(&agent)).await;
        let copy = within("the copy", next(&audit)).await;
        let id = String::from_utf8(request.headers["ce_callid"].clone()).unwrap();
        let (call, _) = id.split_at(CALL_ID);
        let text: Vec<String> = copy
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
            .collect();
        let text = text.join("\n");
        for hidden in [call, "callid", "replyto", "kafka_"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
        assert_eq!(copy.body, REQUEST.as_bytes());
        auditor.cannot_read("agents.weather").await;

        // The contents of the copy are not enough to answer, and neither is the call id without its token.
        auditor
            .publish(
                "a2abus.replies",
                None,
                r#"{"jsonrpc":"2.0","id":1,"result":"forged"}"#,
            )
            .await;
        until_counted(&bridge, UNKNOWN, 1).await;
        for (header, value) in [("ce_callid", call), ("kafka_correlationId", call)] {
            let headers = [(header, Some(value))];
            auditor
                .publish_with("a2abus.replies", &headers, r#""forged""#)
                .await;
        }
        auditor
            .publish("a2abus.replies", None, &answer(call, &json!("forged")))
            .await;
        let forged = answer(&format!("{call}{call}"), &json!("forged"));
        auditor.publish("a2abus.replies", None, &forged).await;
        until_counted(&bridge, FORGED, 4).await;
        plain
            .publish("a2abus.replies", None, &answer(&id, &json!(7)))
            .await;
    };
    let (answered, ()) = tokio::join!(bridge.post("/rpc/weather", REQUEST), others);
    let answered: Value = serde_json::from_str(&answered.body).unwrap();
    assert_eq!(answered, json!({"jsonrpc": "2.0", "id": 1, "result": 7}));
    bridge.stop().await;
}

/// A binding that routes requests, and one that executes workflows, on one bus.
fn two_bindings(transport: &str, name: &str, service: &Service) -> String {
    format!(
        "
instance: test
transports: {{ bus: {transport} }}
bindings:
  - {{ name: in, transport: bus, topics: [{name}.in], group: {name}, dead_letter: {{ topic: {name}.dlq }} }}
  - {{ name: work, role: workflows, run_as: reporter, transport: bus, topics: [{name}.work], group: {name}, dead_letter: {{ topic: {name}.dlq }} }}
default_route: [{{ transport: bus, topic: '{name}.agents.{{targetagent}}' }}]
calls: {{ reply_topic: {name}.replies, reply_partitions: 1 }}
workflows:
  enabled: true
  apis: [{{ id: service, base_url: '{base}' }}]
  agents: [{{ id: reporter, operations: ['*'], apis: [service], keys: [{{ sha256: {KEY} }}] }}]",
        base = service.base
    )
}

/// The SHA-256 of the key `key`.
const KEY: &str = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683";

fn workflow(service: &Service) -> String {
    let update = json!({"type": "operationUpdate", "operationId": "post", "operation": service.post("/orders")});
    let begin = json!({"type": "beginExecution", "executionId": "e-1", "operationOrder": ["post"]});
    format!("{update}\n{begin}")
}

fn workflow_call(service: &Service) -> String {
    let params = json!({"_agentId": "a2e-executor", "workflow": workflow(service)});
    json!({"jsonrpc": "2.0", "id": 1, "method": "workflows/execute", "params": params}).to_string()
}

/// The places that no request may name; those of this run by their names.
fn forbidden(name: &str) -> Vec<String> {
    let mut places = vec![
        "_INBOX.x".to_owned(),
        "__consumer_offsets".to_owned(),
        "a2abus.dlq".to_owned(),
    ];
    places.extend(["dlq", "agents.other", "in"].map(|topic| format!("{name}.{topic}")));
    places
}

#[tokio::test(flavor = "multi_thread")]
async fn on_kafka_no_request_chooses_where_the_bridge_publishes() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, name, service) = (Plain::new(&kafka), unique("places"), Service::open().await);
    for topic in ["in", "work", "dlq", "agents.other", "agents.weather"] {
        plain.create(&format!("{name}.{topic}"), 1).await;
    }
    let bus = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
    let bridge = Running::start(&two_bindings(&bus, &name, &service)).await;
    let dlq_messages = plain.read(&format!("{name}.dlq"), 1);
    let mut sent = 0;
    for (topic, body) in [
        ("in", REQUEST.to_owned()),
        ("work", workflow(&service)),
        ("work", workflow_call(&service)),
    ] {
        for place in forbidden(&name) {
            for header in ["ce_replyto", "kafka_replyTopic"] {
                let topic = format!("{name}.{topic}");
                plain
                    .publish_with(&topic, &[(header, Some(place.as_str()))], &body)
                    .await;
                let dlq_message = within("the dead letter", next(&dlq_messages)).await;
                let reason = String::from_utf8_lossy(&dlq_message.headers["bus-dlq-reason"]);
                assert_eq!(reason, "reply_topic_refused", "{header}: {place}");
                sent += 1;
            }
        }
    }
    // The letters are all that the bridge has published, and nothing was executed.
    until_counted(&bridge, r#"a2abus_published_total{transport="bus"}"#, sent).await;
    assert_eq!(service.posts(), 0);
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nats_no_request_chooses_where_the_bridge_publishes() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (name, service) = (unique("places"), Service::open().await);
    let client = nats_client(&nats).await;
    let bus = format!("{{ type: nats, servers: ['{nats}'] }}");
    let bridge = Running::start(&two_bindings(&bus, &name, &service)).await;
    let mut dlq_messages = client.subscribe(format!("{name}.dlq")).await.unwrap();
    let mut inbox = client.subscribe("_INBOX.x").await.unwrap();
    subscribed(&client).await;
    for (topic, body) in [
        ("in", REQUEST.to_owned()),
        ("work", workflow(&service)),
        ("work", workflow_call(&service)),
    ] {
        for place in forbidden(&name) {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("ce-replyto", place.as_str());
            let topic = format!("{name}.{topic}");
            client
                .publish_with_headers(topic, headers, body.clone().into())
                .await
                .unwrap();
            let dlq_message = within("the dead letter", dlq_messages.next())
                .await
                .unwrap();
            let headers = dlq_message.headers.unwrap();
            let reason = headers.get("bus-dlq-reason").map(ToString::to_string);
            assert_eq!(reason.as_deref(), Some("reply_topic_refused"), "{place}");
        }
    }
    // The sender of a message also chooses its reply subject.
    let (victim, own) = (format!("{name}.agents.victim"), format!("{name}.dlq"));
    let mut other = client.subscribe(victim.clone()).await.unwrap();
    subscribed(&client).await;
    let of_http = [
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/a2abus/test/http/10.0.0.1"),
        ("ce-type", "org.apache.eventmesh.a2a.workflows.execute.req"),
        ("ce-a2amethod", "workflows/execute"),
    ];
    for (topic, headers, body) in [
        ("in", &[][..], REQUEST.to_owned()),
        ("in", &[][..], "no request".to_owned()),
        ("work", &[][..], workflow(&service)),
        ("work", &[][..], workflow_call(&service)),
        ("work", &[][..], "no workflow".to_owned()),
        ("work", &of_http[..], workflow(&service)),
    ] {
        let is_read = !body.starts_with("no ");
        for reply in ["$SYS.REQ.SERVER.PING", "$JS.API.INFO", &victim, &own] {
            let mut with = async_nats::HeaderMap::new();
            for (name, value) in headers {
                with.insert(*name, *value);
            }
            let (to, reply_to) = (format!("{name}.{topic}"), reply.to_owned());
            client
                .publish_with_reply_and_headers(to, reply_to, with, body.clone().into())
                .await
                .unwrap();
            let dlq_message = within("the dead letter", dlq_messages.next())
                .await
                .unwrap();
            let headers = dlq_message.headers.unwrap_or_default();
            let header = |name| headers.get(name).map(ToString::to_string);
            let reason = header("bus-dlq-reason");
            let Some(reason) = reason else {
                panic!("{topic} {body} {reply}: {:?}", dlq_message.payload);
            };
            if is_read {
                assert_eq!(reason, "reply_topic_refused", "{topic} {body} {reply}");
                assert!(header("bus-dlq-detail").unwrap().contains(reply));
            }
        }
    }
    // Nothing is left to be published.
    for binding in ["in", "work"] {
        let series = format!("a2abus_in_flight{{binding=\"{binding}\"}}");
        within("every message is settled", async {
            while count(&bridge, &series) > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    client.publish(victim, "end".into()).await.unwrap();
    let first = within("the end", other.next()).await.unwrap();
    assert_eq!(first.payload, "end".as_bytes());
    assert!(dlq_messages.next().now_or_never().is_none());
    // The server preserves the order of one connection, so anything that the bridge had published there would have
    // arrived.
    client.publish("_INBOX.x", "end".into()).await.unwrap();
    let first = within("the end", inbox.next()).await.unwrap();
    assert_eq!(first.payload, "end".as_bytes());
    assert_eq!(service.posts(), 0);
    bridge.stop().await;
}

/// A message that is not a request: the bridge does not answer it, but the agent may, at any address.
#[tokio::test(flavor = "multi_thread")]
async fn on_nats_no_event_directs_an_answer_to_a_forbidden_address() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (name, service) = (unique("events"), Service::open().await);
    let client = nats_client(&nats).await;
    let bus = format!("{{ type: nats, servers: ['{nats}'] }}");
    let bridge = Running::start(&two_bindings(&bus, &name, &service)).await;
    let agent = client.subscribe(format!("{name}.agents.weather"));
    let mut agent = agent.await.unwrap();
    subscribed(&client).await;
    let victim = format!("{name}.agents.victim");
    let overruled = r#"a2abus_attributes_overruled_total{attribute="replyto",binding="in"}"#;
    for (reply, expected) in [("_INBOX.a", Some("_INBOX.a")), (victim.as_str(), None)] {
        let body =
            r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"_agentId":"weather"}}"#;
        client
            .publish_with_reply(format!("{name}.in"), reply.to_owned(), body.into())
            .await
            .unwrap();
        let event = within("the event", agent.next()).await.unwrap();
        let headers = event.headers.unwrap();
        let reply_address = headers.get("ce-replyto").map(ToString::to_string);
        assert_eq!(reply_address.as_deref(), expected);
    }
    assert_eq!(count(&bridge, overruled), 1);
    bridge.stop().await;
}

/// `a2abus call`, with this configuration.
pub(crate) async fn shell(config: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program())
        .arg("call")
        .args(arguments)
        .args(["--timeout", "100s", "-c"])
        .arg(config)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the command ends", output).await.unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Every interface: `/rpc`, REST, `a2abus call`, and a topic with a route to the executor.
#[tokio::test(flavor = "multi_thread")]
async fn no_interface_reaches_the_executor_without_a_key() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, name, service) = (Plain::new(&kafka), unique("doors"), Service::open().await);
    for topic in ["in", "dlq", "agents.a2e-executor"] {
        plain.create(&format!("{name}.{topic}"), 1).await;
    }
    let bus = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
    // The executor reads the topic that the default route makes of its name, and accepts the agent that an event names.
    let config = two_bindings(&bus, &name, &service)
        .replace("run_as: reporter", "trusts: [sourceagent]")
        .replace(
            &format!("topics: [{name}.work]"),
            &format!("topics: [{name}.agents.a2e-executor]"),
        );
    let bridge = Running::start(&config).await;
    let dlq_messages = plain.read(&format!("{name}.dlq"), 1);

    let call = workflow_call(&service);
    for path in ["/rpc", "/rpc/a2e-executor"] {
        let refused = within("a refusal", bridge.post(path, call.clone())).await;
        assert!(
            refused.body.contains("rpc_not_permitted"),
            "{path}: {}",
            refused.body
        );
    }
    let rest = json!({"workflow": workflow(&service), "sourceagent": "reporter"}).to_string();
    for path in ["/api/v1/workflows/execute", "/api/v1/workflows/validate"] {
        let refused = within("a refusal", bridge.post(path, rest.clone())).await;
        assert_eq!(refused.status, 401, "{path}: {}", refused.body);
    }
    // Through a topic to which agents may write: claiming to be an agent is not enough.
    let named = [
        ("ce_specversion", "1.0"),
        ("ce_id", "1"),
        ("ce_source", "/reporter"),
        ("ce_type", "org.apache.eventmesh.a2a.workflows.execute.req"),
        ("ce_targetagent", "a2e-executor"),
        ("ce_sourceagent", "reporter"),
        ("ce_a2amethod", "workflows/execute"),
    ];
    let named = named.map(|(name, value)| (name, Some(value)));
    for (headers, body) in [
        (&[][..], &call),
        (&named[..], &workflow(&service)),
        (&named[..], &call),
    ] {
        plain
            .publish_with(&format!("{name}.in"), headers, body)
            .await;
        let dlq_message = within("the dead letter", next(&dlq_messages)).await;
        // No one sent a request, so no one gets an error.
        let detail = String::from_utf8_lossy(&dlq_message.headers["bus-dlq-detail"]);
        assert!(detail.starts_with("the answer: "), "{detail}");
    }
    // And from the shell, with the configuration of the bridge.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, &config).unwrap();
    let params = json!({"workflow": workflow(&service), "sourceagent": "reporter"}).to_string();
    let reported = shell(&file, &["a2e-executor", "workflows/execute", &params]).await;
    assert!(!reported.contains("\"success\""), "{reported}");

    assert_eq!(service.posts(), 0);
    assert_eq!(
        count(&bridge, "a2abus_workflow_executions_started_total"),
        0
    );
    bridge.stop().await;
}
