//! Reads lines of JSON, of a program or of standard input, with a limit on their length, and writes them.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// The lines of a stream of bytes.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    /// The current line.
    line: BytesMut,
    is_cut: bool,
    most: usize,
}

/// One line, without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) bytes: Bytes,
    /// Whether it exceeded the limit, and these are only its first bytes.
    pub(crate) is_cut: bool,
}

// === impl Lines ===

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Reads lines of at most `most` bytes. The rest of longer lines is skipped.
    pub(crate) fn new(reader: R, most: usize) -> Self {
        Self {
            reader: BufReader::new(reader),
            line: BytesMut::new(),
            is_cut: false,
            most,
        }
    }

    /// The next line, which may be a last line without a line end; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    /// When the stream cannot be read.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let piece = self.reader.fill_buf().await?;
            let (end, at_end) = match piece.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end, true),
                None => (piece.len(), piece.is_empty()),
            };
            let fits = end.min(self.most - self.line.len());
            self.line.extend_from_slice(&piece[..fits]);
            self.is_cut |= fits < end;
            let is_over = piece.is_empty();
            self.reader
                .consume(if is_over || !at_end { end } else { end + 1 });
            if is_over && self.line.is_empty() && !self.is_cut {
                return Ok(None);
            }
            if at_end {
                return Ok(Some(self.whole()));
            }
        }
    }

    fn whole(&mut self) -> Line {
        let mut bytes = self.line.split().freeze();
        if bytes.last() == Some(&b'\r') {
            bytes.truncate(bytes.len() - 1);
        }
        let is_cut = std::mem::take(&mut self.is_cut);
        Line { bytes, is_cut }
    }
}

/// A JSON document as one line, with a line end. JSON has line ends only between tokens, where a space is equivalent.
pub(crate) fn on_one_line(json: &[u8]) -> Vec<u8> {
    let mut line = json.to_vec();
    let ends = line.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n'));
    ends.for_each(|byte| *byte = b' ');
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8], most: usize) -> Vec<(String, bool)> {
        let mut lines = Lines::new(text, most);
        let mut read = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            read.push((String::from_utf8(line.bytes.to_vec()).unwrap(), line.is_cut));
        }
        read
    }

    fn line(text: &str, is_cut: bool) -> (String, bool) {
        (text.to_owned(), is_cut)
    }

    #[tokio::test]
    async fn lines_end_with_a_line_feed_or_with_the_stream() {
        let lines = read(b"one\r\n\ntwo", 10).await;
        assert_eq!(
            lines,
            [line("one", false), line("", false), line("two", false)]
        );
        assert_eq!(read(b"", 10).await, []);
    }

    #[tokio::test]
    async fn the_rest_of_a_long_line_is_skipped() {
        let long = "x".repeat(100_000);
        let text = format!("{long}\nnext\n{long}");
        let lines = read(text.as_bytes(), 4).await;
        assert_eq!(
            lines,
            [line("xxxx", true), line("next", false), line("xxxx", true)]
        );
    }
}
