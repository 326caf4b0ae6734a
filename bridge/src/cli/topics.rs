//! `a2abus topics`: shows and creates the topics, streams and consumers that the configuration needs.

mod args;
mod manifests;

use a2abus_transports::{AnyTransport, TransportError, TransportErrorKind};
use serde::Serialize;
use serde_json::{Map, Value, json};

pub(crate) use self::args::TopicsArgs;

use self::args::{ApplyArgs, Common, Format, PlanArgs, PlanFormat, TopicsCommand};
use super::check::connect::Rights;
use super::command::{Misuse, Status, load};
use super::output::Output;
use super::reach::{self, ConnectWait, LOG_IN};
use crate::access;
use crate::config::{Config, Name, TransportConfig};
use crate::restart::chain;
use crate::topics::on_bus::{self, ResourceState};
use crate::topics::{self, Requirement, Resource, display};

/// Whether missing resources are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Plan,
    Create,
}

/// The result for one needed item.
#[derive(Debug, Serialize)]
struct Item {
    transport: String,
    kind: &'static str,
    name: String,
    #[serde(rename = "for")]
    owners: Vec<String>,
    #[serde(flatten)]
    state: State,
    /// The settings it is created with.
    needed: Map<String, Value>,
}

/// Its state.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum State {
    /// It exists and has the needed settings.
    Ok,
    Missing {
        /// The settings it would lack if the bridge created it at start-up.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        lacks_at_start: Vec<String>,
    },
    /// It is missing, and the bridge creates it at start-up.
    AtStart,
    Created,
    Differs {
        differences: Vec<String>,
    },
    /// Its state cannot be determined.
    #[cfg(feature = "kafka")]
    Unknown {
        cause: String,
    },
    Failed {
        cause: String,
    },
}

/// The fix for a refused permission.
const GRANT: &str = "this user lacks a permission: `a2abus topics plan --acls` prints those that the bridge needs; apply \
    also needs to create (`a2abus topics apply --help`)";

/// Shows or creates the resources.
///
/// # Errors
/// When the configuration is invalid, or the output cannot be written.
pub(crate) async fn run(args: TopicsArgs) -> anyhow::Result<Status> {
    match args.command {
        TopicsCommand::Plan(args) => plan(&args).await,
        TopicsCommand::Apply(ApplyArgs { common, output }) => {
            let config = load(&common.config.path)?;
            let transports = chosen(&config, &common)?;
            items(&config, &transports, &common, Action::Create, output).await
        }
    }
}

async fn plan(args: &PlanArgs) -> anyhow::Result<Status> {
    let common = &args.common;
    let config = load(&common.config.path)?;
    let transports = chosen(&config, common)?;
    let format = match args.output {
        PlanFormat::Human => Format::Human,
        PlanFormat::Json => Format::Json,
        #[cfg(feature = "kafka")]
        PlanFormat::Strimzi => return manifests::strimzi::print(&config, &transports, args),
        #[cfg(feature = "nats")]
        PlanFormat::Nack if args.acls => {
            return Err(Misuse(
                "NACK has no resource for users: --acls alone prints the permissions of the bridge"
                    .to_owned(),
            )
            .into());
        }
        #[cfg(feature = "nats")]
        PlanFormat::Nack => return manifests::nack::print(&config, &transports, common),
    };
    match args.acls {
        true => permissions(&config, &transports, format),
        false => items(&config, &transports, common, Action::Plan, format).await,
    }
}

fn chosen<'a>(
    config: &'a Config,
    common: &Common,
) -> anyhow::Result<Vec<(&'a Name, &'a TransportConfig)>> {
    let only = common.transport.as_deref();
    let all = config.transports.iter();
    let chosen: Vec<_> = all
        .filter(|(name, _)| only.is_none_or(|only| name.as_str() == only))
        .collect();
    match (only, chosen.is_empty()) {
        (Some(only), true) => {
            Err(Misuse(format!("--transport: there is no transport named {only}")).into())
        }
        _ => Ok(chosen),
    }
}

fn permissions(
    config: &Config,
    transports: &[(&Name, &TransportConfig)],
    format: Format,
) -> anyhow::Result<Status> {
    let mut output = Output::new();
    let (mut all, mut is_any) = (Map::new(), false);
    for (name, transport) in transports {
        let rights = Rights::of(name, transport, &access::uses(config, name));
        if format == Format::Json {
            all.insert(name.to_string(), json!(rights.lines));
            continue;
        }
        if rights.lines.is_empty() {
            continue;
        }
        is_any = true;
        for line in rights.shown() {
            output.line(line)?;
        }
    }
    if format == Format::Json {
        output.line(serde_json::to_vec(&json!({ "acls": all }))?)?;
    } else if !is_any {
        output.line("# the configuration needs no permissions")?;
    }
    Ok(Status::Success)
}

