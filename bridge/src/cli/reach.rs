//! A connection to one bus, for a command that asks it something.

use std::time::Duration;

use a2abus_transports::{AnyTransport, Health, Transport as _};
use tokio::time::timeout;

use crate::config::TransportConfig;

/// How long a bus may take to be reached.
const CONNECT: Duration = Duration::from_secs(10);
/// How long it may take once its client has said why there is no connection: another of its servers may answer.
const REFUSED: Duration = Duration::from_secs(2);
/// What is said of a log-in that the bus refuses.
pub(super) const LOG_IN: &str = "correct the user, password or certificate of this transport";
/// How long a connection may take to end.
const CLOSE: Duration = Duration::from_secs(2);

/// Connects, and waits until the bus answers. Unlike a bridge it changes no streams.
///
/// # Errors
/// Why it does not, in one line.
pub(super) async fn connect(config: &TransportConfig) -> Result<AnyTransport, String> {
    let config = config.without_management();
    let transport = config.connect().await.map_err(|error| chain(&error))?;
    let mut health = transport.health();
    let connected = timeout(CONNECT, async {
        // Both end with an error only when the client is gone.
        let _ = health.wait_for(|health| !health.is_unknown()).await;
        let is_up = health.wait_for(|health| *health == Health::Up);
        timeout(REFUSED, is_up).await.is_ok_and(|up| up.is_ok())
    });
    if connected.await.unwrap_or_default() {
        return Ok(transport);
    }
    let now = transport.health().borrow().clone();
    close(&transport).await;
    Err(match &now {
        Health::Up => "it came up too late".to_owned(),
        Health::Down(cause) if now.is_unknown() => {
            format!("no connection within {} s: {cause}", CONNECT.as_secs())
        }
        Health::Down(cause) => format!("no connection: {cause}"),
    })
}

/// Ends a connection. What is not closed in time ends with the process.
pub(super) async fn close(transport: &AnyTransport) {
    let _ = transport.close(CLOSE).await;
}

/// An error and its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
