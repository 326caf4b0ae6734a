//! `POST`: one message of a client, or a batch of them.

use std::future::ready;
use std::sync::Arc;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{Id, RpcBody};
use a2abus_plugin::{DecodeErrorKind, Family, Kind, Refused, Text, Unit, decode};
use axum::body::{Body, to_bytes};
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};

use super::envelope::{Params, ProtocolMode, REMOVED, check_revision, text};
use super::relay::NotRelayed;
use super::revision::Revision;
use super::round_state::RoundState;
use super::running::Cancellable;
use super::session::{SESSION, Session};
use super::state::Mcp;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason, Recipient, SOON};
use crate::calls::question::ClientAnswer;
use crate::doors::door::Refusal;
use crate::doors::rpc::batch::{array, join_in_order};
use crate::doors::rpc::common::{Common, Target};
use crate::doors::rpc::head::not_published;
use crate::doors::rpc::unit::Framed;
use crate::doors::rpc::{self, Endpoint};
use crate::http::negotiate::{self, Accepts};
use crate::http::respond::{accepted, json_response, refusal};
use crate::metrics::HttpPath;

/// A request in progress.
pub(super) struct McpRequest<'a> {
    pub(super) mcp: &'a Arc<Mcp>,
    pub(super) common: Common,
    /// The id of its call; in a batch each request gets its own.
    pub(super) call: Option<CallId>,
    pub(super) session: Option<&'a Session>,
    pub(super) headers: &'a HeaderMap,
    pub(super) unit: Unit,
    pub(super) method: Text,
    /// The recipient of errors.
    pub(super) recipient: Recipient,
    pub(super) mode: ProtocolMode,
    /// Set if its client has sent it again, with the answers to questions of the agent.
    pub(super) round: Option<RoundState>,
    /// Registered at once, so that a cancel finds it also before its agent has it.
    pub(super) running: Arc<Cancellable>,
}

/// The common parts of the messages in one HTTP request.
struct Posted {
    mcp: Arc<Mcp>,
    common: Common,
    head: Parts,
    session: Option<Session>,
}

/// Maximum number of concurrent requests of one batch.
const MAX_CONCURRENT: usize = 16;
/// The outcome in the access log of a notification that names no agent.
const UNADDRESSED: &str = "agent_not_found";
/// Methods that the newest revision has added.
const ADDED: [&str; 2] = ["server/discover", "subscriptions/listen"];

pub(super) async fn serve(
    mcp: &Arc<Mcp>,
    (path, target): (HttpPath, Target),
    recipient: Recipient,
    request: Request<Body>,
) -> Response {
    let endpoint = Endpoint {
        path,
        target,
        methods: &[Method::POST],
        hint: negotiate::hint(request.headers()),
        recipient,
        refusal,
    };
    let shared = Arc::clone(mcp);
    let respond = |common, head: Parts, payload| {
        async move {
            let session = Session::of_message(&head.headers, &shared.door.results)?;
            let posted = Posted {
                mcp: shared,
                common,
                head,
                session,
            };
            posted.respond(payload).await
        }
        .boxed()
    };
    rpc::serve(&mcp.door, endpoint, request, respond).await
}

// === impl Posted ===

impl Posted {
    async fn respond(self, payload: Bytes) -> Result<Response, Refusal> {
        let limits = self.mcp.door.calls.rules().limits;
        let units = decode(&payload, &self.common.hint, &limits);
        let (size, framed) = (payload.len(), Framed::of(&payload, units));
        drop(payload);
        match framed {
            Framed::One(unit) => Ok(self.one(&self.common, Some(self.common.call), unit).await),
            Framed::Batch(units) if self.revision() == Some(Revision::V2025_03_26) => {
                rpc::check_amplification(&self.mcp.door, &self.common, size, units.len())?;
                let units: Vec<_> = units.into_iter().collect();
                if units.iter().any(is_request) {
                    self.mcp.door.check_running()?;
                }
                Ok(self.batch(units).await)
            }
            Framed::Batch(_) => {
                let message = "only revision 2025-03-26 has batches: send one message at a time";
                let failure = Failure::new(Reason::InvalidRequest, message);
                Err((StatusCode::BAD_REQUEST, failure))
            }
            Framed::Lines => {
                let message = "more text follows the JSON value: send one message at a time";
                let failure = Failure::new(Reason::Parse, message);
                Err((StatusCode::BAD_REQUEST, failure))
            }
        }
    }

