//! The parts of an answer, for a response that is a stream or one document.

use a2abus_plugin::Text;
use futures_util::{Stream, stream};

use crate::calls::callid::CallId;
use crate::calls::{Answer, CallError, Part};

/// The parts of an answer, or the error in place of them. It always ends with the last part or with an error.
pub(in crate::doors) struct AnswerParts(Option<Result<Box<Answer>, CallError>>);

// === impl AnswerParts ===

impl AnswerParts {
    pub(in crate::doors) fn of(called: Result<Box<Answer>, CallError>) -> Self {
        Self(Some(called))
    }

    /// The error, if the call was refused.
    pub(super) fn refused(&self) -> Option<&CallError> {
        self.0.as_ref()?.as_ref().err()
    }

    /// The id of the call, if there is one.
    pub(super) fn call_id(&self) -> Option<CallId> {
        Some(self.0.as_ref()?.as_ref().ok()?.call_id())
    }

    /// The next part; `None` after the last one, or after an error. Cancel-safe.
    pub(in crate::doors) async fn next(&mut self) -> Option<Result<Part, CallError>> {
        let part = match self.0.as_mut()? {
            Ok(answer) => answer.next().await.unwrap_or_else(|| Err(no_end())),
            Err(error) => Err(error.clone()),
        };
        if !matches!(&part, Ok(part) if !part.last) {
            self.0 = None;
        }
        Some(part)
    }

    /// The last part.
    pub(in crate::doors) async fn last(&mut self) -> Result<Part, CallError> {
        while let Some(part) = self.next().await {
            let part = part?;
            if part.last {
                return Ok(part);
            }
        }
        Err(no_end())
    }

    /// The same as a stream.
    pub(in crate::doors) fn into_stream(
        self,
    ) -> impl Stream<Item = Result<Part, CallError>> + Send {
        // Boxed, because the stream moves it out and back for each part.
        stream::unfold(Box::new(self), |mut parts| async move {
            Some((parts.next().await?, parts))
        })
    }
}

/// The error of an answer that ended without its last part.
pub(super) fn no_end() -> CallError {
    CallError::BadAnswer(Text::from_static("it ended without its last part"))
}
