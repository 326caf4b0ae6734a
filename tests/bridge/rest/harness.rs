//! A bridge that executes workflows, a service for them to call, and clients.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_bridge::workflows::Workflows;
use a2abus_executor::{Environment, OpenError, RedbStore};
use a2abus_transports::AnyTransport;
use a2abus_transports::memory::Memory;
use axum::Router;
use axum::routing::any;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use support::battery::within;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The API keys of `reporter`, `other` and `blocked`.
pub(super) const KEY: &str = "reporter-key-0123456789";
pub(super) const OTHER_KEY: &str = "other-key";
pub(super) const BLOCKED_KEY: &str = "blocked-key";

/// The secret that `reporter` may send to the service.
pub(super) const TOKEN: &str = "tok-5f2a-very-secret";

/// A service: `/users` lists two users, `/slow` waits until it is released, `/mirror` answers with the request headers,
/// `/fail` does so with status 400.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) base: String,
    calls: Arc<AtomicUsize>,
    /// The headers of the latest call.
    last_headers: Arc<Mutex<HeaderMap>>,
    /// A permit for each call of `/slow` that may be answered.
    pub(super) gate: Arc<Semaphore>,
}

/// A bridge, with its configuration in its own directory.
pub(super) struct TestBridge {
    pub(super) door: String,
    pub(super) admin: String,
    pub(super) directory: tempfile::TempDir,
    pub(super) service: Service,
    pub(super) metrics: Arc<Metrics>,
    pub(super) workflows: Workflows,
    pub(super) stop: CancellationToken,
    pub(super) running: JoinHandle<()>,
}

// === impl Service ===

impl Service {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let json = |value: Value| ([(CONTENT_TYPE, "application/json")], value.to_string());
        let users = move || async move {
            json(json!([{"name": "Ana", "points": 120}, {"name": "Bo", "points": 80}]))
        };
        let held = Arc::clone(&gate);
        let slow = move || async move {
            held.acquire().await.unwrap().forget();
            json(json!({"slow": true}))
        };
        let mirrored = |headers: &HeaderMap| {
            let pairs = headers.iter().map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.as_str().to_owned(), Value::from(value))
            });
            Value::Object(pairs.collect())
        };
        let mirror = move |headers: HeaderMap| async move { json(mirrored(&headers)) };
        let fail = move |headers: HeaderMap| async move {
            (StatusCode::BAD_REQUEST, json(mirrored(&headers)))
        };
        let last_headers = Arc::<Mutex<HeaderMap>>::default();
        let (counter, last_headers_in) = (Arc::clone(&calls), Arc::clone(&last_headers));
        let count = axum::middleware::map_request(move |request: axum::extract::Request| {
            counter.fetch_add(1, Ordering::SeqCst);
            request
                .headers()
                .clone_into(&mut last_headers_in.lock().unwrap());
            async move { request }
        });
        let router = Router::new()
            .route("/users", any(users))
            .route("/slow", any(slow))
            .route("/mirror", any(mirror))
            .route("/fail", any(fail))
            .layer(count);
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            base,
            calls,
            last_headers,
            gate,
        }
    }

    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// A header of the latest call.
    pub(super) fn last_header(&self, name: &str) -> String {
        let last_headers = self.last_headers.lock().unwrap();
        let value = last_headers.get(name).map(|value| value.to_str().unwrap());
        value.unwrap_or_default().to_owned()
    }
}

// === impl House ===

impl TestBridge {
    /// In the real world.
    pub(super) async fn open() -> Self {
        Self::open_in(None).await
    }

