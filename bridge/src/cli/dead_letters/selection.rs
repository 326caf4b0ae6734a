//! Which dead letters a command is about.

use std::time::{Duration, SystemTime};

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::super::command::ConfigFile;
use super::letter::Letter;
use crate::bus::deadletter::Stage;
use crate::clock;

/// The configuration, and the output format.
#[derive(Debug, Args)]
pub(super) struct Common {
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// Print JSON: one object on each line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Which dead letters.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Only those at these positions, as `ls` shows them.
    #[arg(value_name = "POSITION", value_parser = position)]
    pub(super) positions: Vec<String>,
    /// Only those of this binding, even if the configuration no longer has it. Can be repeated.
    #[arg(long = "binding", value_name = "NAME")]
    pub(super) bindings: Vec<String>,
    /// Only those with this reason, such as no_route.
    #[arg(long, value_name = "CODE")]
    reason: Option<String>,
    /// Only those of this stage.
    #[arg(long, value_parser = PossibleValuesParser::new(Stage::ALL.map(Stage::as_str)))]
    stage: Option<String>,
    /// Only messages that were read from this topic or, for answers, with this reply topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only those since this time (2026-01-31T12:00:00Z), or of the last while (90m, 24h).
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<SystemTime>,
    /// Only those before this time.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<SystemTime>,
    #[command(flatten)]
    pub(super) common: Common,
}

// === impl Selection ===

impl Selection {
    /// Whether it selects without any condition.
    pub(super) fn is_everything(&self) -> bool {
        self.positions.is_empty()
            && self.bindings.is_empty()
            && self.reason.is_none()
            && self.stage.is_none()
            && self.topic.is_none()
            && self.since.is_none()
            && self.until.is_none()
    }

    /// Whether the letter is of a binding that the command is about.
    pub(super) fn is_of_binding(&self, letter: &Letter) -> bool {
        let binding = letter.binding();
        self.bindings.is_empty() || self.bindings.iter().any(|it| binding == Some(it))
    }

    pub(super) fn takes(&self, letter: &Letter) -> bool {
        let is = |wanted: &Option<String>, value: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| value == Some(wanted))
        };
        (self.positions.is_empty() || self.positions.contains(&letter.position))
            && self.is_of_binding(letter)
            && is(&self.reason, letter.reason())
            && is(&self.stage, letter.stage())
            && is(&self.topic, letter.topic())
            && self.since.is_none_or(|since| letter.time() >= since)
            && self.until.is_none_or(|until| letter.time() < until)
    }
}

/// A position, as `ls` shows it.
pub(super) fn position(text: &str) -> Result<String, String> {
    let parts = match text.split_once(':') {
        Some(("k", rest)) => Vec::from_iter(rest.rsplitn(3, '/')),
        Some(("j", rest)) => Vec::from_iter(rest.rsplitn(2, '/')),
        _ => Vec::new(),
    };
    let is_position = match &parts[..] {
        [offset, partition, topic] => {
            is_number(offset) && is_number(partition) && !topic.is_empty()
        }
        [sequence, stream] => text.starts_with('j') && is_number(sequence) && !stream.is_empty(),
        _ => false,
    };
    match is_position {
        true => Ok(text.to_owned()),
        false => Err(
            "expected k:TOPIC/PARTITION/OFFSET or j:STREAM/SEQUENCE, as `a2abus dead-letters ls` shows it"
                .to_owned(),
        ),
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

/// A time, or how long ago it was.
fn moment(text: &str) -> Result<SystemTime, String> {
    if let Some(time) = clock::parse(text) {
        return Ok(time);
    }
    let ago: Duration = humantime::parse_duration(text)
        .map_err(|_| "expected a time (2026-01-31T12:00:00Z) or a duration (90m)".to_owned())?;
    clock::now()
        .checked_sub(ago)
        .ok_or_else(|| "too long ago".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positions_that_ls_shows_are_accepted() {
        for good in ["k:a2abus.dlq/0/12", "j:DLQ/7"] {
            assert_eq!(position(good).as_deref(), Ok(good));
        }
        for bad in [
            "foo", "", "k:", "k:a/0", "k:/0/1", "k:a/x/1", "k:a/0/-1", "j:DLQ", "j:/7", "x:a/0/1",
        ] {
            let why = position(bad).unwrap_err();
            assert!(why.contains("k:TOPIC/PARTITION/OFFSET"), "{bad}: {why}");
        }
    }
}
