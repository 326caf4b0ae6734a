//! Connections to NATS that break for a moment.

use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use support::battery::within;
use support::proxy::Proxy;
use support::running::Running;
use support::server::{Kind, named};

use crate::plain::{nats_client, subscribed, unique};

/// An agent would execute it twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_have_been_sent_over_core_nats_is_not_sent_again() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let topic = unique("interrupted");
    let agent = nats_client(&nats).await;
    let mut requests = agent.subscribe(topic.clone()).await.unwrap();
    subscribed(&agent).await;
    let proxy = Proxy::start(nats.trim_start_matches("nats://")).await;
    let bridge = Running::start(&format!(
        "
transports: {{ nats: {{ type: nats, servers: ['nats://{}'] }} }}
agents: {{ weather: {{ description: The weather., to: {{ transport: nats, topic: {topic} }} }} }}
calls: {{ reply_topic: {topic}.replies, timeout: 240s, max_timeout: 240s }}",
        proxy.address()
    ))
    .await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let call = |id: u32| {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": "echo", "params": {} });
        let sent = http
            .post(format!("{}/rpc/weather", bridge.door))
            .json(&body);
        let sent = sent.send();
        tokio::spawn(async move { sent.await.unwrap().json::<Value>().await.unwrap() })
    };
    let answer = async |request: async_nats::Message| {
        let body: Value = serde_json::from_slice(&request.payload).unwrap();
        let response = json!({ "jsonrpc": "2.0", "id": body["id"], "result": {} });
        let reply = request.reply.unwrap();
        agent
            .publish(reply, response.to_string().into())
            .await
            .unwrap();
    };
    // The server gets the request, but the bridge does not learn of that.
    proxy.mute();
    let first = call(1);
    let request = within("the request", requests.next()).await.unwrap();
    proxy.interrupt().await;
    // These are made and answered over the next connection.
    for id in 2..5 {
        let next = call(id);
        let request = within("the next request", requests.next()).await.unwrap();
        answer(request).await;
        let answered = within("the next answer", next).await.unwrap();
        assert_eq!(
            (&answered["id"], &answered["result"]),
            (&json!(id), &json!({}))
        );
    }
    answer(request).await;
    let first = within("the first call ends", first).await.unwrap();
    let is_lost = first["error"]["data"]["reason"] == "answer_lost";
    assert!(first["result"] == json!({}) || is_lost, "{first}");
    assert!(
        requests.next().now_or_never().is_none(),
        "it was sent twice"
    );
    bridge.stop().await;
}
