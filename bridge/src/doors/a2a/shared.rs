//! The common state of all A2A paths.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use a2abus_plugin::Text;
use arc_swap::ArcSwap;
use bytesize::ByteSize;
use http::{HeaderMap, StatusCode, Uri};
use tokio_util::sync::CancellationToken;

use super::card::OfferedInterfaces;
use super::limits::Limits;
use super::webhooks::PushSettings;
use crate::calls::failure::{Failure, Reason};
use crate::config::{A2aConfig, Config};
use crate::doors::door::{Door, Refusal};
use crate::doors::public_url::PublicUrl;
use crate::http::hosts;
use crate::registry::Registry;
use crate::tasks::Tasks;

/// The settings of the A2A interface.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The agents.
    pub(crate) registry: Arc<Registry>,
    /// Their tasks.
    pub(crate) tasks: Arc<Tasks>,
    /// The name of this bridge, and so of the server in its card.
    pub(crate) instance: Text,
    /// The base of URLs in cards, instead of the host of the request.
    pub(crate) public_url: PublicUrl,
    /// Other settings that a reload replaces.
    pub(crate) live: Arc<ArcSwap<LiveSettings>>,
    /// The webhooks of tasks, if clients may set them.
    pub(crate) push: Option<Arc<PushSettings>>,
    /// The limits per client and per context.
    pub(crate) at_a_time: Limits,
}

/// A snapshot of the settings.
#[derive(Debug)]
pub(crate) struct LiveSettings {
    /// How long an agent may take to confirm a cancel.
    pub(super) cancel_timeout: Duration,
    /// The limits of a message.
    pub(super) limits: PartLimits,
}

/// The limits of the parts of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartLimits {
    pub(super) max_parts: usize,
    pub(super) max_text_part: usize,
    pub(super) max_data_part: usize,
}

/// The state that the paths share.
#[derive(Debug)]
pub(crate) struct A2a {
    pub(in crate::doors) door: Door,
    pub(in crate::doors) settings: Settings,
    /// When the cards were created.
    pub(super) changed: SystemTime,
    /// Cancelled when the bridge drains, which ends the streams of agents.
    pub(super) drain: CancellationToken,
}

// === impl LiveSettings ===

impl LiveSettings {
    /// The limits of a configuration.
    pub(crate) fn new(config: &A2aConfig) -> Self {
        Self {
            cancel_timeout: config.cancel_timeout.0,
            limits: PartLimits::new(config),
        }
    }
}

// === impl PartLimits ===

impl PartLimits {
    fn new(config: &A2aConfig) -> Self {
        let bytes = |size: ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        Self {
            max_parts: config.max_parts as usize,
            max_text_part: bytes(config.max_text_part.0),
            max_data_part: bytes(config.max_data_part.0),
        }
    }
}

// === impl Settings ===

impl Settings {
    /// Replaces the settings after a reload, except those of webhooks.
    pub(crate) fn replace(&self, config: &Config) {
        self.registry.relist(config);
        self.public_url.replace(&config.a2a);
        self.live.store(Arc::new(LiveSettings::new(&config.a2a)));
        self.at_a_time.replace(&config.a2a);
    }

    /// The interfaces in the card of the server.
    pub(super) fn offer(&self, base: &str) -> OfferedInterfaces {
        OfferedInterfaces {
            json_rpc: format!("{base}/a2a"),
            http: base.to_owned(),
            push: self.push.is_some(),
            at_a_time: self.at_a_time.per_client(),
        }
    }

    /// The interfaces in the card of an agent.
    pub(super) fn offer_of(&self, base: &str, name: &str) -> OfferedInterfaces {
        let url = agent_url(base, name);
        OfferedInterfaces {
            json_rpc: url.clone(),
            http: url,
            push: self.push.is_some(),
            at_a_time: self.at_a_time.per_client(),
        }
    }
}

// === impl A2a ===

impl A2a {
    /// The base of URLs. The host of the request has already been checked against the configuration.
    pub(super) fn base(&self, uri: &Uri, headers: &HeaderMap) -> Result<String, Refusal> {
        if let Some(url) = self.settings.public_url.get() {
            return Ok(url.to_string());
        }
        let named = hosts::authority(uri, headers).ok().flatten();
        let authority = named.ok_or_else(|| {
            let message =
                "the request has no Host, which card URLs need: send Host, or set a2a.public_url";
            (
                StatusCode::BAD_REQUEST,
                Failure::new(Reason::InvalidRequest, message),
            )
        })?;
        Ok(["http://", authority.as_str()].concat())
    }
}

/// The URL of an agent.
pub(super) fn agent_url(base: &str, name: &str) -> String {
    format!("{base}/a2a/agents/{name}")
}
