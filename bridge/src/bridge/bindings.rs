//! The readers of the bindings of a configuration.

use std::fmt::Display;
use std::sync::Arc;

use a2abus_plugin::{MapOptions, Source, Text};
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{Consumer, Subscription};
use tokio_util::sync::CancellationToken;

use super::error::BridgeError;
use crate::attached::{AttachedBinding, Bounds, Herald, ReplyPublisher, Upstream};
use crate::bus::deadletter::{DeadLetters, Log};
use crate::bus::delivery::Publisher;
use crate::bus::headers::PassedHeaders;
use crate::bus::outbound::Outbound;
use crate::bus::{Bus, BusId};
use crate::calls::Calls;
use crate::calls::exchange::Exchanges;
use crate::calls::exchange::room::WaitingRoom;
use crate::calls::reply_address::AllowedReplyAddresses;
use crate::config::{AgentCardConfig, AttachConfig, BindingConfig, Config, Name, Role};
use crate::log_limit::LogLimits;
use crate::metrics::Metrics;
use crate::pipeline::claims::Claims;
use crate::pipeline::intake::Intake;
use crate::pipeline::{CopiesInHand, Pipeline};
use crate::readiness::Readiness;
use crate::registry::Registry;
use crate::registry::discovery::DiscoveryBinding;
use crate::results::Results;
use crate::workflows::Workflows;
use crate::workflows::bus::{AnswerSettings, WorkflowBinding};

/// The component that reads the messages of a binding.
#[derive(Debug)]
pub(crate) enum BindingService {
    /// Maps and routes them.
    Pipeline(Arc<Pipeline>),
    /// Executes them as workflows.
    Workflows(Box<WorkflowBinding>),
    /// Reads them as announcements of agents.
    Discovery(Box<DiscoveryBinding>),
    /// Sends them to an attached agent.
    Agent(Box<AttachedBinding>),
}

/// The parts that the bindings of a bridge share.
pub(super) struct Parts<'a> {
    pub(super) config: &'a Config,
    pub(super) registry: &'a Arc<Registry>,
    pub(super) outbound: &'a Outbound,
    pub(super) publisher: Publisher,
    pub(super) exchanges: &'a Arc<Exchanges>,
    pub(super) calls: &'a Arc<Calls>,
    pub(super) metrics: &'a Arc<Metrics>,
    pub(super) readiness: &'a Arc<Readiness>,
    pub(super) log: &'a LogLimits,
}

// === impl BindingService ===

impl BindingService {
    /// How it reads its messages.
    pub(crate) fn intake(&self) -> &Intake {
        match self {
            Self::Pipeline(pipeline) => &pipeline.intake,
            Self::Workflows(binding) => &binding.intake,
            Self::Discovery(binding) => &binding.intake,
            Self::Agent(binding) => &binding.intake,
        }
    }

    /// The number of messages received but not settled.
    pub(crate) fn in_flight(&self) -> i64 {
        self.intake().metrics.in_flight.get()
    }

    /// Whether it reads events, which any replica may process, rather than answers to calls of this one.
    pub(crate) fn is_of_events(&self) -> bool {
        matches!(self, Self::Pipeline(pipeline) if pipeline.role == Role::Events)
    }

    /// Whether it stops reading as soon as the bridge drains, so that other replicas get its share. A bridge that
    /// drains begins no workflow. If the source redelivers, a workflow waits there for the next reader, and its cancel
    /// is still read; a workflow from core NATS would only be refused.
    pub(crate) fn stops_at_drain(&self) -> bool {
        match self {
            Self::Workflows(binding) => !binding.intake.is_redelivered(),
            _ => self.is_of_events(),
        }
    }

    /// Runs until `stop`, then finishes the messages in progress.
    pub(crate) async fn run(&self, consumer: Consumer, stop: CancellationToken) -> Consumer {
        match self {
            Self::Pipeline(pipeline) => pipeline.run(consumer, stop).await,
            Self::Workflows(binding) => binding.run(consumer, stop).await,
            Self::Discovery(binding) => Box::pin(binding.run(consumer, stop)).await,
            Self::Agent(binding) => Box::pin(binding.run(consumer, stop)).await,
        }
    }
}

impl From<Pipeline> for BindingService {
    fn from(pipeline: Pipeline) -> Self {
        Self::Pipeline(Arc::new(pipeline))
    }
}

// === impl Parts ===

