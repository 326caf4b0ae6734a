//! Requests with an `Idempotency-Key`: sent again they get the same answer, and no agent runs twice.
//!
//! The work goes on when its caller leaves, so that the answer is there when the caller comes back, to any replica.
//! Source: docs/design.md §7.5.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, response};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::common::Common;
use super::{CALL_ID, header_of};
use crate::calls::failure::{Failure, Reason, SOON};
use crate::clock;
use crate::doors::{Door, Refusal};
use crate::metrics::Keyed as Outcome;
use crate::results::{Claim, Kept, Results, Standing, digest_of, key_of};

/// The header.
const KEY: &str = "idempotency-key";
/// The header of an answer that was there before.
const REPLAY: HeaderName = HeaderName::from_static("idempotent-replay");
/// The longest key, in characters.
const MAX_KEY: usize = 255;
/// How much longer than its call the answer to a request may take, by the clocks of all replicas.
const MARGIN: Duration = Duration::from_secs(5);
/// Pieces of a stream that wait for a slow caller, at most.
const PIECES: usize = 16;

/// A request that this replica answers.
struct Work {
    results: Arc<Results>,
    /// Where its claim is in the log.
    key: String,
    call: Text,
    common: Common,
    /// The largest answer that is kept, in bytes.
    most: usize,
}

/// Has a request answered by `work`; one with a key at most once.
pub(super) async fn answered<R>(
    door: &Door,
    common: Common,
    head: Parts,
    body: Bytes,
    work: impl FnOnce(Common, Parts, Bytes) -> R,
) -> Result<Response, Refusal>
where
    R: Future<Output = Result<Response, Refusal>> + Send + 'static,
{
    let Some(key) = read_key(&head.headers)? else {
        return work(common, head, body).await;
    };
    let path = head.uri.path_and_query().map_or("", |path| path.as_str());
    let longest = door.calls.longest() + MARGIN;
    let mut claim = Claim {
        digest: digest_of([head.method.as_str().as_bytes(), path.as_bytes(), &body]),
        call: common.call.to_string().into(),
        until: clock::milliseconds(clock::now() + longest),
    };
    let key = key_of(&common.caller, &key);
    let until = Instant::now() + door.calls.patience(common.timeout);
    let mut unstarted = Unstarted {
        results: &door.results,
        claimed: Some((key.clone(), claim.call.clone())),
    };
    let standing = stand(&door.results, &key, (&mut claim, longest), until).await;
    if standing.is_ok() {
        unstarted.claimed = None;
    }
    drop(unstarted);
    door.metrics.keyed(outcome_of(&standing));
    match standing {
        Ok(Standing::Ours) => {
            let mine = Work {
                results: Arc::clone(&door.results),
                key,
                call: claim.call,
                common: common.clone(),
                most: door.largest_body(),
            };
            mine.done(work(common, head, body)).await
        }
        Ok(Standing::Answered(kept)) => {
            common.note_refusal("replayed");
            Ok(replayed(&kept))
        }
        Ok(other) => Err(refused(&other)),
        Err(refusal) => Err(refusal),
    }
}

/// A claim that nobody works on yet. It is given back when its caller leaves, or when nobody knows what became of it.
struct Unstarted<'a> {
    results: &'a Arc<Results>,
    /// The key, and the call that claims it.
    claimed: Option<(String, Text)>,
}

// === impl Unstarted ===

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        let Some((key, call)) = self.claimed.take() else {
            return;
        };
        let results = Arc::clone(self.results);
        self.results
            .spawn(async move { results.release(&key, &call).await });
    }
}

