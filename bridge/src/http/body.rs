//! Reads a whole request body, within limits of size and time.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody as _};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, poll};
use http::HeaderMap;
use http::header::EXPECT;
use tokio::time::{Instant, timeout};

use super::late;
use crate::budget::{Arriving, BudgetExhausted, Charge, ClientBudget};

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It is larger than the limit.
    TooLarge,
    /// There is no memory for it at the moment.
    NoRoom,
    /// It did not arrive in time.
    TooSlow,
    /// The connection broke, or the framing of the body is not valid.
    Broken,
}

/// How long a body may take while the bodies that are being received use much of the budget.
const HURRY: Duration = Duration::from_secs(1);
/// How long the rest of an oversized body is read and discarded. A client that is still writing when its connection
/// closes often does not see the answer.
const DISCARD_TIME: Duration = Duration::from_secs(1);
/// How many bytes of it are discarded.
const DISCARD_BYTES: usize = 16 << 20;

/// Reads the whole body, and charges it to the budget for as long as any of it is held.
///
/// # Errors
/// See [`BodyError`].
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit_bytes: usize,
    deadline: Duration,
    budget: &ClientBudget,
) -> Result<Bytes, BodyError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut stream = body.into_data_stream();
    let read = if announced > limit_bytes {
        Err(BodyError::TooLarge)
    } else {
        let arrived = AtomicUsize::new(0);
        let mut collecting = pin!(collect(&mut stream, limit_bytes, budget, &arrived));
        // Most bodies have arrived with their head, and need no timer.
        match poll!(collecting.as_mut()) {
            Poll::Ready(collected) => collected,
            Poll::Pending => {
                tokio::select! {
                    biased;
                    collected = collecting => collected,
                    error = out_of_time(deadline, budget, &arrived) => Err(error),
                }
            }
        }
    };
    // A client that sends `Expect` has not sent the body.
    if read == Err(BodyError::TooLarge) && !headers.contains_key(EXPECT) {
        let discarded = timeout(DISCARD_TIME, discard(&mut stream)).await;
        tracing::debug!(
            whole = discarded.is_ok(),
            "a body over the limit was discarded"
        );
    }
    read
}

/// Waits until a body may take no longer: until the deadline, or less while others need the memory.
async fn out_of_time(
    deadline: Duration,
    budget: &ClientBudget,
    arrived: &AtomicUsize,
) -> BodyError {
    let end = Instant::now() + deadline;
    loop {
        let next = end.min(Instant::now() + HURRY);
        late::passed(next).await;
        if next == end {
            return BodyError::TooSlow;
        }
        if let Err(exhausted) = budget.check_crowd(arrived.load(Ordering::Relaxed)) {
            return no_room(exhausted);
        }
    }
}

/// Receives the body. `arrived` is what counts for it meanwhile.
async fn collect(
    stream: &mut BodyDataStream,
    limit_bytes: usize,
    budget: &ClientBudget,
    arrived: &AtomicUsize,
) -> Result<Bytes, BodyError> {
    // Charged with the first chunk, which nearly always is the whole body.
    let mut charge: Option<Charge> = None;
    // Counted only if the client has not sent the rest yet.
    let mut arriving: Option<Arriving> = None;
    let mut first = Bytes::new();
    // A chunk may be a slice of a larger buffer, so several chunks are copied into one.
    let mut whole = BytesMut::new();
    let mut charged = 0;
    loop {
        let polled = poll!(stream.next());
        let chunk = match polled {
            Poll::Ready(chunk) => chunk,
            Poll::Pending => {
                if charged > 0 {
                    let arriving = arriving.get_or_insert_with(|| budget.arriving());
                    arriving.count(charged).map_err(no_room)?;
                    arrived.store(charged, Ordering::Relaxed);
                }
                stream.next().await
            }
        };
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(|_| BodyError::Broken)?;
        let length = first.len().max(whole.len()) + chunk.len();
        if length > limit_bytes {
            return Err(BodyError::TooLarge);
        }
        if first.is_empty() && whole.is_empty() {
            first = chunk;
        } else {
            whole.extend_from_slice(&std::mem::take(&mut first));
            whole.extend_from_slice(&chunk);
        }
        let takes = length.max(whole.capacity());
        match &mut charge {
            Some(charge) => charge.grow(takes.saturating_sub(charged)),
            none => budget.charge(takes).map(|first| *none = Some(first)),
        }
        .map_err(no_room)?;
        charged = charged.max(takes);
    }
    // Most bodies are a single chunk, which is not copied.
    let body = if whole.is_empty() {
        first
    } else {
        whole.freeze()
    };
    Ok(match charge {
        Some(charge) => charge.carried_by(body),
        None => body,
    })
}

fn no_room(_: BudgetExhausted) -> BodyError {
    BodyError::NoRoom
}

