//! Which reply addresses may a request name?
//!
//! The bridge publishes answers with its own permissions, so a sender must not be able to choose any topic: with
//! `replyto: a2abus.dlq` or another agent's topic, the answer would be a forged message there. Every address that a
//! payload, an attribute or a header names is checked here, before the request is processed.
//!
//! | the address is | |
//! |---|---|
//! | the NATS reply subject of the message itself, if it begins with `_INBOX` | allowed; it is used in place of a copied reply address of the bridge |
//! | any other name that begins with `_` or `$` | always refused |
//! | `replies` of the binding | allowed |
//! | a reply address for calls of this deployment (`calls.reply_topic`) | allowed, unless it was copied: a JSON-RPC request with an id of its own is answered on `replies` of the binding, if that is set |
//! | matched by `reply_topics` of the binding | allowed |
//! | anything else | refused |
//!
//! Source: docs/design.md §T4.

use a2abus_plugin::{Event, Text, extension};
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{Address, Message, NATS_REPLY_HEADER, Topic, TopicError, TopicFilter};
use bytes::Bytes;
use globset::GlobSet;

use crate::bus::headers::spring;
use crate::calls::callid::shown_topic;
use crate::config::BindingConfig;
use crate::names::Pattern;

/// The reply addresses that requests of one binding may name.
#[derive(Debug, Clone)]
pub struct AllowedReplyAddresses {
    replies: Option<Topic>,
    /// The reply addresses of the bridge's own calls, on the transport of the binding.
    calls: TopicFilter,
    listed: GlobSet,
    /// Whether senders can choose the reply subject of a message freely.
    is_nats: bool,
}

/// Why a request may not name a reply address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The name belongs to the bus, or is an inbox.
    #[error(
        "the request directs its answer to {0:?}: a request may not name a topic that begins with '_' or '$'"
    )]
    Reserved(Text),
    /// The name is not a topic.
    #[error("the reply address of the request: {0}")]
    NoTopic(#[from] TopicError),
    /// The binding does not list it.
    #[error(
        "the request directs its answer to {}, which this binding does not allow: add the topic to its reply_topics, or name another topic in the request",
        shown_topic(.0.as_str())
    )]
    NotListed(Topic),
}

/// The reply address that a request names, and its partition: in attributes, or in the headers of Spring for Kafka. A
/// message that is not a CloudEvent may also have the header of the attribute.
#[must_use]
pub fn named_by(event: &Event, message: &Message) -> Option<(Text, Option<u32>)> {
    if let Some(topic) = event.extension_text(extension::REPLY_TO) {
        let partition = event.attribute(extension::REPLY_PARTITION);
        return Some((topic.clone(), partition.and_then(|text| text.parse().ok())));
    }
    named_in(message)
}

/// The reply address that the headers of a message name, and its partition.
#[must_use]
pub fn named_in(message: &Message) -> Option<(Text, Option<u32>)> {
    if let Some(topic) = attribute_header(message, extension::REPLY_TO) {
        let partition = attribute_header(message, extension::REPLY_PARTITION);
        let partition = partition.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        return Some((lossy(topic), partition));
    }
    // A reply subject that is not a topic is refused like any other name.
    let illegal = message.headers.get(NATS_REPLY_HEADER);
    if let Some(subject) = illegal.filter(|name| Topic::new(lossy(name)).is_err()) {
        return Some((lossy(subject), None));
    }
    let topic = message.headers.get(spring::REPLY_TOPIC)?;
    let partition = message.headers.get(spring::REPLY_PARTITION);
    let partition =
        partition.and_then(|bytes| Some(u32::from_be_bytes(bytes.as_ref().try_into().ok()?)));
    Some((lossy(topic), partition))
}

/// The header of a CloudEvents attribute, on any bus. The message need not be a CloudEvent.
#[must_use]
pub(crate) fn attribute_header<'a>(message: &'a Message, attribute: &str) -> Option<&'a Bytes> {
    let mut headers = message.headers.iter();
    let header = headers.find(|header| is_attribute(&header.name, attribute));
    header?.value.as_ref()
}

/// Whether this is the header of a CloudEvents attribute, on any bus.
#[must_use]
pub(crate) fn is_attribute(header: &str, attribute: &str) -> bool {
    let rest = header
        .get(..3)
        .filter(|prefix| prefix.eq_ignore_ascii_case("ce-") || prefix.eq_ignore_ascii_case("ce_"));
    rest.is_some()
        && header
            .get(3..)
            .is_some_and(|rest| rest.eq_ignore_ascii_case(attribute))
}

/// Copies the deadline from a header of a message that is not a CloudEvent to its event.
pub(crate) fn take_deadline(message: &Message, event: &mut Event) {
    let deadline = attribute_header(message, extension::EXPIRY_TIME);
    if let Some(deadline) = deadline.and_then(|value| Text::from_utf8(value)) {
        // A value that is not legal in an attribute is not a time.
        drop(event.set(extension::EXPIRY_TIME, deadline));
    }
}

