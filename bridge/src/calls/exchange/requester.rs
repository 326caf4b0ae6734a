//! Who made a request on the bus, and the events that answer it.

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{
    Event, EventId, Family, Hint, Ids, Kind, Limits, MapContext, MapOptions, Source, Text,
    extension, map, wrap_unknown,
};
use a2abus_transports::{Address, Header, Topic};
use bytes::Bytes;
use serde_json::json;

use crate::bus::BusId;
use crate::calls::Part;
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::failure::{Failure, Recipient};
use crate::metrics::BindingMetrics;

/// Who made a request on the bus, and how it is answered.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) bus: BusId,
    pub(crate) address: Address,
    pub(crate) language: Language,
    /// The key of the request.
    pub(crate) key: Option<Bytes>,
    /// Its Spring correlation id.
    pub(crate) correlation: Option<Bytes>,
    /// Its `collaborationid`.
    pub(crate) collaboration_id: Option<Text>,
    /// Its `callid`.
    pub(crate) call_id: Option<Text>,
    /// The headers that its answer keeps.
    pub(crate) headers: Vec<Header>,
    /// The `source` of answers.
    pub(crate) source: Source,
    pub(crate) options: MapOptions,
    pub(crate) limits: Limits,
    /// Whether the source delivers the request again if it is not settled.
    pub(crate) comes_again: bool,
    /// Where the request was read, for the log.
    pub(crate) topic: Topic,
    pub(crate) origin: Option<Text>,
    /// The counters of the binding.
    pub(crate) metrics: BindingMetrics,
}

/// How a requester is spoken to when there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum Language {
    /// By JSON-RPC errors.
    JsonRpc {
        /// The requester's own id, as its JSON token.
        id: Text,
        dialect: Dialect,
    },
    /// In its own family.
    Family(Family),
}

// === impl Requester ===

impl Requester {
    /// The event that carries a part of the answer.
    pub(super) fn event(&self, part: &Part, call: CallId, number: u32) -> Event {
        let id = EventId::new(format!("{call}.{number}"));
        let id = id.unwrap_or_else(|_| crate::clock::new_event_id());
        let mut event = match &part.event {
            Some(event) => {
                let mut event = Event::clone(event);
                event.remove(extension::REPLY_PARTITION);
                event.remove(extension::REPLY_TO);
                event
            }
            None => self.mapped(&part.body, &id),
        };
        if event
            .extension_text(extension::MCP_TYPE)
            .is_none_or(|kind| kind != Kind::Notification.as_str())
        {
            let kind = if part.last {
                Kind::Response
            } else {
                Kind::Stream
            };
            put(
                &mut event,
                extension::MCP_TYPE,
                Text::from_static(kind.as_str()),
            );
            put(&mut event, extension::IS_FINAL, part.last);
        }
        self.correlate(&mut event, Some(call));
        event
    }

    /// The event that says why there is no answer, in the requester's own language.
    pub(super) fn failure(&self, failure: &Failure) -> Event {
        let body = match &self.language {
            Language::JsonRpc { id, dialect } => {
                failure.render(&Recipient::new(id.clone(), *dialect))
            }
            Language::Family(family) => self.failure_in(*family, failure),
        };
        let mut event = self.mapped(&body, &crate::clock::new_event_id());
        put(
            &mut event,
            extension::MCP_TYPE,
            Text::from_static(Kind::Response.as_str()),
        );
        put(&mut event, extension::IS_FINAL, true);
        self.correlate(&mut event, None);
        event
    }

    fn failure_in(&self, family: Family, failure: &Failure) -> Bytes {
        let request = self.collaboration_id.as_ref().map(Text::as_str);
        let (word, message) = (failure.word(), failure.message());
        let now = crate::clock::rfc3339(crate::clock::now());
        let id = crate::clock::new_event_id();
        let body = match family {
            Family::E2a => json!({
                "protocol_version": "1.0", "response_id": &*id, "request_id": request, "sequence": 0,
                "is_final": true, "status": "failed", "response_kind": "e2a.error", "timestamp": now.as_str(),
                "body": {"code": format!("E2A.{}", word.to_uppercase()), "message": message},
            }),
            Family::A2eMessage => json!({
                "type": "error", "id": &*id, "version": "1.0", "ts": crate::clock::seconds(), "req_id": request,
                "code": if word == "timeout" { "timeout" } else { "runtime_error" }, "message": message,
                "detail": {"reason": word}, "retryable": matches!(word, "timeout" | "exhausted" | "agent_unavailable"),
            }),
            Family::Legacy => json!({
                "protocol": "A2A", "messageType": "FAILURE", "metadata": {"correlationId": request},
                "payload": {"reason": word, "message": message},
            }),
            Family::JsonRpc | Family::CloudEvent | Family::A2eWorkflow => {
                return failure.render(&Recipient::unknown(Dialect::JsonRpc));
            }
        };
        body.to_string().into()
    }

    /// The event of a message in whatever family it is written.
    fn mapped(&self, body: &Bytes, id: &EventId) -> Event {
        let new_id = || id.clone();
        let context = MapContext {
            source: self.source.clone(),
            time: Some(crate::clock::time()),
            ids: Ids::Payload(&new_id),
        };
        let units = map(
            body,
            &Hint::default(),
            &self.limits,
            &self.options,
            &context,
        );
        match units.into_only() {
            Ok(Ok(mapped)) => mapped.event,
            // A batch, or no message of any family.
            Ok(Err(_)) | Err(_) => wrap_unknown(body, 0, &self.options, &context),
        }
    }

    /// Puts the requester's own marks on an answer, in place of those of the exchange with the agent: the call `ours`.
    fn correlate(&self, event: &mut Event, ours: Option<CallId>) {
        let is_ours = |text: &Text| text.parse().ok().map(|id: ReplyId| id.call) == ours;
        match &self.call_id {
            // It came in a header that nobody checked.
            Some(own) if event.set(extension::CALL_ID, own.clone()).is_ok() => {}
            Some(_) | None => event.remove(extension::CALL_ID),
        }
        match &self.collaboration_id {
            Some(own) => put(event, extension::COLLABORATION_ID, own.clone()),
            // What the agent repeats of the exchange with the bridge says nothing to the requester.
            None if ours.is_some()
                && event
                    .extension_text(extension::COLLABORATION_ID)
                    .is_some_and(is_ours) =>
            {
                event.remove(extension::COLLABORATION_ID);
            }
            None => {}
        }
    }
}

/// Sets an attribute whose name is ours and whose value is legal.
fn put(event: &mut Event, name: &'static str, value: impl Into<a2abus_plugin::Value>) {
    let set = event.set(name, value);
    debug_assert!(set.is_ok(), "{name} is a legal extension");
}