async fn discard(stream: &mut BodyDataStream) {
    let mut discarded = 0;
    while let Some(Ok(chunk)) = stream.next().await {
        discarded += chunk.len();
        if discarded > DISCARD_BYTES {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::log_limit::LogLimits;
    use futures_util::stream;
    use std::convert::Infallible;

    const TIME: Duration = Duration::from_secs(5);

    fn chunks(chunks: &[&'static str]) -> Body {
        let chunks: Vec<_> = chunks
            .iter()
            .map(|chunk| Ok::<_, Infallible>(*chunk))
            .collect();
        Body::from_stream(stream::iter(chunks))
    }

    fn budget(bytes: usize) -> ClientBudget {
        let gauge = prometheus::IntGauge::new("held", "Bytes.").unwrap();
        let refused = prometheus::IntCounter::new("refused", "Refusals.").unwrap();
        Budget::new(bytes, gauge, refused, &LogLimits::default()).for_client(None)
    }

    #[tokio::test]
    async fn a_body_without_memory_for_it_is_refused_while_it_arrives() {
        let kilobyte =
            stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 1 << 10])));
        let endless = Body::from_stream(kilobyte);
        let budget = budget(64 << 10);
        let refused = read(&HeaderMap::new(), endless, 1 << 30, TIME, &budget).await;
        assert_eq!(refused, Err(BodyError::NoRoom));
        let small = read(&HeaderMap::new(), Body::from("x"), 8, TIME, &budget).await;
        assert_eq!(small, Ok(Bytes::from("x")), "the charge is released");
    }

    /// A body of which only the beginning arrives.
    fn unfinished(bytes: usize) -> Body {
        let begun = stream::iter([Ok::<_, Infallible>(Bytes::from(vec![b' '; bytes]))]);
        Body::from_stream(begun.chain(stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_bodies_do_not_use_the_memory_of_complete_ones() {
        let (budget, headers) = (budget(64 << 10), HeaderMap::new());
        let read = |body| read(&headers, body, 1 << 20, TIME, &budget);
        let start = Instant::now();
        let first = async {
            let first = read(unfinished(20 << 10)).await;
            (first, start.elapsed().as_secs())
        };
        let second = read(unfinished(20 << 10));
        let small = async {
            tokio::time::sleep(HURRY / 2).await;
            read(unfinished(1 << 10)).await
        };
        let whole = read(Body::from(vec![b' '; 20 << 10]));
        let (first, second, small, whole) = tokio::join!(first, second, small, whole);
        assert_eq!(second, Err(BodyError::NoRoom));
        assert_eq!(whole.map(|body| body.len()), Ok(20 << 10));
        let hurried = (Err(BodyError::NoRoom), HURRY.as_secs());
        assert_eq!(first, hurried, "it must hurry for the others");
        assert_eq!(small, Err(BodyError::TooSlow));
        // Alone, it may take its time.
        let start = Instant::now();
        assert_eq!(read(unfinished(20 << 10)).await, Err(BodyError::TooSlow));
        assert_eq!(start.elapsed().as_secs(), TIME.as_secs());
        // But it must leave room for the beginning of others.
        assert_eq!(read(unfinished(30 << 10)).await, Err(BodyError::NoRoom));
    }

    async fn check(body: Body, expected: Result<&'static str, BodyError>) {
        let read = read(&HeaderMap::new(), body, 8, TIME, &budget(1 << 20)).await;
        assert_eq!(read, expected.map(Bytes::from));
    }

    #[tokio::test]
    async fn bodies_up_to_the_limit_are_read_whole() {
        check(Body::empty(), Ok("")).await;
        check(Body::from("12345678"), Ok("12345678")).await;
        check(chunks(&["12", "", "345", "678"]), Ok("12345678")).await;
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_whether_announced_or_not() {
        check(Body::from("123456789"), Err(BodyError::TooLarge)).await;
        check(chunks(&["1234", "5678", "9"]), Err(BodyError::TooLarge)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_coming_is_given_up() {
        let stalled = stream::iter([Ok::<_, Infallible>("{")]).chain(stream::pending());
        check(Body::from_stream(stalled), Err(BodyError::TooSlow)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn discarding_ends() {
        let endless =
            stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 1 << 16])));
        check(Body::from_stream(endless), Err(BodyError::TooLarge)).await;
        let stalled = stream::iter([Ok::<_, Infallible>("123456789")]).chain(stream::pending());
        check(Body::from_stream(stalled), Err(BodyError::TooLarge)).await;
    }

    #[tokio::test]
    async fn a_broken_body_is_an_error() {
        let broken = stream::iter([Ok("{"), Err(std::io::Error::other("reset"))]);
        check(Body::from_stream(broken), Err(BodyError::Broken)).await;
    }
}
