//! A service that workflows call: it counts, and answers when it is let.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::battery::within;
use axum::Router;
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Duration, sleep};

/// A service for workflows to call. `POST /orders` is counted; requests to `/held` wait until they are released; `GET
/// /users` lists users.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its base URL.
    pub base: String,
    posts: Arc<AtomicUsize>,
    /// Requests to `/held` that have come in.
    held: Arc<AtomicUsize>,
    /// How many of them may be answered.
    free: Arc<Semaphore>,
    _serving: Arc<Serving>,
}

/// Ends the service with the test.
#[derive(Debug)]
struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Service {
    /// Opens it on a free port.
    ///
    /// # Panics
    /// When there is none.
    pub async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let (posts, held) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let free = Arc::new(Semaphore::new(0));
        let posting = {
            let posts = Arc::clone(&posts);
            move || async move {
                let number = posts.fetch_add(1, Ordering::SeqCst) + 1;
                json_text(&json!({"posts": number}))
            }
        };
        let holding = {
            let (held, free) = (Arc::clone(&held), Arc::clone(&free));
            move || async move {
                held.fetch_add(1, Ordering::SeqCst);
                free.acquire().await.expect("it stays open").forget();
                json_text(&json!({"held": true}))
            }
        };
        let users = || async {
            json_text(&json!([{"name": "Ada", "points": 3}, {"name": "Bo", "points": 1}]))
        };
        let router = Router::new()
            .route("/users", get(users))
            .route("/orders", post(posting))
            .route("/held", get(holding.clone()).post(holding));
        let serving =
            tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self {
            base,
            posts,
            held,
            free,
            _serving: Arc::new(Serving(serving.abort_handle())),
        }
    }

    /// The requests to `POST /orders` so far.
    #[must_use]
    pub fn posts(&self) -> usize {
        self.posts.load(Ordering::SeqCst)
    }

    /// The requests to `/held` so far.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Waits until there were that many requests to `/held`.
    pub async fn until_held(&self, expected: usize) {
        within("the service is called", async {
            while self.held() < expected {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Answers that many of the requests that are held.
    pub fn release(&self, requests: usize) {
        self.free.add_permits(requests);
    }

    /// An operation that gets a path.
    #[must_use]
    pub fn get(&self, path: &str) -> Value {
        json!({"ApiCall": {"method": "GET", "url": format!("{}{path}", self.base), "outputPath": "/workflow/got"}})
    }

    /// An operation that posts to a path.
    #[must_use]
    pub fn post(&self, path: &str) -> Value {
        json!({"ApiCall": {
            "method": "POST", "url": format!("{}{path}", self.base), "body": {"n": 1}, "outputPath": "/workflow/posted",
        }})
    }
}

fn json_text(value: &Value) -> ([(&'static str, &'static str); 1], String) {
    ([("content-type", "application/json")], value.to_string())
}
