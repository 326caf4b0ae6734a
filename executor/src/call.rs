//! One ApiCall: turns a request into a value, and handles failures.
//!
//! ```text
//! url ── permission ── headers, credentials ── body ── cache ──> quota ── send ── accept ──> value
//!                                                                  └──── wait <──┘ retry
//! ```
//!
//! Source: docs/protocols/a2e-workflows.md §4.8, §5, §6 and §7.

mod body;
mod caller;
mod credential;
mod header;
mod redact;
mod response;
mod retry;
mod text;
mod url;

#[cfg(test)]
mod tests;

use std::time::Duration;

use a2abus_models::a2e_workflow::operation::{ApiCall, Method};
use a2abus_models::a2e_workflow::target::Target;
use a2abus_models::a2e_workflow::{Code, OperationType, Refusal};

use crate::cache::{Key, Miss};
use crate::environment::{HttpError, HttpRequest, HttpResponse, Reach};
use crate::failure::{Failure, FailureCode};
use crate::model::Model;
use crate::quota::{Exceeded, whole_seconds};
use a2abus_models::Json;
pub(crate) use caller::Caller;
use header::Headers;
pub(crate) use redact::Redactor;
use response::Failed;
use retry::RetryDecision;
pub use retry::RetryUnsafe;

/// The cost of a call; also counted when the call is dropped before its end.
#[derive(Debug, Default)]
pub(crate) struct CallCost {
    /// How many requests were sent.
    pub(crate) attempts: u32,
    /// Whether the value came from the cache.
    pub(crate) is_cached: bool,
}

/// A request that may be sent, without its timeout.
struct Prepared {
    request: HttpRequest,
    headers: Headers,
    /// The cache key, if the result may be cached.
    key: Option<Key>,
}

/// Makes a call, with retries. The result contains no secret.
///
/// # Cancel safety
/// The future may be dropped; a request may then have been sent or not.
pub(crate) async fn call(
    operation: &ApiCall,
    model: &Model,
    caller: &Caller<'_>,
    cost: &mut CallCost,
) -> Result<Json, Failure> {
    let result = run(operation, model, caller, cost).await;
    result.map_err(|failure| {
        let failure = match cost.attempts {
            0 => failure,
            attempts => failure.with("attempts", attempts),
        };
        caller.redactor.failure(failure)
    })
}

async fn run(
    operation: &ApiCall,
    model: &Model,
    caller: &Caller<'_>,
    cost: &mut CallCost,
) -> Result<Json, Failure> {
    let mut prepared = prepare(operation, model, caller)?;
    let cache_key = match prepared.key.take() {
        None => None,
        Some(key) => match caller.cache.get(&key) {
            Ok(value) => {
                cost.is_cached = true;
                return Ok(caller.redactor.value(value));
            }
            Err(miss) => Some((key, miss)),
        },
    };
    let response = attempt(operation, &mut prepared, caller, &mut cost.attempts).await?;
    let value = caller
        .redactor
        .value(response::value(&response, caller.redactor)?);
    if let Some((key, miss)) = cache_key {
        keep(
            key,
            &miss,
            &value,
            &response,
            &prepared.request.target,
            caller,
        );
    }
    Ok(value)
}

fn keep(
    key: Key,
    miss: &Miss,
    value: &Json,
    response: &HttpResponse,
    target: &Target,
    caller: &Caller<'_>,
) {
    if !header::forbids_storing(&response.headers) {
        let origin = target.origin();
        caller.cache.insert(key, miss, value.clone(), Some(&origin));
    }
}

/// Reads the operation and checks whether its request may be sent.
fn prepare(operation: &ApiCall, model: &Model, caller: &Caller<'_>) -> Result<Prepared, Failure> {
    let target = url::resolve(&operation.url, model)?;
    let policy = caller.agent.policy();
    policy
        .check_target(&target)
        .map_err(|refusal| refused(refusal, &target))?;
    let mut headers = Headers::resolve(&operation.headers, model, &target, caller)?;
    let body = match &operation.body {
        Some(body) => body::resolve(body, model)?,
        None => None,
    };
    if body.is_some() {
        headers.set_default("content-type", "application/json");
    }
    let cacheable = operation.method == Method::Get && !header::forbids_storing(headers.list());
    let key = cacheable.then(|| {
        let config = Json::object([
            ("method", Json::from(operation.method.as_str())),
            ("url", target.as_str().into()),
            ("headers", headers.config()),
        ]);
        Key::new(caller.agent.id(), OperationType::ApiCall).config(&config)
    });
    let reach = if target.is_within(&policy.apis.bases) {
        Reach::Registered
    } else {
        Reach::Global
    };
    let request = HttpRequest {
        method: operation.method,
        target,
        headers: headers.list().to_vec(),
        body,
        timeout: operation.timeout,
        max_response_bytes: caller.max_response_bytes,
        reach,
    };
    Ok(Prepared {
        request,
        headers,
        key,
    })
}