    /// The revision of a client with sessions: that of the header, of the session, or 2025-03-26.
    fn revision(&self) -> Option<Revision> {
        match (Revision::named(&self.head.headers), &self.session) {
            (Some(name), _) => Revision::of(name),
            (None, Some(session)) => Some(session.revision()),
            (None, None) => Some(Revision::V2025_03_26),
        }
    }

    /// One array, in the order of the requests.
    async fn batch(&self, units: Vec<Result<Unit, Refused>>) -> Response {
        let common = Common {
            accepts: Accepts::Json,
            ..self.common.clone()
        };
        let bodies = units.into_iter().map(|unit| async {
            let response = Box::pin(self.one(&common, None, unit)).await;
            // The response body is in memory, so reading it does not fail.
            let body = to_bytes(response.into_body(), usize::MAX).await;
            body.unwrap_or_default()
        });
        let mut bodies = join_in_order(bodies, MAX_CONCURRENT).await;
        bodies.retain(|body| !body.is_empty());
        if bodies.is_empty() {
            return accepted();
        }
        self.common.whole(common.budget.replace(array(&bodies)))
    }

    async fn one(
        &self,
        common: &Common,
        call: Option<CallId>,
        unit: Result<Unit, Refused>,
    ) -> Response {
        let metrics = &self.mcp.door.metrics;
        let bad = |recipient: &Recipient, failure: &Failure| {
            common.note_refusal(failure.reason_code());
            json_response(StatusCode::BAD_REQUEST, failure.render(recipient))
        };
        let nobody = Recipient::unknown(Dialect::Mcp);
        let unit = match unit {
            Ok(unit) => unit,
            Err(refused) => {
                metrics.refused(refused.error.kind());
                let recipient = refused.id.as_ref().map_or(nobody, recipient);
                return bad(&recipient, &Failure::refused(&refused.error));
            }
        };
        let Some(message) = &unit.json_rpc else {
            metrics.refused(DecodeErrorKind::WrongFamily);
            return bad(&nobody, &Failure::other_family(unit.detection.family));
        };
        match (message.body, &message.id) {
            (RpcBody::Call { .. }, None) => {
                metrics.unit(Family::JsonRpc, Kind::Notification);
                Box::pin(self.notified(common, unit)).await
            }
            (RpcBody::Call { .. }, Some(id)) => {
                metrics.unit(Family::JsonRpc, Kind::Request);
                let recipient = recipient(id);
                let method = Text::from(unit.method().unwrap_or_default());
                let named = (unit, method.clone());
                match self.request((common, call), named, recipient.clone()) {
                    Ok(request) => request.done().await,
                    Err((status, failure)) => {
                        let agent = common.target.name().unwrap_or_default();
                        common.note(agent, &method, failure.reason_code());
                        refusal(status, &failure, &recipient)
                    }
                }
            }
            (RpcBody::Result(_) | RpcBody::Error(_), _) => {
                match Box::pin(self.responded(&common.caller, &unit)).await {
                    Ok(()) => {
                        metrics.unit(Family::JsonRpc, Kind::Response);
                        accepted()
                    }
                    Err((status, failure)) => {
                        metrics.refused(DecodeErrorKind::Invalid);
                        common.note_refusal(failure.reason_code());
                        refusal(status, &failure, &nobody)
                    }
                }
            }
        }
    }

