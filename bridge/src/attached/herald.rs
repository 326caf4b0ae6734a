//! Announces an attached agent on the bus, for bridges whose configuration does not list it.
//!
//! ```text
//! card ── comes, changes, every 30 s ──> topic of announcements ──> registry of another bridge
//! ```
//!
//! The announcement is never revoked, because another process may attach the same agent. It expires with the lease in
//! its card. When the process stops, a last announcement shortens that lease. If another process announces the agent,
//! its next announcement restores the lease.
//!
//! Source: docs/protocols/mcp.md §11.

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::{Address, Message, Topic, TransportError, TransportErrorKind};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::bus::BusId;
use crate::bus::delivery::{Publisher, jittered};
use crate::bus::outbound::Outgoing;
use crate::config::{AgentCardConfig, MAX_CARD_BYTES};
use crate::registry::card::{EXTENSION, ITEMS, about};
use crate::registry::discovery::{AGENT, UPDATE_SOURCE, UPDATED};
use crate::registry::{Agents, Registry};
use crate::results::UpdateSource;

/// Announces one agent.
#[derive(Debug)]
pub(crate) struct Herald {
    pub(crate) agent: Text,
    /// The topic of its requests.
    pub(crate) requests: Text,
    /// The topic where its card is published.
    pub(crate) topic: Topic,
    pub(crate) bus: BusId,
    pub(crate) registry: Arc<Registry>,
    pub(crate) publisher: Publisher,
}

/// The lease of an announcement, and the interval between announcements. Two in a row may get lost.
const LEASE: &str = "90s";
const EVERY: Duration = Duration::from_secs(30);
/// The lease of the last announcement of a process that stops. It is longer than the interval, so that an agent that
/// another process also announces stays known.
const LAST_LEASE: &str = "40s";
/// How long a process that stops waits until its last announcement is published.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often a repeated failure is logged.
const REMIND: Duration = Duration::from_secs(3600);
/// How often to check for changes to announce.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why a card is not announced.
#[derive(Debug, thiserror::Error)]
enum Unannounced {
    #[error(
        "even without skills the card is larger than {MAX_CARD_BYTES} bytes: shorten its description"
    )]
    TooLarge,
    #[error(transparent)]
    Transport(#[from] TransportError),
}

// === impl Herald ===

impl Herald {
    /// Announces the agent periodically, while `can_be_shown` holds, until `stop`. Then shortens its lease.
    pub(super) async fn run(
        &self,
        can_be_shown: impl Fn(&Registry) -> bool,
        stop: &CancellationToken,
    ) {
        let mut announced = None;
        let announcing = self.announce_always(can_be_shown, &mut announced);
        stop.run_until_cancelled(announcing).await;
        let Some(card) = announced else {
            return;
        };
        let farewell = timeout(FAREWELL, self.announce(&card, LAST_LEASE)).await;
        let why = match farewell {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the bus did not confirm it within {FAREWELL:?}"),
        };
        tracing::warn!(
            agent = %self.agent, topic = %self.topic, why,
            "the last announcement of an attached agent was not published: other bridges call the agent until its lease of {LEASE} ends"
        );
    }

    /// Announces the agent periodically. `announced` is the card as it was last announced, even if that is not
    /// confirmed yet; `None` while it cannot be shown.
    async fn announce_always(
        &self,
        can_be_shown: impl Fn(&Registry) -> bool,
        announced: &mut Option<Arc<AgentCardConfig>>,
    ) {
        let card = |agents: &Agents| agents.get(&self.agent).map(|(_, card)| Arc::clone(card));
        let mut agents = self.registry.watch();
        let mut reported = None;
        loop {
            let shown = card(&agents.borrow_and_update());
            let pause = match &shown {
                Some(shown) if can_be_shown(&self.registry) => {
                    let before = announced.replace(Arc::clone(shown));
                    let done = self.announce(shown, LEASE).await;
                    if done.is_err() {
                        *announced = before;
                    }
                    self.note(done, &mut reported);
                    EVERY
                }
                _ => {
                    *announced = None;
                    CHECK_INTERVAL
                }
            };
            let changed = agents.wait_for(|agents| card(agents) != shown);
            // The sender of this channel is in the registry, which this task keeps alive.
            let _ = timeout(jittered(pause), changed).await;
        }
    }

