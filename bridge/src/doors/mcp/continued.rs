//! The parts of an answer, read to the end even if the client disconnects.
//!
//! In a session, a broken connection does not cancel a request; only `notifications/cancelled` does.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};

use super::stream::is_question;
use crate::calls::{CallError, Part};
use crate::results::Results;

type PartResult = Result<Part, CallError>;

/// The parts of an answer. If it is dropped before the last one, the rest is read in the background.
pub(super) struct Continued {
    /// `None` after the last part.
    parts: Option<BoxStream<'static, PartResult>>,
    /// Reads the rest; `None` if dropping cancels the call.
    results: Option<Arc<Results>>,
}

// === impl Continued ===

impl Continued {
    pub(super) fn new(
        parts: impl Stream<Item = PartResult> + Send + 'static,
        results: Option<Arc<Results>>,
    ) -> Self {
        Self {
            parts: Some(parts.boxed()),
            results,
        }
    }
}

impl Stream for Continued {
    type Item = PartResult;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PartResult>> {
        let Some(parts) = &mut self.parts else {
            return Poll::Ready(None);
        };
        let next = std::task::ready!(parts.poll_next_unpin(context));
        if !matches!(&next, Some(Ok(part)) if !part.last) {
            self.parts = None;
        }
        Poll::Ready(next)
    }
}

impl Drop for Continued {
    fn drop(&mut self) {
        let (Some(mut parts), Some(results)) = (self.parts.take(), &self.results) else {
            return;
        };
        results.spawn(async move {
            // Nobody can answer a question any more, so it cancels the call.
            while let Some(Ok(part)) = parts.next().await
                && !part.last
                && !is_question(&part.body)
            {}
        });
    }
}
