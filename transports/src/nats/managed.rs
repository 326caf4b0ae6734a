//! The bridge creates the managed streams when the connection first comes up, before anything is stored in them: a
//! message published before its stream exists is refused, and arrives after its successors when it is sent again. It
//! does so again whenever the connection comes back, because the server may have lost its streams.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::api::Api;
use super::link::{Connection, Link};
use crate::error::TransportErrorKind;

/// The pause before the next attempt: the first, and the longest.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Keeps the managed streams created. `tried` is cancelled after the first attempt that the server answered,
/// so that a failing stream does not delay messages to the others.
pub(super) async fn make_streams(link: Arc<Link>, api: Api, tried: CancellationToken) {
    let mut wait = RETRY_PAUSES.0;
    let mut has_failed = false;
    let mut connection = link.connection();
    loop {
        let Ok(found) = connection.wait_for(|now| now.up).await.map(|now| now.epoch) else {
            return;
        };
        let error = match api.ensure_streams().await {
            Ok(()) => {
                tried.cancel();
                wait = RETRY_PAUSES.0;
                if std::mem::take(&mut has_failed) {
                    tracing::info!("the managed JetStream streams are as configured");
                }
                let is_new = |now: &Connection| now.up && now.epoch != found;
                if connection.wait_for(is_new).await.is_err() {
                    return;
                }
                continue;
            }
            Err(error) => error,
        };
        if error.kind() != TransportErrorKind::Disconnected {
            has_failed = true;
            tried.cancel();
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_PAUSES.1);
    }
}
