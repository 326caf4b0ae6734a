//! The fingerprints of requests, and the answers that are stored.

use super::*;
use crate::budget::Budget;
use crate::log_limit::LogLimits;

/// A body of ten pieces, and its collector.
fn collected(max_bytes: usize) -> (CollectedBody, Body, Vec<Bytes>) {
    let gauge = prometheus::IntGauge::new("held", "Bytes.").unwrap();
    let refused = prometheus::IntCounter::new("refused", "Refusals.").unwrap();
    let budget = Budget::new(1 << 20, gauge, refused, &LogLimits::default()).for_client(None);
    let pieces: Vec<Bytes> = (0..10).map(|n| Bytes::from(format!("piece {n}"))).collect();
    let whole = pieces.clone().into_iter().map(BodyChunk::Ok);
    let body = Body::from_stream(stream::iter(whole));
    (
        CollectedBody::new(budget.charge(0).ok(), max_bytes),
        body,
        pieces,
    )
}

#[tokio::test]
async fn all_replays_of_an_answer_share_its_body() {
    let stored_response = StoredResponse {
        status: 200,
        headers: Vec::new(),
        body: Text::from("x".repeat(1_000)),
    };
    for _ in 0..2 {
        let body = replayed(&stored_response).into_body();
        let piece = body.into_data_stream().next().await.unwrap().unwrap();
        assert_eq!(piece, stored_response.body.as_bytes());
        assert_eq!(piece.as_ptr(), stored_response.body.as_ptr());
    }
}

#[test]
fn an_event_in_binary_mode_is_another_request_with_other_attributes() {
    let digest = |headers: &[(&'static str, &'static str)]| {
        let mut request = http::Request::post("/rpc");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        digest_of_request(&request.body(()).unwrap().into_parts().0, b"{}")
    };
    let (version, a) = (("ce-specversion", "1.0"), ("ce-targetagent", "a"));
    let event = digest(&[version, a, ("ce-id", "1"), ("ce-time", "1")]);
    for same in [
        &[a, version, ("ce-id", "2")][..],
        &[version, a, ("traceparent", "t")],
        &[version, a, ("ce-traceparent", "t"), ("ce-expirytime", "2")],
    ] {
        assert_eq!(digest(same), event, "{same:?}");
    }
    assert_ne!(digest(&[version, ("ce-targetagent", "b")]), event);
    assert_ne!(digest(&[version]), event);
    // The headers of other requests do not count.
    assert_eq!(digest(&[a]), digest(&[]));
}

fn rest(collected: CollectedBody, pieces: mpsc::Sender<BodyChunk>) -> UnreadPieces {
    UnreadPieces {
        waiting: collected.waiting,
        pieces,
        charge: collected.charge,
    }
}

#[tokio::test]
async fn an_answer_is_stored_even_if_its_caller_reads_nothing() {
    let (mut collected, body, pieces) = collected(1_000);
    let (mut to_caller, mut caller) = mpsc::channel(1);
    collected.stream(body, &mut to_caller).await;
    assert!(collected.charge.is_some());
    assert_eq!(collected.whole, pieces.concat());
    // The caller gets all of it once it reads on.
    let received = async {
        let mut received = Vec::new();
        while let Some(Ok(piece)) = caller.recv().await {
            received.push(piece);
        }
        received
    };
    let sent = rest(collected, to_caller).hand_over();
    assert_eq!(tokio::join!(sent, received).1, pieces);
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_stored_but_reaches_its_caller() {
    let (mut collected, body, pieces) = collected(20);
    let (mut to_caller, mut caller) = mpsc::channel(1);
    let sent = async {
        collected.stream(body, &mut to_caller).await;
        assert!(collected.charge.is_none() && collected.whole.is_empty());
        rest(collected, to_caller).hand_over().await;
    };
    let received = async {
        let mut received = Vec::new();
        while let Some(Ok(piece)) = caller.recv().await {
            received.push(piece);
        }
        received
    };
    assert_eq!(tokio::join!(sent, received).1, pieces);
}

#[test]
fn a_key_is_one_visible_ascii_value() {
    let read = |values: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static(value));
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
