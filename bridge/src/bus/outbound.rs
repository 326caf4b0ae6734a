//! Copies of events for their destinations.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use a2abus_plugin::{Event, EventError, Text, extension};
use a2abus_transports::{
    Address, Confirmation, Guarantee, Header, Message, Origin, Topic, Transport as _,
    TransportError, TransportErrorKind, content_mode,
};
use arc_swap::Guard;
use bytes::Bytes;
use tracing::Instrument as _;

use crate::bus::headers::{carries, spring};
use crate::bus::{BusId, Buses};
use crate::calls::callid::{self, CallId};
use crate::names::{Mode, Name};
use crate::pipeline::adapt::AdaptError;
use crate::route::{NamedBy, Resolved, RouteError, next_hops};
use crate::rules::{AnnouncedRoutes, CurrentRules, Rules, Unrouted};
use crate::stage;

/// One message for one destination.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The bus it goes to.
    pub bus: BusId,
    /// The address on this bus.
    pub address: Address,
    /// The message.
    pub message: Message,
    /// Whether the configuration or an event names the topic. A topic that an event names may not exist.
    pub named_by: NamedBy,
    /// Its CloudEvents content mode.
    pub mode: Mode,
    /// Its target agent, if it is known.
    pub agent: Option<Text>,
    /// The call in its `callid` attribute. Of the copies of a call, only the one to be answered has it.
    pub call: Option<Text>,
    /// Whether a caller waits for the answer.
    pub is_awaited: bool,
    /// Whether it is a copy of an awaited request for a destination that does not answer, or the dead letter of such a
    /// copy. It must not delay calls.
    pub is_beside: bool,
    /// The time in its `expirytime` attribute, after which it is no longer wanted.
    pub expires: Option<SystemTime>,
    /// The unit that it was made of, if that was a part of a received message.
    pub unit: Option<Unit>,
    /// Set on dead letters.
    pub dead_letter: Option<DeadLetter>,
    /// Whether an earlier attempt to send it may have arrived, although its bus has not confirmed it.
    pub may_have_arrived: bool,
}

/// One unit of a received message, for the dead letters of its copies.
#[derive(Debug, Clone)]
pub struct Unit {
    /// The index of the unit.
    pub index: usize,
    /// Its bytes.
    pub bytes: Bytes,
}

/// What to do with a dead letter that its own topic refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetter {
    /// Whether the body has been removed.
    pub is_reduced: bool,
    /// Whether the source stores the message until the dead letter is confirmed. Otherwise it does not wait for an
    /// operator.
    pub is_backed: bool,
}

/// Why an event has no destination. All of these are permanent.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// No route matches it and there is no default route.
    #[error("no route matches the event, and there is no default route")]
    NoRoute,
    /// Its target agent is unknown, and only known agents may be called.
    #[error(
        "there is no agent {0:?}: it is not announced, and neither the section `agents` nor a route names it"
    )]
    UnknownAgent(Text),
    /// A route matches it, but the name of its destination cannot be built.
    #[error("route {route}: {cause}")]
    Destination {
        /// The route.
        route: Text,
        /// The problem.
        cause: RouteError,
    },
    /// The event cannot be written in the binding of the destination.
    #[error("the event cannot be written: {0}")]
    Unwritable(#[from] EventError),
    /// Its binding or its route refuses the record.
    #[error(transparent)]
    NotAdapted(#[from] AdaptError),
    /// The destination names a transport that the bridge does not have.
    #[error("there is no transport named {0}")]
    NoTransport(Text),
}

/// The reason of the dead letter of an event that has passed too many routes.
pub(crate) const TOO_MANY_HOPS: &str = "too_many_hops";

// === impl Outgoing ===

impl Outgoing {
    /// A message of no call for a destination that the configuration names.
    pub(crate) fn new(bus: BusId, address: Address, message: Message) -> Self {
        Self {
            bus,
            address,
            message,
            named_by: NamedBy::Config,
            mode: Mode::default(),
            agent: None,
            call: None,
            is_awaited: false,
            is_beside: false,
            expires: None,
            unit: None,
            dead_letter: None,
            may_have_arrived: false,
        }
    }

    /// The copy with the call and the expiry time that its event names.
    fn of_its_call(self, event: &Event) -> Self {
        Self {
            call: callid::logged_call_id(event),
            expires: crate::clock::expiry(event),
            ..self
        }
    }

    /// The call of this process that waits for the answer.
    pub(crate) fn awaited_call(&self) -> Option<CallId> {
        let call = self.call.as_ref().filter(|_| self.is_awaited);
        call?.parse().ok()
    }
}

// === impl RoutingError ===

impl RoutingError {
    fn unrouted(unrouted: Unrouted, event: &Event) -> Self {
        let target = event.extension_text(extension::TARGET_AGENT);
        match unrouted {
            Unrouted::NoRoute => Self::NoRoute,
            Unrouted::UnknownAgent => Self::UnknownAgent(target.cloned().unwrap_or_default()),
        }
    }

    /// The code of the reason of its dead letter.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoRoute => "no_route",
            Self::UnknownAgent(_) => "agent_not_found",
            Self::Destination {
                cause: RouteError::TooManyHops { .. },
                ..
            } => TOO_MANY_HOPS,
            Self::Destination { .. } => "bad_destination",
            Self::Unwritable(_) => "unwritable",
            Self::NotAdapted(error) => error.reason(),
            Self::NoTransport(_) => "no_transport",
        }
    }
}

