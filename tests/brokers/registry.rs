//! Agents that announce themselves over real Kafka and real NATS: replicas agree, a restart forgets nothing, and the
//! commands of the README do what it says.

use std::process::Stdio;
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::StatusCode;
use serde_json::{Value, json};
use support::battery::{DEADLINE, within};
use support::running::Running;
use support::server::{Kind, named, program};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::plain::{Plain, nats_client, unique};

const README: &str = include_str!("../../README.md");

async fn get(bridge: &Running, path: &str) -> (StatusCode, Value) {
    let response = reqwest::get(format!("{}{path}", bridge.door))
        .await
        .unwrap();
    let status = response.status();
    (status, response.json().await.unwrap())
}

async fn until(bridge: &Running, agent: &str, expected: StatusCode) -> Value {
    let start = Instant::now();
    loop {
        let (status, body) = get(bridge, &format!("/a2a/agents/{agent}")).await;
        if status == expected {
            return body;
        }
        assert!(start.elapsed() < DEADLINE, "{agent}: {status} {body}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn card(name: &str, lease: &str) -> String {
    let params = json!({ "lease": lease });
    let extensions = json!([{ "uri": "urn:a2abus:bus", "params": params }]);
    json!({
        "name": name, "description": format!("What {name} does."),
        "capabilities": { "extensions": extensions },
    })
    .to_string()
}

/// The names that a bridge lists.
async fn names(bridge: &Running) -> Vec<String> {
    let (_, list) = get(bridge, "/a2a/agents").await;
    let agents = list["agents"].as_array().unwrap().iter();
    agents
        .map(|agent| agent["name"].as_str().unwrap().to_owned())
        .collect()
}

fn config(u: &str, transport: &str, topics: &str) -> String {
    format!(
        "
instance: test
transports: {{ bus: {transport} }}
bindings: [{{ name: discovery, transport: bus, topics: ['{topics}'], group: {u}, role: discovery, dead_letter: {{ topic: {u}.dlq }} }}]
registry: {{ enabled: true, lease: 10m, destinations: [{{ to: {{ transport: bus, topic: '{u}.agents.{{targetagent}}' }} }}] }}
state: {{ log: bus, create: true, prefix: {u}.state }}
calls: {{ reply_topic: {u}.replies, reply_partitions: 2 }}
"
    )
}

/// Two bridges know the same agents; a third, started later, too; a lease runs out on all of them.
async fn replicas_agree(config: &str, announce: &impl AsyncFn(&str, String)) {
    let (one, other) = (Running::start(config).await, Running::start(config).await);
    for number in 0..20 {
        let name = format!("agent-{number:02}");
        announce(&name, card(&name, "10m")).await;
    }
    announce("short", card("short", "20s")).await;
    for bridge in [&one, &other] {
        until(bridge, "short", StatusCode::OK).await;
        until(bridge, "agent-19", StatusCode::OK).await;
        until(bridge, "agent-00", StatusCode::OK).await;
    }
    // A bad card, and a forged one: neither changes anything.
    announce("bad", r#"{"name":"bad"}"#.to_owned()).await;
    announce("agent-01", card("agent-02", "1s")).await;
    until(&one, "short", StatusCode::NOT_FOUND).await;
    until(&other, "short", StatusCode::NOT_FOUND).await;
    let removed = reqwest::Client::new()
        .delete(format!("{}/a2a/agents/agent-00", one.door))
        .send();
    assert_eq!(removed.await.unwrap().status(), StatusCode::NO_CONTENT);
    until(&other, "agent-00", StatusCode::NOT_FOUND).await;
    let expected: Vec<String> = (1..20).map(|number| format!("agent-{number:02}")).collect();
    assert_eq!(names(&one).await, expected);
    assert_eq!(names(&other).await, expected);
    one.stop().await;
    // From its first answer on, a new replica knows the agents, even before it is ready.
    let third = Running::launch(config).await;
    assert_eq!(names(&third).await, expected);
    let refused = other.metrics.render().unwrap() + &third.metrics.render().unwrap();
    assert!(refused.contains("a2abus_announced_agents 19"), "{refused}");
    other.stop().await;
    third.stop().await;
}

/// Two owners announce an agent of one name at the same moment, each to another replica: one of them has it, and the
/// other knows that. The name was free, or its agent was removed before.
async fn one_of_two_owners_has_a_name(config: &str) {
    let bridges = [Running::start(config).await, Running::start(config).await];
    let client = reqwest::Client::new();
    let owners = ["one", "two"];
    let url = |bridge: &Running, agent: &str, owner: &str| {
        format!("{}/a2a/agents/{agent}?org_id={owner}", bridge.door)
    };
    for round in 0..30 {
        let agent = format!("twice-{}", round % 3);
        let sent = [0, 1].map(|number| {
            let put = client
                .put(url(&bridges[number], &agent, owners[number]))
                .body(card(&agent, "10m"))
                .send();
            async { put.await.unwrap() }
        });
        let answers = futures_util::future::join_all(sent).await;
        let statuses: Vec<u16> = answers.iter().map(|it| it.status().as_u16()).collect();
        let won = statuses.iter().position(|status| *status == 200);
        let won = won.unwrap_or_else(|| panic!("{round}: {statuses:?}"));
        assert_eq!(statuses[1 - won], 400, "{round}: {statuses:?}");
        let winner = url(&bridges[1 - won], &agent, owners[won]);
        let removed = async {
            // The other replica may not have read yet who the owner is.
            while client.delete(&winner).send().await.unwrap().status() != 204 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        within("the winner is the owner everywhere", removed).await;
        until(&bridges[won], &agent, StatusCode::NOT_FOUND).await;
    }
    for bridge in bridges {
        bridge.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_owners_has_a_name_over_nats() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let u = unique("owners").replace('.', "-");
    let transport = format!("{{ type: nats, servers: ['{nats}'] }}");
    one_of_two_owners_has_a_name(&config(&u, &transport, &format!("{u}.discovery"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_owners_has_a_name_over_kafka() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let u = unique("owners");
    let topic = format!("{u}.discovery");
    Plain::new(&kafka).create(&topic, 2).await;
    let transport = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
    one_of_two_owners_has_a_name(&config(&u, &transport, &topic)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_agree_on_agents_over_kafka() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let u = unique("registry");
    let plain = Plain::new(&kafka);
    let topic = format!("{u}.discovery");
    plain.create(&topic, 2).await;
    let transport = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
    replicas_agree(
        &config(&u, &transport, &topic),
        &async |key: &str, card: String| {
            plain.publish_key(&topic, key, &card).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_agree_on_agents_over_nats() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let u = unique("registry");
    let client = nats_client(&nats).await;
    let transport = format!("{{ type: nats, servers: ['{nats}'] }}");
    let config = config(&u, &transport, &format!("{u}.discovery.*"));
    replicas_agree(&config, &async |key: &str, card: String| {
        let subject = format!("{u}.discovery.{key}");
        let answer = client.request(subject, card.into());
        within("the bridge answers", answer).await.unwrap();
    })
    .await;
}

/// An agent that announces itself on NATS can be called over HTTP, although the configuration does not mention it.
#[tokio::test(flavor = "multi_thread")]
async fn an_announced_agent_is_called_over_nats() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let u = unique("registry");
    let client = nats_client(&nats).await;
    let mut requests = client.subscribe(format!("{u}.agents.echo")).await.unwrap();
    let agent = client.clone();
    tokio::spawn(async move {
        while let Some(message) = requests.next().await {
            let request: Value = serde_json::from_slice(&message.payload).unwrap();
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": { "echo": request["params"] } });
            let to = message.reply.unwrap();
            agent.publish(to, answer.to_string().into()).await.unwrap();
        }
    });
    let transport = format!("{{ type: nats, servers: ['{nats}'] }}");
    let bridge = Running::start(&config(&u, &transport, &format!("{u}.discovery.*"))).await;
    let subject = format!("{u}.discovery.echo");
    let receipt = client.request(subject, card("echo", "1m").into());
    let receipt = within("the receipt", receipt).await.unwrap();
    let receipt: Value = serde_json::from_slice(&receipt.payload).unwrap();
    assert_eq!(receipt["result"]["status"], "registered", "{receipt}");
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "n": 1 } });
    let answer = bridge.post("/rpc/echo", request.to_string()).await;
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(answer["result"]["echo"]["n"], 1, "{answer}");
    bridge.stop().await;
}

// === the README ===

/// The blocks of a language in the section about agents that announce themselves.
fn blocks(language: &str) -> Vec<&'static str> {
    let (_, section) = README.split_once("## An agent announces itself\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let blocks = section
        .split(&format!("```{language}\n"))
        .skip(1)
        .collect::<Vec<_>>();
    blocks
        .iter()
        .map(|rest| rest.split_once("```").unwrap().0)
        .collect()
}

/// The commands of a block, without their output.
fn commands(block: &str) -> String {
    let mut commands = String::new();
    let mut is_command = false;
    let mut depth = 0_i32;
    for line in block.lines() {
        let text = line.strip_prefix("$ ");
        is_command = text.is_some() || is_command && (depth > 0 || commands.ends_with("|\n"));
        if is_command {
            let text = text.unwrap_or(line);
            let count = |c: char| i32::try_from(text.matches(c).count()).unwrap();
            depth += count('(') - count(')');
            commands.push_str(text);
            commands.push('\n');
        }
    }
    commands
}

/// Runs commands of the README in bash, where `a2abus` is the program and the names are those of this test.
async fn run(before: &str, commands: &str, directory: &tempfile::TempDir) -> String {
    let script = format!(
        "set -euo pipefail\na2abus() {{ '{}' \"$@\"; }}\n{before}\n{commands}",
        program().display()
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(directory.path())
        .env_remove("A2ABUS_CONFIG")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the commands end", output).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{text}\n{errors}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_announces_agents_over_kafka_and_nats() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let u = unique("readme").replace('.', "-");
    let own = |text: &str| {
        text.replace("127.0.0.1:9092", &kafka)
            .replace("nats://127.0.0.1:4222", &nats)
            .replace(
                "127.0.0.1/4222",
                &nats.trim_start_matches("nats://").replace(':', "/"),
            )
            .replace("agents.discovery", &format!("{u}.discovery"))
    };
    let text = own(blocks("yaml")[0]).replace(
        "role: discovery",
        &format!("group: {u}, role: discovery, dead_letter: {{topic: {u}.dlq}}"),
    );
    let text = text.replace(
        "create: true}",
        &format!("create: true, prefix: {u}.state}}"),
    );
    let config = format!("{text}\ncalls: {{ reply_topic: {u}.replies, reply_partitions: 2 }}\n");
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("a2abus.yaml"),
        format!("{config}\nadmin: {{ enabled: false }}\n"),
    )
    .unwrap();
    let [over_kafka, over_nats] = blocks("console")[..] else {
        panic!("two blocks of commands");
    };
    // The topics, as the first command makes them; the bridge runs in this process, so that its port is free.
    let over_kafka = own(&commands(over_kafka));
    let (apply, rest) = over_kafka.split_once('\n').unwrap();
    assert_eq!(apply, "a2abus topics apply -c a2abus.yaml");
    let applied = Command::new(program())
        .args(apply.split(' ').skip(1))
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output();
    let applied = within("topics apply", applied).await.unwrap();
    let applied = String::from_utf8_lossy(&applied.stdout).into_owned();
    for made in [
        format!("topic {u}.discovery"),
        format!("topic {u}.state.agents"),
    ] {
        assert!(applied.contains(&made), "{made}: {applied}");
    }
    let (serve, rest) = rest.split_once('\n').unwrap();
    assert_eq!(serve, "a2abus serve -c a2abus.yaml &");
    let bridge = Running::start(&config).await;
    // Kafka's own tools need their jars: a plain client sends the same records.
    let (producer, show) = rest.split_once("kafka ConsoleProducer --topic ").unwrap();
    let (topic, show) = show.split_once('\n').unwrap();
    let card = run("", producer.trim_end().trim_end_matches('|'), &directory).await;
    Plain::new(&kafka).publish(topic, None, card.trim()).await;
    until(&bridge, "weather", StatusCode::OK).await;
    let at_bridge = |commands: &str| -> String {
        let lines = commands
            .lines()
            .map(|line| match line.starts_with("a2abus agents") {
                true => format!("{line} --url {}\n", bridge.door),
                false => format!("{line}\n"),
            });
        lines.collect()
    };
    let shown = run("", &at_bridge(show), &directory).await;
    // The README shows the same lines, with another address and another time.
    let names = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.is_empty());
        lines
            .map(|line| match line.split_once("  ") {
                Some((name @ ("url" | "expires"), _)) => name.to_owned(),
                _ => line.to_owned(),
            })
            .collect()
    };
    let (_, in_readme) = blocks("console")[0]
        .split_once("agents show weather\n")
        .unwrap();
    assert_eq!(names(&shown), names(in_readme));
    // A slow bridge may need more than five seconds.
    let until_it_is_there = "timeout 120 grep -am1 registered <&3 || true";
    let received = own(&commands(over_nats)).replace("timeout 5 cat <&3", until_it_is_there);
    let received = run("", &at_bridge(&received), &directory).await;
    assert!(received.contains(r#""status":"registered""#), "{received}");
    for agent in ["maps", "weather"] {
        let line = received.lines().find(|line| line.starts_with(agent));
        assert!(
            line.is_some_and(|line| line.contains("announced")),
            "{received}"
        );
    }
    bridge.stop().await;
}
