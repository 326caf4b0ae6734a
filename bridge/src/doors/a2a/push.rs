//! The methods to set, read and remove webhooks of tasks.
//!
//! Source: docs/protocols/a2a.md §11; docs/design.md §T11.

use std::sync::Arc;

use a2abus_models::a2e_workflow::target::Target;
use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::form::Envelope;
use super::method::Push;
use super::webhooks::PushSettings;
use super::work::{A2aRequest, no_push, not_found};
use crate::calls::failure::{Failure, Reason};
use crate::doors::door::Door;
use crate::object;
use crate::tasks::Task;
use crate::tasks::push::{Authentication, StoredWebhook, Webhook};

/// The parameters of all methods, in both versions: in A2A 1.0 the configuration is flat, in 0.3 it is a member.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    #[serde(default, alias = "task_id")]
    task_id: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default, alias = "push_notification_config_id")]
    push_notification_config_id: Option<String>,
    /// The id of a new configuration in HTTP+JSON of A2A 0.3.
    #[serde(default, alias = "config_id")]
    config_id: Option<String>,
    #[serde(default, alias = "page_size", deserialize_with = "crate::count::read")]
    page_size: Option<usize>,
    #[serde(default, alias = "page_token")]
    page_token: Option<String>,
    #[serde(default, alias = "push_notification_config")]
    push_notification_config: Option<Wire>,
    /// The wrapper in gRPC requests, which some clients send over HTTP.
    #[serde(default)]
    config: Option<Inner>,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    authentication: Option<WireAuthentication>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Inner {
    #[serde(alias = "push_notification_config")]
    push_notification_config: Wire,
}

/// A configuration as clients send it.
#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    authentication: Option<WireAuthentication>,
}

/// A2A 1.0 has one scheme, 0.3 a list.
#[derive(Deserialize)]
struct WireAuthentication {
    #[serde(default)]
    scheme: Option<String>,
    #[serde(default)]
    schemes: Vec<String>,
    #[serde(default)]
    credentials: Option<String>,
}

/// A configuration that has been checked.
#[derive(Clone)]
pub(super) struct Checked {
    id: Option<String>,
    webhook: Webhook,
}

/// The largest URL, and the largest token or credentials, in bytes.
const LARGEST: usize = 4_096;
/// The largest page of configurations.
const MAX_PAGE: usize = 100;
/// The longest id, in bytes.
const MAX_ID_BYTES: usize = 256;

// === impl A2aRequest ===

impl A2aRequest<'_> {
    pub(super) async fn push(&self, what: Push) -> Result<String, Failure> {
        let push = self.a2a.settings.push.as_ref().ok_or_else(no_push)?;
        let params: Params = self.parsed.params()?;
        let (task, id) = params.names();
        let task = task.ok_or_else(|| Failure::bad_params("params name no task"))?;
        let stored = self.task(&task).await?;
        let latest = push.webhooks.latest().await;
        latest.map_err(|error| self.a2a.door.not_read("webhooks", &error))?;
        let id = id.and_then(|id| push.named(&task, id, what));
        let is_1_0 = self.parsed.dialect == Dialect::A2a10;
        match what {
            Push::Set => {
                let checked = push.check(params.into_wire(), is_1_0)?;
                let id = push.set(&self.a2a.door, (&task, &stored), checked).await?;
                let stored = push
                    .webhooks
                    .get(&task, &id)
                    .ok_or_else(|| not_found(&task))?;
                Ok(push.config_json(&stored, is_1_0).to_string())
            }
            Push::Get => {
                let found = match &id {
                    Some(id) => push.webhooks.get(&task, id),
                    None => push.unnamed(&task),
                };
                let found = found.ok_or_else(|| no_webhook(&task, id.as_deref()))?;
                Ok(push.config_json(&found, is_1_0).to_string())
            }
            Push::List => {
                let all = push.webhooks.of_task(&task);
                let (page, next) = match is_1_0 {
                    true => params.page(&all)?,
                    false => (&all[..], ""),
                };
                let page: Value = page
                    .iter()
                    .map(|stored| push.config_json(stored, is_1_0))
                    .collect();
                Ok(match is_1_0 {
                    true => json!({ "configs": page, "nextPageToken": next }).to_string(),
                    false => page.to_string(),
                })
            }
            Push::Delete => {
                let id =
                    id.ok_or_else(|| Failure::bad_params("params must name a configuration"))?;
                let deleted = push.webhooks.delete(&task, &id).await;
                deleted.map_err(|error| {
                    self.a2a
                        .door
                        .not_stored("push notification configurations", &error)
                })?;
                let is_http = self.parsed.envelope == Envelope::Http;
                Ok(if is_1_0 || is_http { "{}" } else { "null" }.to_owned())
            }
        }
    }

    /// The checked webhook in a message.
    pub(super) fn webhook_in(&self, raw: Option<&RawValue>) -> Result<Option<Checked>, Failure> {
        let Some(raw) = raw.filter(|raw| raw.get() != "null") else {
            return Ok(None);
        };
        let push = self.a2a.settings.push.as_ref().ok_or_else(no_push)?;
        let wire: Wire = object::from_slice(raw.get().as_bytes())
            .map_err(|error| Failure::bad_params(&format!("pushNotificationConfig: {error}")))?;
        let is_1_0 = self.parsed.dialect == Dialect::A2a10;
        push.check(wire, is_1_0).map(Some)
    }

    /// Checks that a task has room for the webhook in a message, before the message is sent to the agent.
    pub(super) fn check_webhook_room(&self, task: &str, checked: &Checked) -> Result<(), Failure> {
        let push = self.a2a.settings.push.as_ref().ok_or_else(no_push)?;
        push.id_of(task, checked).map(drop)
    }

    /// Stores the webhook in a message once its task exists.
    pub(super) fn webhook_of_task(
        &self,
        task: &Text,
        checked: Option<Checked>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let (a2a, task) = (Arc::clone(self.a2a), task.clone());
        async move {
            let (Some(push), Some(checked)) = (&a2a.settings.push, checked) else {
                return Ok(());
            };
            let stored = a2a
                .settings
                .tasks
                .get(&task)
                .ok_or_else(|| not_found(&task))?;
            let set = push.set(&a2a.door, (&task, &stored), checked).await;
            set.map(drop)
        }
    }
}

