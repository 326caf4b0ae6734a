//! What a JSON-RPC response holds.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::object;

/// The result or the error of a JSON-RPC response, unread. `null` is neither.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct RpcResponse<'a> {
    #[serde(default, borrow)]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(crate) error: Option<&'a RawValue>,
}

// === impl RpcResponse ===

impl<'a> RpcResponse<'a> {
    /// Reads a body. One that is no JSON object has neither.
    pub(crate) fn of(body: &'a [u8]) -> Self {
        object::from_slice(body).unwrap_or_default()
    }

    /// The code of its error.
    pub(crate) fn code(&self) -> Option<i64> {
        #[derive(Deserialize)]
        struct Error {
            code: i64,
        }
        let error: Error = serde_json::from_str(self.error?.get()).ok()?;
        Some(error.code)
    }

    /// The message of its error.
    pub(crate) fn message(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Error {
            message: String,
        }
        let error: Error = serde_json::from_str(self.error?.get()).ok()?;
        Some(error.message)
    }
}