impl Parts<'_> {
    /// The readers of the bindings, and of answers in the wrong partition.
    pub(super) fn bindings(
        &self,
        workflows: Option<&Workflows>,
        results: Option<&Arc<Results>>,
    ) -> Result<Vec<(BindingService, Subscription)>, BridgeError> {
        let mut bindings = self.misplaced_answers()?;
        for binding in &self.config.bindings {
            let work = match binding.role {
                Role::Workflows => self.executor(binding, workflows)?,
                Role::Discovery => self.discovery(binding, results)?,
                Role::Agent => self.agent(binding, results)?,
                Role::Events | Role::Responses => self.pipeline(binding)?.into(),
            };
            bindings.push((work, binding.subscription()));
        }
        Ok(bindings)
    }

    fn pipeline(&self, binding: &BindingConfig) -> Result<Pipeline, BridgeError> {
        let intake = self.intake(binding)?;
        Ok(Pipeline {
            claims: self.claims(binding, &intake)?,
            intake,
            role: binding.role,
            ids: binding.mapping.ids,
            on_unknown: binding.effective_on_unknown(),
            fills_from_data: binding.fill_from_data,
            passed: passed(binding)?,
            replies: binding.replies.as_ref().map(|topic| topic.0.clone()),
            outbound: self.outbound.clone(),
            publisher: self.publisher.clone(),
            exchanges: Arc::clone(self.exchanges),
            waiting: waiting_room(binding),
            copies: CopiesInHand::new(binding.subscription().budget_messages),
            workers: usize::try_from(binding.workers).unwrap_or(usize::MAX),
            calls: Arc::clone(self.calls),
        })
    }

    /// The intake of a binding.
    fn intake(&self, binding: &BindingConfig) -> Result<Intake, BridgeError> {
        let name = binding.name.text();
        let (bus, own) = self.bus(&binding.transport)?;
        let instance = self.config.instance.text();
        let source = binding.mapping.source.clone();
        let source = source.unwrap_or_else(|| format!("/a2abus/{instance}/{name}").into());
        Ok(Intake {
            name: name.clone(),
            reader: reader_of(binding),
            bus,
            binding: own.transport.binding(),
            reads_jetstream: binding.durable.is_some(),
            hint: binding.hint(),
            options: MapOptions::from(&binding.mapping),
            source: Source::new(source).map_err(in_binding(binding))?,
            dead_letters: Arc::new(self.dead_letters(binding, own)?),
            metrics: self.metrics.binding(name),
            counts: Arc::clone(self.metrics),
        })
    }

    fn bus(&self, name: &Name) -> Result<(BusId, &Bus), BridgeError> {
        let buses = self.outbound.buses();
        let bus = buses
            .find(name)
            .and_then(|id| buses.get(id).map(|bus| (id, bus)));
        bus.ok_or_else(|| BridgeError::Config(format!("there is no transport {}", name.text())))
    }

    /// The destination of the dead letters of a binding that reads from `own`.
    fn dead_letters(&self, binding: &BindingConfig, own: &Bus) -> Result<DeadLetters, BridgeError> {
        let name = binding.name.text();
        let (bus, dead) = self.bus(binding.dead_letter_transport())?;
        let kind = dead.transport.binding();
        Ok(DeadLetters {
            name: name.clone(),
            reader: reader_of(binding),
            bus,
            binding: kind,
            topic: binding.dead_letter.topic.0.clone(),
            is_backed: kind != ProtocolBinding::Nats
                || binding.is_at_least_once(own.transport.binding()),
            calls: Arc::clone(self.calls),
            metrics: self.metrics.binding(name),
            log: Arc::new(Log::new(name, self.log)),
        })
    }

    /// The destinations that answers to the requests of a binding may have.
    fn reply_addresses(
        &self,
        binding: &BindingConfig,
        intake: &Intake,
    ) -> Result<AllowedReplyAddresses, BridgeError> {
        let calls = &self.config.calls.reply_topic.0;
        let places = AllowedReplyAddresses::of_binding(binding, calls, intake.binding);
        places.map_err(in_binding(binding))
    }

    /// The attributes that the writers to the topics of a binding may set.
    fn claims(&self, binding: &BindingConfig, intake: &Intake) -> Result<Claims, BridgeError> {
        let addresses = self.reply_addresses(binding, intake)?;
        let (source, metrics) = (intake.source.clone(), intake.metrics.clone());
        let claims = Claims::new(self.config, binding, source, addresses, metrics);
        claims.map_err(in_binding(binding))
    }

    /// The workflow executor as an agent on the bus.
    fn executor(
        &self,
        binding: &BindingConfig,
        workflows: Option<&Workflows>,
    ) -> Result<BindingService, BridgeError> {
        let name = &binding.name;
        let workflows = workflows.cloned().ok_or_else(|| {
            BridgeError::Config(format!(
                "binding {}: workflows.enabled is false",
                name.text()
            ))
        })?;
        let intake = self.intake(binding)?;
        let answers = AnswerSettings {
            places: self.reply_addresses(binding, &intake)?,
            passed: passed(binding)?,
            publisher: self.publisher.clone(),
        };
        let instance = self.config.instance.text();
        let binding = WorkflowBinding::new(intake, answers, binding, workflows, instance, self.log);
        Ok(BindingService::Workflows(Box::new(binding)))
    }

    /// An attached agent.
    fn agent(
        &self,
        binding: &BindingConfig,
        results: Option<&Arc<Results>>,
    ) -> Result<BindingService, BridgeError> {
        let name = AgentCardConfig::attached_by(&binding.name).unwrap_or_default();
        let agents = self.config.agents.iter();
        let mut agents = agents.filter(|(agent, _)| agent.as_str() == name);
        let attach = agents
            .next()
            .and_then(|(name, agent)| Some((name, agent.attach.as_ref()?)));
        let (Some((name, attach)), Some(results)) = (attach, results) else {
            return Err(in_binding(binding)("no agent is attached"));
        };
        let intake = self.intake(binding)?;
        let places = self.reply_addresses(binding, &intake)?;
        let (metrics, log, calls) = (self.metrics, self.log, &self.config.calls);
        let shown = (self.registry, self.readiness);
        let upstream = Upstream::new(name.text(), attach, shown, metrics, log);
        let upstream = Arc::new(upstream.map_err(in_binding(binding))?);
        let herald = self.herald(name.text(), attach, &intake, binding);
        let binding = AttachedBinding::new(
            (upstream, herald),
            (intake, binding.subscription()),
            ReplyPublisher {
                places,
                passed: passed(binding)?,
                publisher: self.publisher.clone(),
                source: format!("/a2abus/{}/{name}", self.config.instance.text()).into(),
                agent: name.text().clone(),
            },
            Arc::clone(results),
            Bounds {
                concurrency: attach.concurrency as usize,
                longest: calls.max_timeout.0,
                usual: calls.timeout.0,
                longest_stream: calls.stream_timeout.0.max(calls.max_timeout.0),
            },
            self.log,
        );
        Ok(BindingService::Agent(Box::new(binding)))
    }

    /// The announcer of an attached agent.
    fn herald(
        &self,
        agent: &Text,
        attach: &AttachConfig,
        intake: &Intake,
        binding: &BindingConfig,
    ) -> Option<Herald> {
        Some(Herald {
            agent: agent.clone(),
            requests: binding.topics.first()?.as_str().into(),
            topic: attach.announce.as_ref()?.0.clone(),
            bus: intake.bus,
            registry: Arc::clone(self.registry),
            publisher: self.publisher.clone(),
        })
    }

    /// The reader of announcements of agents.
    fn discovery(
        &self,
        binding: &BindingConfig,
        results: Option<&Arc<Results>>,
    ) -> Result<BindingService, BridgeError> {
        let intake = self.intake(binding)?;
        let places = self.reply_addresses(binding, &intake)?;
        let binding = DiscoveryBinding::new(
            intake,
            places,
            self.publisher.clone(),
            binding,
            (Arc::clone(self.registry), results.cloned()),
            self.log,
        );
        Ok(BindingService::Discovery(Box::new(binding)))
    }

    /// The readers of answers that arrived in another partition than requested.
    fn misplaced_answers(&self) -> Result<Vec<(BindingService, Subscription)>, BridgeError> {
        let mut pipelines = Vec::new();
        for channel in self.calls.channels().iter() {
            let bus = self.outbound.buses().get(channel.bus);
            let (Some(subscription), Some(bus)) = (self.calls.channels().misplaced(channel), bus)
            else {
                continue;
            };
            let name = bus.name.text();
            let too_long = || {
                BridgeError::Config(format!(
                    "transport {name}: its name is too long, because the bridge adds the binding replies-{name}"
                ))
            };
            let binding = BindingConfig::of_replies(&bus.name).ok_or_else(too_long)?;
            pipelines.push((self.pipeline(&binding)?.into(), subscription));
        }
        Ok(pipelines)
    }
}

/// The headers that copies of the messages of a binding, or their answers, keep.
fn passed(binding: &BindingConfig) -> Result<PassedHeaders, BridgeError> {
    let patterns = binding.pass_headers.iter().map(|pattern| &pattern.0);
    PassedHeaders::new(patterns).map_err(in_binding(binding))
}

/// The consumer group or durable by which a binding reads.
fn reader_of(binding: &BindingConfig) -> Text {
    let reader = binding.durable.as_ref().unwrap_or(&binding.group);
    reader.text().clone()
}

/// The limits for waiting requests of a binding.
fn waiting_room(binding: &BindingConfig) -> WaitingRoom {
    let budget = binding.subscription();
    WaitingRoom::new(budget.budget_messages, budget.budget_bytes)
}

/// The error of a binding.
fn in_binding<E: Display>(binding: &BindingConfig) -> impl FnOnce(E) -> BridgeError {
    move |error| BridgeError::Config(format!("binding {}: {error}", binding.name.text()))
}
