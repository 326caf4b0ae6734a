//! The configuration file changes while messages and calls are on their way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_bridge::calls::{Calls, Request};
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_bridge::readiness::Readiness;
use a2abus_bridge::{LogLevels, Reloads};
use a2abus_transports::memory::{Memory, MemoryConfig};
use a2abus_transports::{
    Address, Consumer, Message, Outcome, Topic, TopicFilter, TransportErrorKind,
};
use serde_json::{Value, json};
use support::battery::within;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::set_up::{self, body, build, read, until_ready};

/// Events go to `to`, calls to `agents.SIDE`.
fn config(side: &str) -> String {
    format!(
        "
instance: test
transports: {{ bus: {{ type: memory }} }}
bindings: [{{ name: in, transport: bus, topics: [in], dead_letter: {{ topic: dead }} }}]
routes:
  - {{ name: agents, when: {{ targetagent: weather }}, to: [{{ transport: bus, topic: agents.{side} }}] }}
default_route: [{{ transport: bus, topic: out.{side} }}]
calls: {{ timeout: 60s, max_pending_per_agent: 10000, max_pending_per_caller: 10000 }}
http: {{ enabled: false, drain_grace: 5s }}
admin: {{ enabled: false }}
"
    )
}

/// A bridge on a memory bus whose configuration is a file.
struct World {
    memory: Memory,
    _directory: tempfile::TempDir,
    file: PathBuf,
    /// `host:port` of the HTTP listener, where it is enabled.
    door: Option<SocketAddr>,
    calls: Arc<Calls>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    levels: Arc<Mutex<Vec<String>>>,
    reloads: Reloads,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl World {
    async fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a2abus.yaml");
        std::fs::write(&file, text).unwrap();
        Self::of(directory, file).await
    }

    async fn of(directory: tempfile::TempDir, file: PathBuf) -> Self {
        let memory = Memory::new(MemoryConfig {
            partitions: 4.try_into().unwrap(),
            ..MemoryConfig::default()
        });
        let config = Config::load(&file, []).unwrap_or_else(|problems| panic!("{problems}"));
        let levels = Arc::new(Mutex::new(Vec::new()));
        let set = Arc::clone(&levels);
        let bridge = build(config, |_| &memory).await;
        let bridge = bridge.with_log_levels(LogLevels::new(move |filter| {
            set.lock().unwrap().push(filter.to_owned());
        }));
        let (metrics, readiness) = (Arc::clone(bridge.metrics()), Arc::clone(bridge.readiness()));
        let door = bridge.door_address();
        let (calls, reloads) = (Arc::clone(bridge.calls()), bridge.reloads().unwrap());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await;
        Self {
            memory,
            _directory: directory,
            file,
            door,
            calls,
            metrics,
            readiness,
            levels,
            reloads,
            stop,
            running,
        }
    }

    /// Waits until this number of reloads have had this result.
    async fn until_reloaded(&self, result: &str, times: usize) {
        let line = format!("a2abus_config_reloads_total{{result=\"{result}\"}} {times}\n");
        within(&line, async {
            while !self.metrics.render().unwrap().contains(&line) {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Writes the file, requests a reload, and waits until `times` reloads have had this result.
    async fn reload(&self, text: &str, result: &str, times: usize) {
        std::fs::write(&self.file, text).unwrap();
        self.reloads.request();
        self.until_reloaded(result, times).await;
    }

    fn shows(&self, line: &str) -> bool {
        let text = self.metrics.render().unwrap();
        text.lines().any(|shown| shown == line)
    }

    /// The cause that the readiness report has for the configuration.
    fn degraded(&self) -> Option<String> {
        let report = self.readiness.report();
        assert!(report.ready, "{report:?}");
        let found = report.degraded.into_iter();
        let mut found = found.filter(|unmet| unmet.name.as_str() == "configuration");
        found.next().map(|unmet| unmet.cause)
    }

    async fn publish(&self, body: String) {
        send(&self.memory, "in", Message::plain(body)).await;
    }

    async fn read(&self, topic: &str) -> Consumer {
        read(&self.memory, topic).await
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge ends", self.running).await.unwrap();
    }
}

async fn send(memory: &Memory, topic: &str, message: Message) {
    let to = Address::topic(Topic::new(topic).unwrap());
    set_up::publish(memory, &to, message).await;
}

async fn next(consumer: &mut Consumer) -> Value {
    body(&set_up::next(consumer).await)
}

fn notification(number: usize) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"number": number}})
}