/// Sends the request until it succeeds, or until another attempt is useless.
async fn attempt(
    operation: &ApiCall,
    prepared: &mut Prepared,
    caller: &Caller<'_>,
    attempts: &mut u32,
) -> Result<HttpResponse, Failure> {
    let environment = caller.environment;
    loop {
        caller.time_left()?;
        let limits = caller.agent.rates().api_calls();
        caller
            .quotas
            .admit(caller.agent.id(), &limits)
            .map_err(|exceeded| rate_limited(&exceeded))?;
        if *attempts == 0 && operation.method != Method::Get {
            (caller.before_unsafe)().await?;
        }
        prepared.request.timeout = operation.timeout.min(caller.time_left()?);
        *attempts += 1;
        let answer = environment.http.send(prepared.request.clone()).await;
        forget_changed(&answer, &prepared.request, caller);
        let failed = match response::accept(answer, &prepared.request, caller) {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        let delay = match next(&failed, operation.method, prepared, caller, *attempts) {
            RetryDecision::After(delay) => delay,
            RetryDecision::WaitTooLong(requested) => {
                return Err(wait_too_long(failed.failure, requested));
            }
            RetryDecision::GiveUp => return Err(failed.failure),
        };
        (caller.on_retry)(*attempts, delay);
        environment.clock.sleep(delay).await;
    }
}

/// The decision after a failed attempt.
fn next(
    failed: &Failed,
    method: Method,
    prepared: &Prepared,
    caller: &Caller<'_>,
    attempts: u32,
) -> RetryDecision {
    let repeatable = retry::may_repeat(method, prepared.headers.has_idempotency_key());
    let permitted = failed
        .cause
        .permits_retry(repeatable || caller.retry_unsafe.is_always());
    if !permitted {
        return RetryDecision::GiveUp;
    }
    // `None` when no time is left.
    let left = caller.time_left().unwrap_or_default();
    let environment = caller.environment;
    let (now, random) = (environment.clock.now(), environment.random.as_ref());
    retry::next(
        (attempts, caller.max_retries),
        failed.retry_after.as_deref(),
        left,
        now,
        random,
    )
}

/// Cached responses from a changed origin are not used again.
fn forget_changed(
    answer: &Result<HttpResponse, HttpError>,
    request: &HttpRequest,
    caller: &Caller<'_>,
) {
    let changed = match answer {
        Ok(response) => (200..300).contains(&response.status),
        Err(error) => *error == HttpError::TooLarge,
    };
    if changed && request.method != Method::Get {
        let origin = request.target.origin();
        caller.cache.invalidate_origin(caller.agent.id(), &origin);
    }
}

// === failures ===

fn refused(refusal: Refusal, target: &Target) -> Failure {
    let host = target.host().unwrap_or("it");
    match refusal {
        Refusal::Forbidden(why) => Failure::new(
            FailureCode::Refused(Code::ForbiddenTarget),
            format!("{host} may not be called: {why}"),
        ),
        Refusal::NotPermitted => Failure::new(
            FailureCode::Refused(Code::ApiNotPermitted),
            format!("no permitted API covers this URL of {host}"),
        ),
    }
}

/// The current failure, with the reason why it is not retried.
fn wait_too_long(mut failure: Failure, requested: Duration) -> Failure {
    let seconds = whole_seconds(requested);
    let why = if requested > retry::MAX_DELAY {
        format!("a retry waits {} s at most", retry::MAX_DELAY.as_secs())
    } else {
        "the execution has no time for that".to_owned()
    };
    failure.message += &format!(" and asked to wait {seconds} s; {why}");
    failure
        .with("retry_after", seconds)
        .suggest(FailureCode::RateLimited.suggestion())
}

fn rate_limited(exceeded: &Exceeded) -> Failure {
    let (limit, window) = (exceeded.limit, exceeded.window);
    Failure::new(
        FailureCode::RateLimited,
        format!("Rate limit exceeded: {limit} API calls per {window}"),
    )
    .with("limit", limit)
    .with("window", window.as_str())
    .with("retry_after", exceeded.retry_after)
}
