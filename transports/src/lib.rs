//! One transport contract over Apache Kafka, NATS and memory.
//!
//! [`Transport`] is the contract, [`AnyTransport`] the transport that the configuration chose. A [`Consumer`] yields
//! [`Delivery`]s, each with the right to settle it; [`Transport::send`] yields a [`Confirmation`]. [`content_mode`]
//! reads and writes CloudEvents in the binary and structured mode of each binding.

mod any;
pub mod content_mode;
mod delivery;
mod error;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod human_duration;
#[cfg(feature = "kafka")]
pub mod kafka;
mod log;
pub mod memory;
mod message;
#[cfg(feature = "nats")]
pub mod nats;
mod secret;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod tls_files;
mod transport;

pub use any::AnyTransport;
pub use delivery::{Acknowledger, Delivery, Origin, Outcome};
pub use error::{ConfigProblem, Disposition, TlsFindings, TransportError, TransportErrorKind};
pub use log::{
    LogBatch, LogBounds, LogPosition, LogPositionError, LogReader, LogRecord, LogSource,
};
pub use message::{
    Header, Headers, MAX_TOPIC_BYTES, Message, NATS_REPLY_HEADER, NATS_STATUS_HEADER, Topic,
    TopicError,
};
pub use secret::{Revealed, Secret, SecretError};
pub use transport::{
    Address, Confirmation, Consumer, Guarantee, Health, LAG_INTERVAL, PauseCause, PausedPartition,
    QUEUE_DEADLINE, Reading, Receipt, Share, Subscription, TopicFilter, Transport,
    failed_confirmations, overlap,
};
