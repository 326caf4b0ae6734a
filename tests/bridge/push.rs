//! Webhooks of tasks: set in every way, called in order, by one replica.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};
use support::battery::until_closed;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::http::{SOON, request};
use crate::tasks::{Bus, CONFIG, message};

const AGENT: &str = "/a2a/agents/weather";

/// A client's listener, which answers as configured and shows the requests that it received.
struct Hook {
    url: String,
    called: mpsc::Receiver<(HeaderMap, Value)>,
    answers: Answers,
}

/// The statuses of the next answers; 200 if the list is empty.
type Answers = Arc<Mutex<VecDeque<u16>>>;

impl Hook {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (sender, called) = mpsc::channel(1_000);
        let answers = Answers::default();
        let router = Router::new()
            .route("/hook", post(Self::called))
            .with_state((sender, Arc::clone(&answers)));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            called,
            answers,
        }
    }

    async fn called(
        State((sender, answers)): State<(mpsc::Sender<(HeaderMap, Value)>, Answers)>,
        headers: HeaderMap,
        body: String,
    ) -> StatusCode {
        let status = answers.lock().unwrap().pop_front().unwrap_or(200);
        let body = serde_json::from_str(&body).unwrap();
        sender.send((headers, body)).await.unwrap();
        StatusCode::from_u16(status).unwrap()
    }

    fn answer(&self, statuses: &[u16]) {
        self.answers.lock().unwrap().extend(statuses);
    }

    async fn next(&mut self) -> (HeaderMap, Value) {
        timeout(SOON, self.called.recv()).await.unwrap().unwrap()
    }

    /// The bridge that may call it.
    async fn bus(&self) -> Bus {
        Bus::open_with(&self.config()).await
    }

    fn config(&self) -> String {
        config_for(&self.url)
    }
}

/// A configuration that allows this URL.
fn config_for(allowed: &str) -> String {
    let push = format!(
        "push_notifications: {{ enabled: true, allowed_urls: [\"{allowed}\"], give_up_after: 1s, max_per_task: 2 }}"
    );
    CONFIG.replace(
        "max_text_part: 1KiB",
        &format!("max_text_part: 1KiB, {push}"),
    )
}

fn state(update: &Value) -> &Value {
    &update["statusUpdate"]["status"]["state"]
}

#[tokio::test]
async fn a_webhook_in_a_message_gets_every_event_in_order() {
    let mut hook = Hook::open().await;
    let mut bus = hook.bus().await;
    let sent = bus
        .ask_1_0(
            "SendMessage",
            json!({ "message": message("task"), "configuration": { "taskPushNotificationConfig": {
                "id": "h", "url": hook.url, "token": "t0k",
                "authentication": { "scheme": "Bearer", "credentials": "s3cret" },
            }}}),
        )
        .await;
    let id = &sent["result"]["task"]["id"];
    // The agent does not learn of it.
    let request = bus.next_request().await;
    assert_eq!(
        request["params"]["configuration"],
        json!({ "taskPushNotificationConfig": null })
    );
    let (headers, first) = hook.next().await;
    assert_eq!(headers["content-type"], "application/a2a+json");
    assert_eq!(headers["x-a2a-notification-token"], "t0k");
    assert_eq!(headers["authorization"], "Bearer s3cret");
    assert_eq!(state(&first), "TASK_STATE_WORKING");
    assert_eq!(&first["statusUpdate"]["taskId"], id);
    for text in ["sun", "ny"] {
        let (_, chunk) = hook.next().await;
        let part = &chunk["artifactUpdate"]["artifact"]["parts"][0];
        assert_eq!(part, &json!({ "text": text }));
    }
    assert_eq!(state(&hook.next().await.1), "TASK_STATE_COMPLETED");
    // Nobody reads the credentials back.
    let stored = bus
        .ask_1_0(
            "GetTaskPushNotificationConfig",
            json!({ "taskId": id, "id": "h" }),
        )
        .await;
    let expected = json!({
        "taskId": id, "id": "h", "url": hook.url, "token": "t0k", "authentication": { "scheme": "Bearer" },
    });
    assert_eq!(stored["result"], expected);
    let card = bus
        .front
        .to("/a2a/agents/weather/card", "")
        .build()
        .unwrap();
    let card: Value = reqwest::get(card.url().clone())
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(card["capabilities"]["pushNotifications"], true);
}

