//! Where an event goes, and why.

use std::borrow::Cow;

use a2abus_models::e2a::Trust;
use a2abus_plugin::{Event, Family, Kind, Mapped, Text, extension, format, kind_of_event};
use a2abus_transports::Message;
use a2abus_transports::content_mode::ProtocolBinding;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::bus::BusId;
use crate::calls::failure::Failure;
use crate::calls::reply_address::{AllowedReplyAddresses, Refused};
use crate::calls::resolve::{ReadAt, Reader, answered_call, names_call};
use crate::cli::payload::{EntryPoint, PayloadOptions};
use crate::clock;
use crate::config::{BindingConfig, Config, Mode, Name, Role, TransportConfig};
use crate::doors::kind_of_sent;
use crate::metrics::Metrics;
use crate::pipeline::adapt::{AdaptError, CONVERT_FAILED, FIX_CONVERSION};
use crate::pipeline::claims::Claims;
use crate::registry::AnnouncementError;
use crate::registry::card::Card;
use crate::registry::discovery::announced_card;
use crate::route::{Destination, RouteMatch, RuleCheck, next_hops};
use crate::rules::{Rules, Unrouted};
use crate::workflows::bus::{NotExecuted, hint_of_data};

/// The routes for one entry point.
#[derive(Debug)]
pub(super) struct Routing<'a> {
    rules: Rules,
    /// Where requests may ask for their answers; `None` for HTTP, and if the bridge makes no calls.
    reply_addresses: Option<AllowedReplyAddresses>,
    /// What the writers to the topics of a binding for events may set.
    claims: Option<Claims>,
    entry: EntryPoint<'a>,
}

/// Where one event goes.
#[derive(Debug, Serialize)]
pub(super) struct RouteOutput {
    /// The binding that received the event.
    pub(super) binding: String,
    /// The route that matches.
    pub(super) chosen: Option<Name>,
    /// The reason of the dead letter, if it becomes one, or of the log line if it is dropped; over HTTP, of the error
    /// that the caller gets instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Cow<'static, str>>,
    /// Whether the requester gets an error with this reason instead of a dead letter.
    #[serde(skip)]
    pub(super) is_answered: bool,
    /// How to get the event routed.
    #[serde(skip)]
    pub(super) fix: Option<&'static str>,
    /// Whether the HTTP listener received it.
    #[serde(skip)]
    pub(super) is_http: bool,
    /// Why it is not published, if the routes do not say it.
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
const WORKFLOWS: &str =
    "this binding is for A2E workflows: the executor gets them, and only its answers are routed";
const DISCOVERY: &str = "this binding is for agents that announce themselves: the registry gets this, and nothing here is routed";
const ANNOUNCED: &str = "agents that announce themselves are known only to the running bridge, where they have routes of their own";
/// The reason of the dead letter of other events on a binding for answers.
const NOT_AN_ANSWER: &str = "not_an_answer";
/// The reason of the dead letter of a message there that names no call.
pub(super) const UNCORRELATED: &str = "uncorrelated";
/// The cure for one.
pub(super) const NAME_THE_CALL: &str =
    "repeat the callid attribute, or the id of the request, in the answer";
/// The reason in the log for a message whose `expirytime` has passed.
pub(super) const EXPIRED: &str = "expired";
/// The reason of the dead letter of a request for an agent that nobody knows.
const AGENT_NOT_FOUND: &str = "agent_not_found";
/// The reason of the error for an answer that is sent to the HTTP listener.
const NOT_A_REQUEST: &str = "invalid_request";
/// The reason of an answer that no route takes.
const MISPLACED_ANSWER: &str = "answer_on_request_topic";

// === impl Routing ===

impl<'a> Routing<'a> {
    /// # Errors
    /// When a route is invalid, which cannot happen with a loaded configuration.
    pub(super) fn new(entry: EntryPoint<'a>) -> anyhow::Result<Self> {
        let config = entry.config;
        let rules = Rules::new(config);
        let rules = rules.map_err(|(route, error)| anyhow::anyhow!("route {route}: {error}"))?;
        // Without calls, no answer is awaited.
        let calling = entry.binding.filter(|_| config.calls.enabled);
        let reply_addresses = calling.map(|binding| allowed(config, binding));
        let of_events = entry.binding.filter(|binding| binding.role == Role::Events);
        let claims = of_events.map(|binding| {
            let metrics = Metrics::new()?.binding(binding.name.text());
            let addresses = allowed(config, binding)?;
            let claims = Claims::new(config, binding, entry.source(), addresses, metrics)?;
            anyhow::Ok(claims)
        });
        Ok(Self {
            rules,
            reply_addresses: reply_addresses.transpose()?,
            claims: claims.transpose()?,
            entry,
        })
    }

