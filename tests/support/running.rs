//! A bridge that runs inside the test, and a client of its HTTP listener.

use std::sync::Arc;
use std::time::Duration;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_bridge::readiness::{Readiness, Report};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::battery::{DEADLINE, within};

/// A bridge that runs until it is stopped.
#[derive(Debug)]
pub struct Running {
    /// `http://host:port` of its HTTP listener.
    pub door: String,
    /// Its counters.
    pub metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// A response of the HTTP listener.
#[derive(Debug)]
pub struct Answered {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: String,
    /// The body.
    pub body: String,
}

// === impl Running ===

impl Running {
    /// Starts a bridge and waits until it is ready. The doors are opened on free ports.
    ///
    /// # Panics
    /// When the configuration is wrong or the bridge does not become ready.
    pub async fn start(configuration: &str) -> Self {
        let running = Self::launch(configuration).await;
        let ready = async {
            while !running.readiness.is_ready() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(DEADLINE, ready).await.is_err() {
            panic!("the bridge is not ready: {:?}", running.readiness.report());
        }
        running
    }

    /// As [`Running::start`], without waiting.
    ///
    /// # Panics
    /// When the configuration is wrong.
    pub async fn launch(configuration: &str) -> Self {
        let text = format!(
            "{configuration}\nhttp: {{ listen: '127.0.0.1:0', drain_grace: 20s }}\nadmin: {{ enabled: false }}\n"
        );
        let config = Config::read("test.yaml", &text, std::iter::empty())
            .unwrap_or_else(|problems| panic!("{problems}"));
        let bridge = Bridge::build(config).await.expect("the bridge is built");
        let door = format!(
            "http://{}",
            bridge.door_address().expect("the front door is open")
        );
        let (readiness, metrics) = (Arc::clone(bridge.readiness()), Arc::clone(bridge.metrics()));
        let stop = CancellationToken::new();
        let task = tokio::spawn(bridge.run(stop.clone()));
        Self {
            door,
            metrics,
            readiness,
            stop,
            task,
        }
    }

    /// Posts a body to a path of the HTTP listener.
    ///
    /// # Panics
    /// When there is no HTTP answer.
    pub async fn post(&self, path: &str, body: impl Into<String>) -> Answered {
        self.post_within(path, body, None).await
    }

    /// The same with a timeout in milliseconds.
    ///
    /// # Panics
    /// When there is no HTTP answer.
    pub async fn post_within(
        &self,
        path: &str,
        body: impl Into<String>,
        millis: Option<u32>,
    ) -> Answered {
        let client = reqwest::Client::builder()
            .no_proxy()
            .build()
            .expect("a client");
        let request = client
            .post(format!("{}{path}", self.door))
            .header("content-type", "application/json");
        let request = match millis {
            Some(millis) => request.header("x-a2a-timeout", millis),
            None => request,
        };
        let response = request
            .body(body.into())
            .send()
            .await
            .expect("an HTTP answer");
        let status = response.status().as_u16();
        let content_type = response
            .headers()
            .get("content-type")
            .map(|value| value.to_str().expect("ASCII").to_owned());
        let body = response.text().await.expect("a body");
        Answered {
            status,
            content_type: content_type.unwrap_or_default(),
            body,
        }
    }

    /// What `/readyz` would say.
    #[must_use]
    pub fn report(&self) -> Report {
        self.readiness.report()
    }

    /// Begins to drain it.
    pub fn begin_to_stop(&self) {
        self.stop.cancel();
    }

    /// Drains it.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn stop(self) {
        self.stop.cancel();
        within("the bridge drains", self.task)
            .await
            .expect("the bridge ends in order");
    }
}

// === impl Answered ===

impl Answered {
    /// The `data:` lines of an event stream.
    #[must_use]
    pub fn events(&self) -> Vec<&str> {
        self.body
            .lines()
            .filter_map(|line| line.strip_prefix("data:"))
            .map(str::trim_start)
            .collect()
    }
}
