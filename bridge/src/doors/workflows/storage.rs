//! The stored values of an agent: list, read, delete.

use std::borrow::Cow;

use a2abus_executor::{Agent, Json, StoreError, StoredValue};
use a2abus_models::a2e_workflow::operation::Storage;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use percent_encoding::percent_decode_str;

use super::RestState;
use super::answer::{Problem, value};
use crate::http::respond::json_response;

// === impl RestState ===

impl RestState {
    pub(super) async fn list(&self, agent: &Agent, storage: Storage) -> Result<Response, Problem> {
        permit(agent, storage)?;
        let (executor, id) = (self.workflows.executor().clone(), agent.id().clone());
        let query = async move { executor.list_stored(&id, storage).await };
        let values = self.workflows.ask(agent, query).await;
        let values = values.ok_or_else(Problem::draining)?;
        let values = values.map_err(|error| self.store(&error))?;
        let members = |StoredValue {
                           session,
                           key,
                           bytes,
                           ..
                       }: &StoredValue| {
            let session = session.iter().map(|it| ("session", Json::from(it.clone())));
            let own = [("key", key.clone().into()), ("bytes", (*bytes).into())];
            Json::object(own.into_iter().chain(session))
        };
        let answer = Json::object([
            ("storage", Json::from(storage.as_str())),
            (
                "values",
                values.iter().map(members).collect::<Vec<_>>().into(),
            ),
            ("count", values.len().into()),
        ]);
        Ok(value(StatusCode::OK, &answer))
    }

    pub(super) async fn stored(
        &self,
        agent: &Agent,
        storage: Storage,
        key: &str,
        query: Option<&str>,
    ) -> Result<Response, Problem> {
        permit(agent, storage)?;
        let (key, session) = (decoded("key", key)?, session(storage, query)?);
        let (executor, id) = (self.workflows.executor().clone(), agent.id().clone());
        let (key, session) = (key.into_owned(), session.into_owned());
        // A value may be large, so the threads of the executor read and write it.
        let read = async move {
            let stored = executor.stored(&id, &session, storage, &key).await?;
            Ok::<_, StoreError>(stored.map(|stored| stored.to_string()))
        };
        let stored = self.workflows.ask(agent, read).await;
        let stored = stored.ok_or_else(Problem::draining)?;
        match stored.map_err(|error| self.store(&error))? {
            Some(stored) => Ok(json_response(StatusCode::OK, Bytes::from(stored))),
            None => Err(Problem::no_such_value()),
        }
    }

    pub(super) async fn remove(
        &self,
        agent: &Agent,
        storage: Storage,
        key: &str,
        query: Option<&str>,
    ) -> Result<Response, Problem> {
        permit(agent, storage)?;
        let (key, session) = (decoded("key", key)?, session(storage, query)?);
        let executor = self.workflows.executor();
        let removed = executor.remove_stored(agent.id(), &session, storage, &key);
        if removed.await.map_err(|error| self.store(&error))? {
            let answer = Json::object([("removed", Json::Bool(true))]);
            Ok(value(StatusCode::OK, &answer))
        } else {
            Err(Problem::no_such_value())
        }
    }
}

fn permit(agent: &Agent, storage: Storage) -> Result<(), Problem> {
    if agent.policy().permits_storage(storage) {
        Ok(())
    } else {
        Err(Problem::storage_not_permitted(storage.as_str()))
    }
}

/// The session that a value is of.
fn session(storage: Storage, query: Option<&str>) -> Result<Cow<'_, str>, Problem> {
    let mut session = None;
    let pairs = query.unwrap_or_default().split('&');
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("session", name)) if storage == Storage::Session => session = Some(name),
            _ => {
                let message = "the one parameter is session, for sessionStorage";
                return Err(Problem::malformed("unknown_field", message));
            }
        }
    }
    match session {
        Some(name) => decoded("session", name),
        None if storage == Storage::Session => {
            let message = "session is missing: GET /api/v1/storage/sessionStorage lists them";
            Err(Problem::malformed("missing_field", message))
        }
        None => Ok(Cow::Borrowed("")),
    }
}

fn decoded<'a>(what: &str, text: &'a str) -> Result<Cow<'a, str>, Problem> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_err(|_| Problem::malformed("invalid_field", format!("{what}: not UTF-8")))
}