/// What becomes of a request with a key, once nobody else is answering it. Its claim lasts for that long from then on.
async fn stand(
    results: &Results,
    key: &str,
    (claim, longest): (&mut Claim, Duration),
    until: Instant,
) -> Result<Standing, Refusal> {
    loop {
        claim.until = clock::milliseconds(clock::now() + longest);
        let standing = results.claim(key, claim).await;
        let standing = standing.map_err(|error| {
            tracing::warn!(%error, "a request with an Idempotency-Key is refused: its key cannot be looked up");
            let message = "the record of idempotency keys cannot be reached: nothing was done; try again later";
            let failure = Failure::new(Reason::AgentUnavailable, message);
            (StatusCode::SERVICE_UNAVAILABLE, failure)
        })?;
        let is_running = matches!(standing, Standing::Running(_));
        if !is_running || timeout_at(until, results.until_settled(key)).await.is_err() {
            return Ok(standing);
        }
    }
}

fn outcome_of(standing: &Result<Standing, Refusal>) -> Outcome {
    match standing {
        Ok(Standing::Ours) => Outcome::First,
        Ok(Standing::Answered(_)) => Outcome::Replayed,
        Ok(Standing::Differs(_)) => Outcome::Differs,
        Ok(Standing::Running(_)) => Outcome::Running,
        Ok(Standing::Lost(_) | Standing::Forgotten) => Outcome::Lost,
        Err(_) => Outcome::Unavailable,
    }
}

/// Why a request with a key is not answered.
fn refused(standing: &Standing) -> Refusal {
    let (status, reason, message, call) = match standing {
        Standing::Differs(call) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::KeyReused,
            "this Idempotency-Key was sent with another request: send a new key, or the same request",
            Some(call),
        ),
        Standing::Running(call) => (
            StatusCode::CONFLICT,
            Reason::InProgress,
            "the request with this Idempotency-Key is still being answered: send it again later",
            Some(call),
        ),
        Standing::Lost(call) => (
            StatusCode::GATEWAY_TIMEOUT,
            Reason::AnswerLost,
            "the request with this Idempotency-Key was taken, and its answer is not known: its agent may have done the work; send it with a new key to have it done again",
            Some(call),
        ),
        Standing::Forgotten | Standing::Ours | Standing::Answered(_) => (
            StatusCode::GATEWAY_TIMEOUT,
            Reason::AnswerLost,
            "the request with this Idempotency-Key was answered, and the answer is not kept any more: send it with a new key to have it done again",
            None,
        ),
    };
    let failure = Failure::new(reason, message);
    let failure = match call {
        Some(call) => failure.detail("callId", call.as_str()),
        None => failure,
    };
    let failure = if status == StatusCode::CONFLICT {
        failure.detail("retryAfterSeconds", SOON)
    } else {
        failure
    };
    (status, failure)
}

/// The key of a request, without the quotes that a structured field has.
fn read_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut keys = headers.get_all(KEY).iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    let key = key.to_str().unwrap_or_default().trim();
    let bare = key
        .strip_prefix('"')
        .and_then(|key| key.strip_suffix('"'))
        .unwrap_or(key);
    let is_visible = bare.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if keys.next().is_none() && is_visible && (1..=MAX_KEY).contains(&bare.len()) {
        return Ok(Some(bare.to_owned()));
    }
    let message =
        format!("Idempotency-Key must be one value of 1 to {MAX_KEY} visible ASCII characters");
    let failure = Failure::new(Reason::InvalidParams, message);
    Err((StatusCode::BAD_REQUEST, failure))
}

// === impl Work ===

impl Work {
    /// Does it, whether its caller stays or not.
    async fn done(
        self,
        work: impl Future<Output = Result<Response, Refusal>> + Send + 'static,
    ) -> Result<Response, Refusal> {
        let (to_caller, response) = oneshot::channel();
        let results = Arc::clone(&self.results);
        results.spawn(async move {
            match work.await {
                // Nothing was sent.
                Err(refusal) => {
                    self.results.release(&self.key, &self.call).await;
                    drop(to_caller.send(Err(refusal)));
                }
                Ok(response) => self.answer(response, to_caller).await,
            }
        });
        response.await.unwrap_or_else(|_| {
            let message = "the request was given up: the bridge is shutting down";
            let failure = Failure::new(Reason::AgentUnavailable, message);
            Err((StatusCode::SERVICE_UNAVAILABLE, failure))
        })
    }

