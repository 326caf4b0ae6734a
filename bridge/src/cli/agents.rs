//! `a2abus agents`: the agents that a running bridge knows.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;

use super::bridge_client::{refuse_redirect, request};
use super::command::{Misuse, Status, duration};
use super::output::{Output, json_line, plain};
use crate::http::sse::read::Events;
use crate::registry::card::{Card, check_name};

/// Arguments of `a2abus agents`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus agents ls
  a2abus agents show weather --json | jq .card
  a2abus agents register card.json --lease 24h
  a2abus agents rm weather
  a2abus agents watch --url http://bridge:8080

These commands call the HTTP listener of a running bridge: --url. To register agents, the bridge needs \
registry.enabled: true. Agents that `agents` lists in the configuration are shown, and cannot be removed here.

Exit status 1 if the bridge cannot be reached, or refuses.")]
pub(crate) struct AgentsArgs {
    #[command(subcommand)]
    command: AgentsCommand,
}

#[derive(Debug, Subcommand)]
enum AgentsCommand {
    /// Lists the agents: name, origin, end of the lease, transport, availability and description.
    ///
    /// AVAILABLE is yes or no for the agents that the bridge itself has attached, and `-` for all others: the bridge
    /// does not ask agents on the bus whether they are available.
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        bridge: BridgeArgs,
    },
    /// Shows one agent with its card.
    Show {
        /// The name of the agent.
        agent: String,
        #[command(flatten)]
        bridge: BridgeArgs,
    },
    /// Announces an agent, or renews its lease.
    Register {
        /// The file with the card, JSON; `-` for standard input.
        card: PathBuf,
        /// The name of the agent. By default the name in the card.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// How long the agent stays known, such as 90s or 24h. By default the lease in the card, or registry.lease; at
        /// most registry.max_lease.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        lease: Option<std::time::Duration>,
        #[command(flatten)]
        bridge: BridgeArgs,
    },
    /// Removes an agent before its lease runs out.
    Rm {
        /// The name of the agent.
        agent: String,
        #[command(flatten)]
        bridge: BridgeArgs,
    },
    /// Prints the agents, and then every change, until it is interrupted.
    Watch {
        #[command(flatten)]
        bridge: BridgeArgs,
    },
}

/// The bridge, and the output format.
#[derive(Debug, Args)]
struct BridgeArgs {
    /// The HTTP listener of the bridge.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: Url,
    /// Print JSON: one object on each line.
    #[arg(long)]
    json: bool,
}

/// A page of the list of agents.
#[derive(Deserialize)]
struct Page {
    cards: Vec<Value>,
    #[serde(default)]
    next_offset: Option<usize>,
}

/// Agents of one page.
const PAGE: usize = 1_000;
/// The largest event of a stream of changes, in bytes. The first event has the cards of all agents.
const MAX_EVENT: usize = 1 << 30;

