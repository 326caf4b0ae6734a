//! Why a bridge cannot be built.

use std::io;
use std::net::SocketAddr;

use a2abus_executor::ClientError;
use a2abus_plugin::Text;
use a2abus_transports::TransportError;

use crate::state::StateError;
use crate::workflows::WorkflowsError;

/// Why a bridge cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// A transport cannot be created from its configuration.
    #[error("cannot set up transport {name}")]
    Transport {
        /// Its name.
        name: Text,
        /// Why.
        source: TransportError,
    },
    /// A listener cannot be opened.
    #[error("{key}: cannot listen on {address}: {error}{}", cure(error))]
    Listen {
        /// The key of the configuration that sets the address.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why. Part of the message, so it is not the source.
        error: io::Error,
    },
    /// The metrics cannot be registered.
    #[error("cannot register the metrics")]
    Metrics(#[source] prometheus::Error),
    /// The operating system provides no random numbers.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
    /// Workflows cannot be executed.
    #[error(transparent)]
    Workflows(#[from] WorkflowsError),
    /// Webhooks cannot be called.
    #[error("webhooks cannot be called")]
    Client(#[source] ClientError),
    /// The state cannot be opened.
    #[error(transparent)]
    State(#[from] StateError),
    /// The configuration is invalid. [`Config::load`](crate::config::Config::load) would have refused it.
    #[error("{0}")]
    Config(String),
}

/// What an operator can do if an address cannot be used.
fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => ": another process uses this port: choose another one",
        io::ErrorKind::AddrNotAvailable => {
            ": this machine does not have this address: choose one of its own, or 0.0.0.0 or [::] for all"
        }
        io::ErrorKind::PermissionDenied => {
            ": a port below 1024 needs a permission (CAP_NET_BIND_SERVICE): choose a higher one"
        }
        _ => "",
    }
}