// === impl PushSettings ===

impl PushSettings {
    /// Stores a webhook. Its id is the task id, unless the client has chosen one.
    pub(super) async fn set(
        &self,
        door: &Door,
        (task, stored): (&str, &Task),
        checked: Checked,
    ) -> Result<String, Failure> {
        let id = self.id_of(task, &checked)?;
        let after = (stored.position, stored.status.state.is_terminal());
        let stored = self.webhooks.set(task, &id, checked.webhook, after).await;
        stored.map_err(|error| door.not_stored("push notification configurations", &error))?;
        Ok(id)
    }

    /// A webhook as shown to clients, without credentials.
    fn config_json(&self, stored: &StoredWebhook, is_1_0: bool) -> Value {
        // The delivery reports a token that cannot be decrypted.
        let webhook = self.webhooks.opened(stored);
        let webhook = webhook.as_ref().unwrap_or(&stored.webhook);
        let mut config = json!({ "id": stored.id.as_str(), "url": webhook.url });
        if let Some(token) = &webhook.token {
            config["token"] = token.as_str().into();
        }
        if let Some(authentication) = &webhook.authentication {
            config["authentication"] = match is_1_0 {
                true => json!({ "scheme": authentication.scheme }),
                false => json!({ "schemes": [authentication.scheme] }),
            };
        }
        if is_1_0 {
            config["taskId"] = stored.task.as_str().into();
            return config;
        }
        json!({ "taskId": stored.task.as_str(), "pushNotificationConfig": config })
    }

    /// The id of a new webhook, if the task has room for it.
    fn id_of(&self, task: &str, checked: &Checked) -> Result<String, Failure> {
        let id = checked.id.clone().unwrap_or_else(|| task.to_owned());
        let others = self.webhooks.of_task(task);
        let has_it = others.iter().any(|stored| *stored.id == *id);
        if has_it || others.len() < self.max {
            return Ok(id);
        }
        let max = self.max;
        Err(Failure::bad_params(&format!(
            "the task already has {max} push notification configurations (a2a.push_notifications.max_per_task): delete one"
        )))
    }

    /// The webhook of a request that names none: the one that was set without an id, else the first.
    fn unnamed(&self, task: &str) -> Option<StoredWebhook> {
        let own = self.webhooks.get(task, task);
        own.or_else(|| self.webhooks.of_task(task).into_iter().next())
    }

    /// The id of the webhook that a client names. The test kit of A2A 0.3 uses the name `default` for a webhook that it
    /// has set without an id. `a2a-sdk` 0.3 for Python writes `None` in the path of a GET if it names none.
    fn named(&self, task: &str, id: String, what: Push) -> Option<String> {
        match (id.as_str(), what) {
            ("default", _) | ("None", Push::Get) if self.webhooks.get(task, &id).is_some() => {
                Some(id)
            }
            ("default", _) => Some(task.to_owned()),
            ("None", Push::Get) => None,
            _ => Some(id),
        }
    }

