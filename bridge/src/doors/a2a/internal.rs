//! A2A 0.3 requests from other doors, without HTTP.

use std::borrow::Cow;
use std::sync::Arc;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Hint, Unit, decode};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::parsed::{ParsedRequest, Version};
use super::shared::A2a;
use super::work::{A2aRequest, Head, Reply};
use crate::calls::failure::{Failure, Reason};
use crate::doors::rpc::common::Common;

/// The result of a request with these parameters, as JSON.
///
/// # Errors
/// Why the request failed.
pub(in crate::doors) async fn call(
    a2a: &Arc<A2a>,
    common: Common,
    method: &str,
    params: &str,
) -> Result<Value, Failure> {
    let request = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    // A request that can be read writes its own line of the access log.
    let (parsed, unit) =
        read(a2a, request).inspect_err(|failure| common.note_refusal(failure.reason_code()))?;
    let head = Head {
        version: Version::V0_3,
        fallback: Dialect::A2a03,
        trace: None,
        last_event: None,
        base: String::new(),
    };
    let request = A2aRequest {
        a2a,
        common: Cow::Owned(common),
        head: &head,
        parsed,
        in_batch: false,
    };
    match Box::pin(request.done(unit)).await? {
        Reply::Whole(body) | Reply::Failed(body, _) | Reply::WithStatus(_, body) => {
            result_in(&body)
        }
        Reply::Stream(_) => Err(unusable("it is a stream")),
    }
}

fn read(a2a: &A2a, request: String) -> Result<(ParsedRequest, Unit), Failure> {
    let limits = a2a.door.calls.rules().limits;
    let unit = decode(&Bytes::from(request), &Hint::default(), &limits).into_only();
    let not_one = |_| Failure::new(Reason::InvalidRequest, "expected exactly one request");
    let unit = unit.map_err(not_one)?;
    ParsedRequest::of(unit, &Version::V0_3, Dialect::A2a03).map_err(|(failure, _)| failure)
}

fn result_in(body: &[u8]) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    struct Response {
        #[serde(default)]
        result: Option<Value>,
        #[serde(default)]
        error: Option<Error>,
    }
    #[derive(Deserialize)]
    struct Error {
        message: String,
    }
    let response: Response =
        serde_json::from_slice(body).map_err(|error| unusable(&error.to_string()))?;
    match (response.result, response.error) {
        (_, Some(error)) => Err(Failure::new(Reason::BadAgentReply, error.message)),
        (Some(result), None) => Ok(result),
        (None, None) => Err(unusable("it has no result")),
    }
}

fn unusable(why: &str) -> Failure {
    Failure::new(
        Reason::BadAgentReply,
        format!("the answer cannot be used: {why}"),
    )
}