    /// Hands a response to the caller, and keeps it.
    async fn answer(
        self,
        mut response: Response,
        to_caller: oneshot::Sender<Result<Response, Refusal>>,
    ) {
        if !response.headers().contains_key(CALL_ID) {
            let call = header_of(&[self.common.call]);
            response.headers_mut().insert(CALL_ID, call);
        }
        let (head, body) = response.into_parts();
        let is_stream = head.headers.get("content-type");
        let is_stream = is_stream.is_some_and(|value| value == "text/event-stream");
        let whole = if is_stream {
            let (pieces, receiver) = mpsc::channel(PIECES);
            let pieces_sent = stream::unfold(receiver, |mut receiver| async move {
                let piece: Piece = receiver.recv().await?;
                Some((piece, receiver))
            });
            let live = Response::from_parts(head.clone(), Body::from_stream(pieces_sent));
            drop(to_caller.send(Ok(live)));
            self.collect(body, Some(pieces)).await
        } else {
            let whole = self.collect(body, None).await;
            let body = whole.clone().unwrap_or_default();
            let sent = Response::from_parts(head.clone(), Body::from(body));
            drop(to_caller.send(Ok(sent)));
            whole
        };
        if self.common.reached.is_nobody() {
            return self.results.release(&self.key, &self.call).await;
        }
        match whole.and_then(|body| kept(&head, &body)) {
            Some(kept) => self.results.keep(&self.key, &self.call, kept).await,
            None => self.results.give_up(&self.key, &self.call).await,
        }
    }

    /// All of a body, and each piece to the caller for as long as it listens. `None` for a body that is too large to be
    /// kept.
    async fn collect(&self, body: Body, to_caller: Option<mpsc::Sender<Piece>>) -> Option<Bytes> {
        let (mut stream, mut whole, mut is_kept) = (body.into_data_stream(), BytesMut::new(), true);
        while let Some(Ok(piece)) = stream.next().await {
            // A document is in memory already; a stream may have any length.
            is_kept &= to_caller.is_none() || whole.len() + piece.len() <= self.most;
            if is_kept {
                whole.extend_from_slice(&piece);
            }
            if let Some(to_caller) = &to_caller {
                // A caller that has left needs no more of it.
                drop(to_caller.send(Ok(piece)).await);
            }
        }
        is_kept.then(|| whole.freeze())
    }
}

type Piece = Result<Bytes, std::convert::Infallible>;

/// A response as it is kept; `None` where it is no text.
fn kept(head: &response::Parts, body: &Bytes) -> Option<Kept> {
    let headers = head.headers.iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?;
        Some((name.as_str().into(), value.into()))
    });
    Some(Kept {
        status: head.status.as_u16(),
        headers: headers.collect(),
        body: std::str::from_utf8(body).ok()?.into(),
    })
}

fn replayed(kept: &Kept) -> Response {
    let body = Bytes::copy_from_slice(kept.body.as_bytes());
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or_default();
    let headers = response.headers_mut();
    for (name, value) in &kept.headers {
        if let (Ok(name), Ok(value)) = (
            HeaderName::try_from(name.as_str()),
            HeaderValue::try_from(value.as_str()),
        ) {
            headers.insert(name, value);
        }
    }
    headers.insert(REPLAY, HeaderValue::from_static("true"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_visible_text() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(KEY, HeaderValue::from_static(value));
            }
            read_key(&headers).map_err(|(status, _)| status.as_u16())
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["a b"]), Ok(Some("a b".to_owned())));
        // RFC 9651: a string of a structured field.
        assert_eq!(read(&["\"8e03978e\""]), Ok(Some("8e03978e".to_owned())));
        for bad in [&[""][..], &["\"\""], &["a", "a"]] {
            assert_eq!(read(bad), Err(400), "{bad:?}");
        }
        let long: &'static str = "k".repeat(MAX_KEY + 1).leak();
        assert_eq!(read(&[long]), Err(400));
    }
}