/// A name as text. Bytes that are not UTF-8 are not a legal topic and are refused.
pub(crate) fn lossy(name: &[u8]) -> Text {
    String::from_utf8_lossy(name).into_owned().into()
}

// === impl AllowedReplyAddresses ===

impl AllowedReplyAddresses {
    /// The addresses of a binding of the configuration, on a transport of this kind; `calls` is `calls.reply_topic`.
    ///
    /// # Errors
    /// When a pattern is not a valid glob.
    pub fn of_binding(
        config: &BindingConfig,
        calls: &Topic,
        binding: ProtocolBinding,
    ) -> Result<Self, globset::Error> {
        let replies = config.replies.as_ref().map(|topic| topic.0.clone());
        let patterns = config.reply_topics.iter().map(|pattern| &pattern.0);
        Self::new(replies, patterns, calls, binding)
    }

    /// The addresses of a binding with these `replies` and `reply_topics`, on a transport of this kind; `calls` is
    /// `calls.reply_topic`.
    ///
    /// # Errors
    /// When a pattern is not a valid glob.
    pub fn new<'a>(
        replies: Option<Topic>,
        patterns: impl IntoIterator<Item = &'a Pattern>,
        calls: &Topic,
        binding: ProtocolBinding,
    ) -> Result<Self, globset::Error> {
        let calls = match binding {
            ProtocolBinding::Kafka => TopicFilter::from(calls.clone()),
            // If the name is too long for this, it is also too long for a call.
            ProtocolBinding::Nats | ProtocolBinding::Memory | ProtocolBinding::Http => {
                TopicFilter::new(format!("{calls}.>"))
                    .unwrap_or_else(|_| TopicFilter::from(calls.clone()))
            }
        };
        Ok(Self {
            replies,
            calls,
            listed: Pattern::set(patterns)?,
            is_nats: binding == ProtocolBinding::Nats,
        })
    }

    /// The address that a request names in its payload, an attribute or a header. `inbox` is the NATS reply subject of
    /// its message; a request may also name it explicitly. It is used in place of a reply address of a call: an agent
    /// that copies the headers of the request that it serves to its own request names such an address, and waits at its
    /// inbox.
    ///
    /// # Errors
    /// Why the request may not name it, and the fix.
    pub fn named(&self, name: &Text, inbox: Option<&Topic>) -> Result<Topic, Refused> {
        if let Some(inbox) = inbox {
            let own = self.inbox(inbox);
            let is_of_call = || Topic::new(name.clone()).is_ok_and(|topic| self.is_of_call(&topic));
            if inbox.as_str() == name.as_str() || (own.is_ok() && is_of_call()) {
                return own;
            }
        }
        if name.starts_with(['_', '$']) {
            return Err(Refused::Reserved(name.clone()));
        }
        let topic = Topic::new(name.clone())?;
        let is_listed = self.replies.as_ref() == Some(&topic)
            || self.is_of_call(&topic)
            || self.listed.is_match(topic.as_str());
        if is_listed {
            Ok(topic)
        } else {
            Err(Refused::NotListed(topic))
        }
    }

    /// Whether this is a reply address of a call, on the transport of the binding.
    #[must_use]
    pub fn is_of_call(&self, address: &Topic) -> bool {
        self.calls.matches(address)
    }

    /// The address for the error of a request that is refused because of the address it names, or before it was read
    /// completely: this address if it is allowed, otherwise its inbox, otherwise `replies`.
    #[must_use]
    pub fn of_refused(
        &self,
        named: Option<(Text, Option<u32>)>,
        inbox: Option<&Topic>,
    ) -> Option<Address> {
        let named = named.and_then(|(name, partition)| {
            let topic = self.named(&name, inbox).ok()?;
            Some(Address {
                partition,
                ..Address::topic(topic)
            })
        });
        let inbox = || Some(Address::topic(self.inbox(inbox?).ok()?));
        let replies = || self.replies.clone().map(Address::topic);
        named.or_else(inbox).or_else(replies)
    }

    /// The reply subject of a message, as the address of its answer. On NATS a sender can choose any subject, so one
    /// that is not an inbox must be an address that the request may name.
    ///
    /// # Errors
    /// As [`AllowedReplyAddresses::named`].
    pub fn inbox(&self, inbox: &Topic) -> Result<Topic, Refused> {
        if !self.is_nats || inbox.as_str().starts_with("_INBOX") {
            return Ok(inbox.clone());
        }
        self.named(&Text::from(inbox.as_str()), None)
    }
}

// === impl Refused ===

impl Refused {
    /// The reason code of the dead letter.
    pub const REASON: &'static str = "reply_topic_refused";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TextFormat as _;

    fn topic(name: &str) -> Topic {
        Topic::new(Text::from(name)).unwrap()
    }

