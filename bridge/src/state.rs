//! State that outlives a process and that all replicas share: logs, and views of them.
//!
//! An [`AnyLog`] is a sequence of records. A [`View`] applies them one by one with a pure function, a [`Fold`]. Every
//! replica applies the same records in the same order, so all replicas have the same state and need not talk to each
//! other. If two replicas write at the same time, the order of the log decides: the first claim wins.
//!
//! ```text
//! append ──> Log ── Reader ──> View ── Fold::apply ──> Entries ──> read
//!    └─ Position ─ wait until the view has applied it ──┘   └────> follow: what was applied, in order
//! ```

mod any;
pub(crate) mod body;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod bus;
mod embedded;
mod entries;
mod fold;
mod follow;
mod location;
mod log;
mod memory;
pub(crate) mod seal;
mod service;
#[cfg(test)]
mod tests;
mod view;

pub use any::AnyLog;
#[cfg(any(feature = "kafka", feature = "nats"))]
pub use bus::BusLog;
pub use embedded::EmbeddedLog;
pub use entries::Entries;
pub use fold::{Applied, Fold, Groups};
pub use follow::{Following, Lagged};
pub use location::{AGENTS, EXECUTIONS, LOGS, LogLocation, PUSH, RESULTS, STORAGE, TASKS};
pub(crate) use log::{ATTENDED, LATEST, STORED, UNATTENDED};
pub use log::{
    Batch, Bounds, Cursor, Kind, LogSpec, MAX_KEY_BYTES, Position, PositionError, Reader, Record,
    StateError,
};
pub use memory::MemoryLog;
pub use seal::SealError;
pub use service::Logs;
pub use view::{Progress, View, ViewTask};
