//! Memory: storing and finding entries.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use indexmap::IndexMap;

use super::value::{Float, Generated, Integer};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

records! {
    /// Opens a memory.
    "memory/init/req" => MemoryInitRequest {
        namespace: Text = "default",
        scope: IndexMap<Text, Text> = {},
        metadata: Object = {},
    }
    /// The opened memory.
    "memory/init/resp" => MemoryInitResponse {
        req_id: Text = "",
        memory_id: Text,
        namespace: Text,
        success: bool = true,
    }
    /// Stores entries; each has the form of [`MemoryEntry`].
    "memory/store/req" => MemoryStoreRequest {
        memory_id: Text,
        entries: Vec<Object> = [],
    }
    /// The stored keys.
    "memory/store/resp" => MemoryStoreResponse {
        req_id: Text = "",
        stored: Vec<Object> = [],
        errors: Vec<Text> = [],
    }
    /// Looks up entries.
    "memory/retrieve/req" => MemoryRetrieveRequest {
        memory_id: Text,
        keys: Vec<Object> = [],
        query: Text = "",
        tags: Vec<Text> = [],
        tier: Text = "",
        limit: Integer = 10,
        min_score: Float = 0.0,
    }
    /// The entries found; each has the form of [`MemoryEntry`].
    "memory/retrieve/resp" => MemoryRetrieveResponse {
        req_id: Text = "",
        entries: Vec<Object> = [],
        total: Integer = 0,
    }
    /// Deletes entries.
    "memory/forget/req" => MemoryForgetRequest {
        memory_id: Text,
        keys: Vec<Object> = [],
        tags: Vec<Text> = [],
        tier: Text = "episodic",
    }
    /// How many entries were deleted.
    "memory/forget/resp" => MemoryForgetResponse {
        req_id: Text = "",
        deleted: Integer = 0,
    }
    /// An entry of a memory. The messages carry entries as free objects; `ttl` in
    /// seconds, 0 for no expiry.
    MemoryEntry {
        key: Object,
        content: Json,
        tier: MemoryTier,
        tags: Vec<Text> = [],
        source: Text = "",
        score: Float = 1.0,
        ttl: Integer = 0,
        created_at: Generated<Float> = now,
        updated_at: Generated<Float> = now,
    }
}

member_words! {
    /// How long an entry is meant to live.
    MemoryTier {
        #[default]
        Working = "working",
        Episodic = "episodic",
        Semantic = "semantic",
    }
}
