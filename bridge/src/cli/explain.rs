//! `a2abus explain`: shows how a payload is detected, the origin of its attributes, and its destinations.

mod origins;
mod output;
mod person;
mod plain;
mod remedy;
mod routing;
mod unknown;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;

use self::origins::Changes;
use self::output::ExplainOutput;
use self::plain::PlainPayload;
use self::remedy::Fix;
use self::routing::Routing;
use self::unknown::ForwardedUnknown;
use super::command::{Misuse, Status, load};
use super::map::line;
use super::output::Output;
use super::payload::{EntryPoint, PayloadArgs, PayloadOptions, Refusal, UnitResult};
use crate::config::{Config, Role};
use crate::names::DOOR;

/// Arguments of `a2abus explain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus explain request.json                 # its detection, the origin of every attribute
  a2abus explain -c a2abus.yaml request.json  # also which route matches, and why not the others
  kcat -C -t in -o -1 -c 1 | a2abus explain -c a2abus.yaml --binding in
  a2abus explain --text request.json | less   # text although the output is not a terminal
  a2abus explain --json --lines < captured.jsonl | jq 'select(.ok | not)'

Each JSON line is that of `a2abus map` plus \"because\", \"origins\", \"removed\" (attributes that its sender may not \
set) and \"route\" or, for a refused unit, \"reason\" (that of the dead letter, of the log line about a dropped \
message or, over HTTP, of the error) and \"fix\".

Without -c, the id of an event is that of its payload. In a bridge it is the position of the message, unless \
mapping.ids of the binding says otherwise; over HTTP it is the id of the call.

Exit status 1 if any unit is refused or matches no route.")]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    payload: PayloadArgs,
    /// The configuration with the routes; without it only the mapping is explained.
    #[arg(short, long, env = "A2ABUS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The binding that reads the payload, or `http` for the HTTP listener; by default the first binding for events.
    #[arg(long, value_name = "NAME", requires = "config")]
    binding: Option<String>,
    /// JSON lines even on a terminal.
    #[arg(long, conflicts_with = "text")]
    json: bool,
    /// Text even if the output is not a terminal.
    #[arg(long)]
    text: bool,
}

/// Explains every payload.
///
/// # Errors
/// When the command is misused, the configuration is wrong, or reading or writing fails.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<Status> {
    let config = args.config.as_deref().map(load).transpose()?;
    let entry = config
        .as_ref()
        .map(|config| entry(config, args.binding.as_deref()))
        .transpose()?;
    let routing = entry.map(Routing::new).transpose()?;
    let options = args.payload.options_at(entry)?;
    let mut documents = args.payload.documents(&options)?;
    let for_people = args.text || (!args.json && io::stdout().is_terminal());
    let mut output = Output::new();
    let mut status = Status::Success;
    while let Some(payload) = documents.next()? {
        for (text, is_right) in outputs(&payload, &options, routing.as_ref(), for_people) {
            if !is_right {
                status = Status::Failure;
            }
            output.line(text)?;
        }
    }
    Ok(status)
}

/// The output for each unit of a payload, and whether a route matches it.
fn outputs(
    payload: &Bytes,
    options: &PayloadOptions,
    routing: Option<&Routing<'_>>,
    for_people: bool,
) -> Vec<(Vec<u8>, bool)> {
    let units = options.map_payload(payload);
    if let Some(card) = PlainPayload::card(payload, &units, options, routing) {
        return vec![plain(&card, for_people)];
    }
    let units = units.into_iter().map(|outcome| {
        let (outcome, changes) = completed(outcome, options, routing);
        explained((&outcome, changes), payload, options, routing, for_people)
    });
    units.collect()
}

/// The unit as its entry point routes it, and what that has changed.
fn completed(
    outcome: UnitResult,
    options: &PayloadOptions,
    routing: Option<&Routing<'_>>,
) -> (UnitResult, Changes) {
    match (outcome, routing) {
        (Ok(mut mapped), Some(routing)) => {
            let before = mapped.event.clone();
            let filled = routing.admit(&mut mapped, options);
            let changes = Changes::between(&before, &mapped.event, filled);
            (Ok(mapped), changes)
        }
        (outcome, _) => (outcome, Changes::default()),
    }
}

/// The same for one unit.
fn explained(
    (outcome, changes): (&UnitResult, Changes),
    payload: &Bytes,
    options: &PayloadOptions,
    routing: Option<&Routing<'_>>,
    for_people: bool,
) -> (Vec<u8>, bool) {
    let mapped = match outcome {
        Ok(mapped) => mapped,
        Err(refusal) => return refused(refusal, (outcome, payload), options, routing, for_people),
    };
    let address = options.reply_address(&mapped.event);
    let mut explained = ExplainOutput::of(mapped, changes, address.as_ref(), routing);
    if let (Some(route), Some(routing)) = (&mut explained.route, routing) {
        routing.refuse(route, mapped, options);
    }
    let text = if for_people {
        person::mapped(mapped, &explained).into()
    } else {
        line(outcome, &explained)
    };
    (text, !explained.goes_nowhere())
}

/// The same for a unit that is no event.
fn refused(
    refusal: &Refusal,
    (outcome, payload): (&UnitResult, &Bytes),
    options: &PayloadOptions,
    routing: Option<&Routing<'_>>,
    for_people: bool,
) -> (Vec<u8>, bool) {
    if let Some(answer) = PlainPayload::answer(refusal, options, routing) {
        return plain(&answer, for_people);
    }
    if let Some(carried) = ForwardedUnknown::of(refusal, options, routing) {
        let text = if for_people {
            person::carried(&carried).into()
        } else {
            carried.line()
        };
        return (text, !carried.route.goes_nowhere());
    }
    let fix = Fix::of(refusal, routing);
    let text = if for_people {
        let is_http = routing.is_some_and(Routing::is_http);
        person::refused(refusal, payload, &fix, is_http).into()
    } else {
        line(outcome, &fix)
    };
    (text, false)
}

/// The same for a payload that is read without an event.
fn plain(payload: &PlainPayload, for_people: bool) -> (Vec<u8>, bool) {
    let text = if for_people {
        person::plain(payload).into()
    } else {
        payload.line()
    };
    (text, !payload.route.goes_nowhere())
}

/// Where a payload enters the bridge.
fn entry<'a>(config: &'a Config, named: Option<&str>) -> Result<EntryPoint<'a>, Misuse> {
    let mut bindings = config.bindings.iter();
    let binding =
        match named {
            None => bindings.find(|binding| binding.role == Role::Events),
            Some(DOOR) => None,
            Some(name) => Some(bindings.find(|binding| binding.name == *name).ok_or_else(
                || {
                    let names: Vec<&str> = config
                        .bindings
                        .iter()
                        .map(|binding| binding.name.as_str())
                        .collect();
                    Misuse(format!(
                        "there is no binding {name:?}: choose one of {}, {DOOR}",
                        names.join(", ")
                    ))
                },
            )?),
        };
    Ok(EntryPoint { config, binding })
}
