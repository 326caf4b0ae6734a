//! Standard output and standard error of the commands.

use std::io::{self, Write as _};

/// Nobody reads standard output any more.
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
    /// [`Closed`] when nobody reads any more; any other failure as it is.
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

/// Writes one line to standard error, whatever line ends the text holds.
pub(crate) fn complain_line(text: &str) {
    let line = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    // There is nowhere left to complain about a standard error that cannot be written.
    let _ = writeln!(io::stderr(), "{line}");
}