/// Routes events and sends the copies.
#[derive(Debug, Clone)]
pub struct Outbound {
    buses: Buses,
    rules: Arc<CurrentRules>,
}

/// A request whose answer the bridge handles.
#[derive(Clone, Copy)]
pub struct TrackedRequest<'a> {
    /// Its call.
    pub call: CallId,
    /// When its caller stops waiting.
    pub expires: SystemTime,
    /// Restores the request as it was received from the event of the call, for every destination except the one that
    /// answers.
    pub plain: &'a dyn Fn(&Event) -> Result<Event, EventError>,
    /// Puts the reply address on the copy for the destination that answers.
    pub stamp: &'a Stamp<'a>,
}

/// Puts a reply address on a copy for a bus. Returns the additional headers of the message.
pub(crate) type Stamp<'a> = dyn Fn(BusId, &mut Event, &mut Address) -> Vec<(Text, Bytes)> + 'a;

impl std::fmt::Debug for TrackedRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrackedRequest").finish_non_exhaustive()
    }
}

/// The attributes for the answer of a call. Only the copy for the destination that answers has them.
const OF_THE_CALL: [&str; 3] = [
    extension::CALL_ID,
    extension::REPLY_TO,
    extension::REPLY_PARTITION,
];

/// The origin of an event, from which its copies inherit.
#[derive(Debug, Clone, Copy)]
pub struct Provenance<'a> {
    /// The rules that apply to it.
    pub rules: &'a Rules,
    /// The binding, or the HTTP interface, that received it.
    pub binding: &'a str,
    /// The consumer group or durable by which the binding read it; empty for events that the bridge makes.
    pub reader: &'a str,
    /// The key of its message, or the one that its caller sets.
    pub key: Option<&'a Bytes>,
    /// Where its source keeps the message, and the index of the unit in it.
    pub origin: Option<(&'a Origin, usize)>,
    /// The headers that its copies keep, if their bus can carry them.
    pub headers: &'a [Header],
}

// === impl Outbound ===

impl Outbound {
    /// The buses and rules for routing and sending.
    #[must_use]
    pub fn new(buses: Buses, rules: Arc<CurrentRules>) -> Self {
        Self { buses, rules }
    }

    /// The buses.
    #[must_use]
    pub fn buses(&self) -> &Buses {
        &self.buses
    }

    /// The current rules. A reader takes them once per message.
    #[must_use]
    pub fn rules(&self) -> Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// Replaces the rules, for messages that are read from now on.
    pub fn replace(&self, rules: &Rules) {
        self.rules.replace(rules);
    }

    /// Replaces the routes of announced agents, for messages that are read from now on.
    pub fn announce(&self, routes: AnnouncedRoutes) {
        self.rules.announce(routes);
    }

    /// The copies of an event: one for each destination of the first route that matches it, beginning with the one that
    /// answers requests. Only that destination gets the call id and the reply address; all others get a request without
    /// them. A single copy is made of the event itself, so the attributes of a copy may be in `event` afterwards.
    ///
    /// # Errors
    /// When there is no route, or the name of a destination cannot be built.
    pub fn route(
        &self,
        event: &mut Event,
        from: Provenance<'_>,
        to_answer: Option<TrackedRequest<'_>>,
    ) -> Result<Vec<Outgoing>, RoutingError> {
        let adapters = &from.rules.adapters;
        let mut of_binding = converted(adapters.at_binding(from.binding, event)?);
        let adapted = of_binding.as_ref().unwrap_or(event);
        let route = from.rules.route(adapted, from.binding);
        let route = route.map_err(|unrouted| RoutingError::unrouted(unrouted, adapted))?;
        let name = route.name().text();
        let mut of_route = converted(adapters.at_route(name, from.binding, adapted)?);
        let is_only = route.destinations().len() == 1;
        let mut plain = match to_answer.filter(|_| !is_only) {
            Some(to_answer) => {
                let plain = (to_answer.plain)(event)?;
                let plain = adapters.at_binding(from.binding, &plain)?;
                let plain = adapters.at_route(name, from.binding, &plain)?;
                Some(plain.into_owned())
            }
            None => None,
        };
        let adapted = of_route.as_mut().or(of_binding.as_mut());
        let event = adapted.unwrap_or(event);
        let in_route = |cause| RoutingError::Destination {
            route: name.clone(),
            cause,
        };
        let hops = next_hops(event, from.rules.max_hops).map_err(in_route)?;
        let mut copies = Vec::with_capacity(route.destinations().len());
        for (index, destination) in route.destinations().iter().enumerate() {
            let answers = index == route.answering();
            let event = plain.as_mut().filter(|_| !answers).unwrap_or(&mut *event);
            let resolved = destination
                .resolve(event, from.binding, from.key)
                .map_err(in_route)?;
            let to = (index, destination.named_by());
            let mut copied = (!is_only).then(|| event.clone());
            let copy = copied.as_mut().unwrap_or(event);
            copy.set(extension::HOPS, hops)?;
            if !answers {
                OF_THE_CALL.iter().for_each(|name| copy.remove(name));
            }
            let is_beside = to_answer.is_some() && !answers;
            let to_answer = to_answer.filter(|_| answers);
            let copy = self.copy(copy, (name, from), resolved, to, to_answer)?;
            copies.push(Outgoing { is_beside, ..copy });
        }
        // The copy that is answered goes first: the others may have to wait for their bus.
        if let Some(until_answering) = copies.get_mut(..=route.answering()) {
            until_answering.rotate_right(1);
        }
        Ok(copies)
    }

