//! Agents, keys and secrets that change while the bridge runs.

use std::path::Path;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;
use support::battery::within;
use tokio::time::sleep;

use super::harness::{KEY, OTHER_KEY, TOKEN, TestBridge, answer, fetch, workflow};

async fn scraped(bridge: &TestBridge, line: &str) {
    within("the metric comes", async {
        while !bridge.scraped().contains(line) {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn status(bridge: &TestBridge, key: &str) -> StatusCode {
    let request = bridge.bare(Method::GET, "/api/v1/capabilities");
    answer(request.bearer_auth(key)).await.status()
}

#[tokio::test]
async fn a_key_that_was_rotated_counts_and_the_old_one_does_not() {
    let bridge = TestBridge::open().await;
    assert_eq!(status(&bridge, KEY).await, StatusCode::OK);
    std::fs::write(bridge.file("reporter.key"), "another-key\n").unwrap();
    scraped(
        &bridge,
        "a2abus_workflow_reloads_total{outcome=\"applied\"} 1",
    )
    .await;
    assert_eq!(status(&bridge, "another-key").await, StatusCode::OK);
    assert_eq!(status(&bridge, KEY).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&bridge, OTHER_KEY).await, StatusCode::OK);
}

#[tokio::test]
async fn a_secret_that_was_rotated_is_sent_from_then_on() {
    let bridge = TestBridge::open().await;
    let request = |id: &str| {
        let call = json!({"ApiCall": {"method": "POST", "url": format!("{}/mirror", bridge.service.base), "outputPath": "/workflow/x",
            "headers": {"X-Token": {"credentialRef": {"id": "token"}}}}});
        workflow(id, &[("a", call)])
    };
    bridge.run(&request("rot-1")).await;
    assert_eq!(
        bridge.service.last_header("x-token"),
        format!("Bearer {TOKEN}")
    );
    std::fs::write(bridge.file("token"), "the-next-secret").unwrap();
    scraped(
        &bridge,
        "a2abus_workflow_reloads_total{outcome=\"applied\"} 1",
    )
    .await;
    let answer = bridge.run(&request("rot-2")).await;
    assert_eq!(
        bridge.service.last_header("x-token"),
        "Bearer the-next-secret"
    );
    assert_eq!(answer["results"]["a"]["x-token"], "Bearer [REDACTED]");
}

#[tokio::test]
async fn an_invalid_configuration_changes_nothing_until_it_is_valid() {
    let bridge = TestBridge::open().await;
    bridge.edit(|text| text.replace("id: other", "id: reporter"));
    scraped(
        &bridge,
        "a2abus_workflow_reloads_total{outcome=\"refused\"} 1",
    )
    .await;
    assert_eq!(status(&bridge, OTHER_KEY).await, StatusCode::OK);
    // It is right later, and that is seen.
    bridge.edit(|text| text.replace("id: other", "id: renamed"));
    scraped(
        &bridge,
        "a2abus_workflow_reloads_total{outcome=\"applied\"} 1",
    )
    .await;
    assert_eq!(fetch(as_other(&bridge)).await.1["agent_id"], "renamed");
}

fn as_other(bridge: &TestBridge) -> reqwest::RequestBuilder {
    let request = bridge.bare(Method::GET, "/api/v1/capabilities");
    request.bearer_auth(OTHER_KEY)
}

const PARTIAL: &str = "a2abus_workflow_reloads_total{outcome=\"partial\"} 1";

#[tokio::test]
async fn a_key_whose_file_is_gone_is_revoked_and_other_changes_are_applied() {
    let bridge = TestBridge::open().await;
    assert_eq!(status(&bridge, KEY).await, StatusCode::OK);
    std::fs::remove_file(bridge.file("reporter.key")).unwrap();
    bridge.edit(|text| text.replace("id: other", "id: renamed"));
    scraped(&bridge, PARTIAL).await;
    assert_eq!(status(&bridge, KEY).await, StatusCode::UNAUTHORIZED);
    assert_eq!(fetch(as_other(&bridge)).await.1["agent_id"], "renamed");
    // It is back, and that is seen.
    std::fs::write(bridge.file("reporter.key"), KEY).unwrap();
    scraped(
        &bridge,
        "a2abus_workflow_reloads_total{outcome=\"applied\"} 1",
    )
    .await;
    assert_eq!(status(&bridge, KEY).await, StatusCode::OK);
    let none = "a2abus_workflow_reloads_total{outcome=\"refused\"} 0";
    assert!(bridge.scraped().contains(none), "{}", bridge.scraped());
}

#[tokio::test]
async fn a_credential_whose_file_is_empty_is_absent_until_it_is_back() {
    let bridge = TestBridge::open().await;
    let request = |id: &str| {
        let call = json!({"ApiCall": {"method": "POST", "url": format!("{}/mirror", bridge.service.base), "outputPath": "/workflow/x",
            "headers": {"X-Token": {"credentialRef": {"id": "token"}}}}});
        bridge.execute(&json!({"workflow": workflow(id, &[("a", call)])}))
    };
    let offered = async || {
        let (_, listed) = fetch(bridge.get("/api/v1/capabilities")).await;
        listed["capabilities"]["availableCredentials"].clone()
    };
    assert_eq!(offered().await[0]["id"], "token");
    std::fs::write(bridge.file("token"), "\n").unwrap();
    scraped(&bridge, PARTIAL).await;
    let (refused, error) = fetch(request("absent")).await;
    assert_eq!(refused, StatusCode::BAD_REQUEST, "{error}");
    assert_eq!(error["error"]["code"], "credential_not_found", "{error}");
    assert_eq!(offered().await, json!([]));
    assert_eq!(status(&bridge, KEY).await, StatusCode::OK);
    std::fs::write(bridge.file("token"), "the-next-secret").unwrap();
    scraped(
        &bridge,
        "a2abus_workflow_reloads_total{outcome=\"applied\"} 1",
    )
    .await;
    assert_eq!(fetch(request("back")).await.0, StatusCode::OK);
    assert_eq!(
        bridge.service.last_header("x-token"),
        "Bearer the-next-secret"
    );
}

#[tokio::test]
async fn a_key_that_was_never_there_is_waited_for() {
    let bridge = TestBridge::open().await;
    let missing = bridge.file("missing");
    bridge.edit(|text| {
        let key = |file: &Path| format!("file: \"{}\"", file.display());
        text.replace(&key(&bridge.file("reporter.key")), &key(&missing))
    });
    scraped(&bridge, PARTIAL).await;
    assert_eq!(status(&bridge, KEY).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&bridge, OTHER_KEY).await, StatusCode::OK);
    std::fs::write(&missing, "found-it").unwrap();
    scraped(
        &bridge,
        "a2abus_workflow_reloads_total{outcome=\"applied\"} 1",
    )
    .await;
    assert_eq!(status(&bridge, "found-it").await, StatusCode::OK);
}

#[tokio::test]
async fn revoked_permissions_no_longer_apply() {
    let bridge = TestBridge::open().await;
    let request = |id: &str| {
        let text = workflow(
            id,
            &[(
                "a",
                super::harness::call(&bridge.service.base, "POST", "/users"),
            )],
        );
        bridge.execute(&json!({"workflow": text}))
    };
    assert_eq!(fetch(request("may-1")).await.0, StatusCode::OK);
    bridge.edit(|text| text.replace("apis: [svc]\n      credentials: [token]", "apis: []"));
    scraped(
        &bridge,
        "a2abus_workflow_reloads_total{outcome=\"applied\"} 1",
    )
    .await;
    let (status, error) = fetch(request("may-2")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        error["error"]["details"]["errors"][0]["level"], "permission",
        "{error}"
    );
    assert_eq!(bridge.service.calls(), 1);
}
