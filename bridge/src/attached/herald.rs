//! Announces an attached agent on the bus, so that bridges that do not list it find it.
//!
//! ```text
//! card ── comes, changes, every 30 s ──> topic of announcements ──> registry of another bridge
//! ```
//!
//! Nothing takes it back: another process may have the same agent. It is forgotten with the lease that its card asks for.
//!
//! Source: docs/protocols/mcp.md §11.

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::{Address, Message, Topic, TransportError, TransportErrorKind};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::bus::BusId;
use crate::bus::delivery::{Publisher, jittered};
use crate::bus::outbound::Outgoing;
use crate::config::{AgentCardConfig, MAX_CARD_BYTES};
use crate::names::Mode;
use crate::registry::card::{EXTENSION, ITEMS};
use crate::registry::{Agents, Registry};
use crate::route::NamedBy;

/// Announces one agent.
#[derive(Debug)]
pub(crate) struct Herald {
    pub(crate) agent: Text,
    /// Where it gets its requests.
    pub(crate) requests: Text,
    /// Where its card is published.
    pub(crate) topic: Topic,
    pub(crate) bus: BusId,
    pub(crate) registry: Arc<Registry>,
    pub(crate) publisher: Publisher,
}

/// How long it is known after an announcement, and how often there is one: two may get lost.
const LEASE: &str = "90s";
const EVERY: Duration = Duration::from_secs(30);
/// How often the same failure is logged.
const REMIND: Duration = Duration::from_secs(3600);
/// How often it is looked whether there is something to announce.
const LOOK: Duration = Duration::from_secs(1);

/// Why a card is not announced.
#[derive(Debug, thiserror::Error)]
enum Unannounced {
    #[error("without its skills it has more than {MAX_CARD_BYTES} bytes")]
    TooLarge,
    #[error(transparent)]
    Transport(#[from] TransportError),
}

// === impl Herald ===

impl Herald {
    /// Announces the agent again and again, while it `can_be_shown`.
    pub(super) async fn run(&self, can_be_shown: impl Fn(&Registry) -> bool) {
        let card = |agents: &Agents| agents.get(&self.agent).map(|(_, card)| Arc::clone(card));
        let mut agents = self.registry.watch();
        let mut reported = None;
        loop {
            let shown = card(&agents.borrow_and_update());
            let pause = match &shown {
                Some(shown) if can_be_shown(&self.registry) => {
                    self.note(self.announce(shown).await, &mut reported);
                    EVERY
                }
                _ => LOOK,
            };
            let changed = agents.wait_for(|agents| card(agents) != shown);
            // The registry, which is held here, does not end.
            let _ = timeout(jittered(pause), changed).await;
        }
    }

    /// Publishes the card once.
    async fn announce(&self, card: &AgentCardConfig) -> Result<(), Unannounced> {
        let document = self.document(card).ok_or(Unannounced::TooLarge)?;
        let mut message = Message::plain(document);
        message.key = Some(self.agent.as_bytes().to_vec().into());
        let copy = Outgoing {
            bus: self.bus,
            address: Address::topic(self.topic.clone()),
            message,
            named_by: NamedBy::Config,
            mode: Mode::default(),
            agent: None,
            call: None,
            is_awaited: false,
            expires: None,
            unit: None,
            dead_letter: None,
        };
        Ok(self.publisher.once(&copy).await?)
    }

    /// Logs why a card was not published: once for each cause, and again each hour.
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
                "the card of an attached agent was not published, so other bridges cannot find it: {}", error.cure()
            );
        }
    }

    /// The card with the extension of the bus; of many skills the first ones. `None` if it is too large without any.
    fn document(&self, card: &AgentCardConfig) -> Option<String> {
        let mut most = ITEMS;
        loop {
            let skills = &card.skills[..card.skills.len().min(most)];
            let bus = json!({
                "agent": self.agent.as_str(), "topic": self.requests.as_str(), "lease": LEASE,
                "protocol": card.speaks(),
            });
            let document = json!({
                "name": self.agent.as_str(), "description": card.description, "version": card.version,
                "capabilities": {
                    "streaming": card.streaming, "extensions": [{ "uri": EXTENSION, "params": bus }],
                },
                "skills": skills,
                "defaultInputModes": card.input_modes, "defaultOutputModes": card.output_modes,
            });
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

    fn cure(&self) -> &'static str {
        match self {
            Self::TooLarge => "write a shorter `description`, or fewer media types, in `agents`",
            Self::Transport(_) => {
                "create the topic and allow the bridge to write to it, or leave out `announce` (--no-announce)"
            }
        }
    }
}
