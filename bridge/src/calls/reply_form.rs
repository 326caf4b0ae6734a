//! The events that answer an event: of a requester on the bus, or of an HTTP caller that sends CloudEvents.

use a2abus_plugin::{
    Event, EventId, Hint, Ids, Kind, Limits, MapContext, MapOptions, Source, Text, extension,
    kind_of_event, map, wrap_unknown,
};
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::calls::callid::{CallId, ReplyId};
use crate::calls::failure::{Failure, Recipient};
use crate::calls::part::Part;
use crate::names::put;

/// How the answers to one request are written as events.
#[derive(Debug, Clone)]
pub(crate) struct ReplyForm {
    /// The recipient of the error, if there is no answer.
    pub(crate) recipient: Recipient,
    /// The `collaborationid` of the request.
    pub(crate) collaboration_id: Option<Text>,
    /// The id of a request that is a CloudEvent. It is the `collaborationid` of an answer that would have none.
    pub(crate) request_id: Option<Text>,
    /// Its `callid`.
    pub(crate) call_id: Option<Text>,
    /// The `source` of answers that are not events.
    pub(crate) source: Source,
    pub(crate) options: MapOptions,
    pub(crate) limits: Limits,
}

// === impl ReplyForm ===

impl ReplyForm {
    /// The event for a part of the answer.
    pub(crate) fn event(&self, part: &Part, call: CallId, number: u32) -> Event {
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
        if is_question(&event) {
            // It is the id of the question, not of the request.
            event.remove(extension::COLLABORATION_ID);
        }
        if let Some(kind) = kind_of_part(&event, part.last) {
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

    /// The event for an error, in the requester's protocol.
    pub(crate) fn failure(&self, failure: &Failure) -> Event {
        let body = failure.render(&self.recipient);
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

    /// The event of a message of any family.
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
            // A batch, or a message of no known family.
            Ok(Err(_)) | Err(_) => {
                let mut event = wrap_unknown(body, 0, &self.options, &context);
                // Data of no type would count as JSON.
                let media_type = match serde_json::from_slice::<IgnoredAny>(body) {
                    Ok(_) => "application/json",
                    Err(_) => "application/octet-stream",
                };
                if !body.is_empty() {
                    put(&mut event, "datacontenttype", media_type);
                }
                event
            }
        }
    }

    /// Sets the requester's own ids on an answer. They replace those of the bridge's call to the agent, `ours`.
    fn correlate(&self, event: &mut Event, ours: Option<CallId>) {
        let is_ours = |text: &Text| text.parse().ok().map(|id: ReplyId| id.call) == ours;
        match &self.call_id {
            // It was read from a header and has not been checked.
            Some(own) if event.set(extension::CALL_ID, own.clone()).is_ok() => {}
            Some(_) | None => event.remove(extension::CALL_ID),
        }
        match &self.collaboration_id {
            Some(own) => put(event, extension::COLLABORATION_ID, own.clone()),
            // An id of the bridge's own call means nothing to the requester.
            None if ours.is_some()
                && event
                    .extension_text(extension::COLLABORATION_ID)
                    .is_some_and(is_ours) =>
            {
                event.remove(extension::COLLABORATION_ID);
            }
            None => {}
        }
        if event.extension_text(extension::COLLABORATION_ID).is_none()
            && let Some(request) = self.request_id.clone().or_else(|| self.rpc_id())
        {
            // An id of JSON-RPC may contain characters that no attribute may contain.
            let _refused = event.set(extension::COLLABORATION_ID, request);
        }
    }

    /// The id of a JSON-RPC request, as the `collaborationid` of its response. A notification contains no id.
    fn rpc_id(&self) -> Option<Text> {
        let token = self.recipient.id();
        match serde_json::from_str(token).ok()? {
            Value::String(text) if !text.is_empty() => Some(text.into()),
            Value::Number(_) => Some(token.clone()),
            _ => None,
        }
    }
}

/// Whether an event is a question in an E2A record. Source: docs/protocols/e2a.md §10.2.
fn is_question(event: &Event) -> bool {
    kind_of_event(event) == Kind::Request && event.extension(extension::E2A_KIND).is_some()
}

/// The `mcptype` of a part of an answer; `None` for a notification that the answer goes on after.
fn kind_of_part(event: &Event, is_last: bool) -> Option<Kind> {
    if is_last {
        return Some(Kind::Response);
    }
    let is = |kind: Kind| {
        let marked = event.extension_text(extension::MCP_TYPE);
        marked.is_some_and(|marked| marked == kind.as_str())
    };
    // AGREE announces the answer, also without a correlation id. Source: docs/protocols/eventmesh-a2a.md §2.
    if is(Kind::Notification) && event.extension(extension::MESSAGE_TYPE).is_none() {
        return None;
    }
    Some(if is_question(event) {
        Kind::Request
    } else {
        Kind::Stream
    })
}
