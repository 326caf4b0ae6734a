//! Which workflow, in whose name, with what: the arguments that the commands share.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use a2abus_executor::{Object, Value};
use a2abus_models::a2e_workflow::Strictness;
use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;

use crate::cli::Misuse;

/// Which workflow, in whose name, with what.
#[derive(Debug, Args)]
pub(super) struct Asked {
    /// The workflow, as JSON Lines; standard input without it, or when it is `-`.
    pub(super) file: Option<PathBuf>,
    /// What the data model holds at the start: a JSON object, or `@FILE` with one.
    #[arg(long, value_name = "JSON", value_parser = input, default_value = "{}", hide_default_value = true)]
    pub(super) input: Object,
    /// A configuration whose section `workflows` says what the agent may do. Without it every operation is permitted,
    /// every API that is globally reachable, and no credential.
    #[arg(long, value_name = "FILE")]
    pub(super) policy: Option<PathBuf>,
    /// The agent of that configuration; needed when it has several.
    #[arg(long, value_name = "ID", requires = "policy")]
    pub(super) agent: Option<String>,
    /// How strictly it is judged: strict, moderate or lenient.
    #[arg(long, value_name = "LEVEL", value_parser = level, default_value = "moderate")]
    pub(super) level: Strictness,
}

fn input(text: &str) -> Result<Object, String> {
    let read;
    let text = match text.strip_prefix('@') {
        None => text.as_bytes(),
        Some(path) => {
            read = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            &read
        }
    };
    match Value::parse(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(format!(
            "a JSON object is needed, and this is {}",
            other.kind()
        )),
        Err(error) => Err(error.to_string()),
    }
}

fn level(text: &str) -> Result<Strictness, String> {
    Strictness::from_word(text).ok_or_else(|| "strict, moderate or lenient".to_owned())
}

// === impl Asked ===

impl Asked {
    pub(super) fn workflow(&self) -> anyhow::Result<Bytes> {
        read(self.file.as_deref())
    }

    /// How people call the workflow.
    pub(super) fn shown(&self) -> String {
        match &self.file {
            Some(path) if path.as_os_str() != "-" => path.display().to_string(),
            _ => "standard input".to_owned(),
        }
    }
}

pub(super) fn read(file: Option<&Path>) -> anyhow::Result<Bytes> {
    match file {
        Some(path) if path.as_os_str() != "-" => fs::read(path)
            .map(Bytes::from)
            .map_err(|error| Misuse(format!("{} cannot be read: {error}", path.display())).into()),
        _ => {
            let mut document = Vec::new();
            io::stdin()
                .read_to_end(&mut document)
                .context("reading failed")?;
            Ok(document.into())
        }
    }
}
