//! Cards and heartbeats.

use std::sync::Arc;

use a2abus_plugin::Text;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use bytes::Bytes;
use http::{Request, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::budget::Charge;
use crate::clock;
use crate::doors::a2a::{
    A2a, announce_agent, bad_request, holding_bytes, read_body, refusal_of, remove_agent,
};
use crate::doors::door::{self, Refusal};
use crate::doors::permit::{Action, Principal, permit};
use crate::http::negotiate;
use crate::http::respond::{json_response, no_content};
use crate::metrics::HttpPath;
use crate::registry::request::Params;
use crate::registry::{Announcement, AnnouncementError, RequestOrigin};
use crate::shares::Share;

/// Organisation, unit and agent.
type Segments = Result<Path<(String, String, String)>, PathRejection>;

/// A heartbeat.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Heartbeat {
    #[serde(default)]
    org_id: Option<String>,
    #[serde(default)]
    unit_id: Option<String>,
    agent_id: String,
}

/// `GET /a2a/cards/list`.
pub(super) async fn list(
    State(a2a): State<Arc<A2a>>,
    query: Result<Query<Params>, QueryRejection>,
    request: Request<Body>,
) -> Response {
    let listed = || {
        let (_charge, Principal { name }) = admit(&a2a, &request)?;
        let (limits, metrics) = (&a2a.settings.at_a_time, &a2a.door.metrics);
        let share = limits.request(&name, 1, metrics)?;
        let Query(mut params) = query.map_err(|error| bad_request(&error))?;
        // An unescaped plus sign is decoded as a space in a query.
        for segment in [
            &mut params.org_id,
            &mut params.unit_id,
            &mut params.agent_id,
        ] {
            if segment.as_deref() == Some(" ") {
                *segment = Some("+".to_owned());
            }
        }
        let listed = a2a
            .settings
            .registry
            .list(&params, &RequestOrigin::default());
        let list = listed.map_err(refusal_of)?;
        document(&a2a, &request, Bytes::from(list), Some(share))
    };
    let dialect = negotiate::dialect(request.headers());
    a2a.answered(HttpPath::A2aCards, listed(), dialect)
}

/// `GET /a2a/cards/card/{org}/{unit}/{agent}`: the agent's card, unchanged.
pub(super) async fn read(
    State(a2a): State<Arc<A2a>>,
    segments: Segments,
    request: Request<Body>,
) -> Response {
    let found = || {
        let _charge = admit(&a2a, &request)?;
        let claim = claim(segments)?;
        let agent = claim.agent.unwrap_or_default();
        let found = a2a.settings.registry.announced(&agent);
        let found = found.filter(|announced| announced.owner == claim.owner);
        let found = found.ok_or_else(|| {
            let (org, unit) = (claim.owner.org.as_deref(), claim.owner.unit.as_deref());
            refusal_of(AnnouncementError::unknown_in(agent, org, unit).into())
        })?;
        document(&a2a, &request, found.document, None)
    };
    let dialect = negotiate::dialect(request.headers());
    a2a.answered(HttpPath::A2aCards, found(), dialect)
}

/// `POST /a2a/cards/card/{org}/{unit}/{agent}`: the body is the card.
pub(super) async fn register(
    State(a2a): State<Arc<A2a>>,
    segments: Segments,
    request: Request<Body>,
) -> Response {
    let dialect = negotiate::dialect(request.headers());
    let registered = announce_agent(&a2a, claim(segments), request).await;
    let response = registered.map(|_receipt| no_content());
    a2a.answered(HttpPath::A2aCards, response, dialect)
}

/// `DELETE /a2a/cards/card/{org}/{unit}/{agent}`.
pub(super) async fn remove(
    State(a2a): State<Arc<A2a>>,
    segments: Segments,
    request: Request<Body>,
) -> Response {
    let dialect = negotiate::dialect(request.headers());
    let removed = remove_agent(&a2a, claim(segments), request).await;
    let response = removed.map(|()| no_content());
    a2a.answered(HttpPath::A2aCards, response, dialect)
}

/// `POST /a2a/heartbeat`.
pub(super) async fn heartbeat(State(a2a): State<Arc<A2a>>, request: Request<Body>) -> Response {
    let dialect = negotiate::dialect(request.headers());
    let renewed = async {
        let _charge = a2a.may_announce(&request)?;
        let body = a2a.door.body(request).await?;
        let beat: Heartbeat = read_body(&body)?;
        let claim = claim_of(beat.org_id, beat.unit_id, beat.agent_id)?;
        let registry = &a2a.settings.registry;
        let renewed = registry.renew(&claim).await;
        let renewed = renewed.map_err(|refused| refusal_of(refused.into()))?;
        let expires = clock::rfc3339(clock::since_1970(registry.expires(&renewed)));
        let body = json!({ "status": "ok", "expiresAt": expires.as_str() }).to_string();
        Ok(json_response(StatusCode::OK, Bytes::from(body)))
    };
    a2a.answered(HttpPath::A2aCards, renewed.await, dialect)
}

/// Checks that a request may read cards. Returns the charge for its head, and its sender.
fn admit(a2a: &A2a, request: &Request<Body>) -> Result<(Charge, Principal), Refusal> {
    let charge = a2a.door.check_in(request)?;
    let permitted = permit(request.extensions(), Action::ReadCards);
    let reader = permitted.map_err(|failure| (StatusCode::FORBIDDEN, failure))?;
    Ok((charge, reader))
}

/// A document, which is charged and holds `share` until it is sent, and is refused if there is no room.
fn document(
    a2a: &A2a,
    request: &Request<Body>,
    document: Bytes,
    share: Option<Share<Text>>,
) -> Result<Response, Refusal> {
    let budget = a2a.door.client_budget(request.extensions());
    let document = door::charged_large(&budget, document).map_err(refusal_of)?;
    Ok(json_response(
        StatusCode::OK,
        holding_bytes(share, document),
    ))
}

fn claim(segments: Segments) -> Result<Announcement, Refusal> {
    let Path((org, unit, agent)) = segments.map_err(|error| bad_request(&error))?;
    claim_of(Some(org), Some(unit), agent)
}

fn claim_of(
    org: Option<String>,
    unit: Option<String>,
    agent: String,
) -> Result<Announcement, Refusal> {
    let params = Params::of(org, unit, agent);
    params.claim(RequestOrigin::default()).map_err(refusal_of)
}
