//! Secrets in every slot that has one: they appear nowhere.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::harness::{KEY, TOKEN, TestBridge, answer, fetch, workflow};

/// The log of the whole process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_env_filter("info,a2abus_bridge=trace,a2abus_executor=trace")
            .with_writer(move || writer.clone())
            .init();
        log
    })
}

/// Every form a secret could be shown in.
fn forms(secret: &str) -> Vec<String> {
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let escaped: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut forms = vec![secret.to_owned(), hex, escaped];
    // In Base64 a text has one of three forms, depending on its offset; its first and last characters depend on its
    // neighbours.
    for before in ["", "x", "xx"] {
        let encoded = base64(format!("{before}{secret}").as_bytes());
        let inner = encoded.trim_end_matches('=');
        forms.push(inner[4..inner.len() - 1].to_owned());
    }
    forms
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0_u32, |bits, n| {
            bits << 8 | u32::from(chunk.get(n).copied().unwrap_or(0))
        });
        for n in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= chunk.len() { digit.into() } else { '=' });
        }
    }
    text
}

#[tokio::test]
async fn a_secret_in_any_slot_appears_in_no_answer_log_or_metric() {
    let log = log();
    let mut bridge = TestBridge::open().await;
    let secrets = [
        ("bearer-token", "canary-bearer-8d1f"),
        ("basic", "canary-user:canary-pass-77aa"),
        ("api-key", "canary/api+key=3c9e"),
        ("password", "canary-password-51b0"),
        ("custom", "Canary custom-e4d2"),
    ];
    for (kind, secret) in secrets {
        std::fs::write(bridge.file(kind), secret).unwrap();
    }
    let directory = bridge.directory.path().display().to_string();
    bridge.edit(|text| {
        let added: String = secrets
            .iter()
            .map(|(kind, _)| format!("\n    - {{ id: slot-{kind}, type: {kind}, value: {{ file: \"{directory}/{kind}\" }}, apis: [svc] }}"))
            .collect();
        text.replace("\n  agents:", &format!("{added}\n  agents:"))
            .replace("credentials: [token]", "credentials: [\"*\"]")
    });
    bridge = bridge.open_again().await;

    let mut answers: Vec<String> = Vec::new();
    let mut send_request = async |request: reqwest::RequestBuilder| {
        let response = answer(request).await;
        let headers = format!("{:?}", response.headers());
        let text = response.text().await.unwrap();
        answers.extend([headers, text.clone()]);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    for (n, path) in ["/mirror", "/fail", "/nowhere"].iter().enumerate() {
        let headers: serde_json::Map<String, Value> = secrets
            .iter()
            .map(|(kind, _)| {
                (
                    format!("X-Slot-{kind}"),
                    json!({"credentialRef": {"id": format!("slot-{kind}")}}),
                )
            })
            .collect();
        let base = &bridge.service.base;
        let call = json!({"ApiCall": {"method": "POST", "url": format!("{base}{path}"), "outputPath": "/workflow/x", "headers": headers}});
        let copied = json!({"TransformData": {"inputPath": "/workflow/x", "transform": "select", "config": {"fields": ["x-slot-basic", "x-slot-custom"]}, "outputPath": "/workflow/y"}});
        let text = workflow(
            &format!("canary-{n}"),
            &[("call", call), ("copied", copied)],
        );
        let body = json!({"workflow": text, "onError": "continue"});
        let answer = send_request(bridge.execute(&body)).await;
        assert!(
            answer.to_string().contains("[REDACTED]") || n == 2,
            "{answer}"
        );
        send_request(bridge.get(&format!("/api/v1/executions/canary-{n}"))).await;
        send_request(bridge.post("/api/v1/workflows/validate", &json!({"workflow": text}))).await;
    }
    send_request(bridge.get("/api/v1/capabilities")).await;
    send_request(bridge.get("/api/v1/executions")).await;
    send_request(bridge.post(
        "/api/v1/capabilities/search",
        &json!({"query": "canary slot token basic custom", "top_k": 100}),
    ))
    .await;
    send_request(
        bridge
            .bare(reqwest::Method::GET, "/api/v1/capabilities")
            .bearer_auth("canary-wrong-key"),
    )
    .await;
    let (status, _) = fetch(bridge.get("/api/v1/executions/canary-0")).await;
    assert_eq!(status, StatusCode::OK);

    let collected = answers.join("\n");
    let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(
        logged.contains("draining"),
        "the log is that of the process"
    );
    let scraped = reqwest::get(format!("{}/metrics", bridge.admin))
        .await
        .unwrap();
    let scraped = scraped.text().await.unwrap();
    let planted = secrets
        .iter()
        .map(|(_, secret)| *secret)
        .chain([TOKEN, KEY]);
    for secret in planted.chain(["canary-pass-77aa", "canary-wrong-key"]) {
        for form in forms(secret) {
            for (place, text) in [
                ("answers", &collected),
                ("log", &logged),
                ("metrics", &scraped),
            ] {
                assert!(!text.contains(&form), "{secret} as {form} in {place}");
            }
        }
    }
    let shown = format!("{:?} {:?}", bridge.workflows, bridge.workflows.directory());
    for (_, secret) in secrets {
        assert!(!shown.contains(secret), "{shown}");
    }
}
