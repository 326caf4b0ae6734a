//! Reads a stream of server-sent events, as a client does.

use a2abus_plugin::json::BYTE_ORDER_MARK;
use bytes::{Buf as _, Bytes, BytesMut};

/// Reads the events of one stream, whose bytes arrive in pieces.
#[derive(Debug)]
pub(crate) struct Events {
    /// The incomplete line.
    line: BytesMut,
    /// The data of the incomplete event.
    data: BytesMut,
    has_data: bool,
    /// Whether the first line has ended. It may begin with a byte order mark.
    has_begun: bool,
    /// The previous line ended with CR; an LF that follows belongs to it.
    after_cr: bool,
    max_bytes: usize,
}

/// An event is larger than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream has more than {0} bytes")]
pub(crate) struct TooLarge(usize);

// === impl Events ===

impl Events {
    /// Reads events of at most this many bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            line: BytesMut::new(),
            data: BytesMut::new(),
            has_data: false,
            has_begun: false,
            after_cr: false,
            max_bytes,
        }
    }

    /// Reads the next piece. Returns the data of the events that it completes.
    ///
    /// # Errors
    /// [`TooLarge`]: the stream cannot be read any further.
    pub(crate) fn push(&mut self, mut piece: &[u8]) -> Result<Vec<Bytes>, TooLarge> {
        let mut events = Vec::new();
        while !piece.is_empty() {
            if std::mem::take(&mut self.after_cr) && piece[0] == b'\n' {
                piece.advance(1);
                continue;
            }
            let end = piece.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            self.line
                .extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
            if self.line.len() + self.data.len() > self.max_bytes {
                return Err(TooLarge(self.max_bytes));
            }
            let Some(end) = end else { break };
            self.after_cr = piece[end] == b'\r';
            piece.advance(end + 1);
            events.extend(self.end_line());
        }
        Ok(events)
    }

    /// The data of the event, if the line ends one.
    fn end_line(&mut self) -> Option<Bytes> {
        let mut line = self.line.split();
        if !std::mem::replace(&mut self.has_begun, true) && line.starts_with(BYTE_ORDER_MARK) {
            line.advance(BYTE_ORDER_MARK.len());
        }
        if line.is_empty() {
            let has_data = std::mem::take(&mut self.has_data);
            let data = self.data.split().freeze();
            // An event without data only has an id.
            return (has_data && !data.is_empty()).then_some(data);
        }
        let value = match line.strip_prefix(b"data:") {
            Some(value) => value.strip_prefix(b" ").unwrap_or(value),
            None if &line[..] == b"data" => b"",
            None => return None,
        };
        if std::mem::replace(&mut self.has_data, true) {
            self.data.extend_from_slice(b"\n");
        }
        self.data.extend_from_slice(value);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\nid: 1\ndata: {\"a\":\ndata:1}\n\ndata:\n\nevent: x\r\ndata: two\r\n\r\ndata\rdata: three\r\rdata: lost";

    #[test]
    fn events_do_not_depend_on_how_the_bytes_are_split() {
        for size in 1..STREAM.len() {
            let mut events = Events::new(100);
            let pieces = STREAM.as_bytes().chunks(size);
            let read: Vec<Bytes> = pieces
                .flat_map(|piece| events.push(piece).unwrap())
                .collect();
            assert_eq!(read, ["{\"a\":\n1}", "two", "\nthree"], "{size}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        for size in 1..8 {
            let mut events = Events::new(100);
            let stream = "\u{feff}data: one\n\n\u{feff}data: two\n\ndata: \u{feff}three\n\n";
            let pieces = stream.as_bytes().chunks(size);
            let read: Vec<Bytes> = pieces
                .flat_map(|piece| events.push(piece).unwrap())
                .collect();
            assert_eq!(read, ["one", "\u{feff}three"], "{size}");
        }
    }

    #[test]
    fn the_size_of_an_event_is_limited() {
        let mut events = Events::new(16);
        assert!(events.push(b"data: 12345678\n\n").is_ok());
        assert_eq!(events.push(b"data: 12345678901"), Err(TooLarge(16)));
        let mut events = Events::new(16);
        assert_eq!(
            events.push(b"data: 1234567\ndata: 1234567\ndata: 1\n"),
            Err(TooLarge(16))
        );
    }
}
