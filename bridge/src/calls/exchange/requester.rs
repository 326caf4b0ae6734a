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

// === impl Requester ===

impl Requester {
    /// The message key of its answers, the same for all parts of an answer: the key of the request, or else its
    /// `collaborationid` or its id.
    pub(super) fn answer_key(&self) -> Bytes {
        let key = || {
            let form = &self.form;
            let token = form.recipient.id();
            let id = serde_json::from_str(token).unwrap_or_else(|_| token.clone());
            let own = form.collaboration_id.as_ref().unwrap_or(&id);
            let named = own.as_str() != "null";
            let key = form.request_id.as_ref().filter(|_| !named).unwrap_or(own);
            Bytes::copy_from_slice(key.as_bytes())
        };
        self.key.clone().unwrap_or_else(key)
    }
}
