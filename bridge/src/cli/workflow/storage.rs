//! `a2abus workflow storage`.

use std::path::PathBuf;

use a2abus_executor::Json;
use a2abus_transports::Secret;
use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use reqwest::{Method, Url};

use crate::cli::bridge_client::{refuse_redirect, request};
use crate::cli::command::{Misuse, Status};
use crate::cli::output::Output;

/// Arguments of `a2abus workflow storage`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus workflow storage ls --key-env REPORTER_KEY
  a2abus workflow storage get totals --key-env REPORTER_KEY
  a2abus workflow storage rm cart --storage sessionStorage --session s-1 --key-file reporter.key

These commands call the HTTP API of a running bridge, because only one process at a time can open the data directory.")]
pub(super) struct StorageArgs {
    #[command(subcommand)]
    command: StorageCommand,
}

#[derive(Debug, Subcommand)]
enum StorageCommand {
    /// Lists the stored values of an agent: size in bytes, session and key of each.
    Ls {
        #[command(flatten)]
        of: AgentStorage,
    },
    /// Prints a value as JSON.
    Get {
        /// The key it is stored under.
        key: String,
        #[command(flatten)]
        of: AgentStorage,
    },
    /// Removes a value.
    Rm {
        /// The key it is stored under.
        key: String,
        #[command(flatten)]
        of: AgentStorage,
    },
}

/// The storage, the agent and the bridge.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("secret").required(true).args(["key_env", "key_file"]))]
struct AgentStorage {
    /// The storage.
    #[arg(
        long,
        value_enum,
        value_name = "STORAGE",
        default_value = "localStorage"
    )]
    storage: Storage,
    /// The session, for values in sessionStorage.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// The HTTP listener of the bridge.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: Url,
    /// The environment variable with the API key of the agent.
    #[arg(long, value_name = "NAME")]
    key_env: Option<String>,
    /// The file with the API key of the agent.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Storage {
    #[value(name = "localStorage")]
    Local,
    #[value(name = "sessionStorage")]
    Session,
}

/// Runs the command.
///
/// # Errors
/// [`Misuse`] when the key cannot be read; otherwise when the bridge cannot be reached or refuses the request.
pub(super) async fn run(args: StorageArgs) -> anyhow::Result<Status> {
    let mut output = Output::new();
    match args.command {
        StorageCommand::Ls { of } => {
            let listed = of.ask(Method::GET, None).await?;
            let values = listed.get("values").and_then(Json::as_array);
            for value in values.into_iter().flatten() {
                let text = |name| value.get(name).and_then(Json::as_str).unwrap_or_default();
                let bytes = value.get("bytes").map(Json::to_string).unwrap_or_default();
                let (session, key) = (text("session"), text("key"));
                if of
                    .session
                    .as_deref()
                    .is_none_or(|expected| expected == session)
                {
                    output.line(format!("{bytes:>10}  {session}{}{key}", gap(session)))?;
                }
            }
        }
        StorageCommand::Get { key, of } => {
            let value = of.ask(Method::GET, Some(&key)).await?;
            output.line(value.to_string())?;
        }
        StorageCommand::Rm { key, of } => {
            of.ask(Method::DELETE, Some(&key)).await?;
        }
    }
    Ok(Status::Success)
}

/// Why the executor refuses a request, and when it may be sent again.
fn reason(answer: &Json) -> String {
    let of_error = answer.get("error").and_then(|error| error.get("message"));
    let places = [of_error, answer.get("message"), answer.get("error")];
    let message = places.into_iter().flatten().find_map(Json::as_str);
    let message = message.unwrap_or("no reason given");
    match answer.get("retry_after") {
        Some(seconds) => format!("{message}: try again in {seconds} s"),
        None => message.to_owned(),
    }
}

fn gap(session: &str) -> &'static str {
    if session.is_empty() { "" } else { "  " }
}

// === impl AgentStorage ===

impl AgentStorage {
    /// Sends a request to the bridge, and returns the answer.
    async fn ask(&self, method: Method, key: Option<&str>) -> anyhow::Result<Json> {
        if key.is_some() && (self.storage == Storage::Session) != self.session.is_some() {
            let message = "--session is required for sessionStorage, and not allowed otherwise";
            return Err(Misuse(message.to_owned()).into());
        }
        let url = self.url_of(key)?;
        let secret = self.secret()?;
        let request = request(method, url)?.header("x-api-key", secret);
        let response = request.send().await;
        let response = response.with_context(|| format!("{} cannot be reached", self.url))?;
        refuse_redirect(&response)?;
        let status = response.status();
        let body = response.bytes().await.context("the response was cut off")?;
        let answer = a2abus_executor::parse(&body).with_context(|| {
            format!(
                "{} answered {status}, but not as the executor does",
                self.url
            )
        })?;
        if status.is_success() {
            return Ok(answer);
        }
        bail!("{status}: {}", reason(&answer));
    }

    fn url_of(&self, key: Option<&str>) -> Result<Url, Misuse> {
        // In a URL they would lead to another path. StoreData refuses them too.
        if let Some(key @ ("" | "." | "..")) = key {
            return Err(Misuse(format!("{key:?} is not the key of a stored value")));
        }
        let mut url = self.url.clone();
        let wrong = || Misuse(format!("--url {}: expected an http URL", self.url));
        {
            let storage = match self.storage {
                Storage::Local => "localStorage",
                Storage::Session => "sessionStorage",
            };
            let mut path = url.path_segments_mut().map_err(|()| wrong())?;
            path.pop_if_empty()
                .extend(["api", "v1", "storage", storage]);
            path.extend(key);
        }
        if let (Some(session), Some(_)) = (&self.session, key) {
            url.query_pairs_mut().append_pair("session", session);
        }
        Ok(url)
    }

    fn secret(&self) -> Result<String, Misuse> {
        let secret = match (&self.key_file, &self.key_env) {
            (Some(path), _) => Secret::file(path),
            (None, Some(name)) => Secret::env(name),
            (None, None) => return Err(Misuse("--key-env or --key-file is required".to_owned())),
        };
        let read = secret.reveal().map_err(|error| Misuse(error.to_string()))?;
        Ok(read.as_str().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_reason_and_when_to_try_again() {
        for (answer, expected) in [
            (
                r#"{"error":"Rate limit exceeded","message":"Rate limit exceeded: 60 requests per minute","retry_after":7}"#,
                "Rate limit exceeded: 60 requests per minute: try again in 7 s",
            ),
            (r#"{"error":{"code":"not_permitted","message":"no"}}"#, "no"),
            (r#"{"error":"no"}"#, "no"),
            ("{}", "no reason given"),
        ] {
            let answer = a2abus_executor::parse(answer.as_bytes()).unwrap();
            assert_eq!(reason(&answer), expected);
        }
    }
}
