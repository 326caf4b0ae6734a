//! Agents, keys and secrets that change while the bridge runs.

use std::path::Path;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;
use support::battery::within;
use tokio::time::sleep;

use super::harness::{House, KEY, OTHER_KEY, TOKEN, answer, told, workflow};

async fn scraped(house: &House, line: &str) {
    within("the metric comes", async {
        while !house.scraped().contains(line) {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn status(house: &House, key: &str) -> StatusCode {
    let request = house.bare(Method::GET, "/api/v1/capabilities");
    answer(request.bearer_auth(key)).await.status()
}

#[tokio::test]
async fn a_key_that_was_rotated_counts_and_the_old_one_does_not() {
    let house = House::open().await;
    assert_eq!(status(&house, KEY).await, StatusCode::OK);
    std::fs::write(house.file("reporter.key"), "another-key\n").unwrap();
    scraped(&house, "a2abus_workflow_reloads_total{outcome=\"taken\"} 1").await;
    assert_eq!(status(&house, "another-key").await, StatusCode::OK);
    assert_eq!(status(&house, KEY).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&house, OTHER_KEY).await, StatusCode::OK);
}

#[tokio::test]
async fn a_secret_that_was_rotated_is_sent_from_then_on() {
    let house = House::open().await;
    let request = |id: &str| {
        let call = json!({"ApiCall": {"method": "POST", "url": format!("{}/mirror", house.service.base), "outputPath": "/workflow/x",
            "headers": {"X-Token": {"credentialRef": {"id": "token"}}}}});
        workflow(id, &[("a", call)])
    };
    house.run(&request("rot-1")).await;
    assert_eq!(house.service.heard("x-token"), format!("Bearer {TOKEN}"));
    std::fs::write(house.file("token"), "the-next-secret").unwrap();
    scraped(&house, "a2abus_workflow_reloads_total{outcome=\"taken\"} 1").await;
    let answer = house.run(&request("rot-2")).await;
    assert_eq!(house.service.heard("x-token"), "Bearer the-next-secret");
    assert_eq!(answer["results"]["a"]["x-token"], "Bearer [REDACTED]");
}

#[tokio::test]
async fn what_is_wrong_changes_nothing_until_it_is_right() {
    let house = House::open().await;
    house.edit(|text| text.replace("id: other", "id: reporter"));
    scraped(
        &house,
        "a2abus_workflow_reloads_total{outcome=\"refused\"} 1",
    )
    .await;
    assert_eq!(status(&house, OTHER_KEY).await, StatusCode::OK);
    // It is right later, and that is seen.
    house.edit(|text| text.replace("id: other", "id: renamed"));
    scraped(&house, "a2abus_workflow_reloads_total{outcome=\"taken\"} 1").await;
    assert_eq!(told(as_other(&house)).await.1["agent_id"], "renamed");
}

fn as_other(house: &House) -> reqwest::RequestBuilder {
    let request = house.bare(Method::GET, "/api/v1/capabilities");
    request.bearer_auth(OTHER_KEY)
}

const PARTIAL: &str = "a2abus_workflow_reloads_total{outcome=\"partial\"} 1";

#[tokio::test]
async fn a_key_whose_file_is_gone_is_revoked_and_the_rest_is_taken_over() {
    let house = House::open().await;
    assert_eq!(status(&house, KEY).await, StatusCode::OK);
    std::fs::remove_file(house.file("reporter.key")).unwrap();
    house.edit(|text| text.replace("id: other", "id: renamed"));
    scraped(&house, PARTIAL).await;
    assert_eq!(status(&house, KEY).await, StatusCode::UNAUTHORIZED);
    assert_eq!(told(as_other(&house)).await.1["agent_id"], "renamed");
    // It is back, and that is seen.
    std::fs::write(house.file("reporter.key"), KEY).unwrap();
    scraped(&house, "a2abus_workflow_reloads_total{outcome=\"taken\"} 1").await;
    assert_eq!(status(&house, KEY).await, StatusCode::OK);
    let none = "a2abus_workflow_reloads_total{outcome=\"refused\"} 0";
    assert!(house.scraped().contains(none), "{}", house.scraped());
}

#[tokio::test]
async fn a_credential_whose_file_is_empty_is_absent_until_it_is_back() {
    let house = House::open().await;
    let request = |id: &str| {
        let call = json!({"ApiCall": {"method": "POST", "url": format!("{}/mirror", house.service.base), "outputPath": "/workflow/x",
            "headers": {"X-Token": {"credentialRef": {"id": "token"}}}}});
        house.execute(&json!({"workflow": workflow(id, &[("a", call)])}))
    };
    let offered = async || {
        let (_, told) = told(house.get("/api/v1/capabilities")).await;
        told["capabilities"]["availableCredentials"].clone()
    };
    assert_eq!(offered().await[0]["id"], "token");
    std::fs::write(house.file("token"), "\n").unwrap();
    scraped(&house, PARTIAL).await;
    let (refused, error) = told(request("absent")).await;
    assert_eq!(refused, StatusCode::BAD_REQUEST, "{error}");
    assert_eq!(error["error"]["code"], "credential_not_found", "{error}");
    assert_eq!(offered().await, json!([]));
    assert_eq!(status(&house, KEY).await, StatusCode::OK);
    std::fs::write(house.file("token"), "the-next-secret").unwrap();
    scraped(&house, "a2abus_workflow_reloads_total{outcome=\"taken\"} 1").await;
    assert_eq!(told(request("back")).await.0, StatusCode::OK);
    assert_eq!(house.service.heard("x-token"), "Bearer the-next-secret");
}

#[tokio::test]
async fn a_key_that_was_never_there_is_waited_for() {
    let house = House::open().await;
    let missing = house.file("missing");
    house.edit(|text| {
        let key = |file: &Path| format!("file: \"{}\"", file.display());
        text.replace(&key(&house.file("reporter.key")), &key(&missing))
    });
    scraped(&house, PARTIAL).await;
    assert_eq!(status(&house, KEY).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&house, OTHER_KEY).await, StatusCode::OK);
    std::fs::write(&missing, "found-it").unwrap();
    scraped(&house, "a2abus_workflow_reloads_total{outcome=\"taken\"} 1").await;
    assert_eq!(status(&house, "found-it").await, StatusCode::OK);
}

#[tokio::test]
async fn permissions_that_are_taken_away_are_gone() {
    let house = House::open().await;
    let request = |id: &str| {
        let text = workflow(
            id,
            &[(
                "a",
                super::harness::call(&house.service.base, "POST", "/users"),
            )],
        );
        house.execute(&json!({"workflow": text}))
    };
    assert_eq!(told(request("may-1")).await.0, StatusCode::OK);
    house.edit(|text| text.replace("apis: [svc]\n      credentials: [token]", "apis: []"));
    scraped(&house, "a2abus_workflow_reloads_total{outcome=\"taken\"} 1").await;
    let (status, error) = told(request("may-2")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        error["error"]["details"]["errors"][0]["level"], "permission",
        "{error}"
    );
    assert_eq!(house.service.calls(), 1);
}