    /// The binding of the entry point; `None` for HTTP.
    pub(super) fn binding(&self) -> Option<&BindingConfig> {
        self.entry.binding
    }

    /// Whether the entry point is the HTTP listener.
    pub(super) fn is_http(&self) -> bool {
        self.entry.binding.is_none()
    }

    /// Changes a unit as its entry point does before it routes it. Returns the attributes that it took from the data.
    pub(super) fn admit(&self, mapped: &mut Mapped, options: &PayloadOptions) -> Vec<&'static str> {
        let is_event = mapped.detection.family == Family::CloudEvent;
        let event = &mut mapped.event;
        let (Some(binding), Some(claims)) = (self.entry.binding, &self.claims) else {
            if self.is_http() && is_event {
                options.override_claims(event);
                mapped.kind = kind_of_sent(event, &self.rules.limits);
            }
            return Vec::new();
        };
        let message = options.message(&Bytes::new());
        let at = self.at(binding, &message);
        let mut filled = Vec::new();
        if is_event {
            let id = event.id().clone();
            claims.of_cloudevent(at, mapped.index, event, |_| false);
            if *event.id() != id {
                options.set_position(event, mapped.index);
            }
            if binding.fill_from_data {
                filled = options.fill_from_data(event);
            }
            mapped.kind = kind_of_event(event);
        }
        claims.of_event(at, event);
        let address = options.reply_address(event);
        let has_requester =
            self.reply_addresses.is_some() && asked(event, address.as_ref()).is_some();
        if !has_requester {
            claims.of_untracked(at, event);
        }
        filled
    }

