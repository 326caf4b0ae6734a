//! The `routes` section: which events go where.

use std::collections::BTreeMap;

use a2abus_models::convert::Conversion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::AsText;
use crate::names::{Attribute, GlobText, Mode, Name, Names, Pattern, Template};

/// The name of the route made from `default_route`.
pub const DEFAULT_ROUTE: &str = "default";

/// One rule: events that meet every condition go to every destination. The first rule that matches decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// The name, unique among the routes; in metrics, dead letters and `a2abus explain`.
    pub name: Name,
    /// Conditions by attribute: any CloudEvents attribute (most often `targetagent`), or `binding`, the name of the
    /// binding that read the event. Without conditions, every event matches.
    ///
    /// Wrong: a condition on an attribute that events do not have never matches. An event that matches no route goes to
    /// `default_route`; without one it becomes a dead letter with the reason `no_route`.
    #[serde(default)]
    #[schemars(extend("propertyNames" = {"format": "attribute"}))]
    pub when: BTreeMap<AsText<Attribute>, ConditionConfig>,
    /// The destinations: a matching event goes to all of them. One of them answers requests: the first, or the one with
    /// `answers: true`.
    #[schemars(length(min = 1, max = 64))]
    pub to: Vec<DestinationConfig>,
    /// A conversion (see `a2abus convert --list`) of the data of every copy, like `convert` of a binding.
    ///
    /// Wrong: a record that cannot be converted becomes a dead letter (`convert_failed`).
    pub convert: Option<AsText<&'static Conversion>>,
    /// Refuse records that break the model of their family, like `validate` of a binding, before they are converted.
    ///
    /// Wrong: an invalid record becomes a dead letter (`invalid_record`) that lists every fault.
    #[serde(default)]
    pub validate: bool,
}

/// A condition on the value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ConditionConfig {
    /// This value; a glob if it contains `*`, `?`, `[...]` or `{a,b}`.
    Pattern(AsText<Pattern>),
    /// Any of these values or globs.
    AnyOf(#[schemars(length(min = 1))] Vec<AsText<Pattern>>),
    /// The long form: all given members must hold.
    Dialects(Box<DialectsConfig>),
}

/// A condition in long form; all given members must hold. Source: CloudEvents Subscriptions, filter dialects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct DialectsConfig {
    /// The attribute equals this text; `*`, `?` and `[...]` have no special meaning.
    pub exact: Option<String>,
    /// The attribute begins with this text.
    #[schemars(length(min = 1))]
    pub prefix: Option<String>,
    /// The attribute ends with this text.
    #[schemars(length(min = 1))]
    pub suffix: Option<String>,
    /// The attribute matches this glob: `*` any text, `?` one byte, `[a-z]` a class, `{a,b}` a choice.
    pub glob: Option<AsText<GlobText>>,
    /// One of these conditions holds.
    #[schemars(length(min = 1))]
    pub any: Option<Vec<ConditionConfig>>,
    /// All of these conditions hold.
    #[schemars(length(min = 1))]
    pub all: Option<Vec<ConditionConfig>>,
    /// This condition does not hold. An event without the attribute matches.
    pub not: Option<ConditionConfig>,
}

/// A destination of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DestinationConfig {
    /// The transport: a key of `transports`.
    pub transport: Name,
    /// The topic, in which `{attribute}` stands for the value of an attribute of the event, as in
    /// `agents.{targetagent}`.
    ///
    /// Wrong: an event becomes a dead letter if it lacks the attribute, if `names` refuses the value, or if the
    /// resulting topic does not exist. If a topic without attributes does not exist, its events wait.
    pub topic: AsText<Template>,
    /// The message key, which decides the order of events, with `{attribute}` as in `topic`. By default, or if the
    /// event lacks one of its attributes: the key of the original message, which for a request at the A2A paths is its
    /// `contextId`; else the `collaborationid` without its reply token; else none.
    ///
    /// Wrong: events with different keys may arrive in any order.
    pub key: Option<AsText<Template>>,
    /// The CloudEvents content mode.
    #[serde(default)]
    pub mode: Mode,
    /// Wait until a JetStream stream has stored the event (NATS only). Kafka always waits for its replicas.
    ///
    /// Wrong: without it, an event published to core NATS may reach nobody; with it, every publish fails if no stream
    /// stores the subject.
    #[serde(default)]
    pub stored: bool,
    /// This destination answers requests: only it gets their `callid` and reply address. All others get the request as
    /// a plain event, which cannot be answered. By default the first destination of the route answers.
    ///
    /// Wrong: calls to the agents at the other destinations time out. At most one destination of a route may set it.
    #[serde(default)]
    pub answers: bool,
    /// What to do with an attribute value that is not a topic segment (a letter or digit, then letters, digits, `_`,
    /// `-`): refuse the event, escape the value reversibly, or also allow dots.
    #[serde(default)]
    pub names: Names,
}

/// The index of the destination marked `answers`, else 0.
pub(crate) fn answering(destinations: &[DestinationConfig]) -> usize {
    let marked = destinations.iter().position(|place| place.answers);
    marked.unwrap_or_default()
}