#[tokio::test]
async fn webhooks_are_set_read_listed_and_removed_in_every_way() {
    let mut hook = Hook::open().await;
    let bus = hook.bus().await;
    let params = json!({ "message": message("hold"), "configuration": { "blocking": false } });
    let sent = bus.ask("message/send", params).await;
    let id = sent["result"]["id"].as_str().unwrap().to_owned();
    // A2A 0.3: its id is that of the task, where it has none.
    let config = json!({ "url": hook.url, "authentication": { "schemes": ["Basic"] } });
    let set = json!({ "taskId": id, "pushNotificationConfig": config });
    let set = bus.ask("tasks/pushNotificationConfig/set", set).await;
    let former = json!({ "taskId": id, "pushNotificationConfig": {
        "id": id, "url": hook.url, "authentication": { "schemes": ["Basic"] },
    }});
    assert_eq!(set["result"], former);
    let get = json!({ "id": id, "pushNotificationConfigId": "default" });
    let get = bus.ask("tasks/pushNotificationConfig/get", get).await;
    assert_eq!(get["result"], former);
    // HTTP+JSON of A2A 1.0.
    let path = format!("{AGENT}/tasks/{id}/pushNotificationConfigs");
    let set = bus
        .post_to(
            &path,
            &json!({ "taskId": "ignored", "id": "second", "url": hook.url }),
        )
        .await;
    let second = json!({ "taskId": id, "id": "second", "url": hook.url });
    assert_eq!(set, second);
    assert_eq!(bus.get_from(&format!("{path}/second")).await, second);
    let listed = bus.get_from(&path).await;
    assert_eq!(listed["configs"].as_array().unwrap().len(), 2);
    let first = bus.get_from(&format!("{path}?page_size=1")).await;
    let token = first["nextPageToken"].as_str().unwrap();
    let last = bus
        .get_from(&format!("{path}?pageSize=1&pageToken={token}"))
        .await;
    assert_eq!(last["nextPageToken"], "");
    let pages = [&first, &last].map(|page| page["configs"][0].clone());
    assert_eq!(listed["configs"], json!(pages));
    let none = json!({ "taskId": id, "pageSize": 0 });
    let refused = bus.ask_1_0("ListTaskPushNotificationConfig", none).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    // Without an id, the one that was set without an id.
    let get = bus.ask("tasks/pushNotificationConfig/get", json!({ "id": id }));
    assert_eq!(get.await["result"], former);
    // There are as many as there may be.
    let third = json!({ "taskId": id, "id": "third", "url": hook.url });
    let refused = bus.ask_1_0("CreateTaskPushNotificationConfig", third).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    // HTTP+JSON of A2A 0.3.
    let path = format!("{AGENT}/v1/tasks/{id}/pushNotificationConfigs");
    let stored = bus.get_from(&format!("{path}/second")).await;
    let name = format!("tasks/{id}/pushNotificationConfigs/second");
    assert_eq!(stored["name"], name);
    // The SDK for Python names a configuration so if its caller names none.
    let unnamed = bus.get_from(&format!("{path}/None")).await;
    assert_eq!(unnamed["pushNotificationConfig"]["id"], id, "{unnamed}");
    let named = json!({ "pushNotificationConfig": { "url": hook.url, "token": "q" } });
    let set = bus
        .post_to(&format!("{path}?config_id=second"), &named)
        .await;
    assert_eq!(set["pushNotificationConfig"]["id"], "second", "{set}");
    let around = json!({ "parent": format!("tasks/{id}"), "config_id": "second", "config": {
        "name": name, "push_notification_config": { "id": "second", "url": hook.url, "token": "new" },
    }});
    let set = bus.post_to(&path, &around).await;
    assert_eq!(set["pushNotificationConfig"]["token"], "new");
    let listed = bus
        .ask("tasks/pushNotificationConfig/list", json!({ "id": id }))
        .await;
    assert_eq!(listed["result"][0], former);
    let delete = json!({ "id": id, "pushNotificationConfigId": id });
    let deleted = bus.ask("tasks/pushNotificationConfig/delete", delete).await;
    assert_eq!(deleted["result"], Value::Null);
    assert_eq!(deleted.get("error"), None);
    // A client of A2A 0.3 is sent the task.
    bus.gate.add_permits(1);
    let (headers, task) = hook.next().await;
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["x-a2a-notification-token"], "new");
    assert_eq!(task["kind"], "task");
    assert_eq!(task["id"], id);
    let path = format!("{AGENT}/tasks/{id}/pushNotificationConfigs");
    assert_eq!(bus.delete_at(&format!("{path}/second")).await, json!({}));
    assert_eq!(bus.get_from(&path).await["configs"], json!([]));
}

