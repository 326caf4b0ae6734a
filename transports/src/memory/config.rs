//! The configuration of the memory transport.

use std::num::{NonZeroU16, NonZeroUsize};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bounds of the memory transport. A configuration file sets the partitions and the size of messages; the rest is for
/// tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Number of partitions of each topic; its first use creates it. A topic that is created by a message, and that only
    /// live readers match, has one partition.
    pub partitions: NonZeroU16,
    /// Maximum number of messages in one topic, 65536 by default. A further send waits, and after 30 s fails as
    /// `saturated`.
    #[serde(skip)]
    pub capacity_messages: NonZeroUsize,
    /// Maximum size of all messages in one topic, 64 MiB by default. A further send waits in the same way.
    #[serde(skip)]
    pub capacity_bytes: NonZeroUsize,
    /// Maximum size of a message with its key and headers, in bytes. A larger message is refused as `too_large`.
    pub max_message_bytes: NonZeroUsize,
    /// Maximum number of topics, 10000 by default. Beyond that, the oldest topics that nobody reads or has asked for by
    /// name give way; if there are none, a send or subscription that needs another topic is refused as `unknown_topic`.
    #[serde(skip)]
    pub max_topics: NonZeroUsize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        const fn at_least_one(number: usize) -> NonZeroUsize {
            NonZeroUsize::MIN.saturating_add(number - 1)
        }
        Self {
            partitions: NonZeroU16::MIN.saturating_add(3),
            capacity_messages: at_least_one(65_536),
            capacity_bytes: at_least_one(64 << 20),
            max_message_bytes: at_least_one(1 << 20),
            max_topics: at_least_one(10_000),
        }
    }
}
