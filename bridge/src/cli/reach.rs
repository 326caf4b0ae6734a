//! A connection to one bus, for a command that queries it.

use std::time::Duration;

use a2abus_transports::{AnyTransport, Health, Transport as _};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::TransportConfig;
use crate::restart::chain;

/// The deadline for connecting.
const CONNECT: Duration = Duration::from_secs(10);
/// How long to wait after the client has reported a failure: another server of the bus may answer.
const OTHER_SERVER: Duration = Duration::from_secs(2);
/// The fix for a refused login.
pub(super) const LOG_IN: &str = "correct the user, password or certificate of this transport";
/// The deadline for closing.
const CLOSE: Duration = Duration::from_secs(2);

/// How long to wait after the client has reported a failure.
#[derive(Debug, Clone, Copy)]
pub(super) enum ConnectWait {
    /// Only long enough for another server: the user wants to know what is wrong.
    Report,
    /// The whole deadline: the bus may be starting.
    Start,
}

/// Connects, and waits until the bus answers. Unlike a bridge, it does not create or change streams.
///
/// # Errors
/// The cause, in one line.
pub(super) async fn connect(
    config: &TransportConfig,
    wait_mode: ConnectWait,
) -> Result<AnyTransport, String> {
    let config = config.without_management();
    let transport = config.connect().await.map_err(|error| chain(&error))?;
    let mut health = transport.health();
    if comes_up(&mut health, wait_mode).await {
        return Ok(transport);
    }
    let now = health.borrow().clone();
    close(&transport).await;
    Err(match now {
        Health::Up | Health::Impaired(_) => "the connection came up too late".to_owned(),
        Health::Connecting(cause) => {
            format!("no connection within {} s: {cause}", CONNECT.as_secs())
        }
        Health::Down(cause) => format!("no connection: {cause}"),
    })
}

async fn comes_up(health: &mut watch::Receiver<Health>, wait_mode: ConnectWait) -> bool {
    let connected = timeout(CONNECT, async {
        // An error only means that the client has ended.
        let _ = health
            .wait_for(|health| !matches!(health, Health::Connecting(_)))
            .await;
        let is_up = health.wait_for(Health::is_up);
        match wait_mode {
            ConnectWait::Report => timeout(OTHER_SERVER, is_up)
                .await
                .is_ok_and(|up| up.is_ok()),
            ConnectWait::Start => is_up.await.is_ok(),
        }
    });
    connected.await.unwrap_or_default()
}

/// Closes a connection. If that takes too long, the connection ends with the process.
pub(super) async fn close(transport: &AnyTransport) {
    let _ = transport.close(CLOSE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_longer_than_a_report() {
        for (wait_mode, expected) in [(ConnectWait::Report, false), (ConnectWait::Start, true)] {
            let (changes, mut health) = watch::channel(Health::Connecting("connecting".into()));
            let starts = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                changes.send_replace(Health::Down("connection refused".into()));
                tokio::time::sleep(OTHER_SERVER + Duration::from_secs(1)).await;
                changes.send_replace(Health::Up);
            };
            let (up, ()) = tokio::join!(comes_up(&mut health, wait_mode), starts);
            assert_eq!(up, expected, "{wait_mode:?}");
        }
    }
}