    /// A message that a binding reads.
    fn at<'m>(&'m self, binding: &'m BindingConfig, message: &'m Message) -> ReadAt<'m> {
        ReadAt {
            rules: &self.rules,
            bus: BusId::default(),
            // The topic of the message is not known.
            topic: &binding.dead_letter.topic.0,
            origin: None,
            message,
            reply_to: None,
            reader: Reader::Binding,
            trust: Trust::Untrusted,
        }
    }

    /// Adds to the route of a unit why the reader of a binding without routes refuses it.
    pub(super) fn refuse(
        &self,
        route: &mut RouteOutput,
        mapped: &Mapped,
        options: &PayloadOptions,
    ) {
        let Some(binding) = self.entry.binding else {
            return;
        };
        match binding.role {
            Role::Workflows => {
                if let Some(why) = self.not_executed(binding, mapped, options) {
                    route.not_executed(why);
                }
            }
            Role::Discovery => {
                let body = mapped.event.body();
                if let Some(why) = self.not_announced(&body).filter(|_| !body.is_empty()) {
                    route.not_announced(&why);
                }
            }
            Role::Responses => {
                if let Some(reason) = self.no_answer(mapped, options) {
                    route.no_answer(reason);
                }
            }
            Role::Agent => {
                let is_request = mapped.kind == Kind::Request;
                if is_request && route.reason.is_none() && clock::is_expired(&mapped.event) {
                    route.expired();
                }
            }
            Role::Events => {}
        }
    }

    /// Why the executor does not execute the request in a unit; `None` if it does.
    fn not_executed(
        &self,
        binding: &BindingConfig,
        mapped: &Mapped,
        options: &PayloadOptions,
    ) -> Option<NotExecuted> {
        let config = self.entry.config;
        let event = &mapped.event;
        let data = match mapped.detection.family {
            Family::CloudEvent => options.inside(event, &hint_of_data(options.hint(), event)),
            _ => Some(mapped.clone()),
        };
        NotExecuted::of(
            (event, data.as_ref()),
            &options.message(&Bytes::new()),
            &self.rules.limits,
            allowed(config, binding).ok()?,
            &config.workflows,
        )
    }

    /// Why the registry refuses a body, or the card in it; `None` if it does not. Whether the agent may use its name and
    /// destination is known only to the running bridge.
    pub(super) fn not_announced(&self, body: &Bytes) -> Option<Failure> {
        let card = match announced_card(body) {
            Ok(card) => card?,
            Err(failure) => return Some(failure),
        };
        let most = self.entry.config.registry.max_card.0.as_u64();
        let faults = Card::read(&card, usize::try_from(most).unwrap_or(usize::MAX)).err()?;
        Some(AnnouncementError::Invalid(faults).into())
    }

    /// The reason of the dead letter of a unit that is no answer; `None` if it can be one.
    fn no_answer(&self, mapped: &Mapped, options: &PayloadOptions) -> Option<&'static str> {
        let event = &mapped.event;
        // An event without a kind is an answer if it arrives where an answer is expected.
        event.extension(extension::MCP_TYPE)?;
        if self.names_call(&mapped.bytes, options) {
            return None;
        }
        let is_progress = || {
            let method = event.extension_text(extension::A2A_METHOD);
            method.is_some_and(|method| method.as_str() == "notifications/progress")
        };
        match mapped.kind {
            Kind::Request => Some(NOT_AN_ANSWER),
            Kind::Notification if !is_progress() => Some(UNCORRELATED),
            _ => None,
        }
    }

    /// Whether the binding reads a unit as the answer to a call that the unit, or the headers of its message, name.
    pub(super) fn names_call(&self, unit: &Bytes, options: &PayloadOptions) -> bool {
        let message = options.message(unit);
        let binding = self.entry.binding;
        let binding = binding.filter(|binding| binding.role == Role::Responses);
        binding.is_some_and(|binding| names_call(self.at(binding, &message), options.binding()))
    }

    /// `reply_address` is the one that the event or its message names.
    pub(super) fn output(
        &self,
        event: &Event,
        kind: Kind,
        reply_address: Option<&Text>,
    ) -> RouteOutput {
        let mut output = self.routed(event, kind, reply_address);
        output.fix = output.reason.as_deref().and_then(fix_of);
        if self.is_http() {
            let names_agent = event.extension(extension::TARGET_AGENT).is_some();
            let error = |reason: Cow<'_, str>| error_of(&reason, names_agent).into();
            output.reason = output.reason.map(error);
        }
        output
    }

    fn routed(&self, event: &Event, kind: Kind, reply_address: Option<&Text>) -> RouteOutput {
        let is_answer = matches!(kind, Kind::Response | Kind::Stream);
        let mut output = RouteOutput {
            binding: self.entry.name().to_owned(),
            chosen: None,
            reason: None,
            is_answered: false,
            fix: None,
            is_http: self.is_http(),
            detail: None,
            converted: None,
            steps: Vec::new(),
            destinations: Vec::new(),
            note: is_answer.then_some(ANSWER),
        };
        if is_answer && self.is_http() {
            output.note = None;
            output.reason = Some(NOT_A_REQUEST.into());
            return output;
        }
        let role = self.entry.binding.map(|binding| binding.role);
        let unrouted = match role {
            Some(Role::Agent) => Some(ATTACHED),
            Some(Role::Workflows) => Some(WORKFLOWS),
            Some(Role::Discovery) => Some(DISCOVERY),
            Some(Role::Responses) => Some(ANSWER_ONLY),
            Some(Role::Events) | None => None,
        };
        if unrouted.is_none() && clock::is_expired(event) {
            output.expired();
            return output;
        }
        // The executor checks the addresses of its requests itself.
        let is_unasked = matches!(
            role,
            Some(Role::Responses | Role::Discovery | Role::Workflows)
        );
        if !is_unasked && let Some(refused) = self.refused(event, reply_address) {
            output.note = unrouted.or(output.note);
            output.reason = Some(Refused::REASON.into());
            output.detail = Some(refused.to_string());
            return output;
        }
        if unrouted.is_some() {
            output.note = unrouted;
            return output;
        }
        if let Err(error) = self.route(event, &mut output) {
            output.reason = Some(error.reason().into());
            output.detail = Some(error.to_string());
        }
        output
    }

    /// Why the event may not name this address for its answer.
    fn refused(&self, event: &Event, reply_address: Option<&Text>) -> Option<Refused> {
        let name = asked(event, reply_address)?;
        let addresses = self.reply_addresses.as_ref()?;
        addresses.named(name, None).err()
    }

    /// Converts the event as its binding and route say, and finds its destinations.
    fn route(&self, event: &Event, output: &mut RouteOutput) -> Result<(), AdaptError> {
        let binding = self.entry.name();
        let adapters = &self.rules.adapters;
        let of_binding = adapters.at_binding(binding, event)?;
        if let Cow::Owned(event) = &of_binding {
            output.converted = shown(event);
        }
        let config = self.entry.config;
        let target = of_binding.extension_text(extension::TARGET_AGENT);
        let is_listed = target.is_none_or(|agent| config.agents.contains_key(agent.as_str()));
        let note = (config.registry.enabled && !is_listed).then_some(ANNOUNCED);
        let route = self.rules.route(&of_binding, binding);
        if let Err(Unrouted::UnknownAgent) = route {
            output.reason = Some(AGENT_NOT_FOUND.into());
            output.note = note;
            return Ok(());
        }
        let explanation = self.rules.routes.explain(&of_binding, binding);
        output.steps = explanation.steps;
        output.chosen = match explanation.chosen {
            RouteMatch::Route(name) => Some(name),
            RouteMatch::Default | RouteMatch::Nothing => {
                output.note = output.note.or(note);
                route.ok().map(|route| route.name().clone())
            }
        };
        let Ok(route) = route else {
            output.reason = Some(match answered_call(&of_binding) {
                Some(_) => MISPLACED_ANSWER.into(),
                None => "no_route".into(),
            });
            return Ok(());
        };
        let of_route = adapters.at_route(route.name().text(), binding, &of_binding)?;
        if let Cow::Owned(event) = &of_route {
            output.converted = shown(event);
        }
        let event = &*of_route;
        if next_hops(event, self.rules.max_hops).is_err() {
            output.reason = Some("too_many_hops".into());
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
            output.reason = Some("bad_destination".into());
        }
        Ok(())
    }
}

