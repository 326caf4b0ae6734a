//! Why a bridge cannot be built.

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
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
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
