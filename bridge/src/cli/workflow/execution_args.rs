//! The arguments that the commands share: the workflow, the agent and the input.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use a2abus_executor::{Json, Object};
use a2abus_models::a2e_workflow::Strictness;
use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;

use crate::cli::command::Misuse;

/// The workflow, its agent and its input.
#[derive(Debug, Args)]
pub(super) struct ExecutionArgs {
    /// The workflow, as JSON Lines; by default, or with `-`, standard input.
    pub(super) file: Option<PathBuf>,
    /// The initial data model: a JSON object, or `@FILE` with one.
    #[arg(long, value_name = "JSON", value_parser = input, default_value = "{}", hide_default_value = true)]
    pub(super) input: Object,
    /// A configuration with the permissions of the agent in its section `workflows`. By default all operations and all
    /// globally reachable APIs are permitted, but no credentials.
    #[arg(long, value_name = "FILE")]
    pub(super) policy: Option<PathBuf>,
    /// The agent in that configuration; required if there are several.
    #[arg(long, value_name = "ID", requires = "policy")]
    pub(super) agent: Option<String>,
    /// How strict the validation is: strict, moderate or lenient.
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
    match a2abus_executor::parse(text) {
        Ok(Json::Object(object)) => Ok(object),
        Ok(other) => Err(format!(
            "expected a JSON object, but this is {}",
            other.kind()
        )),
        Err(error) => Err(error.to_string()),
    }
}

fn level(text: &str) -> Result<Strictness, String> {
    Strictness::from_name(text).ok_or_else(|| "expected strict, moderate or lenient".to_owned())
}

// === impl ExecutionArgs ===

impl ExecutionArgs {
    pub(super) fn workflow(&self) -> anyhow::Result<Bytes> {
        read(self.file.as_deref())
    }

    /// The name of the workflow in messages.
    pub(super) fn display_name(&self) -> String {
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