/// Runs the command.
///
/// # Errors
/// [`Misuse`] when the card cannot be read; otherwise when the bridge cannot be reached or refuses the request.
pub(crate) async fn run(args: AgentsArgs) -> anyhow::Result<Status> {
    match args.command {
        AgentsCommand::Ls { bridge } => bridge.list().await?,
        AgentsCommand::Show { agent, bridge } => bridge.show(&agent).await?,
        AgentsCommand::Register {
            card,
            name,
            lease,
            bridge,
        } => bridge.register(&read(&card)?, name, lease).await?,
        AgentsCommand::Rm { agent, bridge } => {
            let url = bridge.agent(&agent)?;
            let response = bridge.send(request(Method::DELETE, url)?).await?;
            drop(response);
            bridge.print(&serde_json::json!({ "removed": agent }), || {
                format!("removed {agent}")
            })?;
        }
        AgentsCommand::Watch { bridge } => bridge.watch().await?,
    }
    Ok(Status::Success)
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Misuse> {
    let read = match path.to_str() {
        Some("-") => {
            let mut card = Vec::new();
            std::io::stdin().read_to_end(&mut card).map(|_| card)
        }
        _ => std::fs::read(path),
    };
    read.map_err(|error| Misuse(format!("cannot read the card {}: {error}", path.display())))
}

// === impl BridgeArgs ===

impl BridgeArgs {
    async fn list(&self) -> anyhow::Result<()> {
        let mut entries = Vec::new();
        let mut offset = Some(0);
        while let Some(from) = offset {
            let mut url = self.path(&["a2a", "cards", "list"]);
            url.query_pairs_mut()
                .append_pair("limit", &PAGE.to_string())
                .append_pair("offset", &from.to_string());
            let response = self.send(request(Method::GET, url)?).await?;
            let page: Page = response.json().await.context("the list of agents")?;
            entries.extend(page.cards.into_iter().map(renamed));
            offset = page.next_offset;
        }
        let mut output = Output::new();
        if self.json {
            return entries
                .iter()
                .try_for_each(|entry| output.line(json_line(entry)));
        }
        if entries.is_empty() {
            return output.line("no agents");
        }
        let rows: Vec<[String; 6]> = entries.iter().map(row).collect();
        for line in table(&rows) {
            output.line(line)?;
        }
        Ok(())
    }

    async fn show(&self, agent: &str) -> anyhow::Result<()> {
        let response = self.send(request(Method::GET, self.agent(agent)?)?).await?;
        let shown: Value = response.json().await.context("the agent")?;
        self.print(&shown, || {
            let text = |name: &str| plain(shown[name].as_str().unwrap_or("-"));
            let mut lines = vec![format!(
                "{} {}: {}",
                text("name"),
                text("version"),
                text("description")
            )];
            lines.push(format!("url      {}", text("url")));
            lines.push(format!(
                "expires  {}",
                shown["expiresAt"].as_str().unwrap_or("never")
            ));
            if let Some(cause) = shown["cause"].as_str() {
                lines.push(format!("down     {}", plain(cause)));
            }
            let skills = shown["card"]["skills"].as_array();
            for skill in skills.into_iter().flatten() {
                let text = |name: &str| plain(skill[name].as_str().unwrap_or("-"));
                lines.push(format!("skill    {}: {}", text("id"), text("description")));
            }
            lines.join("\n")
        })
    }

    async fn register(
        &self,
        card: &[u8],
        name: Option<String>,
        lease: Option<std::time::Duration>,
    ) -> anyhow::Result<()> {
        let name = match name {
            Some(name) => name,
            None => {
                // The bridge reports the faults of the card, together with its own reasons to refuse it.
                let (read, _) = Card::read_with_faults(card, usize::MAX)
                    .map_err(|faults| Misuse(format!("the card is invalid: {faults}")))?;
                let agent = read
                    .agent
                    .context("the card does not name the agent: give --name")?;
                agent.to_string()
            }
        };
        let mut url = self.agent(&name)?;
        if let Some(lease) = lease {
            let lease = humantime::format_duration(lease)
                .to_string()
                .replace(' ', "");
            url.query_pairs_mut().append_pair("lease", &lease);
        }
        let request = request(Method::PUT, url)?
            .header("content-type", "application/json")
            .body(card.to_vec());
        let receipt = self.send(request).await?.json().await;
        let receipt = renamed(receipt.context("the receipt")?);
        self.print(&receipt, || {
            let expires = receipt["expiresAt"].as_str().unwrap_or("-");
            match receipt["status"].as_str() {
                Some("listed") => {
                    format!("{name} is listed in the configuration of the bridge, which takes precedence")
                }
                _ => format!("registered {name} until {expires}"),
            }
        })
    }

    async fn watch(&self) -> anyhow::Result<()> {
        let url = self.path(&["a2a", "agents"]);
        let request = request(Method::GET, url)?.header("accept", "text/event-stream");
        let mut response = self.send(request).await?;
        let mut events = Events::new(MAX_EVENT);
        while let Some(chunk) = response
            .chunk()
            .await
            .context("the bridge ended the stream")?
        {
            for data in events.push(&chunk)? {
                self.changes(&data)?;
            }
        }
        bail!("the bridge ended the stream")
    }

    /// Prints the changes in one event.
    fn changes(&self, data: &[u8]) -> anyhow::Result<()> {
        let data: Value = serde_json::from_slice(data).context("an event")?;
        if let Some(why) = data.pointer("/error/message").and_then(Value::as_str) {
            bail!("the bridge ended the stream: {why}");
        }
        for change in data["changes"].as_array().into_iter().flatten() {
            self.print(change, || {
                let agent = &change["agent"];
                let text = |value: &Value| plain(value.as_str().unwrap_or("-"));
                format!(
                    "{:<10} {} {}: {}",
                    text(&change["change"]),
                    text(&agent["name"]),
                    text(&agent["version"]),
                    text(&agent["description"])
                )
            })?;
        }
        Ok(())
    }

    fn print(&self, value: &Value, person: impl FnOnce() -> String) -> anyhow::Result<()> {
        let mut output = Output::new();
        if self.json {
            output.line(json_line(value))
        } else {
            output.line(person())
        }
    }

    /// The path of an agent.
    ///
    /// # Errors
    /// When no agent can have this name. In a URL, such a name could lead to another path.
    fn agent(&self, name: &str) -> Result<Url, Misuse> {
        let known = check_name(name).map_err(Misuse)?;
        Ok(self.path(&["a2a", "agents", known.as_str()]))
    }

    fn path(&self, segments: &[&str]) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// The response, if the request succeeded.
    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let sent = request.send().await;
        let response = sent.with_context(|| format!("cannot reach the bridge at {}", self.url))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        refuse_redirect(&response)?;
        let body: Value = response.json().await.unwrap_or_default();
        // A bridge without agents does not serve these paths. An unknown agent has another reason.
        let reason = body.pointer("/error/data/reason").and_then(Value::as_str);
        if status == StatusCode::NOT_FOUND && reason == Some("invalid_request") {
            bail!(
                "the bridge at {} has no agents: list them in the section `agents` of its configuration, or set registry.enabled",
                self.url
            );
        }
        match body.pointer("/error/message").and_then(Value::as_str) {
            Some(message) => bail!("{message}"),
            None => bail!("the bridge answered {status}: is it an a2abus with agents?"),
        }
    }
}

