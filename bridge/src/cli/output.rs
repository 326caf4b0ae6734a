//! Standard output and standard error of the commands.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

/// How long the last lines of a process may take to be written.
const LAST_LINE: Duration = Duration::from_millis(1_200);

/// The reader of standard output has closed it.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct Closed;

/// Writes lines to standard output.
#[derive(Debug)]
pub(crate) struct Output(io::StdoutLock<'static>);

// === impl Output ===

impl Output {
    pub(crate) fn new() -> Self {
        Self(io::stdout().lock())
    }

    /// Writes the text and ends its line.
    ///
    /// # Errors
    /// [`Closed`] when the reader has closed standard output; any other error unchanged.
    pub(crate) fn line(&mut self, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let written = self
            .0
            .write_all(text.as_ref())
            .and_then(|()| self.0.write_all(b"\n"));
        match written {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes the text to standard error as one line, even if it contains line ends.
pub(crate) fn complain_line(text: &str) {
    let line = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    // If standard error cannot be written, the failure cannot be reported either.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes an error with its causes to standard error, as a line of a log in JSON.
pub(super) fn complain_json(error: &anyhow::Error) {
    let line = json_line(&json!({
        "timestamp": humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
        "level": "ERROR",
        "message": format!("{error:#}"),
        "target": "a2abus",
    }));
    // If standard error cannot be written, the failure cannot be reported either.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints an error with its causes on standard error, in one line.
pub fn complain(error: &anyhow::Error) {
    complain_line(&format!("a2abus: {error:#}"));
}

/// Writes on a thread of its own, and waits for [`LAST_LINE`] at most: perhaps nobody reads the pipe.
pub(super) fn in_time(write: impl FnOnce() + Send + 'static) {
    let (ends, ended) = mpsc::channel::<Infallible>();
    let writing = thread::Builder::new().spawn(move || {
        write();
        drop(ends);
    });
    if writing.is_ok() {
        // It ends when the other end of the channel is dropped.
        let _ = ended.recv_timeout(LAST_LINE);
    }
}

/// A number of things, such as `1 error` and `2 errors`.
pub(super) fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

/// Whether a terminal may take the character for the start of a command, or reverses the text after it.
fn acts_on_terminal(c: char) -> bool {
    let is_direction =
        matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
    c.is_control() || is_direction
}

/// Text of unknown origin, made safe for a terminal, on one line.
pub(super) fn plain(text: &str) -> String {
    let visible = |c| if acts_on_terminal(c) { ' ' } else { c };
    let text: String = text.chars().map(visible).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text of unknown origin, made safe for a terminal: control characters are escaped, `\0` for a zero byte.
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match acts_on_terminal(c) && c != '\t' {
            true => safe.extend(c.escape_debug()),
            false => safe.push(c),
        }
    }
    safe
}

/// A value as JSON for a program or a terminal, in one line. Only strings can contain the characters that are escaped.
pub(super) fn json_line(value: &Value) -> String {
    let mut line = String::new();
    for c in value.to_string().chars() {
        if acts_on_terminal(c) {
            line.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "kafka", feature = "nats"))]
    #[test]
    fn escaped_text_hides_nothing() {
        let text = escaped("\0\0\0\u{1}*{\t\"é\u{1b}[2J\u{202e}");
        assert_eq!(text, "\\0\\0\\0\\u{1}*{\t\"é\\u{1b}[2J\\u{202e}");
    }

    #[test]
    fn json_contains_no_commands_for_the_terminal() {
        let value = json!({ "a\u{9b}": "\u{1b}[2J\u{9b}2J\u{202e}é\u{7f}" });
        let line = json_line(&value);
        assert_eq!(line, r#"{"a\u009b":"\u001b[2J\u009b2J\u202eé\u007f"}"#);
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read, value);
    }
}
