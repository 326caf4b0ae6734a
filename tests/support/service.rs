//! A service that workflows call: it counts, and answers when it is let.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::{get, post};
use serde_json::{Value, json};
use support::battery::within;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, yield_now};

#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) base: String,
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
    pub(super) async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
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
                free.acquire().await.unwrap().forget();
                json_text(&json!({"held": true}))
            }
        };
        let users = || async { json_text(&json!([{"name": "Ada", "points": 3}, {"name": "Bo", "points": 1}])) };
        let router = Router::new()
            .route("/users", get(users))
            .route("/orders", post(posting))
            .route("/held", get(holding.clone()).post(holding));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            base,
            posts,
            held,
            free,
            _serving: Arc::new(Serving(serving.abort_handle())),
        }
    }

    pub(super) fn posts(&self) -> usize {
        self.posts.load(Ordering::SeqCst)
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    pub(super) async fn until_held(&self, wanted: usize) {
        within("the service is called", async {
            while self.held() < wanted {
                yield_now().await;
            }
        })
        .await;
    }

    /// Answers that many of the requests that are held.
    pub(super) fn release(&self, requests: usize) {
        self.free.add_permits(requests);
    }

    pub(super) fn get(&self, path: &str) -> Value {
        json!({"ApiCall": {"method": "GET", "url": format!("{}{path}", self.base), "outputPath": "/workflow/got"}})
    }

    pub(super) fn post(&self, path: &str) -> Value {
        json!({"ApiCall": {
            "method": "POST", "url": format!("{}{path}", self.base), "body": {"n": 1}, "outputPath": "/workflow/posted",
        }})
    }
}

fn json_text(value: &Value) -> ([(&'static str, &'static str); 1], String) {
    ([("content-type", "application/json")], value.to_string())
}
