//! What is known about a payload before it is decoded.

use crate::protocol::dialect::Dialect;
use crate::protocol::{Family, is_collaboration_id};
use crate::text::Text;

/// What the transport and the binding declare about a payload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    pub(crate) framing: Framing,
    pub(crate) dialect: Option<Dialect>,
    /// The family that the binding declares: messages of that family are accepted even without their usual markers.
    /// Source: docs/protocols/detection.md §2.
    pub family: Option<Family>,
    /// Refuses payloads of any other family.
    pub strict: bool,
    /// Connects the lines of a workflow that arrive as separate payloads. Source: docs/protocols/a2e-workflows.md §11.
    pub collaboration_id: Option<Text>,
    /// The agent for workflows that name none (default `a2e-executor`).
    pub executor: Option<Text>,
    /// Validate workflows instead of executing them.
    pub validate_workflows: bool,
    /// Refuses E2A records without a `protocol_version`. Source: docs/protocols/e2a.md §10.1.
    pub e2a_versions_only: bool,
    /// Trusts members that only an E2A server may set. A binding that declares E2A is trusted as well. Source:
    /// docs/protocols/e2a.md §S1 and §S3.
    pub e2a_trusted: bool,
    /// Refuses A2E messages without an `id` instead of generating one. Source: docs/protocols/a2e-messages.md §1.2.
    pub strict_ids: bool,
    /// Refuses A2E messages about the connection between an agent and its environment: handshakes (which contain a
    /// token), `ping`, `pong`, `shutdown`. Set this for payloads that are published. Source:
    /// docs/protocols/a2e-messages.md §8.3.
    pub refuse_link_local: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Derived from the bytes.
    #[default]
    Auto,
    /// Always one value per line.
    Lines,
}

// === impl Hint ===

impl Hint {
    /// The dialect of A2A that the headers announce.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// Whether members that only an E2A server may set are accepted. Source: docs/protocols/e2a.md §S1 and
    /// §S3.
    #[must_use]
    pub fn trusts_e2a(&self) -> bool {
        self.e2a_trusted || self.family == Some(Family::E2a)
    }

    /// Records a header that came with the payload: content type, A2A version headers, `collaborationid`. Other headers
    /// are ignored. Source: docs/protocols/detection.md §1, docs/protocols/a2a.md §6, docs/protocols/a2e-workflows.md
    /// §11.
    pub fn header(&mut self, name: &str, value: &str) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-type") {
            let media_type = value
                .split(';')
                .next()
                .unwrap_or_default()
                .trim()
                .to_ascii_lowercase();
            let lines = [
                "application/x-ndjson",
                "application/ndjson",
                "application/jsonl",
                "application/x-jsonlines",
            ];
            if lines.contains(&media_type.as_str()) {
                self.framing = Framing::Lines;
            }
        } else if name.eq_ignore_ascii_case("a2a-version") {
            self.dialect = match value.split('.').next() {
                Some("1") => Some(Dialect::A2a10),
                Some("0") => Some(Dialect::A2a03),
                _ => self.dialect,
            };
        } else if name.eq_ignore_ascii_case("collaborationid") {
            self.collaboration_id = Some(Text::from(value)).filter(|id| is_collaboration_id(id));
        } else if name.eq_ignore_ascii_case("x-a2a-version")
            || (name.eq_ignore_ascii_case("x-a2a-client") && value.starts_with("jaf-"))
        {
            self.dialect = self.dialect.or(Some(Dialect::JafDoc));
        }
    }
}