fn number_of(body: &Value) -> usize {
    usize::try_from(body["params"]["number"].as_u64().unwrap()).unwrap()
}

#[tokio::test]
async fn routes_limits_and_log_levels_follow_the_file() {
    let world = World::new(&config("a")).await;
    let (mut a, mut b) = (world.read("out.a").await, world.read("out.b").await);
    world.publish(notification(1).to_string()).await;
    assert_eq!(number_of(&next(&mut a).await), 1);
    let other = format!(
        "{}limits: {{ max_units: 2 }}\ntelemetry: {{ log: debug }}\n",
        config("b")
    );
    world.reload(&other, "applied", 1).await;
    world.publish(notification(2).to_string()).await;
    assert_eq!(number_of(&next(&mut b).await), 2);
    assert_eq!(*world.levels.lock().unwrap(), ["debug"]);
    let mut dead = world.read("dead").await;
    let three = json!([notification(3), notification(4), notification(5)]);
    world.publish(three.to_string()).await;
    assert_eq!(next(&mut dead).await, three);
    world.reload(&other, "unchanged", 1).await;
    world.reload(&config("a"), "applied", 2).await;
    world.publish(three.to_string()).await;
    for number in 3..6 {
        assert_eq!(number_of(&next(&mut a).await), number);
    }
    assert_eq!(world.degraded(), None);
    world.end().await;
}

