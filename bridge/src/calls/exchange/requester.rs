//! The requester on the bus.

use std::sync::Arc;

use a2abus_transports::{Address, Header, Origin, Topic};
use bytes::Bytes;

use crate::bus::BusId;
use crate::bus::deadletter::DeadLetters;
use crate::calls::reply_form::ReplyForm;

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
    /// Whether a JetStream stream may store its answers.
    pub(crate) may_be_stored: bool,
    /// Where the request was read.
    pub(crate) topic: Topic,
    pub(crate) origin: Option<Origin>,
    /// Which unit of its message it is, if that is no CloudEvent.
    pub(crate) unit: Option<usize>,
    /// The dead letters of its binding.
    pub(crate) dead_letters: Arc<DeadLetters>,
}

// === impl Requester ===

impl Requester {
    /// The message key of its answers, the same for all parts of an answer: the key of the request, or else its
    /// `collaborationid` or its id. `None` for the error of a request without any of them.
    pub(super) fn answer_key(&self) -> Option<Bytes> {
        let key = || {
            let form = &self.form;
            let token = form.recipient.id();
            let id = serde_json::from_str(token).unwrap_or_else(|_| token.clone());
            let own = form.collaboration_id.as_ref().unwrap_or(&id);
            let is_named = own.as_str() != "null";
            let key = Some(own)
                .filter(|_| is_named)
                .or(form.request_id.as_ref())?;
            Some(Bytes::copy_from_slice(key.as_bytes()))
        };
        self.key.clone().or_else(key)
    }
}
