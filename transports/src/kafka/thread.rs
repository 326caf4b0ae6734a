//! The threads of the clients.

use std::sync::Arc;

use crate::error::{TransportError, TransportErrorKind};

/// Replaced clients of one reader that may be closing at the same time. Some that have lost the cluster never close.
const MAX_REPLACED: usize = 32;

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

/// Closes a client that another one has replaced, in a thread of its own unless there are many: it may have lost the
/// cluster, and then take minutes. Each client that is not closed yet holds a copy of `replaced`.
pub(super) fn close_replaced(client: impl Send + 'static, replaced: &Arc<()>) {
    let open = Arc::strong_count(replaced) - 1;
    match open < MAX_REPLACED {
        true => close_apart(client, Arc::clone(replaced)),
        false => drop(client),
    }
}

/// Closes a client in a thread of its own, which holds a value until then.
pub(super) fn close_apart(client: impl Send + 'static, held: impl Send + 'static) {
    let closing = spawn("a2abus-kafka-end", move || {
        drop(client);
        drop(held);
    });
    if let Err(error) = closing {
        tracing::warn!(%error, "could not start a thread to close a Kafka client: the thread of its reader closed it");
    }
}
