//! Reads a whole request body, within a limit of size and time.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody as _};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::HeaderMap;
use http::header::EXPECT;
use tokio::time::timeout;

use crate::budget::{BudgetExhausted, ClientBudget};

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It is larger than the limit.
    TooLarge,
    /// There is no memory for it now.
    NoRoom,
    /// It did not arrive in time.
    TooSlow,
    /// The connection broke, or the body is not framed as it says.
    Broken,
}

/// How long the rest of a body that is too large is read and thrown away. A client that is still writing when its
/// connection closes often sees only that, not the answer.
const DISCARD_TIME: Duration = Duration::from_secs(1);
/// How much of it, in bytes.
const DISCARD_BYTES: usize = 16 << 20;

/// The whole body, charged to the purse for as long as any of it is held.
///
/// # Errors
/// By kind. Cancel-safe in that nothing is left behind.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit_bytes: usize,
    deadline: Duration,
    purse: &ClientBudget,
) -> Result<Bytes, BodyError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut stream = body.into_data_stream();
    let read = if announced > limit_bytes {
        Err(BodyError::TooLarge)
    } else {
        let collected = timeout(deadline, collect(&mut stream, limit_bytes, purse)).await;
        collected.unwrap_or(Err(BodyError::TooSlow))
    };
    // A client that asks before it sends has sent nothing.
    if read == Err(BodyError::TooLarge) && !headers.contains_key(EXPECT) {
        let discarded = timeout(DISCARD_TIME, discard(&mut stream)).await;
        tracing::debug!(
            whole = discarded.is_ok(),
            "a body over the limit was discarded"
        );
    }
    read
}

async fn collect(
    stream: &mut BodyDataStream,
    limit_bytes: usize,
    purse: &ClientBudget,
) -> Result<Bytes, BodyError> {
    let mut charge = purse.charge(0).map_err(no_room)?;
    let mut first = Bytes::new();
    // What a chunk is a slice of may be larger than the chunk, so that more than one are copied.
    let mut whole = BytesMut::new();
    let mut charged = 0;
    while let Some(chunk) = stream.next().await {
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
        charge
            .grow(takes.saturating_sub(charged))
            .map_err(no_room)?;
        charged = charged.max(takes);
    }
    // Most bodies are one chunk, which is not copied.
    let body = if whole.is_empty() {
        first
    } else {
        whole.freeze()
    };
    Ok(charge.carried_by(body))
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

    fn purse(bytes: usize) -> ClientBudget {
        let gauge = prometheus::IntGauge::new("held", "Bytes.").unwrap();
        let refused = prometheus::IntCounter::new("refused", "Refusals.").unwrap();
        Budget::new(bytes, gauge, refused).purse(None)
    }

    #[tokio::test]
    async fn a_body_for_which_there_is_no_memory_is_refused_while_it_arrives() {
        let kilobyte =
            stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 1 << 10])));
        let endless = Body::from_stream(kilobyte);
        let purse = purse(64 << 10);
        let refused = read(&HeaderMap::new(), endless, 1 << 30, TIME, &purse).await;
        assert_eq!(refused, Err(BodyError::NoRoom));
        let small = read(&HeaderMap::new(), Body::from("x"), 8, TIME, &purse).await;
        assert_eq!(
            small,
            Ok(Bytes::from("x")),
            "what was charged is given back"
        );
    }

    async fn check(body: Body, expected: Result<&'static str, BodyError>) {
        let read = read(&HeaderMap::new(), body, 8, TIME, &purse(1 << 20)).await;
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
    async fn throwing_away_ends() {
        let endless =
            stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 1 << 16])));
        check(Body::from_stream(endless), Err(BodyError::TooLarge)).await;
        let stalled = stream::iter([Ok::<_, Infallible>("123456789")]).chain(stream::pending());
        check(Body::from_stream(stalled), Err(BodyError::TooLarge)).await;
    }

    #[tokio::test]
    async fn a_broken_body_is_told() {
        let broken = stream::iter([Ok("{"), Err(std::io::Error::other("reset"))]);
        check(Body::from_stream(broken), Err(BodyError::Broken)).await;
    }
}
