//! Standard output and standard error of the commands.

use std::io::{self, Write as _};

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

/// A number of things, such as `1 error` and `2 errors`.
pub(super) fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}