    fn addresses(binding: ProtocolBinding, patterns: &[&str]) -> AllowedReplyAddresses {
        let patterns: Vec<_> = patterns
            .iter()
            .map(|text| Pattern::read(text).unwrap())
            .collect();
        let replies = Some(topic("answers"));
        AllowedReplyAddresses::new(replies, &patterns, &topic("a2abus.replies"), binding).unwrap()
    }

    fn is_allowed(addresses: &AllowedReplyAddresses, name: &str) -> bool {
        addresses.named(&name.into(), None).is_ok()
    }

    #[test]
    fn a_copied_reply_address_of_the_bridge_gives_way_to_the_inbox() {
        let addresses = addresses(ProtocolBinding::Nats, &["clients.*"]);
        let named = |name: &str, inbox: &str| {
            let named = addresses.named(&name.into(), Some(&topic(inbox)));
            named.map(|topic| topic.to_string())
        };
        let copied = "a2abus.replies.r.c";
        assert_eq!(named(copied, "_INBOX.a").as_deref(), Ok("_INBOX.a"));
        // Another address that is allowed was chosen.
        assert_eq!(named("clients.b", "_INBOX.a").as_deref(), Ok("clients.b"));
        // The reply subject of an import of another account cannot be used.
        assert_eq!(named(copied, "_R_.a").as_deref(), Ok(copied));
    }

    #[test]
    fn by_default_answers_go_to_replies_and_to_calls_of_the_bridge() {
        for (binding, own, other) in [
            (
                ProtocolBinding::Kafka,
                "a2abus.replies",
                "a2abus.replies.r.c",
            ),
            (
                ProtocolBinding::Nats,
                "a2abus.replies.r.c",
                "a2abus.replies",
            ),
            (
                ProtocolBinding::Memory,
                "a2abus.replies.r.c",
                "a2abus.repliesx.c",
            ),
        ] {
            let addresses = addresses(binding, &[]);
            assert!(is_allowed(&addresses, "answers"));
            assert!(is_allowed(&addresses, own), "{own}");
            for name in [other, "a2abus.dlq", "agents.weather", "answers.x"] {
                assert!(!is_allowed(&addresses, name), "{name}");
            }
        }
    }

    #[test]
    fn listed_topics_are_allowed_and_reserved_names_never() {
        let addresses = addresses(ProtocolBinding::Nats, &["agents.*.inbox", "desk", "*"]);
        for name in ["agents.ana.inbox", "desk", "anything.else"] {
            assert!(is_allowed(&addresses, name), "{name}");
        }
        for name in ["_INBOX.x", "__consumer_offsets", "_", "$JS.API.INFO"] {
            let refused = addresses.named(&name.into(), None).unwrap_err();
            assert_eq!(refused, Refused::Reserved(name.into()));
        }
        for name in ["", "a b", "a..b", "agents.>"] {
            let refused = addresses.named(&name.into(), None).unwrap_err();
            assert!(matches!(refused, Refused::NoTopic(_)), "{name}");
        }
    }

    #[test]
    fn a_text_without_wildcards_is_one_topic() {
        let addresses = addresses(ProtocolBinding::Kafka, &["desk", "a.[bc"]);
        for name in ["desks", "a.b", "x.desk"] {
            assert!(!is_allowed(&addresses, name), "{name}");
        }
    }

    #[test]
    fn the_inbox_of_the_message_may_be_named_too() {
        let addresses = addresses(ProtocolBinding::Nats, &[]);
        let inbox = topic("_INBOX.me");
        let named = |name: &str| addresses.named(&name.into(), Some(&inbox));
        assert_eq!(named("_INBOX.me").unwrap(), inbox);
        assert_eq!(
            named("_INBOX.you").unwrap_err().to_string(),
            "the request directs its answer to \"_INBOX.you\": a request may not name a topic that begins with '_' or '$'"
        );
    }

    #[test]
    fn a_reply_subject_that_is_not_an_inbox_must_be_listed() {
        let addresses = addresses(ProtocolBinding::Nats, &["apps.*.inbox"]);
        for name in [
            "_INBOX.me",
            "_INBOX_ana.x.1",
            "apps.ana.inbox",
            "a2abus.replies.r.c",
        ] {
            assert_eq!(addresses.inbox(&topic(name)).unwrap(), topic(name));
        }
        for name in ["agents.victim", "a2abus.dlq", "billing.orders"] {
            let refused = addresses.inbox(&topic(name)).unwrap_err();
            assert_eq!(refused, Refused::NotListed(topic(name)));
            let named = addresses.named(&name.into(), Some(&topic(name)));
            assert_eq!(named.unwrap_err(), refused);
        }
    }

    #[test]
    fn a_refusal_names_the_fix() {
        let refused = addresses(ProtocolBinding::Kafka, &[])
            .named(&"a2abus.dlq".into(), None)
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the request directs its answer to a2abus.dlq, which this binding does not allow: add the topic to its reply_topics, or name another topic in the request"
        );
    }
}
