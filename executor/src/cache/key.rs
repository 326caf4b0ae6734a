//! The cache key of a result.

use std::fmt::{self, Write};

use a2abus_models::Json;
use a2abus_models::a2e_workflow::OperationType;
use a2abus_plugin::Text;
use sha2::{Digest, Sha256};

/// A hash over the agent, the operation type, the configuration with values in place of references, and the input
/// values. Source: docs/protocols/a2e-workflows.md §D20.
pub(crate) struct Key {
    pub(super) agent: Text,
    pub(super) kind: OperationType,
    pub(super) pinned: Vec<Json>,
    writer: Writer,
}

/// Hashes what is written.
#[derive(Clone)]
struct Writer(Sha256);

// === impl Key ===

impl Key {
    pub(crate) fn new(agent: &Text, kind: OperationType) -> Self {
        let mut writer = Writer(Sha256::new());
        writer.write(|out| {
            out.write_char('[')?;
            write!(out, "{},\"{}\"", Json::from(agent.clone()), kind.as_str())
        });
        Self {
            agent: agent.clone(),
            kind,
            pinned: Vec::new(),
            writer,
        }
    }

    /// Adds a configuration by its content.
    pub(crate) fn config(mut self, config: &Json) -> Self {
        self.add("config", |out| config.write_canonical(out));
        self
    }

    /// Adds an input by its content. Takes time proportional to its size.
    pub(crate) fn value(mut self, value: &Json) -> Self {
        self.add("value", |out| value.write_canonical(out));
        self
    }

    /// Adds an input by identity: this very array or object, whatever its content. Takes constant time. Other values
    /// are added by content.
    pub(crate) fn identity(mut self, value: &Json) -> Self {
        match value.address() {
            Some(address) => {
                self.pinned.push(value.clone());
                self.add("identity", |out| write!(out, "{address}"));
                self
            }
            None => self.value(value),
        }
    }

    /// The label distinguishes the ways in which values were added.
    fn add(&mut self, label: &str, write: impl FnOnce(&mut Writer) -> fmt::Result) {
        self.writer.write(|out| {
            write!(out, ",{{\"{label}\":")?;
            write(out)?;
            out.write_char('}')
        });
    }

    pub(super) fn hash(&self) -> [u8; 32] {
        self.writer.0.clone().finalize().into()
    }
}

// === impl Writer ===

impl Writer {
    fn write(&mut self, write: impl FnOnce(&mut Self) -> fmt::Result) {
        let written = write(self);
        debug_assert!(written.is_ok(), "a hash takes everything");
    }
}

impl Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}