    /// Publishes the card once, with this lease.
    async fn announce(&self, card: &AgentCardConfig, lease: &str) -> Result<(), Unannounced> {
        let document = self.document(card, lease).ok_or(Unannounced::TooLarge)?;
        Ok(self.publish(document).await?)
    }

    /// Publishes that a resource of the agent has changed.
    ///
    /// # Errors
    /// When the bus does not accept it.
    pub(super) async fn announce_update(
        &self,
        uri: &str,
        from: &UpdateSource,
    ) -> Result<(), TransportError> {
        let meta = json!({ AGENT: self.agent.as_str(), UPDATE_SOURCE: from });
        let params = json!({ "uri": uri, "_meta": meta });
        let message = json!({ "jsonrpc": "2.0", "method": UPDATED, "params": params });
        self.publish(message.to_string()).await
    }

    async fn publish(&self, document: String) -> Result<(), TransportError> {
        let mut message = Message::plain(document);
        message.key = Some(self.agent.as_bytes().to_vec().into());
        let copy = Outgoing::new(self.bus, Address::topic(self.topic.clone()), message);
        self.publisher.once(&copy, None).await
    }

    /// Logs why a card was not published: once per cause, and again every hour.
    fn note(
        &self,
        announced: Result<(), Unannounced>,
        reported: &mut Option<(TransportErrorKind, Instant)>,
    ) {
        let Err(error) = announced else {
            *reported = None;
            return;
        };
        let is_known = |(kind, at): (_, Instant)| kind == error.kind() && at.elapsed() < REMIND;
        if !reported.is_some_and(is_known) {
            *reported = Some((error.kind(), Instant::now()));
            tracing::warn!(
                agent = %self.agent, topic = %self.topic, %error,
                "the card of an attached agent was not published, so other bridges cannot find it: {}", error.fix()
            );
        }
    }

    /// The card with the extension `urn:a2abus:bus`, with as many skills as fit. `None` if it is too large without any
    /// skills.
    fn document(&self, card: &AgentCardConfig, lease: &str) -> Option<String> {
        let mut most = ITEMS;
        loop {
            let skills = &card.skills[..card.skills.len().min(most)];
            let bus = json!({
                "agent": self.agent.as_str(), "topic": self.requests.as_str(), "lease": lease,
                "protocol": card.speaks(), "lists": card.lists,
            });
            let mut extensions = vec![json!({ "uri": EXTENSION, "params": bus })];
            extensions.extend_from_slice(&card.extensions);
            let mut document = json!({
                "name": self.agent.as_str(), "description": card.description, "version": card.version,
                "capabilities": { "streaming": card.streaming, "extensions": extensions },
                "skills": skills,
                "defaultInputModes": card.input_modes, "defaultOutputModes": card.output_modes,
            });
            if let Value::Object(members) = &mut document {
                members.extend(about(card));
            }
            let document = document.to_string();
            if document.len() as u64 <= MAX_CARD_BYTES {
                return Some(document);
            }
            if skills.is_empty() {
                return None;
            }
            most = skills.len() / 2;
        }
    }
}

// === impl Unannounced ===

impl Unannounced {
    fn kind(&self) -> TransportErrorKind {
        match self {
            Self::TooLarge => TransportErrorKind::TooLarge,
            Self::Transport(error) => error.kind(),
        }
    }

    fn fix(&self) -> &'static str {
        match self {
            Self::TooLarge => "write a shorter `description`, or fewer media types, in `agents`",
            Self::Transport(_) => {
                "create the topic and allow the bridge to write to it, or leave out `announce` (--no-announce)"
            }
        }
    }
}
