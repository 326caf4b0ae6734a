//! Workflows that are judged and executed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use a2abus_executor::{
    Change, Environment, HttpClient, HttpError, HttpRequest, HttpResponse, Store as _, Table,
};
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use support::battery::within;
use tokio::time::sleep;

use super::harness::{
    KEY, OTHER_KEY, TestBridge, answer, body, call, fetch, header, wait, workflow,
};
use super::store::Shaky;

/// The record of an execution once it has ended.
async fn ended(bridge: &TestBridge, id: &str) -> Value {
    within("the execution ends", async {
        loop {
            let (status, record) = fetch(bridge.get(&format!("/api/v1/executions/{id}"))).await;
            if status == StatusCode::OK && record["status"] != "running" {
                return record;
            }
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

/// Waits until the service has had this number of calls.
async fn called(bridge: &TestBridge, times: usize) {
    within("the service is called", async {
        while bridge.service.calls() < times {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_workflow_is_judged_without_being_run() {
    let bridge = TestBridge::open().await;
    let judge = |body: Value| bridge.post("/api/v1/workflows/validate", &body);
    let right = workflow(
        "v-1",
        &[("fetch", call(&bridge.service.base, "POST", "/users"))],
    );
    let (status, report) = fetch(judge(json!({"workflow": right}))).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(report, json!({"valid": true, "errors": [], "warnings": []}));
    let wrong = workflow(
        "v-2",
        &[
            ("fetch", call("https://hidden.example.com/v1", "GET", "/")),
            ("x", json!({"Fly": {}})),
        ],
    );
    let (status, report) = fetch(judge(json!({"workflow": wrong}))).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(report["valid"], false);
    let codes: Vec<_> = report["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|issue| &issue["code"])
        .collect();
    assert_eq!(
        codes,
        ["unknown_operation_type", "api_not_permitted"],
        "{report}"
    );
    let maybe = workflow(
        "v-3",
        &[(
            "f",
            json!({"FilterData": {"inputPath": "/workflow/seed", "conditions": [], "outputPath": "/workflow/o"}}),
        )],
    );
    for (level, input, valid) in [
        ("moderate", json!({}), false),
        ("lenient", json!({}), true),
        ("moderate", json!({"seed": []}), true),
        ("strict", json!({"seed": []}), false),
    ] {
        let request = judge(json!({"workflow": maybe, "level": level, "input": input}));
        assert_eq!(fetch(request).await.1["valid"], valid, "{level} {input}");
    }
    assert_eq!(bridge.service.calls(), 0);
}

#[tokio::test]
async fn a_workflow_runs_and_its_results_are_the_answer() {
    let bridge = TestBridge::open().await;
    let best = json!({"FilterData": {"inputPath": "/workflow/answer", "conditions": [{"field": "points", "operator": ">", "value": 100}], "outputPath": "/workflow/best"}});
    let steps = [
        ("fetch", call(&bridge.service.base, "GET", "/users")),
        ("best", best),
    ];
    let answer = bridge.run(&workflow("run-1", &steps)).await;
    assert_eq!(answer["execution_id"], "run-1");
    assert_eq!(answer["status"], "success");
    assert_eq!(
        answer["results"]["best"],
        json!([{"name": "Ana", "points": 120}])
    );
    assert!(answer["duration_ms"].is_u64(), "{answer}");
    let (status, record) = fetch(bridge.get("/api/v1/executions/run-1")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(record["results"], answer["results"]);
    assert_eq!(record["operations"][0]["type"], "ApiCall");
    assert_eq!(record["operations"][0]["attempts"], 1);
    let scraped = bridge.scraped();
    for line in [
        "a2abus_workflow_executions 0",
        "a2abus_workflow_executions_started_total 1",
        "a2abus_workflow_executions_ended_total{status=\"success\"} 1",
        "a2abus_workflow_operations_total{status=\"success\",type=\"ApiCall\"} 1",
        "a2abus_http_requests_total{path=\"/api\",status=\"200\"} 2",
    ] {
        assert!(scraped.contains(line), "{line}\n{scraped}");
    }
}

#[tokio::test]
async fn a_failed_execution_has_an_answer_and_an_invalid_workflow_is_not_executed() {
    let bridge = TestBridge::open().await;
    let base = &bridge.service.base;
    let steps = [("a", call(base, "GET", "/fail")), ("b", wait(0))];
    let answer = bridge.run(&workflow("fail-1", &steps)).await;
    assert_eq!(answer["status"], "failed");
    assert_eq!(answer["error"]["code"], "http_status");
    assert_eq!(answer["results"], json!({}));
    let request = json!({"workflow": workflow("fail-2", &steps), "onError": "continue"});
    let (_, answer) = fetch(bridge.execute(&request)).await;
    assert_eq!(answer["status"], "partial_success");
    assert_eq!(answer["errors"][0]["operationId"], "a");
    let calls = bridge.service.calls();
    let invalid = workflow(
        "fail-3",
        &[
            ("a", call(base, "GET", "/users")),
            ("b", json!({"Fly": {}})),
        ],
    );
    let (status, answer) = fetch(bridge.execute(&json!({"workflow": invalid}))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(answer["error"]["type"], "ValidationError");
    assert_eq!(
        answer["error"]["details"]["errors"][0]["code"],
        "unknown_operation_type"
    );
    assert_eq!(bridge.service.calls(), calls);
    let (status, _) = fetch(bridge.get("/api/v1/executions/fail-3")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_same_workflow_runs_once_and_another_under_its_id_does_not() {
    let bridge = TestBridge::open().await;
    let text = workflow(
        "once-1",
        &[("act", call(&bridge.service.base, "POST", "/users"))],
    );
    let request = json!({"workflow": text});
    let first = answer(bridge.execute(&request)).await;
    assert_eq!(header(&first, "idempotent-replay"), "");
    let first = body(first).await;
    let again = answer(bridge.execute(&request)).await;
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(header(&again, "idempotent-replay"), "true");
    assert_eq!(body(again).await, first);
    assert_eq!(bridge.service.calls(), 1);
    let other = json!({"workflow": workflow("once-1", &[("w", wait(0))])});
    let (status, error) = fetch(bridge.execute(&other)).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(error["error"]["code"], "execution_id_conflict");
    assert_eq!(error["error"]["type"], "ExecutionError");
    // Records outlive the process.
    let bridge = bridge.open_again().await;
    let again = answer(bridge.execute(&request)).await;
    assert_eq!(header(&again, "idempotent-replay"), "true");
    assert_eq!(body(again).await, first);
    assert_eq!(bridge.service.calls(), 1);
}

#[tokio::test]
async fn concurrent_duplicate_requests_get_one_execution() {
    let bridge = TestBridge::open().await;
    let request = json!({"workflow": workflow("twice-1", &[("act", call(&bridge.service.base, "POST", "/slow"))])});
    let executions = join_all((0..8).map(|_| answer(bridge.execute(&request))));
    let answered = async {
        called(&bridge, 1).await;
        bridge.service.gate.add_permits(8);
    };
    let (answers, ()) = tokio::join!(executions, answered);
    let replayed = answers
        .iter()
        .filter(|answer| header(answer, "idempotent-replay") == "true");
    assert_eq!(replayed.count(), 7);
    for answer in answers {
        assert_eq!(body(answer).await["results"]["act"]["slow"], true);
    }
    assert_eq!(bridge.service.calls(), 1);
}

#[tokio::test]
async fn an_execution_can_be_asynchronous() {
    let bridge = TestBridge::open().await;
    let text = workflow(
        "async-1",
        &[("slow", call(&bridge.service.base, "GET", "/slow"))],
    );
    let request = json!({"workflow": text, "async": true});
    let (status, accepted) = fetch(bridge.execute(&request)).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!(
        accepted,
        json!({"execution_id": "async-1", "status": "pending"})
    );
    called(&bridge, 1).await;
    let (_, record) = fetch(bridge.get("/api/v1/executions/async-1")).await;
    assert_eq!(record["status"], "running");
    let operation = &record["operations"][0];
    assert_eq!(
        (&operation["operationId"], &operation["status"]),
        (&json!("slow"), &json!("running"))
    );
    let again = answer(bridge.execute(&request)).await;
    assert_eq!(again.status(), StatusCode::ACCEPTED);
    assert_eq!(header(&again, "idempotent-replay"), "true");
    let (_, running) = fetch(bridge.get("/api/v1/executions?status=running")).await;
    assert_eq!(running["count"], 1);
    bridge.service.gate.add_permits(1);
    assert_eq!(ended(&bridge, "async-1").await["status"], "success");
    bridge.run(&workflow("async-2", &[("w", wait(2))])).await;
    let (_, list) = fetch(bridge.get("/api/v1/executions?limit=1")).await;
    assert_eq!(list["count"], 1);
    assert_eq!(
        list["executions"][0]["execution_id"], "async-2",
        "the newest comes first"
    );
    let (_, list) = fetch(bridge.get("/api/v1/executions")).await;
    assert_eq!(list["count"], 2);
}

#[tokio::test]
async fn a_disconnected_client_does_not_end_its_execution() {
    let bridge = TestBridge::open().await;
    let text = workflow(
        "gone-1",
        &[("slow", call(&bridge.service.base, "POST", "/slow"))],
    );
    let request = bridge.execute(&json!({"workflow": text}));
    let response_task = tokio::spawn(request.send());
    called(&bridge, 1).await;
    response_task.abort();
    assert!(response_task.await.unwrap_err().is_cancelled());
    bridge.service.gate.add_permits(1);
    assert_eq!(ended(&bridge, "gone-1").await["status"], "success");
    assert_eq!(bridge.service.calls(), 1);
}

#[tokio::test]
async fn an_execution_runs_although_its_client_disconnects_before_it_is_recorded() {
    let store = Arc::new(Shaky::with_gate(0));
    let bridge = TestBridge::open_in(Some(store.environment())).await;
    let request = bridge.execute(&json!({"workflow": workflow("gone-2", &[("w", wait(0))])}));
    let response_task = tokio::spawn(request.send());
    within("its record is looked up", async {
        while store.reads.load(Ordering::SeqCst) == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    response_task.abort();
    let none_open = "a2abus_http_connections{door=\"http\"} 0\n";
    within("the connection is closed", async {
        while !bridge.scraped().contains(none_open) {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    store.gate.add_permits(1);
    assert_eq!(ended(&bridge, "gone-2").await["status"], "success");
}

#[tokio::test]
async fn records_of_other_agents_are_not_visible() {
    let bridge = TestBridge::open().await;
    bridge.run(&workflow("mine", &[("w", wait(0))])).await;
    let other = |path: &str| bridge.bare(Method::GET, path).bearer_auth(OTHER_KEY);
    let (status, answer) = fetch(other("/api/v1/executions/mine")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(answer["error"]["code"], "execution_not_found");
    let (_, list) = fetch(other("/api/v1/executions")).await;
    assert_eq!(list, json!({"executions": [], "count": 0}));
    // The id is free for the other one.
    let request = bridge
        .bare(Method::POST, "/api/v1/workflows/execute")
        .bearer_auth(OTHER_KEY);
    let request = request.json(&json!({"workflow": workflow("mine", &[("w", wait(1))])}));
    let response = super::harness::answer(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(header(&response, "idempotent-replay"), "");
}

#[tokio::test]
async fn more_executions_at_a_time_than_permitted_are_refused() {
    let bridge = TestBridge::open().await;
    let base = bridge.service.base.clone();
    let request = |n: usize| {
        let text = workflow(
            &format!("busy-{n}"),
            &[("slow", call(&base, "GET", "/slow"))],
        );
        bridge.execute(&json!({"workflow": text, "async": true}))
    };
    for n in 0..16 {
        assert_eq!(fetch(request(n)).await.0, StatusCode::ACCEPTED);
    }
    let refused = answer(request(16)).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&refused, "retry-after"), "1");
    assert_eq!(
        body(refused).await,
        json!({"error": "Rate limit exceeded", "message": "Rate limit exceeded: 16 executions at a time", "retry_after": 1})
    );
    bridge.service.gate.add_permits(17);
    for n in 0..16 {
        ended(&bridge, &format!("busy-{n}")).await;
    }
    assert_eq!(fetch(request(16)).await.0, StatusCode::ACCEPTED);
    ended(&bridge, "busy-16").await;
}

#[tokio::test]
async fn an_invalid_workflow_that_is_sent_twice_at_once_is_refused_twice() {
    let store = Arc::new(Shaky::with_gate(0));
    let bridge = TestBridge::open_in(Some(store.environment())).await;
    let hidden = call("https://hidden.example.com/v1", "GET", "/");
    let text = workflow("twice", &[("fetch", hidden)]);
    let requests = [true, false, true, false]
        .map(|is_async| fetch(bridge.execute(&json!({"workflow": text, "async": is_async}))));
    let open = async {
        within("all of them have come", async {
            while store.reads.load(Ordering::SeqCst) < 4 {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        store.gate.add_permits(1);
    };
    let (responses, ()) = tokio::join!(join_all(requests), open);
    for (status, answer) in responses {
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        assert_eq!(answer["error"]["type"], "ValidationError");
    }
}

#[tokio::test]
async fn a_bridge_that_stops_starts_nothing_and_lets_running_executions_end() {
    let bridge = TestBridge::open().await;
    let text = workflow(
        "drain-1",
        &[("slow", call(&bridge.service.base, "GET", "/slow"))],
    );
    let running = tokio::spawn(fetch(bridge.execute(&json!({"workflow": text}))));
    called(&bridge, 1).await;
    bridge.stop.cancel();
    let new = json!({"workflow": workflow("drain-2", &[("w", wait(0))])});
    within("new ones are refused", async {
        loop {
            let response = answer(bridge.execute(&new)).await;
            if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                assert_eq!(header(&response, "retry-after"), "5");
                assert_eq!(body(response).await["error"]["code"], "draining");
                break;
            }
        }
    })
    .await;
    bridge.service.gate.add_permits(1);
    let (status, answer) = within("it ends", running).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["status"], "success");
    within("the bridge ends", bridge.running).await.unwrap();
}

#[tokio::test]
async fn executions_that_do_not_end_in_time_are_stopped_and_may_be_sent_again() {
    let bridge = TestBridge::open().await;
    let text = workflow(
        "cut-1",
        &[("slow", call(&bridge.service.base, "GET", "/slow"))],
    );
    let running = tokio::spawn(fetch(bridge.execute(&json!({"workflow": text}))));
    called(&bridge, 1).await;
    let bridge = bridge.open_again().await;
    let (status, answer) = within("it is stopped", running).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["status"], "failed");
    assert_eq!(answer["error"]["code"], "stopped", "{answer}");
    bridge.service.gate.add_permits(2);
    assert_eq!(bridge.run(&text).await["status"], "success");
}

#[tokio::test]
async fn a_workflow_may_be_sent_as_its_lines() {
    let bridge = TestBridge::open().await;
    let lines = workflow("lines-1", &[("w", wait(0))]);
    let of_type = |path: &str, content_type: &str| {
        let request = bridge.bare(Method::POST, path).bearer_auth(KEY);
        request
            .header("content-type", content_type)
            .body(lines.clone())
    };
    let ndjson = "application/x-ndjson";
    let (status, answer) = fetch(of_type("/api/v1/workflows/validate", ndjson)).await;
    assert_eq!((status, &answer["valid"]), (StatusCode::OK, &json!(true)));
    let (status, answer) = fetch(of_type("/api/v1/workflows/execute", ndjson)).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["status"], "success", "{answer}");
    let (status, _) = fetch(of_type("/api/v1/workflows/execute", "text/plain")).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

/// A network whose client has a bug.
struct Panicking;

impl HttpClient for Panicking {
    fn send(&self, _: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        panic!("a bug, as configured")
    }
}

#[tokio::test]
async fn an_execution_that_fails_unexpectedly_is_answered_as_its_record_shows_it() {
    let store = Arc::new(Shaky::with_gate(1));
    let world = Environment {
        http: Arc::new(Panicking),
        ..store.environment()
    };
    let bridge = TestBridge::open_in(Some(world)).await;
    for (id, method, code) in [
        ("bug-1", "POST", "interrupted"),
        ("bug-2", "GET", "stopped"),
    ] {
        let call = call(&bridge.service.base, method, "/users");
        let workflow = workflow(id, &[("act", call)]);
        let answer = bridge.run(&workflow).await;
        assert_eq!(answer["execution_id"], id);
        assert_eq!(answer["status"], "failed");
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert_eq!(bridge.run(&workflow).await["error"]["code"], code);
    }
    // `bug-1` has failed once, and was then found to be interrupted; `bug-2` has failed twice.
    let ended = "a2abus_workflow_executions_ended_total{status=\"abandoned\"} 4";
    let scraped = bridge.scraped();
    assert!(scraped.contains(ended), "{scraped}");
}

#[tokio::test]
async fn an_execution_is_answered_before_a_slow_store_has_its_record() {
    let store = Arc::new(Shaky::with_gate(1));
    store.delays.store(true, Ordering::SeqCst);
    let bridge = TestBridge::open_in(Some(store.environment())).await;
    let users = call(&bridge.service.base, "GET", "/users");
    let text = workflow("late-1", &[("fetch", users)]);
    let answer = bridge.run(&text).await;
    assert_eq!(answer["status"], "success");
    // Meanwhile this process answers for it, and other executions of the agent run.
    assert!(store.record("late-1").await.contains("running"));
    let (_, record) = fetch(bridge.get("/api/v1/executions/late-1")).await;
    assert_eq!(record["status"], "success", "{record}");
    assert_eq!(bridge.run(&text).await["results"], answer["results"]);
    assert_eq!(bridge.service.calls(), 1);
    bridge.run(&workflow("late-2", &[("w", wait(0))])).await;

    store.delays.store(false, Ordering::SeqCst);
    store.late.add_permits(1);
    for id in ["late-1", "late-2"] {
        within("its record is stored", async {
            loop {
                let stored = store.record(id).await;
                if stored.contains("success") && !stored.contains("results_removed") {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn the_process_is_degraded_while_the_store_fails() {
    let store = Arc::new(Shaky::with_gate(1));
    let bridge = TestBridge::open_in(Some(store.environment())).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for fails in [true, false] {
        store.fails.store(fails, Ordering::SeqCst);
        within("the readiness shows it", async {
            loop {
                let ready = client.get(format!("{}/readyz", bridge.admin));
                let (status, report) = fetch(ready).await;
                assert_eq!(status, StatusCode::OK, "{report}");
                let shown = report["degraded"].to_string();
                if shown.contains("store of workflows") == fails {
                    assert_eq!(shown.contains("fails as configured"), fails, "{shown}");
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_request_whose_record_is_malformed_needs_another_id() {
    let store = Arc::new(Shaky::with_gate(1));
    let bridge = TestBridge::open_in(Some(store.environment())).await;
    let malformed = Change {
        table: Table::Executions,
        key: "reporter\0bad-1".to_owned(),
        value: Some(Bytes::from_static(b"{")),
    };
    store.write(vec![malformed]).await.unwrap();
    let execute = |id| json!({"workflow": workflow(id, &[("w", wait(0))])});
    let (status, answer) = fetch(bridge.execute(&execute("bad-1"))).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(answer["error"]["code"], "storage_failed", "{answer}");
    let (status, _) = fetch(bridge.execute(&execute("bad-2"))).await;
    assert_eq!(status, StatusCode::OK);
}