async fn items(
    config: &Config,
    transports: &[(&Name, &TransportConfig)],
    common: &Common,
    then: Action,
    format: Format,
) -> anyhow::Result<Status> {
    let (mut items, mut output) = (Vec::new(), Output::new());
    for (name, transport) in transports {
        let uses = access::uses(config, name);
        let requirements =
            topics::requirements(config, (name, transport), &uses, common.defaults());
        if requirements.is_empty() {
            continue;
        }
        let connected = reach::connect(transport, ConnectWait::Start).await;
        for requirement in requirements {
            let state = match &connected {
                Ok(connected) => state(connected, &requirement, then).await,
                Err(cause) => State::Failed {
                    cause: cause.clone(),
                },
            };
            items.push(Item::new(name, requirement, state));
        }
        if let Ok(connected) = connected {
            reach::close(&connected).await;
        }
    }
    let is_right = items.iter().all(|item| item.state.is_right());
    if format == Format::Json {
        output.line(serde_json::to_vec(
            &json!({ "ok": is_right, "items": items }),
        )?)?;
    } else {
        for item in &items {
            output.line(item.line())?;
        }
        if items.is_empty() {
            output.line("the configuration needs no topics, streams or consumers")?;
        }
    }
    Ok(if is_right {
        Status::Success
    } else {
        Status::Failure
    })
}

async fn state(connected: &AnyTransport, requirement: &Requirement, then: Action) -> State {
    #[cfg(feature = "kafka")]
    if let Resource::Named(_) = requirement.resource {
        return State::Unknown {
            cause: topics::NAMED.to_owned(),
        };
    }
    let failed = |error: TransportError| State::Failed {
        cause: match error.kind() {
            TransportErrorKind::Unauthenticated => format!("{}: {LOG_IN}", chain(&error)),
            TransportErrorKind::Unauthorised => format!("{}: {GRANT}", chain(&error)),
            _ => chain(&error),
        },
    };
    match on_bus::find(connected, requirement).await {
        Ok(ResourceState::Exists(same)) if same.is_empty() => State::Ok,
        Ok(ResourceState::Exists(differences)) => State::Differs { differences },
        Ok(ResourceState::Missing) if then == Action::Create => {
            let created = on_bus::create(connected, requirement).await;
            created.map_or_else(failed, |()| State::Created)
        }
        Ok(ResourceState::Missing) => match requirement.lacks_at_start() {
            Some(lacks) if lacks.is_empty() => State::AtStart,
            lacks => State::Missing {
                lacks_at_start: lacks.unwrap_or_default(),
            },
        },
        Err(error) => failed(error),
    }
}

// === impl State ===

impl State {
    fn is_right(&self) -> bool {
        !matches!(
            self,
            Self::Missing { .. } | Self::Differs { .. } | Self::Failed { .. }
        )
    }
}

// === impl Item ===

impl Item {
    fn new(transport: &Name, requirement: Requirement, state: State) -> Self {
        let settings = requirement.creation();
        let (kind, name) = match (&requirement.resource, &state) {
            // The stream has, or would get, this name.
            #[cfg(feature = "nats")]
            (
                Resource::Stream { name, .. },
                State::Missing { .. } | State::AtStart | State::Created | State::Failed { .. },
            ) => ("stream", name.clone()),
            (resource, _) => resource.names(),
        };
        Self {
            transport: transport.to_string(),
            kind,
            name,
            owners: requirement.owners.into_iter().collect(),
            state,
            needed: settings,
        }
    }

    fn line(&self) -> String {
        let settings = || {
            let settings = self.needed.iter();
            let settings = settings.map(|(name, value)| format!("{name}={}", display(name, value)));
            settings.collect::<Vec<_>>().join(" ")
        };
        let (label, detail) = match &self.state {
            State::Ok => ("ok", String::new()),
            State::Missing { lacks_at_start } if lacks_at_start.is_empty() => {
                ("MISSING", format!(": {}", settings()))
            }
            State::Missing { lacks_at_start } => {
                let lacks = lacks_at_start.join(" ");
                let detail = format!(
                    ": {}; the bridge would create it without {lacks}",
                    settings()
                );
                ("MISSING", detail)
            }
            State::AtStart => {
                let detail = format!(": {}; the bridge creates it when it starts", settings());
                ("at start", detail)
            }
            State::Created => ("created", format!(": {}", settings())),
            State::Differs { differences } => ("DIFFERS", format!(": {}", differences.join("; "))),
            #[cfg(feature = "kafka")]
            State::Unknown { cause } => ("unknown", format!(": {cause}")),
            State::Failed { cause } => ("FAILED", format!(": {cause}")),
        };
        let Self {
            transport,
            kind,
            name,
            owners,
            ..
        } = self;
        let owners = owners.join(", ");
        format!("{label:<8} {transport}: {kind} {name} ({owners}){detail}")
    }
}
