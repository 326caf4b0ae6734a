//! `a2abus convert`: runs one conversion of the library, from JSON to JSON.

use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;

use a2abus_models::Json;
use a2abus_models::convert::{Conversion, ConvertContext, ConvertError};
use a2abus_plugin::{Limits, Text};
use anyhow::Context as _;
use clap::Args;

use super::command::{Misuse, Status};
use super::output::Output;
use super::payload::now;
use crate::config::TextFormat;

/// Arguments of `a2abus convert`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus convert --list
  a2abus convert envelope_normalize request.json
  a2abus convert a2e_workflow_validate < workflow.jsonl
  echo '{\"type\":\"ping\",\"id\":\"1\"}' | a2abus convert a2e_message_decode

a2e_workflow_validate also reads JSON Lines; all others read one JSON document. A refused document is reported as \
{\"error\":{\"kind\":…,\"field\":…,\"message\":…}}, with exit status 1.")]
pub(crate) struct ConvertArgs {
    /// The conversion; --list shows them.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// The file to read; by default, or with `-`, standard input.
    file: Option<PathBuf>,
    /// Lists the conversions.
    #[arg(long)]
    list: bool,
    /// The current time in the output: an RFC 3339 time, or `real`. By default the placeholder <now>.
    #[arg(long, value_name = "RFC3339|real", value_parser = now)]
    now: Option<Text>,
}

/// Runs the conversion.
///
/// # Errors
/// When the usage is wrong, or reading or writing fails; a refused document is output, not an error.
pub(crate) fn run(args: &ConvertArgs) -> anyhow::Result<Status> {
    let mut output = Output::new();
    let Some(name) = args.name.as_deref().filter(|_| !args.list) else {
        for conversion in Conversion::all() {
            output.line(format!("{:<42} {}", conversion.name, conversion.about))?;
        }
        return Ok(Status::Success);
    };
    let conversion = <&'static Conversion as TextFormat>::read(name).map_err(Misuse)?;
    let context = ConvertContext {
        now: args.now.clone().unwrap_or(Text::from_static("<now>")),
        converter: if args.now.is_some() {
            Text::from_static("a2abus")
        } else {
            Text::from_static("<converter>")
        },
        new_id: Text::from_static("<new>"),
    };
    let converted = conversion.run_on(&args.read()?, &Limits::default(), &context);
    match converted {
        Ok(json) => output.line(json.to_string()).map(|()| Status::Success),
        Err(error) => output
            .line(error_json(&error).to_string())
            .map(|()| Status::Failure),
    }
}

fn error_json(error: &ConvertError) -> Json {
    let members = [
        ("kind", Json::from(error.kind)),
        ("field", Json::from(error.field.clone())),
        ("message", Json::from(error.message.as_ref())),
    ];
    Json::object([("error", Json::object(members))])
}

// === impl ConvertArgs ===

impl ConvertArgs {
    fn read(&self) -> anyhow::Result<Vec<u8>> {
        match &self.file {
            Some(path) if path.as_os_str() != "-" => fs::read(path).map_err(|error| {
                Misuse(format!("{} cannot be read: {error}", path.display())).into()
            }),
            _ => {
                let mut document = Vec::new();
                io::stdin()
                    .read_to_end(&mut document)
                    .context("reading failed")?;
                Ok(document)
            }
        }
    }
}
