//! Limits above which a payload is refused.

use crate::error::{DecodeError, DecodeErrorKind};

/// Limits on one payload: take the default, and change what you need. A payload that exceeds a limit is refused. In a
/// payload of lines, a line with too many members or levels is refused, and the other lines are still read. Time and
/// memory are linear in the bytes read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Largest payload, in bytes (default 1 MiB).
    pub max_bytes: usize,
    /// Deepest nesting of objects and arrays, at most 128 (default 128).
    pub max_depth: u32,
    /// Maximum number of object members and array elements in the payload (default 200,000). Those of an object or
    /// array that exceeds a limit do not always count.
    pub max_members: u32,
    /// Maximum number of elements of a batch or lines of a document (default 1,000).
    pub max_units: usize,
}

/// The maximum of [`Limits::max_depth`]: the reader's stack has 128 bits, one per level.
pub(crate) const DEPTH_CEILING: u32 = 128;

/// The largest document that can be read, regardless of the limits (1 GiB): offsets and lengths have 30 bits.
pub(crate) const MAX_DOCUMENT_BYTES: usize = (1 << 30) - 1;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 20,
            max_depth: DEPTH_CEILING,
            max_members: 200_000,
            max_units: 1_000,
        }
    }
}

impl Limits {
    /// Refuses a document that is too large.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn check_bytes(&self, document: &[u8]) -> Result<(), DecodeError> {
        let max_bytes = self.max_bytes.min(MAX_DOCUMENT_BYTES);
        if document.len() <= max_bytes {
            return Ok(());
        }
        let message = format!("larger than the limit of {max_bytes} bytes (limits.max_bytes)");
        Err(DecodeError::new(
            DecodeErrorKind::TooLarge,
            max_bytes,
            message,
        ))
    }
}
