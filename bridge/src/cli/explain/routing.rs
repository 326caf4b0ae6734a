//! Where an event goes, and why.

use std::borrow::Cow;

use a2abus_plugin::{Event, Kind, Text, extension, format};
use a2abus_transports::content_mode::ProtocolBinding;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::calls::reply_address::{AllowedReplyAddresses, Refused};
use crate::cli::payload::EntryPoint;
use crate::config::{BindingConfig, Claim, Mode, Name, Role, TransportConfig};
use crate::pipeline::adapt::{AdaptError, Adapters};
use crate::route::{Destination, RouteMatch, RouteTable, RuleCheck};

/// The routes for one entry point.
#[derive(Debug)]
pub(super) struct Routing<'a> {
    table: RouteTable,
    adapters: Adapters,
    /// Where requests may ask for their answers; `None` for HTTP, and if the bridge makes no calls.
    reply_addresses: Option<AllowedReplyAddresses>,
    entry: EntryPoint<'a>,
}

/// Where one event goes.
#[derive(Debug, Serialize)]
pub(super) struct RouteOutput {
    /// The binding that received the event.
    pub(super) binding: String,
    /// The route that matches.
    pub(super) chosen: Option<Name>,
    /// The reason of the dead letter, if it becomes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
    /// Why it becomes one, if the routes do not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// The event that `convert` of the binding or the route makes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) converted: Option<Box<RawValue>>,
    /// The routes that were tried, in order.
    pub(super) steps: Vec<RuleCheck>,
    /// Where it goes.
    pub(super) destinations: Vec<DestinationOutput>,
    /// What happens to it before, or instead of, routing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<&'static str>,
}

/// A destination of an event.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum DestinationOutput {
    /// The event can be published there.
    Reachable {
        transport: Name,
        topic: String,
        key: Option<String>,
        /// `None` if the bytes are published as they came.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<Mode>,
        /// Whether this is the one of several destinations whose answers count.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        answers: bool,
    },
    /// The event cannot be published there.
    Refused { transport: Name, error: String },
}

const ANSWER: &str =
    "an answer: it goes to the call that waits for it; if none does, it takes this route";
const ANSWER_ONLY: &str = "this binding carries answers: they are matched to the calls that wait for them, by callid, \
    kafka_correlationId, collaborationid or id, and nothing here is routed";
const ATTACHED: &str = "this binding belongs to an attached agent: its server gets the requests, and nothing here is routed";
/// The reason of the dead letter of other events on a binding for answers.
const NOT_AN_ANSWER: &str = "not_an_answer";

// === impl Routing ===

impl<'a> Routing<'a> {
    /// # Errors
    /// When a route is invalid, which cannot happen with a loaded configuration.
    pub(super) fn new(entry: EntryPoint<'a>) -> anyhow::Result<Self> {
        let config = entry.config;
        let table = RouteTable::build(
            &config.routes,
            &config.default_route,
            config.limits.max_hops,
        );
        let table = table.map_err(|(route, error)| anyhow::anyhow!("route {route}: {error}"))?;
        // Without calls, no answer is awaited.
        let calling = entry.binding.filter(|_| config.calls.enabled);
        let allowed = |binding: &BindingConfig| {
            let transport = config.transports.get(&binding.transport);
            let bus = transport.map_or(ProtocolBinding::Memory, TransportConfig::protocol_binding);
            AllowedReplyAddresses::of_binding(binding, &config.calls.reply_topic.0, bus)
        };
        Ok(Self {
            table,
            adapters: Adapters::new(config),
            reply_addresses: calling.map(allowed).transpose()?,
            entry,
        })
    }

    /// The binding of the entry point; `None` for HTTP.
    pub(super) fn binding(&self) -> Option<&BindingConfig> {
        self.entry.binding
    }

    /// `reply_address` is the one that the event or its message names.
    pub(super) fn output(
        &self,
        event: &Event,
        kind: Kind,
        reply_address: Option<&Text>,
    ) -> RouteOutput {
        let binding = self.entry.name();
        let is_answer = matches!(kind, Kind::Response | Kind::Stream);
        let mut output = RouteOutput {
            binding: binding.to_owned(),
            chosen: None,
            reason: None,
            detail: None,
            converted: None,
            steps: Vec::new(),
            destinations: Vec::new(),
            note: is_answer.then_some(ANSWER),
        };
        let role = self.entry.binding.map(|binding| binding.role);
        if role == Some(Role::Agent) {
            output.note = Some(ATTACHED);
            return output;
        }
        if role == Some(Role::Responses) {
            output.note = Some(ANSWER_ONLY);
            // An event without a kind is an answer if it arrives where an answer is expected.
            let is_marked = event.extension(extension::MCP_TYPE).is_some();
            output.reason = (is_marked && !is_answer).then_some(NOT_AN_ANSWER);
            return output;
        }
        // An event without a kind is a request if it names a reply address.
        let declared = event.extension_text(extension::MCP_TYPE);
        let may_be_request = declared.is_none_or(|kind| kind == Kind::Request.as_str());
        let named = reply_address.filter(|_| may_be_request);
        if let (Some(addresses), Some(name)) = (&self.reply_addresses, named)
            && let Err(refused) = addresses.named(name, None)
        {
            output.reason = Some(Refused::REASON);
            output.detail = Some(refused.to_string());
            return output;
        }
        let mut event = event.clone();
        let trusts = |binding: &BindingConfig| binding.trusts.contains(&Claim::SourceAgent);
        if !self.entry.binding.is_some_and(trusts) {
            event.remove(extension::SOURCE_AGENT);
        }
        if let Err(error) = self.route(&event, &mut output) {
            output.reason = Some(error.reason());
            output.detail = Some(error.to_string());
        }
        output
    }

