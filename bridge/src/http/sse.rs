//! Answers in parts: server-sent events, one for each part.
//!
//! Source: docs/design.md §7.2; WHATWG HTML section 9.2, "Server-sent events".

pub(crate) mod read;

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use tokio::time::timeout;

use crate::budget::ClientBudget;

/// The time without an event after which a comment is sent, so that proxies do not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client that accepts a stream waits for the first part before the stream starts. Until then the response
/// can have an error status. After that, the open stream keeps proxies from closing the connection.
pub(crate) const UNTIL_STREAM: Duration = Duration::from_secs(15);
const KEEP_ALIVE_COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// The header in which a client that reconnects sends the id of the last event that it received.
pub(crate) const LAST_EVENT: &str = "last-event-id";

/// The media type of a stream of events.
const EVENTS: &str = "text/event-stream";

/// An event with more than data.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Its type, if it is not `message`.
    pub(crate) event: Option<&'static str>,
    /// The id, which a client sends as `Last-Event-ID` when it reconnects.
    pub(crate) id: Option<String>,
    /// The data.
    pub(crate) data: Bytes,
}

// === impl Frame ===

impl Frame {
    /// A message.
    pub(crate) fn of(data: impl Into<Bytes>) -> Self {
        let data = data.into();
        Self {
            event: None,
            id: None,
            data,
        }
    }

    /// An event of this type.
    pub(crate) fn named(event: &'static str, data: impl Into<Bytes>) -> Self {
        Self {
            event: Some(event),
            ..Self::of(data)
        }
    }

    /// A message with an id.
    pub(crate) fn with_id(id: String, data: impl Into<Bytes>) -> Self {
        Self {
            id: Some(id),
            ..Self::of(data)
        }
    }

    /// The event as it is sent.
    pub(crate) fn text(&self) -> Bytes {
        let mut head = String::new();
        for (field, value) in [("event", self.event), ("id", self.id.as_deref())] {
            if let Some(value) = value {
                head.push_str(&format!("{field}: {value}\n"));
            }
        }
        Bytes::from([head.as_bytes(), &frame(&self.data)].concat())
    }
}

/// A response that sends each frame as it comes. Dropping the response drops `frames`.
pub(crate) fn frames_response<S>(frames: S, budget: ClientBudget) -> Response
where
    S: Stream<Item = Frame> + Send + 'static,
{
    charged_response(frames.map(move |frame| budget.replace(frame.text())))
}

/// A response that sends each text as it comes. Dropping the response drops `texts`.
pub(crate) fn texts_response<S>(texts: S, budget: ClientBudget) -> Response
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    charged_response(texts.map(move |text| budget.replace(frame(&text))))
}

/// The same for events that are already written and charged, see [`Frame::text`].
pub(crate) fn charged_response<S>(events: S) -> Response
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    events_response(Body::from_stream(kept_alive(events)))
}

/// A response that is one event, of this type.
pub(crate) fn whole_response(body: &[u8], event: Option<&str>, budget: &ClientBudget) -> Response {
    let mut text = frame(body);
    if let Some(event) = event {
        text = Bytes::from([format!("event: {event}\n").as_bytes(), &text].concat());
    }
    events_response(Body::from(budget.replace(text)))
}

/// Whether a response is a stream of events.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    // A server may add a charset.
    let essence = kind.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case(EVENTS)
}

fn events_response(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENTS));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Without this, nginx would buffer the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The events, with keep-alive comments in between.
fn kept_alive<S>(events: S) -> impl Stream<Item = Result<Bytes, Infallible>> + Send
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    stream::unfold(Box::pin(events), |mut events| async move {
        // The next round continues the wait that a keep-alive interrupted: nothing of `events` is dropped.
        let event = match timeout(KEEP_ALIVE, events.next()).await {
            Err(_silence) => KEEP_ALIVE_COMMENT,
            Ok(event) => event?,
        };
        Some((Ok(event), events))
    })
}

