//! An environment for tests: a virtual clock, fixed randomness, and a scripted client.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::environment::{
    Clock, HttpClient, HttpError, HttpRequest, HttpResponse, Random, Store, StoreError,
};

/// Stands still except for sleeps, which end at once.
#[derive(Default)]
pub(crate) struct VirtualClock {
    milliseconds: Arc<AtomicU64>,
    slept: Arc<Mutex<Vec<Duration>>>,
}

/// The time of day when a [`VirtualClock`] begins.
pub(crate) const START: Duration = Duration::from_secs(1_800_000_000);

impl VirtualClock {
    pub(crate) fn advance(&self, duration: Duration) {
        let milliseconds = u64::try_from(duration.as_millis()).unwrap();
        self.milliseconds.fetch_add(milliseconds, Ordering::SeqCst);
    }

    /// How long each sleep was.
    pub(crate) fn slept(&self) -> Vec<Duration> {
        self.slept.lock().unwrap().clone()
    }
}

impl Clock for VirtualClock {
    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.milliseconds.load(Ordering::SeqCst))
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + START + self.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (milliseconds, slept) = (Arc::clone(&self.milliseconds), Arc::clone(&self.slept));
        Box::pin(async move {
            let passed = u64::try_from(duration.as_millis()).unwrap();
            milliseconds.fetch_add(passed, Ordering::SeqCst);
            slept.lock().unwrap().push(duration);
        })
    }
}

/// The same bits every time.
pub(crate) struct FixedBits(pub(crate) u128);

impl Random for FixedBits {
    fn bits(&self) -> u128 {
        self.0
    }
}

/// Returns the scripted responses in turn, and repeats the last one, and records the requests.
pub(crate) struct ScriptedClient {
    clock: Arc<VirtualClock>,
    responses: Mutex<VecDeque<ScriptedResponse>>,
    requests: Mutex<Vec<HttpRequest>>,
}

/// The duration and the result of a request.
#[derive(Clone)]
pub(crate) struct ScriptedResponse {
    pub(crate) takes: Duration,
    pub(crate) answer: Result<HttpResponse, HttpError>,
}

impl ScriptedClient {
    pub(crate) fn new(
        clock: &Arc<VirtualClock>,
        responses: impl IntoIterator<Item = ScriptedResponse>,
    ) -> Self {
        Self {
            clock: Arc::clone(clock),
            responses: Mutex::new(responses.into_iter().collect()),
            requests: Mutex::default(),
        }
    }

    pub(crate) fn requests(&self) -> Vec<HttpRequest> {
        self.requests.lock().unwrap().clone()
    }
}

impl HttpClient for ScriptedClient {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let response = {
                let mut responses = self.responses.lock().unwrap();
                let response = responses.pop_front().expect("the script has an answer");
                if responses.is_empty() {
                    responses.push_back(response.clone());
                }
                response
            };
            let late = response.takes > request.timeout;
            self.clock.advance(response.takes.min(request.timeout));
            self.requests.lock().unwrap().push(request);
            if late {
                return Err(HttpError::Timeout);
            }
            response.answer
        })
    }
}

/// A response that takes no time.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> ScriptedResponse {
    let header = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    ScriptedResponse {
        takes: Duration::ZERO,
        answer: Ok(HttpResponse {
            status,
            headers: headers.iter().map(header).collect(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        }),
    }
}

/// A JSON response that takes no time.
pub(crate) fn json(status: u16, body: &str) -> ScriptedResponse {
    answer(status, &[("content-type", "application/json")], body)
}

/// No answer.
pub(crate) fn no_response(error: HttpError) -> ScriptedResponse {
    ScriptedResponse {
        takes: Duration::ZERO,
        answer: Err(error),
    }
}

/// A store that is never used.
pub(crate) struct NoStore;

impl Store for NoStore {
    fn get<'a>(
        &'a self,
        _: crate::environment::Table,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        Box::pin(async { Ok(None) })
    }

    fn write<'a>(
        &'a self,
        _: Vec<crate::environment::Change>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn scan<'a>(
        &'a self,
        _: crate::environment::Table,
        _: &'a str,
        _: &'a str,
        _: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