#[tokio::test]
async fn a_failed_delivery_is_retried_then_dropped_and_the_next_one_is_sent() {
    let mut hook = Hook::open().await;
    let bus = hook.bus().await;
    // The first event fails once, the second for good, the third for longer than is tried.
    hook.answer(&[503, 200, 410, 503, 503, 503]);
    let params = json!({ "message": message("task"), "configuration": {
        "pushNotificationConfig": { "url": hook.url },
    }});
    bus.ask_1_0("SendMessage", params_1_0(&params)).await;
    let mut states = Vec::new();
    for _ in 0..7 {
        let (_, event) = hook.next().await;
        let text = &event["artifactUpdate"]["artifact"]["parts"][0]["text"];
        let what = if text.is_string() {
            text
        } else {
            state(&event)
        };
        states.push(what.as_str().unwrap().to_owned());
    }
    let (working, completed) = ("TASK_STATE_WORKING", "TASK_STATE_COMPLETED");
    let mut expected = vec![working, working, "sun"];
    expected.extend(std::iter::repeat_n(
        "ny",
        states.iter().filter(|it| *it == "ny").count(),
    ));
    expected.resize(7, completed);
    assert_eq!(states, expected);
    assert_eq!(states.last().unwrap(), completed);
    until(&bus, "delivered", 2).await;
    assert_eq!(deliveries(&bus, "dropped").await, 2);
    assert!(deliveries(&bus, "retried").await >= 2);
}

/// Simple servers of HTTP/1.1 often forget the length of their response.
#[tokio::test]
async fn a_response_that_does_not_end_is_a_delivery() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                let head = b"HTTP/1.1 200 OK\r\n\r\n";
                stream.write_all(head).await.unwrap();
                // Until the caller leaves.
                drop(stream.read_to_end(&mut Vec::new()).await);
            });
        }
    });
    let bus = Bus::open_with(&config_for(&url)).await;
    let params = json!({ "message": message("task"), "configuration": {
        "taskPushNotificationConfig": { "url": url },
    }});
    bus.ask_1_0("SendMessage", params).await;
    until(&bus, "delivered", 4).await;
    assert_eq!(deliveries(&bus, "retried").await, 0);
}