    fn request(
        &self,
        (common, call): (&Common, Option<CallId>),
        (unit, method): (Unit, Text),
        recipient: Recipient,
    ) -> Result<McpRequest<'_>, Refusal> {
        let bad = |failure| (StatusCode::BAD_REQUEST, failure);
        check_id(recipient.id()).map_err(bad)?;
        if method.starts_with("notifications/") {
            let message = "a notification must not have an id";
            return Err(bad(Failure::new(Reason::InvalidRequest, message)));
        }
        let params = Params::read(&unit.bytes).map_err(bad)?;
        let mode = ProtocolMode::of(&params, &method, &self.head.headers)?;
        let round = match mode.has_rounds(&method) {
            true => RoundState::of(&params).map_err(bad)?,
            false => None,
        };
        // While the bridge drains, a call in progress here may wait for its client's next round.
        if !round.is_some_and(|round| self.mcp.has_call(round.call.call)) {
            self.mcp.door.check_running()?;
        }
        let mut common = common.clone();
        if !self.head.headers.contains_key("traceparent") {
            let mut headers = params.trace();
            if headers.contains_key("traceparent") {
                let mut others = self.head.headers.clone();
                others.remove("tracestate");
                headers.extend(others);
                common.headers = self.mcp.door.passed.of_request(&headers);
            }
        }
        let running = self
            .mcp
            .running
            .begin(self.session.as_ref(), recipient.id());
        Ok(McpRequest {
            mcp: &self.mcp,
            running: Arc::new(running),
            common,
            call,
            session: self.session.as_ref(),
            headers: &self.head.headers,
            unit,
            method,
            recipient,
            mode,
            round,
        })
    }

    /// Passes a client's answer to the agent that has asked for it, or on to the replica of its call.
    async fn responded(&self, caller: &Text, unit: &Unit) -> Result<(), Refusal> {
        let nobody = |why: &str| {
            let message = format!("no agent waits for this response: {why}");
            let failure = Failure::new(Reason::InvalidRequest, message);
            (StatusCode::BAD_REQUEST, failure)
        };
        let calls = &self.mcp.door.calls;
        let session = self.session.as_ref().map(Session::key);
        match calls.take_client_answer(unit, session.as_deref()) {
            ClientAnswer::Taken => return Ok(()),
            ClientAnswer::NoRoom => return Err((StatusCode::TOO_MANY_REQUESTS, no_room())),
            ClientAnswer::Unawaited | ClientAnswer::Foreign => {}
        }
        let answer = session.and_then(|session| calls.answer_for_others(unit, Some(session)));
        let results = &self.mcp.door.results;
        let answer = answer.filter(|answer| !results.has_ended(answer.call));
        let answer = answer.ok_or_else(|| {
            nobody("its call is over, has not asked this question, or belongs to another session")
        })?;
        if !results.is_shared() {
            return Err(nobody(
                "another replica has asked the question, and the replicas share no state",
            ));
        }
        let passed = self.mcp.relay.answer(caller, answer).await;
        passed.map_err(NotRelayed::refusal)
    }

    /// Processes a notification. Notifications about the session are not passed on, because agents have no sessions. A
    /// notification to all agents goes only to the agent that it names.
    async fn notified(&self, common: &Common, unit: Unit) -> Response {
        if let Err((status, failure)) = check_revision(&self.head.headers) {
            common.note_refusal_of(&unit, failure.reason_code());
            return refusal(status, &failure, &Recipient::unknown(Dialect::Mcp));
        }
        match unit.method().unwrap_or_default() {
            "notifications/cancelled" => {
                let params = Params::read(&unit.bytes).unwrap_or_default();
                if let (Some(session), Some(id)) = (&self.session, params.request_id) {
                    let key = session.key_of(id.get());
                    self.mcp.cancel(&common.caller, &key).await;
                }
                accepted()
            }
            "notifications/initialized" | "notifications/roots/list_changed" => accepted(),
            method => {
                let is_unnamed = common.target == Target::InPayload;
                let in_payload = || text(Params::read(&unit.bytes).ok()?.agent);
                let named = is_unnamed.then(in_payload).flatten();
                if is_unnamed && named.is_none() {
                    common.note("", method, UNADDRESSED);
                    return accepted();
                }
                let agent = common.target.name().or(named.as_deref());
                // An A2A agent knows no MCP notifications.
                if self.mcp.is_a2a(agent) {
                    return accepted();
                }
                if let Err((status, failure)) = self.mcp.door.check_running() {
                    common.note_refusal_of(&unit, failure.reason_code());
                    return refusal(status, &failure, &Recipient::unknown(Dialect::Mcp));
                }
                match common.notify(unit, None).await {
                    Ok(()) => accepted(),
                    Err(error) => not_published(common, &error),
                }
            }
        }
    }
}

fn recipient(id: &Id) -> Recipient {
    Recipient::new(id.token().clone(), Dialect::Mcp)
}

