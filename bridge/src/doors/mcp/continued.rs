//! The parts of an answer, read to the end even if the client disconnects.
//!
//! In a session, a broken connection does not cancel a request; only `notifications/cancelled` does.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, Stream, StreamExt as _};

use crate::calls::{CallError, Part};
use crate::results::Results;

type PartResult = Result<Part, CallError>;

/// The parts of an answer. If it is dropped before the last one, the rest is read in the background.
pub(super) struct Continued {
    /// `None` after the last part.
    parts: Option<BoxStream<'static, PartResult>>,
    /// Reads the rest, and whether a question of the agent is open; `None` if dropping cancels the call.
    background: Option<(Arc<Results>, Arc<AtomicBool>)>,
}

// === impl Continued ===

impl Continued {
    pub(super) fn new(
        parts: impl Stream<Item = PartResult> + Send + 'static,
        background: Option<(Arc<Results>, Arc<AtomicBool>)>,
    ) -> Self {
        Self {
            parts: Some(parts.boxed()),
            background,
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
        let (Some(mut parts), Some((results, has_question))) =
            (self.parts.take(), self.background.take())
        else {
            return;
        };
        results.spawn(async move {
            loop {
                // The client's answer to a question may have arrived before the client disconnected.
                let part = match parts.next().now_or_never() {
                    Some(part) => part,
                    None if has_question.load(Ordering::Relaxed) => {
                        tracing::debug!("an MCP client disconnected before it answered a question: its call is cancelled, because it cannot fetch the answer");
                        return;
                    }
                    None => parts.next().await,
                };
                if !matches!(&part, Some(Ok(part)) if !part.last) {
                    return;
                }
            }
        });
    }
}
