//! The bridge creates the managed streams when the connection first comes up, before anything is stored in them: a
//! message published before its stream exists is refused, and arrives after its successors when it is sent again.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::api::Api;
use super::link::Link;
use crate::error::TransportErrorKind;

/// The pause before the next attempt: the first, and the longest.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Creates the managed streams, or keeps trying. `tried` is cancelled after the first attempt that the server answered,
/// so that a failing stream does not delay messages to the others.
pub(super) async fn make_streams(link: Arc<Link>, api: Api, tried: CancellationToken) {
    let mut wait = RETRY_PAUSES.0;
    let mut connection = link.connection();
    loop {
        if connection.wait_for(|now| now.up).await.is_err() {
            return;
        }
        let error = match api.ensure_streams().await {
            Ok(()) => return tried.cancel(),
            Err(error) => error,
        };
        if error.kind() != TransportErrorKind::Disconnected {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a managed JetStream stream cannot be created: trying again"
            );
            tried.cancel();
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_PAUSES.1);
    }
}
