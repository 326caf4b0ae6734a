//! The capabilities of an agent, and a search in them.

use std::collections::BTreeSet;

use a2abus_models::a2e_workflow::OperationType;
use a2abus_models::a2e_workflow::target::Target;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::answer::Problem;
use super::search::{Index, Kind, SearchItem};
use super::{catalogue, request};
use crate::config::{ApiConfig, EndpointConfig};
use crate::http::respond::json_response;
use crate::workflows::Member;

/// All capabilities. Source: docs/protocols/a2e-workflows.md §10.
pub(super) fn all(member: &Member) -> Response {
    let agent = member.agent();
    let policy = agent.policy();
    let answer = json!({
        "agent_id": agent.id(),
        "capabilities": {
            "availableApis": member.apis().iter().map(|api| of_api(api)).collect::<Vec<_>>(),
            "availableCredentials": credentials(member),
            "supportedOperations": operations(member).map(OperationType::as_str).collect::<Vec<_>>(),
            "knowledgeBases": [],
            "securityConstraints": {
                "maxExecutionTime": u64::try_from(policy.max_execution_time.as_millis()).unwrap_or(u64::MAX),
                "maxOperations": policy.max_operations,
                "allowedDomains": domains(member),
            },
        },
    });
    json_response(StatusCode::OK, Bytes::from(answer.to_string()))
}

/// The best matches. An extension; source: docs/protocols/a2e-workflows.md §10.
pub(super) fn search(member: &Member, body: &Bytes) -> Result<Response, Problem> {
    let search = request::search(body)?;
    let search_items = search_items(member);
    let found = Index::new(&search_items).best(&search.query, search.most);
    let results: Vec<_> = found
        .into_iter()
        .map(|(item, score)| {
            let mut result = json!({
                "kind": item.kind.as_str(),
                "id": item.id,
                "description": item.description,
                "score": score,
            });
            if let (Some(schema), Some(members)) = (&item.schema, result.as_object_mut()) {
                members.insert("schema".to_owned(), schema.clone());
            }
            result
        })
        .collect();
    let answer = json!({"query": search.query, "count": results.len(), "results": results});
    Ok(json_response(
        StatusCode::OK,
        Bytes::from(answer.to_string()),
    ))
}

/// The operations the agent may use, in the order of the source.
fn operations(member: &Member) -> impl Iterator<Item = OperationType> {
    let policy = member.agent().policy();
    let all = OperationType::ALL.iter().copied();
    all.filter(|operation| policy.permits_operation(*operation))
}

fn of_api(api: &ApiConfig) -> Value {
    let endpoints = api.endpoints.iter().map(|endpoint| {
        json!({
            "path": endpoint.path,
            "method": endpoint.method.as_str(),
            "description": endpoint.description.as_deref().unwrap_or_default(),
            "parameters": endpoint.parameters,
        })
    });
    json!({
        "id": api.id,
        "baseUrl": base_url(api),
        "description": api.description.as_deref().unwrap_or_default(),
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}

/// Removes the trailing slash of a bare host, so that paths can be appended.
fn base_url(api: &ApiConfig) -> String {
    let url = api.base_url.0.to_string();
    url.strip_suffix('/').map_or(url.clone(), str::to_owned)
}

fn credentials(member: &Member) -> Vec<Value> {
    let callable: BTreeSet<_> = member.apis().iter().map(|api| &api.id).collect();
    let credentials = member.credentials().iter();
    credentials
        .map(|credential| {
            let apis = credential.apis.iter().filter(|id| callable.contains(id));
            json!({
                "id": credential.id,
                "type": credential.kind.as_str(),
                "description": credential.description.as_deref().unwrap_or_default(),
                "metadata": {"apis": apis.collect::<Vec<_>>()},
            })
        })
        .collect()
}

/// The hosts of the registered APIs, and `*` if all others are permitted too.
fn domains(member: &Member) -> BTreeSet<String> {
    let bases = member.apis().iter().map(|api| api.base_url.0.to_string());
    let hosts = bases.filter_map(|base| Target::parse(&base).ok()?.host().map(str::to_owned));
    let any = member.agent().policy().apis.any.then(|| "*".to_owned());
    hosts.chain(any).collect()
}

/// Everything that a search can find.
fn search_items(member: &Member) -> Vec<SearchItem> {
    let mut search_items: Vec<SearchItem> = operations(member).map(catalogue::operation).collect();
    for api in member.apis() {
        search_items.push(SearchItem {
            kind: Kind::Api,
            id: api.id.to_string(),
            description: api.description.clone().unwrap_or_default(),
            keywords: base_url(api),
            schema: None,
        });
        search_items.extend(
            api.endpoints
                .iter()
                .map(|endpoint| of_endpoint(api, endpoint)),
        );
    }
    search_items.extend(member.credentials().iter().map(|credential| SearchItem {
        kind: Kind::Credential,
        id: credential.id.to_string(),
        description: credential.description.clone().unwrap_or_default(),
        keywords: credential.kind.as_str().to_owned(),
        schema: None,
    }));
    search_items
}

fn of_endpoint(api: &ApiConfig, endpoint: &EndpointConfig) -> SearchItem {
    let method = endpoint.method.as_str();
    let parameters: Vec<_> = endpoint.parameters.keys().map(String::as_str).collect();
    let mut schema = Map::new();
    schema.insert("method".to_owned(), method.into());
    schema.insert(
        "url".to_owned(),
        format!("{}{}", base_url(api), endpoint.path).into(),
    );
    schema.insert("parameters".to_owned(), endpoint.parameters.clone().into());
    SearchItem {
        kind: Kind::Endpoint,
        id: format!("{} {method} {}", api.id, endpoint.path),
        description: endpoint.description.clone().unwrap_or_default(),
        keywords: parameters.join(" "),
        schema: Some(schema.into()),
    }
}
