//! The requester on the bus.

use a2abus_plugin::Text;
use a2abus_transports::{Address, Header, Topic};
use bytes::Bytes;

use crate::bus::BusId;
use crate::calls::reply_form::ReplyForm;
use crate::metrics::BindingMetrics;

/// The requester on the bus, and the form of its answers.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) bus: BusId,
    pub(crate) address: Address,
    /// The form of its answers.
    pub(crate) form: ReplyForm,
    /// The key of the request.
    pub(crate) key: Option<Bytes>,
    /// Its Spring correlation id.
    pub(crate) correlation: Option<Bytes>,
    /// The headers that its answer keeps.
    pub(crate) headers: Vec<Header>,
    /// Whether the source delivers the request again if it is not settled.
    pub(crate) is_redeliverable: bool,
    /// Where the request was read, for the log.
    pub(crate) binding: Text,
    pub(crate) topic: Topic,
    pub(crate) origin: Option<Text>,
    /// The counters of the binding.
    pub(crate) metrics: BindingMetrics,
}
