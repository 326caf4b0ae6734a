//! `a2abus dead-letters`: lists, shows and resends the messages that could not be delivered.

mod letter;
mod reading;
mod resend;
mod selection;

use std::collections::BTreeSet;

use anyhow::bail;
use clap::{Args, Subcommand};

use self::letter::Letter;
use self::reading::Places;
use self::selection::{Common, Selection};
use super::command::{Misuse, Status, load};
use super::output::{Output, complain, complain_line, json_line, plain};

/// Arguments of `a2abus dead-letters`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus dead-letters ls -c a2abus.yaml
  a2abus dead-letters ls --reason unknown_topic --since 1h --json
  a2abus dead-letters show k:a2abus.dlq/0/12
  a2abus dead-letters resend k:a2abus.dlq/0/12
  a2abus dead-letters resend --binding orders --reason no_route --dry-run

Reads the dead-letter topics of all bindings, on Kafka and JetStream. `resend` does not remove dead letters there: to \
resend each of them only once, use --since or name them. A topic or stream keeps them for as long as its retention says.

Exit status 1 if a bus cannot be reached, or a dead letter cannot be resent. `ls` then still lists the dead \
letters on the other buses, and exits with 0 if it finds all positions that you name.")]
pub(crate) struct DeadLettersArgs {
    #[command(subcommand)]
    command: DeadLettersCommand,
}

#[derive(Debug, Subcommand)]
enum DeadLettersCommand {
    /// Lists dead letters: time, binding, reason, stage, topic, position and detail. The oldest of each partition comes
    /// first.
    #[command(visible_alias = "list")]
    Ls(Selection),
    /// Shows one dead letter with its headers and its body.
    Show {
        /// Its position, as `ls` shows it: `k:TOPIC/PARTITION/OFFSET` or `j:STREAM/SEQUENCE`.
        #[arg(value_parser = selection::position)]
        position: String,
        #[command(flatten)]
        common: Common,
    },
    /// Publishes dead letters again: to the topic that they were read from, or, for answers, to their reply topic.
    ///
    /// Each is published with its own key, headers and body, but without the `bus-dlq-` headers, `Nats-Msg-Id`, a
    /// `ce_expirytime` that has passed, and, if it had too many hops, their count. The bridge then sends it to all
    /// destinations of its route, also to those that have it already. Credentials that were replaced with `"***"` are
    /// not restored: a line says so for each. Stops at the first failure.
    Resend {
        #[command(flatten)]
        selection: Selection,
        /// Resend all of them.
        #[arg(long)]
        all: bool,
        /// Only show what would be resent.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// [`Misuse`] when the arguments are wrong; otherwise when the configuration is invalid, a bus cannot be read, or a
/// dead letter cannot be published.
pub(crate) async fn run(args: DeadLettersArgs) -> anyhow::Result<Status> {
    match args.command {
        DeadLettersCommand::Ls(selection) => list(&selection).await,
        DeadLettersCommand::Show { position, common } => show(&position, &common).await,
        DeadLettersCommand::Resend {
            selection,
            all,
            dry_run,
        } => {
            if !all && selection.is_everything() {
                let what = "name dead letters by their positions or by options such as --reason, or resend --all";
                return Err(Misuse(what.to_owned()).into());
            }
            resend::run(&selection, dry_run).await
        }
    }
}

async fn list(selection: &Selection) -> anyhow::Result<Status> {
    let config = load(&selection.common.config.path)?;
    let (mut output, mut found) = (Output::new(), 0);
    let (mut reasons, mut bindings) = (BTreeSet::new(), BTreeSet::new());
    let mut unseen: BTreeSet<&str> = selection.positions.iter().map(String::as_str).collect();
    let mut places = Places::of(&config, &selection.bindings);
    places.check(&selection.positions)?;
    let mut is_incomplete = false;
    loop {
        let batch = match places.next().await {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                complain(&error);
                is_incomplete = true;
                continue;
            }
        };
        let of_bindings = batch
            .iter()
            .filter(|letter| selection.is_of_binding(letter));
        reasons.extend(of_bindings.filter_map(Letter::reason).map(plain));
        bindings.extend(batch.iter().filter_map(Letter::binding).map(plain));
        for letter in batch.iter().filter(|letter| selection.takes(letter)) {
            found += 1;
            unseen.remove(letter.position.as_str());
            match selection.common.json {
                true => output.line(json_line(&letter.summary()))?,
                false => output.line(letter.line())?,
            }
        }
    }
    if is_incomplete {
        // If all named positions were found, it does not matter what could not be read.
        return Ok(match selection.positions.is_empty() || !unseen.is_empty() {
            true => Status::Failure,
            false => Status::Success,
        });
    }
    places.check_bindings(&selection.bindings)?;
    for position in unseen {
        places.missing(position)?;
    }
    if found == 0 && !selection.common.json {
        let [reasons, bindings] = [reasons, bindings].map(|names| Vec::from_iter(names).join(", "));
        complain_line(&match (reasons.as_str(), bindings.as_str()) {
            ("", "") => "no dead letters".to_owned(),
            ("", bindings) => {
                format!("no dead letter matches; the bindings with dead letters are {bindings}")
            }
            (reasons, _) => {
                format!("no dead letter matches; there are some with the reasons {reasons}")
            }
        });
    }
    Ok(Status::Success)
}

async fn show(position: &str, common: &Common) -> anyhow::Result<Status> {
    let config = load(&common.config.path)?;
    let mut places = Places::of(&config, &[]);
    places.check([position])?;
    let mut failure = None;
    loop {
        let batch = match places.next().await {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                failure = failure.or(Some(error));
                continue;
            }
        };
        let Some(letter) = batch.iter().find(|letter| letter.position == position) else {
            continue;
        };
        let mut output = Output::new();
        match common.json {
            true => output.line(json_line(&letter.whole()))?,
            false => letter
                .lines()
                .into_iter()
                .try_for_each(|line| output.line(line))?,
        }
        return Ok(Status::Success);
    }
    match failure {
        Some(error) => Err(error),
        None => bail!(places.missing(position)?),
    }
}
