//! Recorded HTTP responses.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use a2abus_models::a2e_workflow::target::Target;
use a2abus_models::{Json, Number, Object};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::environment::{HttpClient, HttpError, HttpRequest, HttpResponse};
use crate::virtual_clock::VirtualClock;

/// Responds to requests as recorded, and remembers the requests. Other requests fail without a connection.
#[derive(Debug)]
pub struct Recorded {
    clock: VirtualClock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The responses by method and URL, and how many have been used.
    answers: HashMap<String, (Vec<Json>, usize)>,
    requests: Vec<Json>,
    /// Requests without a recorded response, as `METHOD URL`.
    unanswered: BTreeSet<String>,
}

// === impl Recorded ===

impl Recorded {
    /// The responses by `"METHOD URL"`, as in a case. A recorded timeout advances the clock.
    #[must_use]
    pub fn new(fixtures: &Object, clock: VirtualClock) -> Self {
        let answers = fixtures.iter().map(|(request, answers)| {
            let answers = answers.as_array().map(|answers| answers.to_vec());
            (normal(request), (answers.unwrap_or_default(), 0))
        });
        Self {
            clock,
            state: Mutex::new(State {
                answers: answers.collect(),
                ..State::default()
            }),
        }
    }

    /// The requests, each as `{"method","url","headers","body"?}`.
    #[must_use]
    pub fn requests(&self) -> Vec<Json> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.requests.clone()
    }

    /// The requests without a recorded response, as `METHOD URL`, without repetitions.
    pub(super) fn unanswered(&self) -> BTreeSet<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.unanswered.clone()
    }

    fn next(&self, request: &HttpRequest) -> Option<Json> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.requests.push(as_written(request));
        let key = format!("{} {}", request.method.as_str(), request.target.as_str());
        let answer = state.answers.get_mut(&key).and_then(|(answers, given)| {
            let answer = answers.get(*given).or(answers.last()).cloned();
            *given += 1;
            answer
        });
        if answer.is_none() {
            state.unanswered.insert(key);
        }
        answer
    }

    fn answer(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.next(request).ok_or(HttpError::Connect)?;
        match answer.get("error").and_then(Json::as_str) {
            Some("timeout") => {
                self.clock.advance(request.timeout);
                return Err(HttpError::Timeout);
            }
            Some(_) => return Err(HttpError::Connect),
            None => {}
        }
        let body = match (answer.get("body"), answer.get("body_text")) {
            (Some(body), _) => Bytes::from(body.to_string()),
            (None, Some(Json::String(text))) => text.to_bytes(),
            (None, _) => Bytes::new(),
        };
        if body.len() > request.max_response_bytes {
            return Err(HttpError::TooLarge);
        }
        let headers = answer.get("headers").and_then(Json::as_object);
        let header = |(name, value): (&_, &Json)| {
            let name: &a2abus_plugin::Text = name;
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            (name.to_ascii_lowercase(), text)
        };
        let status = answer
            .get("status")
            .and_then(Json::as_number)
            .map(Number::as_f64)
            .unwrap_or(200.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A status fits.
        let status = status as u16;
        Ok(HttpResponse {
            status,
            headers: headers
                .map(|headers| headers.iter().map(header).collect())
                .unwrap_or_default(),
            body,
        })
    }
}

impl HttpClient for Recorded {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        async move { self.answer(&request) }.boxed()
    }
}

/// The request of a fixture, with its URL as a client sends it.
fn normal(request: &str) -> String {
    let Some((method, url)) = request.split_once(' ') else {
        return request.to_owned();
    };
    let target = Target::parse(url).map(|target| target.as_str().to_owned());
    format!("{method} {}", target.unwrap_or_else(|_| url.to_owned()))
}

fn as_written(request: &HttpRequest) -> Json {
    let mut members = vec![
        ("method", Json::from(request.method.as_str())),
        ("url", request.target.as_str().into()),
    ];
    let headers = request.headers.iter();
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.as_str().into()));
    members.push(("headers", Json::object(headers)));
    members.extend(request.body.as_ref().map(|body| {
        let text = || Json::from(String::from_utf8_lossy(body).into_owned());
        ("body", crate::parse(body).unwrap_or_else(|_| text()))
    }));
    Json::object(members)
}