    /// With another clock, network or store.
    pub(super) async fn open_in(world: Option<Environment>) -> Self {
        let service = Service::start().await;
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("reporter.key"), KEY).unwrap();
        std::fs::write(directory.path().join("token"), TOKEN).unwrap();
        let text = configuration(directory.path(), &service.base);
        std::fs::write(directory.path().join("a2abus.yaml"), text).unwrap();
        Self::run_in(directory, service, world).await
    }

    /// Starts it again, with the same directory, current configuration and service.
    pub(super) async fn open_again(self) -> Self {
        let (directory, service) = (self.directory, self.service);
        self.stop.cancel();
        within("the bridge ends", self.running).await.unwrap();
        drop(self.workflows);
        // Work on the store goes on to its end on a thread of its own, which keeps the file open till then.
        let store = directory.path().join("data/workflows.redb");
        within("the store is free", async {
            while store.exists() && matches!(RedbStore::open(&store), Err(OpenError::InUse(_))) {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        Self::run_in(directory, service, None).await
    }

    async fn run_in(
        directory: tempfile::TempDir,
        service: Service,
        world: Option<Environment>,
    ) -> Self {
        let file = directory.path().join("a2abus.yaml");
        let config = Config::load(&file, []).unwrap_or_else(|problems| panic!("{problems}"));
        let name = config.transports.keys().next().unwrap().clone();
        let memory = AnyTransport::Memory(Memory::default());
        let bridge = Bridge::build_in(config, BTreeMap::from([(name, memory)]), world);
        let bridge = bridge.await.unwrap();
        let (metrics, readiness) = (Arc::clone(bridge.metrics()), Arc::clone(bridge.readiness()));
        let (door, admin) = (bridge.door_address(), bridge.admin_address());
        let workflows = bridge.workflows().unwrap().clone();
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        within("the bridge is ready", async {
            while !readiness.is_ready() {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        Self {
            door: format!("http://{}", door.unwrap()),
            admin: format!("http://{}", admin.unwrap()),
            directory,
            service,
            metrics,
            workflows,
            stop,
            running,
        }
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Changes the configuration, as an operator would.
    pub(super) fn edit(&self, edit: impl Fn(String) -> String) {
        let text = configuration(self.directory.path(), &self.service.base);
        let new = self.file("new.yaml");
        std::fs::write(&new, edit(text)).unwrap();
        std::fs::rename(new, self.file("a2abus.yaml")).unwrap();
    }

    /// A request without a key.
    pub(super) fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        // The bridge closes idle connections soon here.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0);
        let client = client.no_proxy().build().unwrap();
        client.request(method, format!("{}{path}", self.door))
    }

    pub(super) fn get(&self, path: &str) -> RequestBuilder {
        self.bare(Method::GET, path).bearer_auth(KEY)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.bare(Method::POST, path).bearer_auth(KEY).json(body)
    }

    pub(super) fn execute(&self, body: &Value) -> RequestBuilder {
        self.post("/api/v1/workflows/execute", body)
    }

    /// Executes a workflow, which has to end.
    pub(super) async fn run(&self, workflow: &str) -> Value {
        let (status, answer) = fetch(self.execute(&json!({"workflow": workflow}))).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    pub(super) fn scraped(&self) -> String {
        self.metrics.render().unwrap()
    }
}

/// The status and the body of the answer.
pub(super) async fn fetch(request: RequestBuilder) -> (StatusCode, Value) {
    let response = answer(request).await;
    let status = response.status();
    (status, body(response).await)
}

pub(super) async fn answer(request: RequestBuilder) -> Response {
    within("there is an answer", request.send()).await.unwrap()
}

pub(super) async fn body(response: Response) -> Value {
    let text = within("the body comes", response.text()).await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(super) fn header(response: &Response, name: &str) -> String {
    let value = response.headers().get(name);
    value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
}

/// A workflow of these operations, in order.
pub(super) fn workflow(id: &str, operations: &[(&str, Value)]) -> String {
    let mut lines: Vec<String> = operations
        .iter()
        .map(|(id, operation)| {
            json!({"type": "operationUpdate", "operationId": id, "operation": operation})
                .to_string()
        })
        .collect();
    let order: Vec<_> = operations.iter().map(|(id, _)| id).collect();
    lines.push(
        json!({"type": "beginExecution", "executionId": id, "operationOrder": order}).to_string(),
    );
    lines.join("\n")
}

/// A call of the service.
pub(super) fn call(base: &str, method: &str, path: &str) -> Value {
    json!({"ApiCall": {"method": method, "url": format!("{base}{path}"), "outputPath": "/workflow/answer"}})
}

pub(super) fn wait(milliseconds: u64) -> Value {
    json!({"Wait": {"duration": milliseconds}})
}

fn configuration(directory: &Path, base: &str) -> String {
    let directory = directory.display();
    format!(
        r#"
instance: test
transports: {{ local: {{ type: memory }} }}
calls: {{ enabled: false }}
http:
  listen: "127.0.0.1:0"
  header_timeout: 500ms
  drain_grace: 2s
  allowed_origins: ["https://app.example.com"]
admin: {{ listen: "127.0.0.1:0" }}
limits: {{ max_bytes: 64KiB }}
workflows:
  enabled: true
  data_directory: {directory}/data
  apis:
    - id: svc
      base_url: {base}
      description: Users and orders.
      endpoints:
        - {{ path: /users, method: GET, description: All users with their points., parameters: {{ limit: {{ type: integer }} }} }}
    - {{ id: hidden, base_url: "https://hidden.example.com/v1" }}
  credentials:
    - {{ id: token, type: bearer-token, value: {{ file: "{directory}/token" }}, apis: [svc, hidden], description: The key of the service. }}
    - {{ id: unseen, type: api-key, value: {{ file: "{directory}/token" }}, apis: [hidden] }}
  agents:
    - id: reporter
      keys: [{{ file: "{directory}/reporter.key" }}]
      operations: ["*"]
      apis: [svc]
      credentials: [token]
      storages: [localStorage, sessionStorage]
      rates: {{ requests_per_minute: 1000, requests_per_hour: 10000 }}
    - id: other
      keys: [{{ sha256: 580843d03d2216ff1a275d0991bad66e4d1af871171d929e9de604b7959f9bca }}]
      operations: [Wait]
    - id: blocked
      keys: [{{ sha256: DD866A0B2A5217EC2BF5D5B17F7B3CB87860C0EDCDA08A9239493680A90CC2B2 }}]
      rates: {{ requests_per_minute: 0 }}
"#
    )
}
