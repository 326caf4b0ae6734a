//! `a2abus workflow test`.

use std::path::PathBuf;

use a2abus_executor::case::Case;
use clap::Args;

use crate::cli::command::Status;
use crate::cli::output::Output;

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
Other members:
  \"input\": {\"users\": []}, the initial data model
  \"credentials\": {\"ID\": {\"type\": \"bearer-token\", \"value\": \"SECRET\", \"apis\": [\"BASE URL\"]}};
    types are bearer-token, basic, api-key, password and custom;
    apis is https://api.example.com if absent
  \"policy\": {\"operations\": [\"ApiCall\"], \"apis\": [\"BASE URL\"], \"credentials\": [\"ID\"],
    \"maxOperations\": 20, \"maxExecutionTimeMs\": 30000, \"maxLoopItems\": 1000,
    \"fileStorage\": true}; by default everything and the API https://api.example.com are permitted
  \"options\": {\"onError\": \"stop\" or \"continue\",
    \"level\": \"strict\", \"moderate\" or \"lenient\"}
A response in http_fixtures has body_text instead of body if it is not JSON, or is
{\"error\": \"connect\"} or {\"error\": \"timeout\"}. expected can also have errors, error, skipped,
stored, warnings, waited_ms and retry_delays_ms ([least, most] of each).

Other members of a case are comments. A misspelt member, an unknown member inside the members above, and a duplicate \
member make the case fail. Anything that expected does not mention must not happen: no request, no retry, no stored \
value, nothing in the data model. model is the whole data model at the end, so a case whose workflow writes to it \
needs model. No API is called and no time passes: responses are recorded, and the clock is virtual.

Exit status 1 if a case fails or a file contains none.")]
pub(super) struct TestArgs {
    /// The files with the cases.
    #[arg(required = true, value_name = "CASE.json")]
    files: Vec<PathBuf>,
}

/// Runs every case of every file.
///
/// # Errors
/// When a file cannot be read, or writing fails; a failed case, or a file without cases, is output, not an error.
pub(super) async fn run(args: &TestArgs) -> anyhow::Result<Status> {
    let texts = args
        .files
        .iter()
        .map(|file| super::execution_args::read(Some(file)));
    let texts: Vec<_> = texts.collect::<Result<_, _>>()?;
    let mut output = Output::new();
    let (mut passed, mut failed) = (0, 0);
    for (file, text) in args.files.iter().zip(&texts) {
        let cases = match Case::parse(text) {
            Ok(cases) => cases,
            Err(error) => {
                failed += 1;
                output.line(format!("FAIL {}: {error}", file.display()))?;
                continue;
            }
        };
        for case in &cases {
            let verdict = case.run().await;
            if verdict.passed() {
                passed += 1;
                output.line(format!("ok {}", verdict.name))?;
            } else {
                failed += 1;
                let differences = verdict.differences.join("; ");
                output.line(format!("FAIL {}: {differences}", verdict.name))?;
            }
        }
    }
    output.line(format!("{passed} passed, {failed} failed"))?;
    Ok(if failed == 0 {
        Status::Success
    } else {
        Status::Failure
    })
}