/// The failure of a client's response that its call has not taken, although the call waits for it.
pub(super) fn no_room() -> Failure {
    let message = "there is no room for this response at the moment: send it again";
    Failure::new(Reason::Exhausted, message).detail("retryAfterSeconds", SOON)
}

/// Whether a unit of a batch is a request.
fn is_request(unit: &Result<Unit, Refused>) -> bool {
    let message = unit.as_ref().ok().and_then(|unit| unit.json_rpc.as_ref());
    message.is_some_and(|message| message.is_call() && message.id.is_some())
}

/// MCP allows fewer ids than JSON-RPC.
fn check_id(token: &str) -> Result<(), Failure> {
    let is_text = token.starts_with('"');
    if is_text || (token != "null" && !token.contains(['.', 'e', 'E'])) {
        return Ok(());
    }
    let message = "the id of a request must be a string or an integer";
    Err(Failure::new(Reason::InvalidRequest, message))
}

// === impl McpRequest ===

impl<'a> McpRequest<'a> {
    /// Executes the request. The future of each method is in a box of its own: one future for all of them would be as
    /// large as the largest, and be moved as a whole for each request.
    fn done(self) -> BoxFuture<'a, Response> {
        let method = self.method.clone();
        let is_known = match self.mode {
            ProtocolMode::Sessions => !ADDED.contains(&method.as_str()),
            ProtocolMode::Stateless { .. } => !REMOVED.contains(&method.as_str()),
        };
        if !is_known {
            let failed = self.failed(&Failure::unknown_method(&method, Vec::new()));
            return Box::pin(ready(failed));
        }
        if let Some(round) = self.round {
            return Box::pin(self.next_round(round));
        }
        match method.as_str() {
            "ping" => Box::pin(ready(self.result("{}"))),
            "initialize" => Box::pin(self.initialized()),
            "server/discover" => Box::pin(self.discovered()),
            "subscriptions/listen" => Box::pin(self.listen()),
            "resources/subscribe" | "resources/unsubscribe" => Box::pin(self.change_subscription()),
            _ => self.forwarded(),
        }
    }

    /// Sends the request to its agent, or answers it from the lists of all agents.
    pub(super) fn forwarded(self) -> BoxFuture<'a, Response> {
        match self.common.target {
            Target::InPayload => Box::pin(self.of_all_agents()),
            Target::Agent(_) | Target::NotAName => Box::pin(self.call_agent()),
        }
    }

    async fn discovered(self) -> Response {
        match self.profile().await {
            Ok(profile) => self.result(&profile.discovered()),
            Err(failure) => self.failed(&failure),
        }
    }

    pub(super) async fn profile(&self) -> Result<super::handshake::Profile, Failure> {
        let agent = match &self.common.target {
            Target::Agent(agent) => Some(agent),
            Target::InPayload => None,
            Target::NotAName => {
                let message = "the path does not name an agent: a name has 1 to 256 of A-Z a-z 0-9 . _ - / : @ +";
                return Err(Failure::bad_params(message));
            }
        };
        self.mcp.profile(agent, self.common.caller.clone()).await
    }

    async fn initialized(self) -> Response {
        let params = Params::read(&self.unit.bytes).unwrap_or_default();
        let revision = Revision::negotiated(params.asked_revision().as_deref());
        let profile = match self.profile().await {
            Ok(profile) => profile,
            Err(failure) => return self.failed(&failure),
        };
        // Do not use the call id, which logs and headers show: anyone who knows the session id can end the session.
        let random = match self.common.calls.new_call() {
            Ok(random) => random,
            Err(error) => return self.failed(&Failure::call(&error)),
        };
        let session = Session::new(revision, params.abilities(), random);
        let mut response = self.result_of_change(&profile.initialized(revision));
        if let Ok(id) = HeaderValue::try_from(session.id().as_str()) {
            response.headers_mut().insert(SESSION, id);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_strings_or_integers() {
        for good in [
            "1",
            "-1",
            "0",
            r#""a.b""#,
            r#""null""#,
            "12345678901234567890",
        ] {
            assert!(check_id(good).is_ok(), "{good}");
        }
        for bad in ["null", "1.0", "1e3", "1E3"] {
            assert!(check_id(bad).is_err(), "{bad}");
        }
    }
}
