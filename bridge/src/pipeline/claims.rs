//! The attributes that the writers of a topic may set.
//!
//! A writer to the topic of a binding can give an event any attribute. The bridge does not trust the attributes that
//! claim an origin or direct an answer:
//!
//! | attribute | |
//! |---|---|
//! | `origin` | always the position where the bridge read the message |
//! | `source` of a CloudEvent | kept, unless the bridge itself uses it: then the event gets the `source` and the `id` of the binding's own events; always kept if the binding `trusts` it |
//! | `source` of a caller of HTTP | kept on the unchanged request of a call that waits in this process; otherwise its address becomes `unknown`. Such a source restricts the rights of the event, so it cannot be removed |
//! | `sourceagent` | removed, unless the binding `trusts` it |
//! | `replyto`, `progressto` | kept only if they name a reply destination that the binding allows ([`AllowedReplyAddresses`]) |
//! | `expirytime` | removed if it is not a time |
//! | `callid` | kept only on requests with a reply address, because answers are not read here |
//!
//! Each overruled attribute is counted, and logged the first time. Source: docs/design.md §T4.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use a2abus_plugin::{Event, EventError, Kind, Source, Text, extension, kind_of_event};

use crate::calls::UNKNOWN_CALLER;
use crate::calls::reply_address::AllowedReplyAddresses;
use crate::calls::resolve::ReadAt;
use crate::config::{BindingConfig, Claim, Config};
use crate::metrics::BindingMetrics;
use crate::names::{DOOR, put};

/// The attributes that the writers to the topics of a binding may set.
#[derive(Debug)]
pub(crate) struct Claims {
    /// The name of the binding.
    pub(crate) name: Text,
    /// The `source` of the binding's own events.
    pub(crate) source: Source,
    /// The `source` of events that claim, without proof, to come from a caller of the HTTP interface.
    pub(crate) unknown_caller: Source,
    /// The sources of all bindings that do not begin with `/a2abus/`.
    pub(crate) own_sources: Arc<[Text]>,
    /// The accepted claims.
    pub(crate) trusts: Vec<Claim>,
    /// The destinations that answers may have.
    pub(crate) reply_addresses: AllowedReplyAddresses,
    /// The counters of the binding.
    pub(crate) metrics: BindingMetrics,
    /// The attributes that were logged, by their index in [`OVERRULED`].
    pub(crate) logged: [AtomicBool; OVERRULED.len()],
}

/// The attributes that a writer may not set freely.
const OVERRULED: [&str; 7] = [
    SOURCE,
    extension::SOURCE_AGENT,
    extension::ORIGIN,
    extension::REPLY_TO,
    extension::PROGRESS_TO,
    extension::CALL_ID,
    extension::EXPIRY_TIME,
];

const SOURCE: &str = "source";
/// The prefix of the sources of a bridge, unless `mapping.source` sets another.
const OWN: &str = "/a2abus/";

// === impl Claims ===

impl Claims {
    /// The claims of a binding whose own events have this `source`.
    ///
    /// # Errors
    /// When no source can contain the name of the bridge.
    pub(crate) fn new(
        config: &Config,
        binding: &BindingConfig,
        source: Source,
        reply_addresses: AllowedReplyAddresses,
        metrics: BindingMetrics,
    ) -> Result<Self, EventError> {
        let bindings = config.bindings.iter();
        let own_sources = bindings.filter_map(|binding| binding.mapping.source.clone());
        let instance = config.instance.text();
        Ok(Self {
            name: binding.name.text().clone(),
            source,
            unknown_caller: Source::new(format!("/a2abus/{instance}/{DOOR}/{UNKNOWN_CALLER}"))?,
            own_sources: own_sources.collect(),
            trusts: binding.trusts.clone(),
            reply_addresses,
            metrics,
            logged: Default::default(),
        })
    }

    /// Checks the `source` of a CloudEvent; `index` is its index in the message. `is_own_request` tells whether this
    /// process published it as the request of one of its calls.
    pub(crate) fn of_cloudevent(
        &self,
        at: ReadAt<'_>,
        index: usize,
        event: &mut Event,
        is_own_request: impl FnOnce(&Event) -> bool,
    ) {
        if self.trusts(Claim::Source) || !self.is_own(event.source()) {
            return;
        }
        let source = if !is_of_http_caller(event.source()) {
            &self.source
        } else if is_own_request(event) {
            return;
        } else {
            // Without the source of the HTTP interface, the event would have more rights.
            &self.unknown_caller
        };
        self.overruled(SOURCE, at);
        let id = at.position().map_or_else(
            || Text::from(crate::clock::new_event_id()),
            |origin| Text::from(format!("{origin}#{index}")),
        );
        put(event, SOURCE, Text::from(source.clone()));
        put(event, "id", id);
    }