    /// The copies of an event that the bridge makes for a binding, by the route of the event, with these headers.
    /// No source gives it a key, so its `collaborationid` determines its order.
    ///
    /// # Errors
    /// As [`Outbound::route`].
    pub(crate) fn route_own(
        &self,
        event: &Event,
        binding: &str,
        headers: &[Header],
    ) -> Result<Vec<Outgoing>, RoutingError> {
        let rules = self.rules();
        let event_id = event.id().clone().into();
        let from = Provenance {
            rules: &rules,
            binding,
            reader: "",
            key: None,
            origin: Some((&event_id, 0)),
            headers,
        };
        self.route(&mut event.clone(), from, None)
    }

    /// The copy of an event for one destination of a route. `to_answer` is set for the destination that answers.
    fn copy(
        &self,
        event: &mut Event,
        (route, from): (&Text, Provenance<'_>),
        resolved: Resolved<'_>,
        (index, named_by): (usize, NamedBy),
        to_answer: Option<TrackedRequest<'_>>,
    ) -> Result<Outgoing, RoutingError> {
        let bus = self.bus(resolved.transport)?;
        let mut address = resolved.address;
        if let Guarantee::Stored { message_id } = &mut address.guarantee {
            let call = to_answer.map(|to_answer| to_answer.call);
            *message_id = Some(stored_id(from, (route, index), &address.topic, call));
        }
        let headers = to_answer.map(|to_answer| (to_answer.stamp)(bus, event, &mut address));
        let mut outgoing = self.written(
            bus,
            event,
            resolved.mode,
            resolved.key,
            (headers.unwrap_or_default(), from.headers),
            (address, named_by),
        )?;
        match to_answer {
            Some(to_answer) => {
                outgoing.is_awaited = true;
                outgoing.call = Some(to_answer.call.text());
                outgoing.expires = Some(to_answer.expires);
            }
            // The event may contain the id of any call, and its copies must not affect that call.
            None => outgoing.expires = crate::clock::expiry(event),
        }
        Ok(outgoing)
    }

    /// An event written for a bus. Its copy belongs to no call, and does not expire.
    fn written(
        &self,
        bus: BusId,
        event: &Event,
        mode: Mode,
        key: Option<Bytes>,
        (own, passed): (Vec<(Text, Bytes)>, &[Header]),
        (address, named_by): (Address, NamedBy),
    ) -> Result<Outgoing, RoutingError> {
        let missing = || RoutingError::NoTransport(Text::default());
        let binding = self.buses.get(bus).ok_or_else(missing)?.transport.binding();
        let mut message = content_mode::write(binding, event, mode.into())?;
        message.key = key;
        for (name, value) in own {
            message.headers.push(name, value);
        }
        for header in passed.iter().filter(|header| carries(binding, header)) {
            message.headers.add(header.clone());
        }
        Ok(Outgoing {
            named_by,
            mode,
            agent: event.extension_text(extension::TARGET_AGENT).cloned(),
            ..Outgoing::new(bus, address, message)
        })
    }

    /// Another event for the destination of `original`, without its reply address.
    ///
    /// # Errors
    /// When the event cannot be written there.
    pub fn follow_up(&self, event: &Event, original: &Outgoing) -> Result<Outgoing, RoutingError> {
        let mut address = original.address.clone();
        address.reply_to = None;
        if let Guarantee::Stored { message_id } = &mut address.guarantee {
            // With the message id of the original, the stream would drop it as a duplicate.
            *message_id = Some(fresh_id());
        }
        let key = original.message.key.clone();
        let copy = self.written(
            original.bus,
            event,
            original.mode,
            key,
            (Vec::new(), &[]),
            (address, original.named_by),
        )?;
        Ok(copy.of_its_call(event))
    }

    /// An event for the reply address of a requester, with the correlation id and the kept headers of its request. If a
    /// stream may store it, the stream has to confirm it.
    ///
    /// # Errors
    /// When the event cannot be written there.
    pub fn to_address(
        &self,
        event: &Event,
        (bus, address): (BusId, &Address),
        (correlation, headers): (Option<&Bytes>, &[Header]),
        may_be_stored: bool,
    ) -> Result<Outgoing, RoutingError> {
        let own = correlation.map(|id| (Text::from_static(spring::CORRELATION_ID), id.clone()));
        let headers = (own.into_iter().collect(), headers);
        let address = match may_be_stored {
            true => confirmed(address),
            false => address.clone(),
        };
        let address = (address, NamedBy::Event);
        let key = content_mode::key(event, extension::COLLABORATION_ID);
        let copy = self.written(bus, event, Mode::Binary, key, headers, address)?;
        Ok(copy.of_its_call(event))
    }

    fn bus(&self, name: &Name) -> Result<BusId, RoutingError> {
        self.buses
            .find(name)
            .ok_or_else(|| RoutingError::NoTransport(name.text().clone()))
    }

    /// Hands a message to its bus; the confirmation comes later.
    ///
    /// # Errors
    /// As [`a2abus_transports::Transport::send`].
    pub async fn send(&self, outgoing: &Outgoing) -> Result<Confirmation, TransportError> {
        let Some(bus) = self.buses.get(outgoing.bus) else {
            return Err(TransportError::new(
                TransportErrorKind::BadConfig,
                "find the transport",
            ));
        };
        // Pinned in place: the future of a transport is large, and `Instrument` would move it twice.
        let sending = pin!(bus.transport.send(&outgoing.address, &outgoing.message));
        sending
            .instrument(stage::publish(&outgoing.address.topic))
            .await
    }
}

/// The message id of a copy for a stream, which drops messages with the same id: so only the same copy of the same
/// message may have it. Another deployment may read the same source into the same stream, with a binding and a route of
/// the same names. A copy without an origin gets a new id, which all attempts to send it have.
fn stored_id(
    from: Provenance<'_>,
    (route, index): (&Text, usize),
    topic: &Topic,
    call: Option<CallId>,
) -> Text {
    let Some((origin, unit)) = from.origin else {
        return fresh_id();
    };
    let [mut of_time, mut of_unit, mut of_copy] = [itoa::Buffer::new(); 3];
    let time = origin.time.map_or("", |time| of_time.format(time));
    let (unit, index) = (of_unit.format(unit), of_copy.format(index));
    let copy = [
        from.binding,
        "/",
        from.reader,
        "/",
        &origin.position,
        "@",
        time,
        "/",
        unit,
        "/",
        route,
        "/",
        index,
        "/",
        topic.as_str(),
    ];
    // A redelivered request is a new call. The agent must get it again, or the call would have no answer.
    match call {
        Some(call) => Text::concat(&[&copy[..], &["/", &call.text()]].concat()),
        None => Text::concat(&copy),
    }
}

/// A message id for a stream that no other message has.
pub(crate) fn fresh_id() -> Text {
    crate::clock::new_event_id().into()
}

/// The address for one answer to a request from JetStream. If a stream takes the answer, it has to confirm it; if the
/// answer is sent again, it is a duplicate there. Its id is new, because agents may repeat the ids of their events.
pub(crate) fn confirmed(address: &Address) -> Address {
    let message_id = fresh_id();
    Address {
        guarantee: Guarantee::StoredIfAny { message_id },
        ..address.clone()
    }
}

/// The event, if an adapter has converted it.
fn converted(adapted: Cow<'_, Event>) -> Option<Event> {
    match adapted {
        Cow::Borrowed(_) => None,
        Cow::Owned(event) => Some(event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
default_route: [{ transport: bus, topic: agent }]
";

    /// A stream that has stored an attempt without confirming it recognises the next one by its id.
    #[test]
    fn a_copy_without_an_origin_has_a_message_id_that_no_other_copy_has() {
        let config = Config::read("test.yaml", CONFIG, []).unwrap();
        let rules = Rules::new(&config).unwrap();
        let from = Provenance {
            rules: &rules,
            binding: "in",
            reader: "",
            key: None,
            origin: None,
            headers: &[],
        };
        let (route, topic) = (Text::from_static("route"), Topic::new("agent").unwrap());
        let id = || stored_id(from, (&route, 0), &topic, None);
        assert!(!id().is_empty());
        assert_ne!(id(), id());
    }
}