/// The memory of tasks is full, and the webhook fails until its task is removed.
#[tokio::test]
async fn the_events_of_a_task_that_was_removed_count_as_dropped() {
    let hook = Hook::open().await;
    hook.answer(&[503; 100]);
    let config = hook
        .config()
        .replace("give_up_after: 1s", "give_up_after: 10m");
    let bus = Bus::open_with(&format!("{config}state: {{ memory: 1MiB }}\n")).await;
    let params = json!({ "message": message("task"), "configuration": {
        "taskPushNotificationConfig": { "url": hook.url },
    }});
    let sent = bus.ask_1_0("SendMessage", params).await;
    let id = json!({ "id": sent["result"]["task"]["id"] });
    until(&bus, "retried", 1).await;
    let removed = async {
        while bus.ask("tasks/get", id.clone()).await["error"]["code"] != -32_001 {
            let mut large = message("task");
            large["metadata"] = json!({ "large": "x".repeat(100 << 10) });
            bus.ask("message/send", json!({ "message": large })).await;
        }
    };
    timeout(SOON, removed).await.unwrap();
    until(&bus, "dropped", 1).await;
    assert_eq!(deliveries(&bus, "delivered").await, 0);
}

#[tokio::test]
async fn events_that_wait_go_to_a_webhook_that_is_set_again() {
    let mut hook = Hook::open().await;
    hook.answer(&[503; 100]);
    let config = hook.config();
    let config = config.replace("give_up_after: 1s", "give_up_after: 10m");
    let bus = Bus::open_with(&config).await;
    let params = json!({ "message": message("task"), "configuration": {
        "taskPushNotificationConfig": { "id": "h", "url": hook.url },
    }});
    let sent = bus.ask_1_0("SendMessage", params).await;
    let id = &sent["result"]["task"]["id"];
    let (_, first) = hook.next().await;
    until(&bus, "retried", 1).await;
    // The task has ended.
    let url = format!("{}?new", hook.url);
    let set = json!({ "taskId": id, "id": "h", "url": url, "token": "new" });
    let set = bus.ask_1_0("CreateTaskPushNotificationConfig", set).await;
    assert!(set["error"].is_null(), "{set}");
    loop {
        let (headers, event) = hook.next().await;
        assert_eq!(event, first);
        // The call to the first URL may have been repeated before.
        if headers.contains_key("x-a2a-notification-token") {
            break;
        }
    }
    hook.answers.lock().unwrap().clear();
    while *state(&hook.next().await.1) != "TASK_STATE_COMPLETED" {}
    assert_eq!(deliveries(&bus, "dropped").await, 0);
}

/// The client must not send the message again.
#[tokio::test]
async fn a_webhook_that_is_not_stored_does_not_look_like_a_message_that_was_not_sent() {
    let hook = Hook::open().await;
    let bus = Bus::open_with(&format!("{}state: {{ memory: 1MiB }}\n", hook.config())).await;
    let url = format!("{}?fill={}", hook.url, "x".repeat(4_000));
    let params = json!({ "message": message("ask"), "configuration": {
        "pushNotificationConfig": { "url": url },
    }});
    // The memory of webhooks has room for about 200.
    for _ in 0..400 {
        let answer = bus.ask("message/send", params.clone()).await;
        let error = &answer["error"];
        if error.is_null() {
            continue;
        }
        assert_eq!(error["data"]["reason"], "answer_lost", "{error}");
        let task = json!({ "id": error["data"]["taskId"] });
        let task = bus.ask("tasks/get", task).await;
        assert!(task["result"]["status"].is_object(), "{task}");
        return;
    }
    panic!("all webhooks were stored");
}

