//! The response of a server to a POST: one document, or a stream of events.

use std::collections::VecDeque;

use a2abus_plugin::json::BYTE_ORDER_MARK;
use bytes::{Buf as _, Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::Body;

use super::sse;
use super::sse::read::{Events, TooLarge};

/// The messages of one response.
#[derive(Debug)]
pub(crate) struct Messages<B> {
    body: B,
    /// The reader of a stream; `None` for one document.
    events: Option<Events>,
    /// The document so far.
    document: BytesMut,
    ready: VecDeque<Bytes>,
    is_over: bool,
    max_bytes: usize,
}

/// Why no further message can be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MessagesError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// An event is too large.
    #[error(transparent)]
    Event(#[from] TooLarge),
    /// The document is too large.
    #[error("the answer has more than {0} bytes")]
    Document(usize),
}

// === impl Messages ===

impl<B> Messages<B>
where
    B: Body<Data = Bytes, Error: std::error::Error> + Unpin,
{
    /// The messages of a response, of at most this many bytes each.
    pub(crate) fn of(response: impl Into<Response<B>>, max_bytes: usize) -> Self {
        let (head, body) = response.into().into_parts();
        let is_stream = sse::is_stream(&head.headers);
        Self {
            events: is_stream.then(|| Events::new(max_bytes)),
            body,
            document: BytesMut::new(),
            ready: VecDeque::new(),
            is_over: false,
            max_bytes,
        }
    }

    /// Whether there may be several messages.
    pub(crate) fn is_stream(&self) -> bool {
        self.events.is_some()
    }

    /// The next message; `None` after the last. An empty document is no message. Cancel-safe.
    ///
    /// # Errors
    /// When the rest cannot be read.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, MessagesError> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            if self.is_over {
                return Ok(None);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    // Trailers are ignored.
                    if let Ok(piece) = frame.into_data() {
                        self.take(&piece)?;
                    }
                }
                None => {
                    self.is_over = true;
                    let mut document = self.document.split().freeze();
                    if document.starts_with(BYTE_ORDER_MARK) {
                        document.advance(BYTE_ORDER_MARK.len());
                    }
                    self.ready
                        .extend((!document.is_empty()).then_some(document));
                }
                Some(Err(error)) => return Err(MessagesError::Broken(innermost(&error))),
            }
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), MessagesError> {
        if let Some(events) = &mut self.events {
            self.ready.extend(events.push(piece)?);
            return Ok(());
        }
        if self.document.len() + piece.len() > self.max_bytes {
            return Err(MessagesError::Document(self.max_bytes));
        }
        self.document.extend_from_slice(piece);
        Ok(())
    }
}

/// The innermost cause: the error of the system or the peer.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[tokio::test]
    async fn a_byte_order_mark_is_no_part_of_a_document() {
        for (body, expected) in [
            ("\u{feff}{}", Some("{}")),
            ("{}", Some("{}")),
            ("\u{feff}", None),
        ] {
            let response = Response::new(Full::<Bytes>::from(body));
            let mut messages = Messages::<Full<Bytes>>::of(response, 100);
            let message = messages.next().await.unwrap();
            assert_eq!(message.as_deref(), expected.map(str::as_bytes), "{body:?}");
        }
    }
}