/// One event. The body is JSON, in which line breaks only occur between tokens, where a space means the same. It becomes
/// one line, because some clients (the SDKs of A2A in Go and Java) read only one `data:` field of an event.
fn frame(body: &[u8]) -> Bytes {
    const FIELD: &[u8] = b"data: ";
    let mut out = BytesMut::with_capacity(FIELD.len() + body.len() + 2);
    out.extend_from_slice(FIELD);
    for (number, line) in body.split(|byte| matches!(byte, b'\r' | b'\n')).enumerate() {
        if number > 0 {
            out.extend_from_slice(b" ");
        }
        out.extend_from_slice(line);
    }
    out.extend_from_slice(b"\n\n");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_limit::LogLimits;
    use axum::body::to_bytes;
    use proptest::prelude::*;
    use std::pin::pin;

    fn budget() -> ClientBudget {
        let gauge = prometheus::IntGauge::new("held", "Bytes.").unwrap();
        let refused = prometheus::IntCounter::new("refused", "Refusals.").unwrap();
        crate::budget::Budget::new(1 << 20, gauge, refused, &LogLimits::default()).for_client(None)
    }

    /// The data of each event of a stream, read as the specification says.
    fn read(stream: &str) -> Vec<String> {
        let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
        let mut events = Vec::new();
        let mut data: Option<String> = None;
        for line in stream.split('\n') {
            if line.is_empty() {
                events.extend(data.take());
            } else if let Some(value) = line.strip_prefix("data:") {
                let value = value.strip_prefix(' ').unwrap_or(value);
                data = Some(data.map_or(value.to_owned(), |data| format!("{data}\n{value}")));
            } else {
                assert!(
                    line.starts_with(':'),
                    "{line:?} is neither data nor a comment"
                );
            }
        }
        assert_eq!(data, None, "the stream ends within an event");
        events
    }

    #[test]
    fn one_line_is_one_data_line() {
        assert_eq!(frame(br#"{"a":1}"#), "data: {\"a\":1}\n\n");
        assert_eq!(frame(b""), "data: \n\n");
    }

    #[test]
    fn an_event_is_one_line_whatever_ends_the_lines_of_its_body() {
        for body in ["{\n\"a\": 1\n}", "{\r\"a\": 1\r}"] {
            assert_eq!(frame(body.as_bytes()), "data: { \"a\": 1 }\n\n", "{body:?}");
        }
        assert_eq!(frame(b"{\r\n\"a\": 1}\n"), "data: {  \"a\": 1} \n\n");
        assert_eq!(frame(b"\n\r\n"), "data:    \n\n");
    }

    proptest! {
        #[test]
        fn a_reader_gets_back_what_was_framed(body in "[a-z:\r\n ]{0,40}") {
            let framed = frame(body.as_bytes());
            let events = read(std::str::from_utf8(&framed).unwrap());
            prop_assert_eq!(events, vec![body.replace(['\r', '\n'], " ")]);
        }
    }

    #[tokio::test]
    async fn each_text_is_an_event() {
        let texts = stream::iter(["{\"n\":1}", "{\n}"]).map(Bytes::from);
        let response = texts_response(texts, budget());
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-cache");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let events = read(std::str::from_utf8(&body).unwrap());
        assert_eq!(events, ["{\"n\":1}", "{ }"]);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_with_comments_and_loses_nothing() {
        let late = stream::once(async {
            tokio::time::sleep(Duration::from_secs(40)).await;
            frame(b"{}")
        });
        let mut frames = pin!(kept_alive(late));
        let start = tokio::time::Instant::now();
        assert_eq!(frames.next().await, Some(Ok(KEEP_ALIVE_COMMENT)));
        assert_eq!(start.elapsed(), KEEP_ALIVE);
        assert_eq!(frames.next().await, Some(Ok(KEEP_ALIVE_COMMENT)));
        assert_eq!(frames.next().await, Some(Ok(frame(b"{}"))));
        assert_eq!(start.elapsed(), Duration::from_secs(40));
        assert_eq!(frames.next().await, None);
    }

    #[tokio::test]
    async fn dropping_the_response_drops_the_parts() {
        let (guard, dropped) = tokio::sync::oneshot::channel::<()>();
        let parts = stream::unfold(guard, |guard| async {
            std::future::pending::<()>().await;
            Some((Bytes::from_static(b"{}"), guard))
        });
        let response = texts_response(parts, budget());
        drop(response);
        assert!(dropped.await.is_err());
    }
}