async fn deliveries(bus: &Bus, outcome: &str) -> u64 {
    let metrics = bus.front.admin("/metrics").await;
    let name = format!("a2abus_push_deliveries_total{{outcome=\"{outcome}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

async fn until(bus: &Bus, outcome: &str, count: u64) {
    let reached = async {
        while deliveries(bus, outcome).await < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, reached).await.unwrap();
}

fn params_1_0(params: &Value) -> Value {
    let mut params = params.clone();
    let config = params["configuration"]["pushNotificationConfig"].take();
    params["configuration"] = json!({ "taskPushNotificationConfig": config });
    params
}

#[tokio::test]
async fn webhook_urls_with_internal_addresses_are_refused_with_the_reason() {
    let hook = Hook::open().await;
    let mut bus = hook.bus().await;
    let elsewhere = hook.url.replace("/hook", "/other");
    for (url, why) in [
        ("https://127.0.0.1/x", "globally reachable"),
        ("http://hooks.example.com/x", "http"),
        ("https://169.254.169.254/latest", "globally reachable"),
        ("https://user:word@hooks.example.com/", "password"),
        ("file:///etc/passwd", "scheme"),
        ("https://exa mple/", "no spaces"),
        ("https://-a-/", "DNS"),
        (&elsewhere, "globally reachable"),
    ] {
        let params = json!({ "message": message("message"), "configuration": {
            "pushNotificationConfig": { "url": url },
        }});
        let refused = bus.ask("message/send", params).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{url}: {message}");
    }
    let params = json!({ "message": message("message"), "configuration": {
        "pushNotificationConfig": { "url": hook.url, "token": "a\nb" },
    }});
    let refused = bus.ask("message/send", params).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    // No agent got a request.
    bus.ask("message/send", json!({ "message": message("plain") }))
        .await;
    assert_eq!(
        bus.next_request().await["params"]["message"],
        message("plain")
    );
}

#[tokio::test]
async fn a_webhook_spelled_as_in_the_proto_is_hidden_from_the_agent_too() {
    let mut hook = Hook::open().await;
    let mut bus = hook.bus().await;
    let webhook = json!({ "id": "h", "url": hook.url, "token": "t0k" });
    let params = json!({
        "message": message("task"),
        "configuration": { "task_push_notification_config": webhook },
    });
    bus.ask_1_0("SendMessage", params).await;
    let request = bus.next_request().await;
    let expected = json!({ "task_push_notification_config": null });
    assert_eq!(request["params"]["configuration"], expected);
    let (headers, _) = hook.next().await;
    assert_eq!(headers["x-a2a-notification-token"], "t0k");
}

#[tokio::test]
async fn a_webhook_over_the_limit_is_refused_before_the_agent_gets_the_message() {
    let hook = Hook::open().await;
    let mut bus = hook.bus().await;
    let with = |message: Value, id: &str| {
        json!({
            "message": message,
            "configuration": { "taskPushNotificationConfig": { "id": id, "url": hook.url } },
        })
    };
    let sent = bus
        .ask_1_0("SendMessage", with(message("ask"), "first"))
        .await;
    let id = &sent["result"]["task"]["id"];
    let second = json!({ "taskId": id, "id": "second", "url": hook.url });
    bus.ask_1_0("CreateTaskPushNotificationConfig", second)
        .await;
    bus.next_request().await;
    let mut next = message("plain");
    next["taskId"] = id.clone();
    next["messageId"] = "refused".into();
    let refused = bus
        .ask_1_0("SendMessage", with(next.clone(), "third"))
        .await;
    assert_eq!(refused["error"]["code"], -32_602, "{refused}");
    next["messageId"] = "taken".into();
    // A webhook that exists already is accepted. This is the next message that the agent gets.
    let response = bus.ask_1_0("SendMessage", with(next, "second")).await;
    assert!(response["error"].is_null(), "{response}");
    let request = bus.next_request().await;
    assert_eq!(request["params"]["message"]["messageId"], "taken");
}

#[tokio::test]
async fn a_webhook_survives_a_restart() {
    let mut hook = Hook::open().await;
    let directory = tempfile::tempdir().unwrap();
    let stored = format!(
        "state: {{ log: embedded, directory: {} }}\n",
        directory.path().display()
    );
    let config = format!("{}{stored}", hook.config());
    let first = Bus::open_with(&config).await;
    let params = json!({ "message": message("ask"), "configuration": {
        "taskPushNotificationConfig": { "url": hook.url },
    }});
    let sent = first.ask_1_0("SendMessage", params).await;
    let id = sent["result"]["task"]["id"].as_str().unwrap().to_owned();
    assert_eq!(*state(&hook.next().await.1), "TASK_STATE_INPUT_REQUIRED");
    until(&first, "delivered", 1).await;
    first.front.stop.cancel();
    timeout(SOON, first.front.running).await.unwrap().unwrap();
    until_closed(directory.path()).await;
    let second = Bus::open_with(&config).await;
    let mut next = message("plain");
    next["taskId"] = id.into();
    second
        .ask_1_0("SendMessage", json!({ "message": next }))
        .await;
    // Events that were delivered before are not delivered again.
    let (_, event) = hook.next().await;
    assert!(event["artifactUpdate"].is_object(), "{event}");
    assert_eq!(*state(&hook.next().await.1), "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn tokens_and_credentials_are_stored_encrypted_or_refused() {
    let mut hook = Hook::open().await;
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().join("state");
    std::fs::create_dir(&files).unwrap();
    let config = |keys: &[&str]| {
        let keys = keys.iter().map(|name| {
            let file = directory.path().join(name);
            std::fs::write(&file, name.repeat(32)).unwrap();
            format!("{{ file: {} }}", file.display())
        });
        let keys = format!(
            "max_per_task: 2, keys: [{}]",
            keys.collect::<Vec<_>>().join(", ")
        );
        let state = format!(
            "state: {{ log: embedded, directory: {} }}\n",
            files.display()
        );
        hook.config().replace("max_per_task: 2", &keys) + &state
    };
    let [without, with, renewed] = [config(&[]), config(&["a"]), config(&["b", "a"])];
    let stop = async |bus: Bus| {
        bus.front.stop.cancel();
        timeout(SOON, bus.front.running).await.unwrap().unwrap();
        until_closed(&files).await;
    };
    let secret = json!({
        "url": hook.url,
        "token": "canary-token",
        "authentication": { "scheme": "Bearer", "credentials": "canary-credentials" },
    });
    let params = |webhook: &Value| json!({ "message": message("ask"), "configuration": { "taskPushNotificationConfig": webhook } });

    let bus = Bus::open_with(&without).await;
    let refused = bus.ask_1_0("SendMessage", params(&secret)).await;
    assert_eq!(refused["error"]["code"], -32_602);
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains("a2a.push_notifications.keys"), "{why}");
    let plain = json!({ "url": hook.url });
    bus.ask_1_0("SendMessage", params(&plain)).await;
    assert!(!hook.next().await.0.contains_key("authorization"));
    stop(bus).await;

    let bus = Bus::open_with(&with).await;
    let sent = bus.ask_1_0("SendMessage", params(&secret)).await;
    let task = sent["result"]["task"]["id"].as_str().unwrap().to_owned();
    let (headers, _) = hook.next().await;
    assert_eq!(headers["authorization"], "Bearer canary-credentials");
    assert_eq!(headers["x-a2a-notification-token"], "canary-token");
    until(&bus, "delivered", 1).await;
    stop(bus).await;
    for file in std::fs::read_dir(&files).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"canary-"));
    }

    let bus = Bus::open_with(&renewed).await;
    let read = bus
        .ask_1_0(
            "GetTaskPushNotificationConfig",
            json!({ "taskId": task, "id": task }),
        )
        .await;
    assert_eq!(read["result"]["token"], "canary-token", "{read}");
    let mut next = message("plain");
    next["taskId"] = task.into();
    bus.ask_1_0("SendMessage", json!({ "message": next })).await;
    let (headers, _) = hook.next().await;
    assert_eq!(headers["authorization"], "Bearer canary-credentials");
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_first_part_keeps_its_webhook() {
    let mut hook = Hook::open().await;
    let mut bus = hook.bus().await;
    let webhook = json!({ "url": hook.url });
    let configuration = json!({ "pushNotificationConfig": webhook });
    let params = json!({ "message": message("late"), "configuration": configuration });
    let sending = bus.post(request("7", "message/send", params)).send();
    let client = tokio::spawn(sending);
    bus.next_request().await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    bus.gate.add_permits(1);
    while hook.next().await.1["status"]["state"] != "completed" {}
}
