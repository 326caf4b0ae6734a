//! The methods of the A2A interface.

use std::borrow::Cow;
use std::sync::Arc;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Text, Unit};
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use super::card;
use super::method::{Method, Push};
use super::parsed::{ParsedRequest, Version};
use super::shared::A2a;
use crate::account::ANSWERED;
use crate::calls::CallError;
use crate::calls::failure::{Failure, Reason};
use crate::config::AgentCardConfig;
use crate::doors::door;
use crate::doors::rpc::common::{Common, Target};

/// The head of an HTTP request, for all requests in its body.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) version: Version,
    /// The dialect of errors if a request cannot be read.
    pub(super) fallback: Dialect,
    /// The trace id from the headers.
    pub(super) trace: Option<String>,
    /// The last event that the client has received.
    pub(super) last_event: Option<String>,
    /// The base of URLs.
    pub(super) base: String,
}

/// A request in progress.
pub(super) struct A2aRequest<'a> {
    pub(super) a2a: &'a Arc<A2a>,
    pub(super) common: Cow<'a, Common>,
    pub(super) head: &'a Head,
    pub(super) parsed: ParsedRequest,
    pub(super) in_batch: bool,
}

/// The answer to a request.
pub(super) enum Reply {
    /// One document.
    Whole(Bytes),
    /// One document, which is an error of the bridge, and the type of its event if it is sent as one.
    Failed(Bytes, Option<&'static str>),
    /// A stream of events.
    Stream(Box<Response>),
    /// A document whose status is not 200.
    WithStatus(StatusCode, Bytes),
}

// === impl A2aRequest ===

impl A2aRequest<'_> {
    /// Executes the request and counts it. `unit` is what was parsed.
    pub(super) async fn done(mut self, unit: Unit) -> Result<Reply, Failure> {
        let metrics = Arc::clone(&self.a2a.door.metrics);
        let [method, version, binding] = self.parsed.form().labels();
        let done = Box::pin(self.answered(unit)).await;
        let outcome = done.as_ref().map_or_else(Failure::reason_code, |_| "ok");
        metrics.a2a_request([method, version, binding, outcome]);
        done
    }

    async fn answered(&mut self, unit: Unit) -> Result<Reply, Failure> {
        let method = self.parsed.method;
        if matches!(method, Method::Send | Method::Stream) {
            let target = self.target();
            let agent = target.inspect_err(|failure| self.note("", failure.reason_code()))?;
            // A path that names the agent need not be overridden.
            if self.common.target.name() != Some(&*agent) {
                self.common.to_mut().target = Target::Agent(agent.clone());
            }
            return self.send(&agent, unit).await;
        }
        let agent = self.named().unwrap_or_default();
        let answered = self.without_message(method).await;
        let outcome = answered
            .as_ref()
            .map_or_else(Failure::reason_code, |_| ANSWERED);
        self.note(&agent, outcome);
        answered
    }

    /// The answer to a request that sends no message.
    async fn without_message(&self, method: Method) -> Result<Reply, Failure> {
        if let Some(agent) = self.named() {
            self.agent(&agent)?;
        } else if self.common.target == Target::NotAName {
            return Err(self.not_a_name());
        }
        // The futures are boxed, so that they do not enlarge the future of the most common request, a message.
        let (result, tasks) = match method {
            Method::Get => (Box::pin(self.get()).await?, 1),
            Method::List => Box::pin(self.list()).await?,
            Method::Cancel => (Box::pin(self.cancel()).await?, 1),
            Method::Follow => return Box::pin(self.follow()).await,
            Method::Card => (self.card(), 0),
            Method::Push(what) => (Box::pin(self.push(what)).await?, 0),
            Method::Send | Method::Stream => (String::new(), 0),
        };
        // Something was done: its result must not be refused.
        let is_done = matches!(
            method,
            Method::Cancel | Method::Push(Push::Set | Push::Delete)
        );
        if is_done {
            return Ok(self.whole(&result));
        }
        let body = self.parsed.form().result(&result);
        // A page of several tasks can be made shorter, and a batch may ask for many documents.
        let body = match tasks > 1 || self.in_batch {
            true => self.common.charged(body)?,
            false => door::charged_large(&self.common.budget, body)?,
        };
        Ok(Reply::Whole(body))
    }

    /// Records the request in the access log.
    pub(super) fn note(&self, agent: &str, outcome: &str) {
        self.common.note(agent, self.parsed.name, outcome);
    }

    /// An answer with this result, which is charged also if it exceeds the budget.
    pub(super) fn whole(&self, result: &str) -> Reply {
        let body = self.parsed.form().result(result);
        Reply::Whole(self.common.budget.replace(body))
    }

    // === agents ===

    /// The agent that the path names.
    pub(super) fn named(&self) -> Option<Text> {
        self.common.target.name().map(Text::from)
    }

    /// The agent that the path, the configuration or the request names, in this order.
    fn target(&self) -> Result<Text, Failure> {
        let agents = self.a2a.settings.registry.now();
        let agent = match &self.common.target {
            Target::Agent(agent) => Some(agent.clone()),
            Target::NotAName => return Err(self.not_a_name()),
            Target::InPayload => agents.default_agent().cloned().or_else(|| self.hinted()),
        };
        let agent = agent.unwrap_or_default();
        self.agent(&agent)?;
        Ok(agent)
    }

    pub(super) fn agent(&self, name: &str) -> Result<Arc<AgentCardConfig>, Failure> {
        let agents = self.a2a.settings.registry.now();
        let found = agents.get(name);
        found
            .map(|(_, agent)| Arc::clone(agent))
            .ok_or_else(|| self.unknown_agent(name))
    }

    fn unknown_agent(&self, name: &str) -> Failure {
        let agents = self.a2a.settings.registry.now();
        Failure::unknown_agent(name, agents.names())
    }

    fn not_a_name(&self) -> Failure {
        let agents = self.a2a.settings.registry.now();
        Failure::not_a_name("the path").detail("availableAgents", agents.names())
    }

    /// The agent that the request itself names.
    fn hinted(&self) -> Option<Text> {
        let request: Value = serde_json::from_slice(&self.parsed.bytes).ok()?;
        let params = request.get("params")?;
        let named = params
            .get("_agentId")
            .or_else(|| params.pointer("/message/metadata/targetAgent"))?;
        named.as_str().map(Text::from)
    }

    fn card(&self) -> String {
        let (settings, base) = (&self.a2a.settings, &self.head.base);
        let agents = settings.registry.now();
        let named = self.named();
        let card = match named.as_ref().and_then(|name| agents.get(name)) {
            Some((name, agent)) => card::of_agent(name, agent, &settings.offer_of(base, name)),
            None => card::of_server(&settings.instance, &agents, &settings.offer(base)),
        };
        if self.parsed.dialect == Dialect::A2a10 {
            return card::current_only(card).to_string();
        }
        card.to_string()
    }
}

/// The error of a call without an answer.
pub(super) fn of_call(error: &CallError) -> Failure {
    Failure::of_client(error)
}

/// The error when push notifications are disabled.
pub(super) fn no_push() -> Failure {
    let message = "push notifications are disabled: subscribe to the task instead";
    Failure::new(Reason::PushUnsupported, message)
}

/// The error for an unknown task.
pub(in crate::doors) fn not_found(id: &str) -> Failure {
    Failure::new(Reason::TaskNotFound, format!("task not found: {id:?}"))
}