    /// Converts the event as its binding and route say, and finds its destinations.
    fn route(&self, event: &Event, output: &mut RouteOutput) -> Result<(), AdaptError> {
        let binding = self.entry.name();
        let of_binding = self.adapters.at_binding(binding, event)?;
        if let Cow::Owned(event) = &of_binding {
            output.converted = shown(event);
        }
        let explanation = self.table.explain(&of_binding, binding);
        output.steps = explanation.steps;
        output.chosen = match explanation.chosen {
            RouteMatch::Route(name) => Some(name),
            RouteMatch::Default => self.table.default_route().map(|route| route.name().clone()),
            RouteMatch::Nothing => None,
        };
        let Some(route) = self.table.route(&of_binding, binding) else {
            output.reason = Some("no_route");
            return Ok(());
        };
        let of_route = self
            .adapters
            .at_route(route.name().text(), binding, &of_binding)?;
        if let Cow::Owned(event) = &of_route {
            output.converted = shown(event);
        }
        let event = &*of_route;
        if route.next_hops(event).is_err() {
            output.reason = Some("too_many_hops");
            return Ok(());
        }
        output.destinations = route
            .destinations()
            .iter()
            .enumerate()
            .map(|(index, destination)| {
                let answers = route.destinations().len() > 1 && index == route.answering();
                DestinationOutput::of(destination, event, binding, answers)
            })
            .collect();
        let is_refused = |it: &DestinationOutput| matches!(it, DestinationOutput::Refused { .. });
        if output.destinations.iter().any(is_refused) {
            output.reason = Some("bad_destination");
        }
        Ok(())
    }
}

/// The event as JSON.
fn shown(event: &Event) -> Option<Box<RawValue>> {
    let mut json = Vec::new();
    format::write(event, &mut json);
    RawValue::from_string(String::from_utf8(json).ok()?).ok()
}

// === impl RouteOutput ===

impl RouteOutput {
    /// Whether the event is a dead letter.
    pub(super) fn goes_nowhere(&self) -> bool {
        self.reason.is_some()
    }

    /// The payload is published as it came, without an event.
    pub(super) fn unchanged(mut self) -> Self {
        self.converted = None;
        for destination in &mut self.destinations {
            if let DestinationOutput::Reachable { mode, .. } = destination {
                *mode = None;
            }
        }
        self
    }

    /// How to get the event routed.
    pub(super) fn fix(&self) -> Option<&'static str> {
        Some(match self.reason? {
            "no_route" => {
                "fix the condition that does not match, add a route for this event, or set default_route"
            }
            NOT_AN_ANSWER => {
                "send it to a topic that a binding with role: events reads; an answer is a JSON-RPC response"
            }
            Refused::REASON => {
                "let the request name another topic, or add this one to reply_topics"
            }
            "invalid_record" => "correct the named members, or remove `validate`",
            "convert_failed" => {
                "send a record that the conversion knows, or remove `convert` from the binding or route"
            }
            "too_many_hops" => {
                "the event is in a loop: find the route that leads back, or raise limits.max_hops"
            }
            _ => {
                "send the attribute that the topic needs, or change the destination's topic or names"
            }
        })
    }
}

// === impl DestinationOutput ===

impl DestinationOutput {
    fn of(destination: &Destination, event: &Event, binding: &str, answers: bool) -> Self {
        match destination.resolve(event, binding, None) {
            Ok(resolved) => Self::Reachable {
                transport: resolved.transport.clone(),
                topic: resolved.address.topic.as_str().to_owned(),
                key: resolved
                    .key
                    .map(|key| String::from_utf8_lossy(&key).into_owned()),
                mode: Some(resolved.mode),
                answers,
            },
            Err(error) => Self::Refused {
                transport: destination.transport().clone(),
                error: error.to_string(),
            },
        }
    }
}
