//! A connection to one bus, for a command that asks it something.

use std::time::Duration;

use a2abus_transports::{AnyTransport, Health, Transport as _};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::TransportConfig;

/// How long a bus may take to be reached.
const CONNECT: Duration = Duration::from_secs(10);
/// How long it may take once its client has said why there is no connection, where another of its servers may answer.
const OTHER_SERVER: Duration = Duration::from_secs(2);
/// What is said of a log-in that the bus refuses.
pub(super) const LOG_IN: &str = "correct the user, password or certificate of this transport";
/// How long a connection may take to end.
const CLOSE: Duration = Duration::from_secs(2);

/// How long to wait once the client has said why there is no connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Patience {
    /// As long as another server may need: somebody wants to know what is wrong.
    Report,
    /// As long as before: the bus may just be starting.
    Start,
}

/// Connects, and waits until the bus answers. Unlike a bridge it changes no streams.
///
/// # Errors
/// Why it does not, in one line.
pub(super) async fn connect(
    config: &TransportConfig,
    patience: Patience,
) -> Result<AnyTransport, String> {
    let config = config.without_management();
    let transport = config.connect().await.map_err(|error| chain(&error))?;
    let mut health = transport.health();
    if comes_up(&mut health, patience).await {
        return Ok(transport);
    }
    let now = health.borrow().clone();
    close(&transport).await;
    Err(match now {
        Health::Up => "it came up too late".to_owned(),
        Health::Connecting(cause) => {
            format!("no connection within {} s: {cause}", CONNECT.as_secs())
        }
        Health::Down(cause) => format!("no connection: {cause}"),
    })
}

async fn comes_up(health: &mut watch::Receiver<Health>, patience: Patience) -> bool {
    let connected = timeout(CONNECT, async {
        // Both end with an error only when the client is gone.
        let _ = health
            .wait_for(|health| !matches!(health, Health::Connecting(_)))
            .await;
        let is_up = health.wait_for(|health| *health == Health::Up);
        match patience {
            Patience::Report => timeout(OTHER_SERVER, is_up)
                .await
                .is_ok_and(|up| up.is_ok()),
            Patience::Start => is_up.await.is_ok(),
        }
    });
    connected.await.unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_bus_that_is_starting_is_waited_for_and_a_report_of_it_is_not() {
        for (patience, expected) in [(Patience::Report, false), (Patience::Start, true)] {
            let (changes, mut health) = watch::channel(Health::Connecting("connecting".into()));
            let starts = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                changes.send_replace(Health::Down("connection refused".into()));
                tokio::time::sleep(OTHER_SERVER + Duration::from_secs(1)).await;
                changes.send_replace(Health::Up);
            };
            let (up, ()) = tokio::join!(comes_up(&mut health, patience), starts);
            assert_eq!(up, expected, "{patience:?}");
        }
    }
}
