//! The headers of a call, with their values.
//!
//! Source: docs/protocols/a2e-workflows.md §4.8 and §7.

use std::fmt::Write;

use a2abus_models::Json;
use a2abus_models::a2e_workflow::operation::HeaderValue;
use a2abus_models::a2e_workflow::target::Target;
use a2abus_models::a2e_workflow::{Code, CredentialRefusal, Part, Template};
use a2abus_plugin::Text;

use crate::agent::Credential;
use crate::call::caller::Caller;
use crate::call::credential;
use crate::call::text::{BoundedText, invalid, scalar};
use crate::failure::{Failure, FailureCode};
use crate::model::Model;

/// The headers of one request.
pub(super) struct Headers {
    /// Names in lower case.
    list: Vec<(String, String)>,
    /// The same for a cache key: without secrets.
    config: Vec<Json>,
}

/// The longest value of a header, in bytes.
const MAX_VALUE_BYTES: usize = 65_536;
/// How many headers a call may set.
const MAX_HEADERS: usize = 100;
/// The maximum length of their names and values together, in bytes. A request is in memory several times while it is
/// sent.
const MAX_HEADER_BYTES: usize = 262_144;

// === impl Headers ===

impl Headers {
    pub(super) fn resolve(
        headers: &[(Text, HeaderValue)],
        model: &Model,
        target: &Target,
        caller: &Caller<'_>,
    ) -> Result<Self, Failure> {
        if headers.len() > MAX_HEADERS {
            let message = format!("{} headers, more than {MAX_HEADERS}", headers.len());
            return Err(exceeded("headers", message, MAX_HEADERS));
        }
        let mut resolved = Self {
            list: Vec::with_capacity(headers.len()),
            config: Vec::with_capacity(headers.len()),
        };
        let mut bytes = 0;
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            let (text, config) = match value {
                HeaderValue::Credential(id) => {
                    let credential = permitted(id, target, caller)?;
                    let config = Json::object([
                        ("credential", Json::from(id.clone())),
                        ("version", version(credential, caller).into()),
                    ]);
                    (credential::header_text(credential).to_string(), config)
                }
                HeaderValue::Template(template) => {
                    let text = render(template, model, &name)?;
                    (text.clone(), text.into())
                }
                HeaderValue::Reference(path) => {
                    let text = scalar(model, path)?;
                    (text.clone(), text.into())
                }
            };
            check(&name, &text)?;
            bytes += name.len() + text.len();
            if bytes > MAX_HEADER_BYTES {
                let message = format!("the headers are longer than {} KiB", MAX_HEADER_BYTES >> 10);
                return Err(exceeded("header_bytes", message, MAX_HEADER_BYTES));
            }
            resolved
                .config
                .push(vec![name.as_str().into(), config].into());
            resolved.list.push((name, text));
        }
        Ok(resolved)
    }

    pub(super) fn list(&self) -> &[(String, String)] {
        &self.list
    }

    pub(super) fn config(&self) -> Json {
        self.config.clone().into()
    }

    /// Adds a header that is not set yet.
    pub(super) fn set_default(&mut self, name: &str, value: &str) {
        if !self.list.iter().any(|(other, _)| other == name) {
            self.list.push((name.to_owned(), value.to_owned()));
        }
    }

    pub(super) fn has_idempotency_key(&self) -> bool {
        let is_key = |(name, value): &(String, String)| {
            name == "idempotency-key" && !value.trim().is_empty()
        };
        self.list.iter().any(is_key)
    }
}

/// Whether the headers say `Cache-Control: no-store`.
pub(super) fn forbids_storing(headers: &[(String, String)]) -> bool {
    headers
        .iter()
        .filter(|(name, _)| name == "cache-control")
        .flat_map(|(_, value)| value.split(','))
        .any(|directive| directive.trim().eq_ignore_ascii_case("no-store"))
}

/// A credential that may be sent to the target. From here on the execution knows its secret.
fn permitted<'a>(
    id: &Text,
    target: &Target,
    caller: &Caller<'a>,
) -> Result<&'a Credential, Failure> {
    let agent = caller.agent;
    let checked = agent.policy().check_credential(id, Some(target));
    let found = checked.and_then(|()| {
        let credential = agent.credentials().get(id);
        credential.ok_or(CredentialRefusal::NotFound)
    });
    let credential = found.map_err(|refusal| {
        let (code, what) = match refusal {
            CredentialRefusal::NotFound => (Code::CredentialNotFound, "does not exist"),
            CredentialRefusal::NotPermitted => {
                (Code::CredentialNotPermitted, "may not be sent there")
            }
        };
        let message = format!("the credential {id} {what}");
        Failure::new(FailureCode::Refused(code), message)
    })?;
    caller.redactor.add_secret(credential).map_err(|_| {
        let failure = invalid(format!("the credential {id} is too long to be used"));
        failure.suggest("ask the operator for a shorter credential")
    })?;
    Ok(credential)
}

fn version(credential: &Credential, caller: &Caller<'_>) -> String {
    let version = caller.cache.version(&credential.secret);
    format!("{}-{version:x}", credential.kind.as_str())
}

fn render(template: &Template, model: &Model, name: &str) -> Result<String, Failure> {
    let mut text = BoundedText::new(MAX_VALUE_BYTES);
    for part in template.parts() {
        let written = match part {
            Part::Text(literal) => text.write_str(literal),
            Part::Value(path) => text.write_str(&scalar(model, path)?),
        };
        written.map_err(|_| too_long(name))?;
    }
    Ok(text.into_text())
}

/// Refuses characters that would end the header, or that HTTP does not permit in one. The text may be a secret and is
/// not shown.
fn check(name: &str, text: &str) -> Result<(), Failure> {
    if text.len() > MAX_VALUE_BYTES {
        return Err(too_long(name));
    }
    if text.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
        let message =
            format!("the value of the header {name} contains a line end or control character");
        let failure = invalid(message).with("header", name);
        return Err(failure.suggest("remove line ends and control characters from the value"));
    }
    Ok(())
}

fn too_long(name: &str) -> Failure {
    let message = format!("the value of the header {name} is longer than {MAX_VALUE_BYTES} bytes");
    let failure = invalid(message).with("header", name);
    failure.suggest("put a shorter value into the header, or send it in the body")
}

fn exceeded(limit: &'static str, message: String, max: usize) -> Failure {
    let failure = Failure::new(FailureCode::LimitExceeded, message);
    let failure = failure.with("limit", limit).with("max", max);
    failure.suggest("send fewer or shorter headers, or send the values in the body")
}