/// Nothing is sent to the old destination any more, so nothing else would find out that it is not needed.
#[tokio::test]
async fn a_failed_destination_that_a_reload_removes_is_forgotten() {
    let world = World::new(&config("a")).await;
    let old = TopicFilter::new("agents.a").unwrap();
    let refused = Some(TransportErrorKind::Unauthorised);
    world.memory.set_refused(old, refused);
    let params = json!({ "_agentId": "weather" });
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params});
    let mut failed = world.calls.call(request(&call)).await.unwrap();
    assert!(failed.next().await.unwrap().is_err());
    let degraded = || world.readiness.report().degraded.len();
    assert_eq!(degraded(), 1);
    world.reload(&config("b"), "applied", 1).await;
    assert_eq!(degraded(), 0);
    world.end().await;
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_is_reported() {
    let world = World::new(&config("a")).await;
    let mut a = world.read("out.a").await;
    // The limits alone would be right.
    let wrong = config("b").replace(
        "transport: bus, topic: out",
        "transport: nowhere, topic: out",
    );
    let wrong = format!("{wrong}limits: {{ max_units: 2 }}\n");
    world.reload(&wrong, "refused", 1).await;
    let why = world.degraded().unwrap();
    let file = world.file.display();
    for part in [
        "the changed file is invalid and not in use",
        &format!("{file}:7:"),
        "default_route[0].transport",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(world.shows("a2abus_config_last_reload_successful 0"));
    let three = json!([notification(1), notification(2), notification(3)]);
    world.publish(three.to_string()).await;
    for number in 1..4 {
        assert_eq!(number_of(&next(&mut a).await), number);
    }
    std::fs::remove_file(&world.file).unwrap();
    world.reloads.request();
    world.until_reloaded("refused", 2).await;
    assert!(world.degraded().unwrap().contains("cannot be read"));
    world.reload(&config("b"), "applied", 1).await;
    assert_eq!(world.degraded(), None);
    assert!(world.shows("a2abus_config_last_reload_successful 1"));
    world.end().await;
}

#[tokio::test]
async fn changes_that_need_a_restart_are_named_and_the_rest_is_applied() {
    let world = World::new(&config("a")).await;
    let (mut a, mut b) = (world.read("out.a").await, world.read("out.b").await);
    let more = config("b").replace("topics: [in]", "topics: [in, more]");
    let more = more.replace("timeout: 60s", "timeout: 61s");
    world.reload(&more, "restart_needed", 1).await;
    let why = world.degraded().unwrap();
    for part in [
        "bindings.in.topics: needs a restart",
        "calls.timeout: needs a restart",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(!why.contains("route"), "{why}");
    assert!(world.shows("a2abus_config_restart_needed 1"));
    world.publish(notification(1).to_string()).await;
    assert_eq!(number_of(&next(&mut b).await), 1);
    // A bus is connected at the start, and its routes wait for it. Limits do not.
    let bus = config("c").replace(
        "{ bus: { type: memory } }",
        "{ bus: { type: memory }, new: { type: memory } }",
    );
    let bus = bus.replace("transport: bus, topic: out", "transport: new, topic: out");
    let bus = format!("{bus}limits: {{ max_units: 2 }}\n");
    world.reload(&bus, "restart_needed", 2).await;
    let why = world.degraded().unwrap();
    for part in [
        "transports.new.type: needs a restart",
        "routes.agents.to[0].topic: needs a restart: route default leads to the new transport new",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(!why.contains("limits"), "{why}");
    world.publish(notification(2).to_string()).await;
    assert_eq!(number_of(&next(&mut b).await), 2);
    // A change that is undone needs no restart.
    world.reload(&config("a"), "applied", 1).await;
    assert_eq!(world.degraded(), None);
    assert!(world.shows("a2abus_config_restart_needed 0"));
    world.publish(notification(3).to_string()).await;
    assert_eq!(number_of(&next(&mut a).await), 3);
    world.end().await;
}

/// Valid files can be an invalid mixture.
#[tokio::test]
async fn changes_that_do_not_fit_the_settings_in_use_wait_for_the_restart() {
    let with = |binding: &str| config("a").replace("topics: [in]", binding);
    let before = with("topics: [in], budget_bytes: 1MiB");
    let world = World::new(&before).await;
    let mut a = world.read("out.a").await;
    // The binding that still reads `in` would read its own events.
    let looped = with("topics: [in.v2], budget_bytes: 1MiB").replace("out.a", "in");
    let looped = format!("{looped}limits: {{ max_units: 2 }}\n");
    world.reload(&looped, "restart_needed", 1).await;
    let why = world.degraded().unwrap();
    for part in [
        "bindings.in.topics[0]: needs a restart",
        "default_route[0].topic: needs a restart: with the settings in use, default_route[0].topic: publishes to a topic that binding \"in\" reads",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(!why.contains("limits"), "{why}");
    world.publish(notification(1).to_string()).await;
    assert_eq!(number_of(&next(&mut a).await), 1);
    // Limits wait too if they are what does not fit.
    let large = with("topics: [in], budget_bytes: 4MiB");
    let large = format!("{large}limits: {{ max_bytes: 2MiB }}\n");
    world.reload(&large, "restart_needed", 2).await;
    let why = world.degraded().unwrap();
    let part =
        "limits.max_bytes: needs a restart: with the settings in use, bindings[0].budget_bytes: ";
    assert!(why.contains(part), "{why}");
    world.reload(&before, "applied", 1).await;
    assert_eq!(world.degraded(), None);
    world.end().await;
}

#[tokio::test]
async fn agents_of_workflows_wait_with_the_binding_whose_requests_they_get() {
    const HELD: &str = "needs a restart: until then, binding wf stays as it is";
    let with = |identity: &str, agents: &str| {
        let binding = format!(
            "bindings: [{{ name: wf, transport: bus, topics: [wf], role: workflows, {identity} }}, "
        );
        let text = config("a").replace("bindings: [", &binding);
        format!("{text}workflows: {{ enabled: true, agents: [{agents}] }}\n")
    };
    let trusting = with("trusts: [sourceagent]", "{ id: a }");
    for (before, after, changed) in [
        // The running binding names the old id.
        (
            with("run_as: a", "{ id: a }"),
            with("run_as: b", "{ id: b }"),
            "b",
        ),
        // With the running binding, every writer can act as any agent.
        (
            trusting.clone(),
            with("run_as: a", "{ id: a }, { id: admin }"),
            "admin",
        ),
        (
            trusting.clone(),
            trusting
                .replace("name: wf", "name: other")
                .replace("{ id: a }", "{ id: a }, { id: admin }"),
            "admin",
        ),
        // The running binding still reads a topic that anyone may write.
        (
            trusting.clone(),
            trusting
                .replace("topics: [wf]", "topics: [guarded]")
                .replace("{ id: a }", "{ id: a }, { id: admin }"),
            "admin",
        ),
    ] {
        let world = World::new(&before).await;
        world.reload(&after, "restart_needed", 1).await;
        let why = world.degraded().unwrap();
        let part = format!("workflows.agents.{changed}: {HELD}");
        assert!(why.contains(&part), "{why}");
        // The file in use is compared again.
        world.reload(&before, "unchanged", 1).await;
        assert_eq!(world.degraded(), None);
        world.end().await;
    }
    // Without a key, callers of the running bridge can act as any agent.
    let open = trusting.replace("{ enabled: true, ", "{ enabled: true, rpc: true, ");
    let world = World::new(&open).await;
    let closed = trusting.replace("{ id: a }", "{ id: a }, { id: admin }");
    world.reload(&closed, "restart_needed", 1).await;
    let why = world.degraded().unwrap();
    let part = "workflows.agents.admin: needs a restart: until then, workflows.rpc is true";
    assert!(why.contains(part), "{why}");
    world.end().await;
}

#[tokio::test]
async fn the_url_of_cards_waits_for_the_hosts_that_make_it_unnecessary() {
    let with = |hosts: &str, a2a: &str| {
        let http = format!("http: {{ listen: '127.0.0.1:0', allowed_hosts: ['{hosts}']");
        let text = config("a").replace("http: { enabled: false", &http);
        format!("{text}agents: {{ weather: {{ description: d }} }}\na2a: {{ {a2a} }}\n")
    };
    let url = "public_url: 'https://agents.example.com'";
    let world = World::new(&with("*", url)).await;
    let without = with("localhost", "max_parts: 1");
    world.reload(&without, "restart_needed", 1).await;
    let why = world.degraded().unwrap();
    let part =
        "a2a.public_url: needs a restart: with the settings in use, a2a.public_url: is missing";
    assert!(why.contains(part), "{why}");
    let (_, card) = get(&world, "/a2a/agents/weather/card").await;
    assert_eq!(card["url"], "https://agents.example.com/a2a/agents/weather");
    world.end().await;
}

#[tokio::test]
async fn a_new_limit_of_hops_applies_to_announced_agents() {
    let with = |max_hops: u32| {
        let cards =
            "bindings: [{ name: cards, transport: bus, topics: [cards], role: discovery }, ";
        let text = config("a").replace("http: { enabled: false", "http: { listen: '127.0.0.1:0'");
        let text = text.replace("bindings: [", cards);
        let to = "{ transport: bus, topic: 'agents.{targetagent}' }";
        format!(
            "{text}registry: {{ enabled: true, destinations: [{{ to: {to} }}] }}\nlimits: {{ max_hops: {max_hops} }}\n"
        )
    };
    let world = World::new(&with(1)).await;
    let (mut late, mut dead) = (world.read("agents.late").await, world.read("dead").await);
    let skill = json!({ "id": "s", "name": "S", "description": "d", "tags": ["t"] });
    let card = json!({
        "name": "late", "description": "d", "version": "1.0",
        "capabilities": { "streaming": true }, "skills": [skill],
    });
    send(&world.memory, "cards", Message::plain(card.to_string())).await;
    within("the agent is known", async {
        while get(&world, "/a2a/agents/late").await.0 != 200 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "/s", "type": "t", "targetagent": "late", "hops": 1,
        "data": { "n": 1 },
    });
    world.publish(event.to_string()).await;
    assert_eq!(next(&mut dead).await, event);
    world.reload(&with(2), "applied", 1).await;
    world.publish(event.to_string()).await;
    assert_eq!(next(&mut late).await, event["data"]);
    world.end().await;
}

/// What A2A clients get at a path.
async fn get(world: &World, path: &str) -> (u16, Value) {
    let url = format!("http://{}{path}", world.door.unwrap());
    let response = reqwest::get(url).await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

/// The response to a message that an A2A client sends.
async fn send_message(world: &World, path: &str, message: &Value) -> Value {
    let send = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}});
    let url = format!("http://{}{path}", world.door.unwrap());
    let response = reqwest::Client::new().post(url).json(&send).send().await;
    response.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn cards_and_bounds_of_a2a_change_while_the_bridge_runs() {
    let with = |agents: &str, a2a: &str| {
        let text = config("a").replace("http: { enabled: false", "http: { listen: '127.0.0.1:0'");
        format!("{text}agents: {{ {agents} }}\na2a: {{ {a2a} }}\n")
    };
    let weather = |what: &str| {
        format!("weather: {{ description: {what}, to: {{ transport: bus, topic: agents.a }} }}")
    };
    let world = World::new(&with(&weather("first"), "max_parts: 2")).await;
    let card = "/a2a/agents/weather/card";
    assert_eq!(get(&world, card).await.1["description"], "first");
    let more = format!("{}, snow: {{ description: new }}", weather("second"));
    let settings = "max_parts: 1, public_url: 'https://agents.example.com', cancel_timeout: 2s";
    world.reload(&with(&more, settings), "applied", 1).await;
    assert_eq!(world.degraded(), None);
    let (_, shown) = get(&world, card).await;
    assert_eq!(shown["description"], "second");
    assert_eq!(
        shown["url"],
        "https://agents.example.com/a2a/agents/weather"
    );
    assert_eq!(get(&world, "/a2a/agents/snow").await.0, 200);
    let part = json!({"kind": "text", "text": "x"});
    let message =
        json!({"kind": "message", "role": "user", "messageId": "m", "parts": [part, part]});
    let refused = send_message(&world, "/a2a/agents/weather", &message).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    // A removed agent is removed at once; a setting that needs a restart is reported.
    let fewer = with(&weather("third"), "push_notifications: { enabled: true }");
    world.reload(&fewer, "restart_needed", 1).await;
    assert_eq!(get(&world, "/a2a/agents/snow").await.0, 404);
    assert_eq!(get(&world, card).await.1["description"], "third");
    let why = world.degraded().unwrap();
    assert_eq!(why, "a2a.push_notifications.enabled: needs a restart");
    world.end().await;
}

/// Without agents at the start there is no A2A interface. Requests still reach the new agents.
#[tokio::test]
async fn the_cards_of_the_first_agents_are_reported_once_each_until_a_restart() {
    let world = World::new(&config("a")).await;
    let mut topics = [world.read("at.rain").await, world.read("at.snow").await];
    let agent = |name: &str| {
        format!(
            "{name}: {{ description: d, version: '2', to: {{ transport: bus, topic: at.{name} }} }}"
        )
    };
    let text = format!(
        "{}agents: {{ {}, {} }}\n",
        config("a"),
        agent("rain"),
        agent("snow")
    );
    world.reload(&text, "restart_needed", 1).await;
    let why = "(its card): needs a restart; its routes are already in use";
    let expected = format!("agents.rain {why}; agents.snow {why}");
    assert_eq!(world.degraded(), Some(expected));
    for (name, topic) in ["rain", "snow"].into_iter().zip(&mut topics) {
        let mut to = notification(1);
        to["params"]["_agentId"] = json!(name);
        world.publish(to.to_string()).await;
        assert_eq!(next(topic).await["params"]["_agentId"], name);
    }
    world.end().await;
}

/// A configuration with attached agents, and with others.
fn with_agents(agents: &[&str]) -> String {
    let text = config("a").replace("http: { enabled: false", "http: { listen: '127.0.0.1:0'");
    let routes = text.lines().filter(|line| !line.contains("targetagent"));
    let text: String = routes.map(|line| format!("{line}\n")).collect();
    let text = text.replace("routes:\n", "");
    format!("{text}agents: {{ {} }}\n", agents.join(", "))
}

#[tokio::test]
async fn attached_agents_stay_as_they_run_until_a_restart() {
    const WEATHER: &str = "weather: { description: d, to: { transport: bus, topic: at.a }, attach: { command: [a] } }";
    const SNOW: &str = "snow: { description: d, to: { transport: bus, topic: at.snow } }";
    const DEFAULT: &str = "a2a: { default_agent: weather }\n";
    const RUNS_OTHERWISE: &str = "needs a restart";
    const MOVED: &str = "needs a restart: agent weather, which is attached, gets another `to`";
    const REMOVED: &str = "needs a restart: agent weather is no longer attached";
    let world = World::new(&(with_agents(&[WEATHER, SNOW]) + DEFAULT)).await;
    let mut topics = BTreeMap::new();
    for topic in ["at.a", "at.b", "at.snow", "out.a"] {
        topics.insert(topic, world.read(topic).await);
    }
    let both = |agents: [&str; 2]| with_agents(&agents) + DEFAULT;
    let moved = WEATHER.replace("at.a", "at.b").replace(": d", ": new");
    let replaced = WEATHER.replace("[a]", "[b]");
    let plain = "weather: { description: d, to: { transport: bus, topic: at.b } }";
    let new =
        "rain: { description: d, to: { transport: bus, topic: at.b }, attach: { command: [a] } }";
    let gained = SNOW.replace("at.snow }", "at.b }, attach: { command: [a] }");
    let waiting = [
        (
            both([&replaced, SNOW]),
            RUNS_OTHERWISE,
            "agents.weather.attach.command[0]",
        ),
        (
            both([&moved, SNOW]),
            MOVED,
            "agents.weather.description, agents.weather.to.topic",
        ),
        (
            both([plain, SNOW]),
            REMOVED,
            "agents.weather.attach.command, agents.weather.to.topic",
        ),
        (
            // Another agent would take the topic that the attached one still reads.
            with_agents(&[&SNOW.replace("at.snow", "at.a")]),
            REMOVED,
            "a2a.default_agent, agents.snow.to.topic, agents.weather.attach.command, agents.weather.description, agents.weather.to.topic, agents.weather.to.transport",
        ),
        (
            with_agents(&[WEATHER, SNOW, new]) + "a2a: { default_agent: rain }\n",
            "needs a restart: agent rain is attached only now",
            "a2a.default_agent, agents.rain.attach.command, agents.rain.description, agents.rain.to.topic, agents.rain.to.transport",
        ),
        (
            both([WEATHER, &gained]),
            "needs a restart: agent snow is attached only now",
            "agents.snow.to.topic, agents.snow.attach.command",
        ),
    ];
    let mut reloads = 0;
    for (text, why, settings) in waiting {
        let settings = settings.split(", ");
        let settings: Vec<_> = settings.map(|it| format!("{it}: {why}")).collect();
        // The second reload finds the same file: what is not in use is reported again.
        for _ in 0..2 {
            reloads += 1;
            world.reload(&text, "restart_needed", reloads).await;
            assert_eq!(world.degraded().unwrap(), settings.join("; "));
        }
        for (agent, topic) in [("weather", "at.a"), ("snow", "at.snow"), ("rain", "out.a")] {
            let mut to = notification(reloads);
            to["params"]["_agentId"] = json!(agent);
            world.publish(to.to_string()).await;
            let arrived = next(topics.get_mut(topic).unwrap()).await;
            assert_eq!(arrived["params"], to["params"], "{text}");
        }
        assert_eq!(get(&world, "/a2a/agents/weather").await.0, 200);
        assert_eq!(get(&world, "/a2a/agents/rain").await.0, 404);
        // Only an existing agent gets as far as the check of the message.
        let without_parts =
            json!({"kind": "message", "role": "user", "messageId": "m", "parts": []});
        let refused = send_message(&world, "/a2a", &without_parts).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    // The rest of a card is not kept.
    let only_card = WEATHER.replace(": d", ": new");
    world.reload(&both([&only_card, SNOW]), "applied", 1).await;
    assert_eq!(world.degraded(), None);
    let (_, card) = get(&world, "/a2a/agents/weather/card").await;
    assert_eq!(card["description"], "new");
    world.reload(&both([WEATHER, SNOW]), "applied", 2).await;
    world.reload(&both([WEATHER, SNOW]), "unchanged", 1).await;
    assert!(topics.get_mut("at.b").unwrap().try_recv().is_none());
    world.end().await;
}

/// Replaces the files of a volume as the kubelet does: they are links through `..data`, which is replaced as a whole.
fn swap(volume: &Path, version: &str, text: &str) {
    std::fs::create_dir(volume.join(version)).unwrap();
    std::fs::write(volume.join(version).join("a2abus.yaml"), text).unwrap();
    std::os::unix::fs::symlink(version, volume.join("..new")).unwrap();
    std::fs::rename(volume.join("..new"), volume.join("..data")).unwrap();
}

#[tokio::test]
async fn a_config_map_that_changes_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().to_owned();
    let file = volume.join("a2abus.yaml");
    swap(&volume, "..1", &config("a"));
    std::os::unix::fs::symlink("..data/a2abus.yaml", &file).unwrap();
    let world = World::of(directory, file).await;
    swap(&volume, "..2", &config("b"));
    world.until_reloaded("applied", 1).await;
    let mut b = world.read("out.b").await;
    world.publish(notification(1).to_string()).await;
    assert_eq!(number_of(&next(&mut b).await), 1);
    swap(&volume, "..3", "routes: [");
    world.until_reloaded("refused", 1).await;
    swap(&volume, "..4", &config("a"));
    world.until_reloaded("applied", 2).await;
    // A wrong file that is rolled back to the one in use.
    swap(&volume, "..5", "routes: [");
    world.until_reloaded("refused", 2).await;
    swap(&volume, "..6", &config("a"));
    world.until_reloaded("unchanged", 1).await;
    assert_eq!(world.degraded(), None);
    world.end().await;
}

/// How often the configuration is read again under load.
const RELOADS: usize = 200;
/// How often a message is sent, and a condition is looked at.
const PACE: Duration = Duration::from_millis(1);

/// An agent that answers every request with its number.
async fn agent(memory: Memory, topic: &'static str) {
    let mut requests = read(&memory, topic).await;
    while let Some(delivery) = requests.recv().await {
        let request: Value =
            serde_json::from_slice(delivery.message.body.as_ref().unwrap()).unwrap();
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": {"number": request["params"]["number"]}});
        let place = delivery.message.headers.get("ce_replyto").unwrap();
        let place = std::str::from_utf8(place).unwrap();
        send(&memory, place, Message::plain(answer.to_string())).await;
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
    }
}

/// A request of a caller.
fn request(body: &Value) -> Request {
    set_up::request(body.to_string(), "test")
}

/// One call after the other until the end; how many were answered.
async fn callers(calls: Arc<Calls>, caller: usize, is_over: Arc<AtomicBool>) -> usize {
    let mut answered = 0;
    while !is_over.load(Ordering::Relaxed) {
        let number = caller * 1_000_000 + answered;
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"_agentId": "weather", "number": number}});
        let mut answer = calls.call(request(&body)).await.unwrap();
        let part = answer.next().await.unwrap().unwrap();
        let part: Value = serde_json::from_slice(&part.body).unwrap();
        assert_eq!(part["result"]["number"], number, "{part}");
        assert!(answer.next().await.is_none(), "it is answered once");
        answered += 1;
        sleep(PACE).await;
    }
    answered
}