    /// Checks a received event.
    pub(crate) fn of_event(&self, at: ReadAt<'_>, event: &mut Event) {
        if !self.trusts(Claim::SourceAgent) {
            self.remove(at, event, extension::SOURCE_AGENT);
        }
        if crate::clock::expiry(event).is_none() {
            // Only a time is a deadline.
            self.remove(at, event, extension::EXPIRY_TIME);
        }
        let claimed = event.extension_text(extension::ORIGIN);
        if claimed.is_some_and(|claimed| Some(claimed) != at.position()) {
            self.remove(at, event, extension::ORIGIN);
        }
        if let Some(origin) = at.position() {
            put(event, extension::ORIGIN, origin.clone());
        }
    }

    /// Checks an event whose answer, if there is any, the bridge does not handle.
    pub(crate) fn of_untracked(&self, at: ReadAt<'_>, event: &mut Event) {
        for name in [extension::REPLY_TO, extension::PROGRESS_TO] {
            let address = event.extension_text(name);
            if address
                .is_some_and(|address| self.reply_addresses.named(address, at.reply_to).is_err())
            {
                self.remove(at, event, name);
                if name == extension::REPLY_TO {
                    event.remove(extension::REPLY_PARTITION);
                }
            }
        }
        let is_request = kind_of_event(event) == Kind::Request;
        // A call of another bridge, which gets the answer.
        if !is_request || event.extension(extension::REPLY_TO).is_none() {
            self.remove(at, event, extension::CALL_ID);
        }
    }

    fn trusts(&self, claim: Claim) -> bool {
        self.trusts.contains(&claim)
    }

    /// Whether events of a bridge have this source.
    fn is_own(&self, source: &Text) -> bool {
        source.starts_with(OWN) || self.own_sources.contains(source)
    }

    fn remove(&self, at: ReadAt<'_>, event: &mut Event, name: &'static str) {
        if event.extension(name).is_some() {
            event.remove(name);
            self.overruled(name, at);
        }
    }

    /// Counts that an attribute is removed, overwritten or not set, and logs it the first time.
    pub(crate) fn overruled(&self, name: &'static str, at: ReadAt<'_>) {
        self.metrics.overruled(name);
        let logged = OVERRULED.iter().zip(&self.logged);
        let mut logged = logged.filter(|(known, _)| **known == name);
        if logged.any(|(_, logged)| !logged.swap(true, Ordering::Relaxed)) {
            tracing::warn!(
                binding = %self.name, topic = %at.topic, origin = at.position().map(Text::as_str), attribute = name,
                "writers of this topic set an attribute that the binding does not accept: {} \
                 (this line comes once; a2abus_attributes_overruled_total counts all of them)",
                why(name)
            );
        }
    }
}

/// What becomes of the attribute, and how to have it accepted, if that is possible.
fn why(name: &str) -> &'static str {
    match name {
        SOURCE => {
            "its value is a source of a bridge, and is replaced; if another bridge writes to this topic, set \
             `trusts: [source]` on the binding"
        }
        extension::SOURCE_AGENT => {
            "it is removed; to accept it, set `trusts: [sourceagent]` on the binding"
        }
        extension::REPLY_TO | extension::PROGRESS_TO => {
            "it is removed; to accept it, list its topic in `reply_topics` of the binding"
        }
        extension::EXPIRY_TIME => "it is removed, because it is not a time (RFC 3339)",
        extension::CALL_ID => "it is removed, because only a request with a reply address keeps it",
        // `origin`
        _ => "it is replaced by the position where the bridge reads the message",
    }
}

/// Whether an event was made of a request to the HTTP interface of any bridge: its `source` is
/// `/a2abus/<instance>/http/<address>`, which no request can change.
pub(crate) fn is_of_http_caller(source: &str) -> bool {
    let Some(path) = source.strip_prefix(OWN) else {
        return false;
    };
    let mut segments = path.split('/').skip(1);
    let is_caller = |segment: &str| segment == UNKNOWN_CALLER || segment.parse::<IpAddr>().is_ok();
    segments.next() == Some(DOOR)
        && segments.next().is_some_and(is_caller)
        && segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_an_event_identifies_a_caller_of_http() {
        for (source, is_one) in [
            ("/a2abus/b/http/10.0.0.1", true),
            ("/a2abus/b/http/::1", true),
            ("/a2abus/b/http/unknown", true),
            ("/a2abus/b/http", false),
            ("/a2abus/b/http/10.0.0.1/x", false),
            ("/a2abus/b/in", false),
            ("/x/a2abus/b/http/10.0.0.1", false),
        ] {
            assert_eq!(is_of_http_caller(source), is_one, "{source}");
        }
    }

    #[test]
    fn only_a_claim_that_a_binding_may_trust_has_that_cure() {
        for name in OVERRULED {
            let may_be_trusted = [SOURCE, extension::SOURCE_AGENT].contains(&name);
            assert_eq!(why(name).contains("trusts"), may_be_trusted, "{name}");
        }
        assert!(why(extension::EXPIRY_TIME).contains("not a time"));
        assert!(why(extension::REPLY_TO).contains("reply_topics"));
    }
}