/// Where answers to the requests of a binding may go.
fn allowed(
    config: &Config,
    binding: &BindingConfig,
) -> Result<AllowedReplyAddresses, globset::Error> {
    let transport = config.transports.get(&binding.transport);
    let bus = transport.map_or(ProtocolBinding::Memory, TransportConfig::protocol_binding);
    AllowedReplyAddresses::of_binding(binding, &config.calls.reply_topic.0, bus)
}

/// The reply address, if the event may be a request: one without a kind is a request if it names a reply address.
fn asked<'n>(event: &Event, reply_address: Option<&'n Text>) -> Option<&'n Text> {
    let declared = event.extension_text(extension::MCP_TYPE);
    let may_be_request = declared.is_none_or(|kind| kind == Kind::Request.as_str());
    reply_address.filter(|_| may_be_request)
}

/// The event as JSON.
fn shown(event: &Event) -> Option<Box<RawValue>> {
    let mut json = Vec::new();
    format::write(event, &mut json);
    RawValue::from_string(String::from_utf8(json).ok()?).ok()
}

// === impl RouteOutput ===

impl RouteOutput {
    /// Whether the event is a dead letter or, over HTTP, an error.
    pub(super) fn goes_nowhere(&self) -> bool {
        self.reason.is_some()
    }

    /// The executor does not execute the request.
    fn not_executed(&mut self, why: NotExecuted) {
        self.fix = fix_of(&why.code).filter(|_| !why.is_answered);
        self.is_answered = why.is_answered;
        self.detail = Some(why.detail);
        self.reason = Some(why.code.into());
    }

    /// The registry does not accept the card.
    pub(super) fn not_announced(&mut self, why: &Failure) {
        self.detail = Some(why.message().to_owned());
        self.reason = Some(why.reason_code().into());
    }

    /// The unit cannot be the answer to a call.
    fn no_answer(&mut self, reason: &'static str) {
        self.fix = fix_of(reason);
        self.reason = Some(reason.into());
    }

    /// The event has come too late.
    fn expired(&mut self) {
        self.reason = Some(EXPIRED.into());
        self.detail = Some("its expirytime has passed".to_owned());
        self.fix = fix_of(EXPIRED);
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
}

/// The cure for an event that is not routed or executed for this reason; `None` if the detail says it.
fn fix_of(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "no_route" => {
            "fix the condition that does not match, add a route for this event, or set default_route"
        }
        MISPLACED_ANSWER => {
            "let the agent answer at the reply address of the request, or on a topic that a binding with role: responses reads"
        }
        AGENT_NOT_FOUND => {
            "name an agent that `agents` lists or a route names, or set registry.unknown_agents: any"
        }
        NOT_AN_ANSWER => {
            "send it to a topic that a binding with role: events reads; an answer is a JSON-RPC response"
        }
        UNCORRELATED => NAME_THE_CALL,
        EXPIRED => "send it again with a later expirytime, or without one",
        NOT_A_REQUEST => "send a request or a notification; agents answer on the bus",
        Refused::REASON => "let the request name another topic, or add this one to reply_topics",
        "invalid_record" => "correct the named members, or remove `validate`",
        CONVERT_FAILED => FIX_CONVERSION,
        "too_many_hops" => {
            "the event is in a loop: find the route that leads back, or raise limits.max_hops"
        }
        "not_a_workflow" => {
            "send the JSON Lines of a workflow, or the JSON-RPC method workflows/execute or workflows/validate"
        }
        "other_agent" => "name the executor (workflows.agent) in targetagent, or name no agent",
        "missing_collaborationid" | "not_a_request" | "rpc_not_permitted" => return None,
        _ => "send the attribute that the topic needs, or change the destination's topic or names",
    })
}

/// The reason of the error that a caller over HTTP gets.
fn error_of(reason: &str, names_agent: bool) -> &'static str {
    match reason {
        CONVERT_FAILED => CONVERT_FAILED,
        NOT_A_REQUEST => NOT_A_REQUEST,
        EXPIRED => "timeout",
        "no_route" | MISPLACED_ANSWER | AGENT_NOT_FOUND => AGENT_NOT_FOUND,
        "bad_destination" if !names_agent => AGENT_NOT_FOUND,
        _ => "invalid_params",
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