/// Publishes messages of three units each until the end, at `PACE`.
async fn publisher(memory: Memory, sent: Arc<AtomicUsize>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::Relaxed) {
        let first = 3 * sent.load(Ordering::Relaxed);
        let three = [first, first + 1, first + 2].map(notification);
        send(&memory, "in", Message::plain(json!(three).to_string())).await;
        sent.fetch_add(1, Ordering::Relaxed);
        sleep(PACE).await;
    }
}

/// The numbers of all units that come to a topic.
async fn collector(memory: Memory, topic: &'static str, into: Arc<Mutex<Vec<usize>>>) {
    let mut consumer = read(&memory, topic).await;
    while let Some(delivery) = consumer.recv().await {
        let body = delivery.message.body.as_ref().unwrap();
        let number = number_of(&serde_json::from_slice(body).unwrap());
        into.lock().unwrap().push(number);
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_reloads_under_load_lose_nothing_and_double_nothing() {
    let world = World::new(&config("a")).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicUsize::new(0));
    let (at_a, at_b) = (Arc::default(), Arc::default());
    let mut agents = JoinSet::new();
    let bus = || world.memory.clone();
    agents.spawn(agent(bus(), "agents.a"));
    agents.spawn(agent(bus(), "agents.b"));
    agents.spawn(collector(bus(), "out.a", Arc::clone(&at_a)));
    agents.spawn(collector(bus(), "out.b", Arc::clone(&at_b)));
    let mut calling = JoinSet::new();
    for caller in 0..4 {
        calling.spawn(callers(
            Arc::clone(&world.calls),
            caller,
            Arc::clone(&is_over),
        ));
    }
    let sender = tokio::spawn(publisher(bus(), Arc::clone(&sent), Arc::clone(&is_over)));
    for reload in 1..=RELOADS {
        let side = if reload % 2 == 0 { "a" } else { "b" };
        world.reload(&config(side), "applied", reload).await;
        // Messages meet each version of the file.
        let so_far = sent.load(Ordering::Relaxed);
        within("messages are sent", async {
            while sent.load(Ordering::Relaxed) < so_far + 2 {
                sleep(PACE).await;
            }
        })
        .await;
    }
    is_over.store(true, Ordering::Relaxed);
    sender.await.unwrap();
    let mut answered = 0;
    while let Some(caller) = calling.join_next().await {
        answered += caller.unwrap();
    }
    let sent = 3 * sent.load(Ordering::Relaxed);
    let has_all = || at_a.lock().unwrap().len() + at_b.lock().unwrap().len() >= sent;
    within("all units arrive", async {
        while !has_all() {
            sleep(PACE).await;
        }
    })
    .await;
    let metrics = Arc::clone(&world.metrics);
    world.end().await;
    // What the bridge had published twice would have been counted, although it came late.
    let published = format!(
        "a2abus_published_total{{transport=\"bus\"}} {}\n",
        sent + answered
    );
    let text = metrics.render().unwrap();
    assert!(text.contains(&published), "{published}{text}");
    let (at_a, at_b) = (at_a.lock().unwrap(), at_b.lock().unwrap());
    println!(
        "{sent} events ({} at a, {} at b) and {answered} calls",
        at_a.len(),
        at_b.len()
    );
    assert!(!at_a.is_empty() && !at_b.is_empty() && answered > 0);
    let all: BTreeSet<usize> = at_a.iter().chain(at_b.iter()).copied().collect();
    assert_eq!(all, (0..sent).collect(), "none is lost");
    assert_eq!(at_a.len() + at_b.len(), sent, "none is doubled");
    let messages = |numbers: &[usize]| -> BTreeSet<usize> {
        numbers.iter().map(|number| number / 3).collect()
    };
    assert!(
        messages(&at_a).is_disjoint(&messages(&at_b)),
        "a message has one set of rules"
    );
}