/// Renames the members of an entry or a receipt: from the names of EventMesh to those of `GET /a2a/agents`.
fn renamed(mut entry: Value) -> Value {
    let names = [
        ("agent_id", "name"),
        ("org_id", "orgId"),
        ("unit_id", "unitId"),
        ("expires_at", "expiresAt"),
    ];
    for (from, to) in names {
        let value = entry.as_object_mut().and_then(|entry| entry.remove(from));
        if let Some(value) = value {
            entry[to] = value;
        }
    }
    entry
}

/// An agent as a row of the list.
fn row(entry: &Value) -> [String; 6] {
    let text = |value: &Value| plain(value.as_str().unwrap_or("-"));
    let expires = entry["expiresAt"].as_str().unwrap_or("never");
    let available = match entry["available"].as_bool() {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    };
    [
        text(&entry["name"]),
        text(&entry["source"]),
        expires.to_owned(),
        text(&entry["transport"]),
        available.to_owned(),
        shortened(&text(&entry["card"]["description"])),
    ]
}

/// Maximum number of characters of a description in the list; `agents show` has the whole one.
const MAX_DESCRIPTION: usize = 100;

fn shortened(text: &str) -> String {
    if text.chars().count() <= MAX_DESCRIPTION {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(MAX_DESCRIPTION - 3).collect();
    short.push_str("...");
    short
}

/// The lines of a table with a header; each column but the last is as wide as its widest cell.
fn table(rows: &[[String; 6]]) -> Vec<String> {
    let head = [
        "AGENT",
        "SOURCE",
        "EXPIRES",
        "TRANSPORT",
        "AVAILABLE",
        "DESCRIPTION",
    ]
    .map(str::to_owned);
    let mut widths = [0; 6];
    for row in rows.iter().chain([&head]) {
        for (width, cell) in widths.iter_mut().zip(row).take(5) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ")
    };
    std::iter::once(&head).chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_description_does_not_widen_other_lines() {
        let entry = |name: &str, source: &str, available: Option<bool>, description: &str| {
            row(&renamed(json!({
                "agent_id": name, "source": source, "transport": "bus", "available": available,
                "cause": "refused", "card": { "description": description },
            })))
        };
        let long = "long ".repeat(800);
        let rows = [
            entry("here", "configuration", Some(true), &long),
            entry(
                "away",
                "configuration",
                Some(false),
                "Two\r\nlines\u{1b}[2J\u{202e}.",
            ),
            entry("other", "announced", None, "Announced."),
        ];
        let head = "AGENT  SOURCE         EXPIRES  TRANSPORT  AVAILABLE  DESCRIPTION";
        assert_eq!(
            table(&rows),
            [
                head.to_owned(),
                format!(
                    "here   configuration  never    bus        yes        {}lo...",
                    "long ".repeat(19)
                ),
                "away   configuration  never    bus        no         Two lines [2J .".to_owned(),
                "other  announced      never    bus        -          Announced.".to_owned(),
            ]
        );
    }
}
