//! Where an event goes, and why nowhere else.

use a2abus_plugin::{Event, Kind, extension};
use serde::Serialize;

use crate::cli::payload::EntryPoint;
use crate::config::{BindingConfig, Claim, Mode, Name, Role};
use crate::route::{Destination, RouteMatch, RouteTable, RuleCheck};

/// The routes, as they are at one entry point.
#[derive(Debug)]
pub(super) struct Routing<'a> {
    table: RouteTable,
    entry: EntryPoint<'a>,
}

/// Where one event goes.
#[derive(Debug, Serialize)]
pub(super) struct RouteOutput {
    /// The binding the event came in by.
    pub(super) binding: String,
    /// The route that takes it.
    pub(super) taken: Option<Name>,
    /// Why it goes nowhere: the reason of the dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
    /// The rules that were asked, in order.
    pub(super) steps: Vec<RuleCheck>,
    /// Where it goes.
    pub(super) destinations: Vec<DestinationOutput>,
    /// What is done with it before, or instead of, routing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<&'static str>,
}

/// A destination that an event goes to.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum DestinationOutput {
    /// It can go there.
    Reachable {
        transport: Name,
        topic: String,
        key: Option<String>,
        mode: Mode,
        /// Whether requests are answered from there, where the route has several destinations.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        answers: bool,
    },
    /// It cannot.
    Refused { transport: Name, error: String },
}

const ANSWER: &str =
    "an answer: a call that waits for it gets it; what nobody waits for takes this route";
const ANSWER_ONLY: &str = "this binding carries answers: they are matched to the calls that wait for them, by callid, \
    kafka_correlationId, collaborationid or id, and nothing here is routed";
/// The reason of the dead letter of what is no answer, where there are only answers.
const NOT_AN_ANSWER: &str = "not_an_answer";

// === impl Routing ===

impl<'a> Routing<'a> {
    /// # Errors
    /// When a rule cannot be made ready, which loading the configuration rules out.
    pub(super) fn new(entry: EntryPoint<'a>) -> anyhow::Result<Self> {
        let config = entry.config;
        let table = RouteTable::build(
            &config.routes,
            &config.default_route,
            config.limits.max_hops,
        );
        let table = table.map_err(|(route, error)| anyhow::anyhow!("route {route}: {error}"))?;
        Ok(Self { table, entry })
    }

    /// The binding that is asked about; `None` for HTTP.
    pub(super) fn binding(&self) -> Option<&BindingConfig> {
        self.entry.binding
    }

    pub(super) fn output(&self, event: &Event, kind: Kind) -> RouteOutput {
        let binding = self.entry.name();
        let is_answer = matches!(kind, Kind::Response | Kind::Stream);
        let mut output = RouteOutput {
            binding: binding.to_owned(),
            taken: None,
            reason: None,
            steps: Vec::new(),
            destinations: Vec::new(),
            note: is_answer.then_some(ANSWER),
        };
        let role = self.entry.binding.map(|binding| binding.role);
        if role == Some(Role::Responses) {
            output.note = Some(ANSWER_ONLY);
            // An event that does not say what it is answers when it was sent to where an answer is awaited.
            let is_marked = event.extension(extension::MCP_TYPE).is_some();
            output.reason = (is_marked && !is_answer).then_some(NOT_AN_ANSWER);
            return output;
        }
        let mut event = event.clone();
        let trusts = |binding: &BindingConfig| binding.trusts.contains(&Claim::SourceAgent);
        if !self.entry.binding.is_some_and(trusts) {
            event.remove(extension::SOURCE_AGENT);
        }
        let event = &event;
        let explanation = self.table.explain(event, binding);
        output.steps = explanation.steps;
        output.taken = match explanation.taken {
            RouteMatch::Route(name) => Some(name),
            RouteMatch::Default => self.table.default_route().map(|route| route.name().clone()),
            RouteMatch::Nothing => None,
        };
        let Some(route) = self.table.route(event, binding) else {
            output.reason = Some("no_route");
            return output;
        };
        if route.next_hops(event).is_err() {
            output.reason = Some("too_many_hops");
            return output;
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
        output
    }
}

// === impl RouteOutput ===

impl RouteOutput {
    /// Whether the event is a dead letter.
    pub(super) fn goes_nowhere(&self) -> bool {
        self.reason.is_some()
    }

    /// What would bring it somewhere.
    pub(super) fn fix(&self) -> Option<&'static str> {
        Some(match self.reason? {
            "no_route" => {
                "fix the condition that does not match, add a route for this event, or set default_route"
            }
            NOT_AN_ANSWER => {
                "send it to a topic that a binding with role: events reads; an answer is a JSON-RPC response"
            }
            "too_many_hops" => {
                "the event runs in a loop: look which route leads back, or raise limits.max_hops"
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
                mode: resolved.mode,
                answers,
            },
            Err(error) => Self::Refused {
                transport: destination.transport().clone(),
                error: error.to_string(),
            },
        }
    }
}
