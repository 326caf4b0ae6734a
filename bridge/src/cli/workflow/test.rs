//! `a2abus workflow test`.

use std::path::PathBuf;

use a2abus_executor::case::Case;
use clap::Args;

use crate::cli::output::Output;
use crate::cli::{Misuse, Status};

/// Arguments of `a2abus workflow test`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus workflow test report.case.json
  a2abus workflow test cases/*.json

A case is a JSON object, or a file has several in \"cases\": [...]:
  {\"name\": \"only active users\",
   \"workflow\": [{\"type\":\"operationUpdate\",…}, {\"type\":\"beginExecution\",…}],
   \"http_fixtures\": {\"GET https://api.example.com/users\": [{\"status\": 200,
     \"headers\": {\"content-type\": \"application/json\"}, \"body\": []}]},
   \"expected\": {\"valid\": true, \"status\": \"success\", \"results\": {…}, \"model\": {…},
     \"requests\": [{\"method\": \"GET\", \"url\": \"https://api.example.com/users\"}]}}
Other members: input, credentials, policy, options; expected also knows errors, error, skipped,
stored, warnings, waited_ms, retry_delays_ms ([least, most] of each). Whatever else a case has is for
people, as a note; a misspelt member, and one within these that is not known, makes the case fail.
What expected leaves out must not happen: requests, retries, stored values and the like are none, and
model is the whole data model at the end. Nothing is called and no time passes: answers are recorded,
the clock is virtual.

Exit status 1 when a case fails.")]
pub(super) struct TestArgs {
    /// The files with the cases.
    #[arg(required = true, value_name = "CASE.json")]
    files: Vec<PathBuf>,
}

/// Runs every case of every file.
///
/// # Errors
/// When a file cannot be read or holds no case, or writing fails; a case that fails is output, not an error.
pub(super) async fn run(args: &TestArgs) -> anyhow::Result<Status> {
    let mut cases = Vec::new();
    for file in &args.files {
        let text = super::read(Some(file))?;
        let of_file = Case::parse(&text);
        cases.extend(of_file.map_err(|error| Misuse(format!("{}: {error}", file.display())))?);
    }
    let mut output = Output::new();
    let mut failed = 0;
    for case in &cases {
        let verdict = case.run().await;
        if verdict.is_passed() {
            output.line(format!("ok {}", verdict.name))?;
        } else {
            failed += 1;
            output.line(format!(
                "FAIL {}: {}",
                verdict.name,
                verdict.differences.join("; ")
            ))?;
        }
    }
    output.line(format!("{} passed, {failed} failed", cases.len() - failed))?;
    Ok(if failed == 0 {
        Status::Right
    } else {
        Status::Wrong
    })
}
