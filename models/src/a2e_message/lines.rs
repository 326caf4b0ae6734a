//! Splits a stream of chunks into lines. Source: docs/protocols/a2e-messages.md §1.3.

use a2abus_plugin::json::BYTE_ORDER_MARK;
use bytes::Bytes;

/// The text between two line ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A line without its end.
    Whole(Bytes),
    /// A line over the limit, which was skipped.
    TooLong,
}

/// Splits a stream at `\n` only. Buffers at most one line of the maximum length.
#[derive(Debug)]
pub struct Splitter {
    max_bytes: usize,
    /// The beginning of a line that continues in the next chunk.
    partial: Vec<u8>,
    is_too_long: bool,
    is_first: bool,
}

// === impl Splitter ===

impl Splitter {
    /// A splitter at the start of a stream, for lines of at most `max_bytes` bytes.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            partial: Vec::new(),
            is_too_long: false,
            is_first: true,
        }
    }

    /// Removes the next non-blank line from the front of a chunk; `None` when the chunk is used
    /// up.
    ///
    /// ```
    /// use a2abus_models::a2e_message::{Line, Splitter};
    ///
    /// let mut splitter = Splitter::new(100);
    /// assert_eq!(splitter.next_line(&mut "{\"a".into()), None);
    /// let mut piece = "\":1}\r\n\n{}".into();
    /// assert_eq!(splitter.next_line(&mut piece), Some(Line::Whole("{\"a\":1}".into())));
    /// assert_eq!(splitter.next_line(&mut piece), None);
    /// assert_eq!(splitter.finish(), Some(Line::Whole("{}".into())));
    /// ```
    pub fn next_line(&mut self, piece: &mut Bytes) -> Option<Line> {
        while let Some(end) = piece.iter().position(|b| *b == b'\n') {
            let start = piece.split_to(end + 1).slice(..end);
            if let Some(line) = self.end_line(start) {
                return Some(line);
            }
        }
        let rest = std::mem::take(piece);
        self.keep(&rest);
        None
    }

    /// Returns the last line of a stream that ended without a line end.
    pub fn finish(&mut self) -> Option<Line> {
        self.end_line(Bytes::new())
    }

    /// Ends a line with these bytes; `None` for a blank one.
    fn end_line(&mut self, bytes: Bytes) -> Option<Line> {
        let line = if self.partial.is_empty() && !self.is_too_long {
            self.is_too_long = bytes.len() > self.max_unended();
            bytes
        } else {
            self.keep(&bytes);
            std::mem::take(&mut self.partial).into()
        };
        let is_first = std::mem::take(&mut self.is_first);
        if std::mem::take(&mut self.is_too_long) {
            return Some(Line::TooLong);
        }
        let text = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first);
        let text = text.unwrap_or(&line).trim_ascii();
        if text.len() > self.max_bytes {
            return Some(Line::TooLong);
        }
        (!text.is_empty()).then(|| Line::Whole(line.slice_ref(text)))
    }

    /// The maximum length up to the `\n`. A `\r` before it is part of the line end.
    fn max_unended(&self) -> usize {
        self.max_bytes.saturating_add(1)
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.is_too_long || self.partial.len() + bytes.len() > self.max_unended() {
            self.is_too_long = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_does_not_count_the_line_end() {
        for pieces in [
            &["1234\r\n12345\r\n12345\n1234"][..],
            &["1234\r", "\n123", "45\r\n12345", "\n1234"],
        ] {
            let mut splitter = Splitter::new(4);
            let mut lines = Vec::new();
            for piece in pieces {
                let mut piece = Bytes::from_static(piece.as_bytes());
                lines.extend(std::iter::from_fn(|| splitter.next_line(&mut piece)));
            }
            lines.extend(splitter.finish());
            let whole = || Line::Whole("1234".into());
            assert_eq!(lines, [whole(), Line::TooLong, Line::TooLong, whole()]);
        }
    }
}
