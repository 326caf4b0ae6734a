//! The threads of the clients.

use crate::error::{TransportError, TransportErrorKind};

/// Starts a named thread.
pub(super) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<(), TransportError> {
    match std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
    {
        // The thread ends with the object that it serves, and reports its end by other means.
        Ok(_detached) => Ok(()),
        Err(error) => Err(TransportError::new(
            TransportErrorKind::Other,
            format!("start the thread {name}"),
        )
        .caused_by(error)),
    }
}
