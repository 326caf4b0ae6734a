//! The configuration of the memory transport.

use std::num::{NonZeroU16, NonZeroUsize};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bounds of the memory transport.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Number of partitions of each topic; its first use creates it. Default 4; 1 to 65535. A topic that a message
    /// creates, and that only live readers match, has one.
    pub partitions: NonZeroU16,
    /// Maximum number of messages in one topic. Default 65536; at least 1. A further send waits, and after 30 s fails
    /// as `saturated`. Too small: senders wait for their readers.
    pub capacity_messages: NonZeroUsize,
    /// Maximum size of all messages in one topic, in bytes. Default 67108864 (64 MiB); at least 1. A further send
    /// waits, as with `capacity_messages`.
    pub capacity_bytes: NonZeroUsize,
    /// Maximum size of a message with its key and headers, in bytes. Default 1048576 (1 MiB); at least 1. A larger
    /// message is refused as `too_large`, as is one larger than `capacity_bytes`.
    pub max_message_bytes: NonZeroUsize,
    /// Maximum number of topics. Default 10000; at least 1. A send or subscription that needs another topic is refused
    /// as `unknown_topic`.
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
