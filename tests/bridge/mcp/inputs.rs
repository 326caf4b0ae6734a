//! What the capabilities of a client of 2026-07-28 decide, and what its headers need not say.

use serde_json::{Value, json};

use super::{NEWEST, Servers, json_of, request, with_meta};

const PATH: &str = "/mcp/agents/maps";

/// The status and the answer of a tool that needs these inputs, for a client that has declared these capabilities.
async fn needing(servers: &Servers, needs: &Value, declared: &Value) -> (u16, Value) {
    let result =
        json!({ "resultType": "input_required", "inputRequests": needs, "requestState": "s" });
    let mut params = with_meta(json!({ "name": "need", "arguments": result }));
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = declared.clone();
    let call = servers
        .post(PATH, request(7, "tools/call", params))
        .header("mcp-protocol-version", NEWEST)
        .header("mcp-method", "tools/call")
        .header("mcp-name", "need");
    let response = call.send().await.unwrap();
    (response.status().as_u16(), json_of(response).await)
}

#[tokio::test]
async fn a_client_is_asked_only_for_what_it_has_declared() {
    let servers = Servers::open().await;
    let needs = json!({
        "sample": { "method": "sampling/createMessage", "params": { "messages": [], "maxTokens": 1 } },
        "page": { "method": "elicitation/create", "params": { "mode": "url", "url": "https://a.example" } },
        "form": { "method": "elicitation/create", "params": { "message": "Who?" } },
    });
    for (declared, missing) in [
        (
            json!({}),
            json!({ "sampling": {}, "elicitation": { "form": {}, "url": {} } }),
        ),
        (
            json!({ "elicitation": {}, "sampling": {} }),
            json!({ "elicitation": { "url": {} } }),
        ),
        (
            json!({ "elicitation": { "url": {} }, "sampling": {} }),
            json!({ "elicitation": { "form": {} } }),
        ),
    ] {
        let (status, answer) = needing(&servers, &needs, &declared).await;
        assert_eq!((status, &answer["id"]), (400, &json!(7)), "{answer}");
        let error = &answer["error"];
        assert_eq!(error["code"], -32_021, "{answer}");
        assert_eq!(error["data"]["reason"], "capability_not_declared");
        assert_eq!(error["data"]["requiredCapabilities"], missing, "{answer}");
    }
    let declared = json!({ "sampling": {}, "elicitation": { "form": {}, "url": {} } });
    let (status, answer) = needing(&servers, &needs, &declared).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["result"]["inputRequests"], needs);
    assert_eq!(answer["result"]["requestState"], "s");
    let metrics = servers.front.admin("/metrics").await;
    let counted = "a2abus_questions_refused_total 3\n";
    assert!(metrics.contains(counted), "{metrics}");
}

/// A client may have had a session before it was upgraded.
#[tokio::test]
async fn a_request_that_stands_alone_needs_no_session_although_it_names_one() {
    let servers = Servers::open().await;
    let session = servers.session(PATH, "2025-11-25").await;
    for is_over in [false, true] {
        if is_over {
            let url = format!("{}{PATH}", servers.front.base);
            let end = reqwest::Client::new().delete(url);
            let end = end.header("mcp-session-id", &session).send().await.unwrap();
            assert_eq!(end.status(), 204);
        }
        for id in [session.as_str(), "no-such-session"] {
            let list = servers.alone(PATH, "tools/list", json!({}));
            let list = list.header("mcp-session-id", id).send().await.unwrap();
            assert_eq!(list.status(), 200, "{id} {is_over}");
            assert!(list.headers().get("mcp-session-id").is_none());
            let answer = json_of(list).await;
            assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        }
    }
    // A client with sessions must learn that its session has ended.
    let list = servers.post(PATH, request(7, "tools/list", json!({})));
    let list = list.header("mcp-session-id", &session).send().await;
    assert_eq!(list.unwrap().status(), 404);
}