    fn check(&self, wire: Wire, is_1_0: bool) -> Result<Checked, Failure> {
        let bad = |why: String| Failure::bad_params(&format!("push notification: {why}"));
        let url = wire.url.ok_or_else(|| bad("url is missing".to_owned()))?;
        if url.len() > LARGEST {
            return Err(bad(format!("the url has more than {LARGEST} bytes")));
        }
        let target = Target::parse(&url).map_err(|error| bad(format!("url: {error}")))?;
        let reach = self.allowed.reach(&target);
        reach.map_err(|why| bad(format!("url: {why}")))?;
        let id = wire.id.filter(|id| !id.is_empty());
        if id.as_ref().is_some_and(|id| id.len() > MAX_ID_BYTES) {
            return Err(bad(format!("the id has more than {MAX_ID_BYTES} bytes")));
        }
        let token = wire.token.filter(|token| !token.is_empty());
        let authentication = wire.authentication.and_then(Authentication::of);
        let credentials = authentication
            .as_ref()
            .and_then(|it| it.credentials.as_ref());
        let scheme = authentication.as_ref().map(|it| &it.scheme);
        for (name, text) in [
            ("token", token.as_ref()),
            ("authentication.scheme", scheme),
            ("authentication.credentials", credentials),
        ] {
            let is_sent = |text: &String| {
                text.len() <= LARGEST && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
            };
            if !text.is_none_or(is_sent) {
                return Err(bad(format!(
                    "{name} is not a valid header: use 1 to {LARGEST} bytes of visible ASCII"
                )));
            }
        }
        let webhook = Webhook::new(url, token, authentication, is_1_0);
        if webhook.has_secrets() && !self.webhooks.takes_secrets() {
            return Err(bad(
                "this bridge stores no tokens or credentials: its operator has to set a2a.push_notifications.keys"
                    .to_owned(),
            ));
        }
        Ok(Checked { id, webhook })
    }
}

// === impl Params ===

impl Params {
    /// The task id, and the id of the configuration if one is named.
    fn names(&self) -> (Option<String>, Option<String>) {
        let own = || self.push_notification_config_id.clone();
        let named = match &self.task_id {
            Some(task) => (Some(task.clone()), self.id.clone().or_else(own)),
            None => (self.id.clone(), own()),
        };
        (named.0, named.1.filter(|id| !id.is_empty()))
    }

    fn into_wire(self) -> Wire {
        let inner = self.config.map(|inner| inner.push_notification_config);
        let wire = self.push_notification_config.or(inner).unwrap_or(Wire {
            id: self.id,
            url: self.url,
            token: self.token,
            authentication: self.authentication,
        });
        Wire {
            id: wire.id.or(self.config_id),
            ..wire
        }
    }

    /// A page of the configurations, which are sorted by their ids, and the token of the next page: the id of the last
    /// configuration on this one.
    fn page<'a>(
        &self,
        all: &'a [StoredWebhook],
    ) -> Result<(&'a [StoredWebhook], &'a str), Failure> {
        let size = self.page_size.unwrap_or(MAX_PAGE);
        if !(1..=MAX_PAGE).contains(&size) {
            let why = format!("pageSize must be 1 to {MAX_PAGE}");
            return Err(Failure::bad_params(&why));
        }
        let token = self.page_token.as_deref().unwrap_or_default();
        let rest = &all[all.partition_point(|stored| *stored.id <= *token)..];
        let page = &rest[..size.min(rest.len())];
        let next = page.last().filter(|_| page.len() < rest.len());
        Ok((page, next.map_or("", |last| &last.id)))
    }
}

// === impl Authentication ===

impl Authentication {
    fn of(wire: WireAuthentication) -> Option<Self> {
        let scheme = wire.scheme.or_else(|| wire.schemes.into_iter().next())?;
        Some(Self {
            scheme: Some(scheme).filter(|scheme| !scheme.is_empty())?,
            credentials: wire.credentials.filter(|text| !text.is_empty()),
        })
    }
}

fn no_webhook(task: &str, id: Option<&str>) -> Failure {
    let message = match id {
        Some(id) => format!("the task {task:?} has no push notification configuration {id:?}"),
        None => format!("the task {task:?} has no push notification configuration"),
    };
    Failure::new(Reason::TaskNotFound, message)
}
