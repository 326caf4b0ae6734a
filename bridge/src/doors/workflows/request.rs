//! Parses bodies and queries.

use a2abus_executor::{Json, Object, OnError, Request, Status};
use a2abus_models::a2e_workflow::Strictness;
use bytes::Bytes;

use super::answer::Problem;

/// The members of a body, all of which must be known.
#[derive(Debug)]
pub(super) struct Members(Object);

/// Whether the answer waits for the end of the execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// It does.
    ForTheEnd,
    /// It does not.
    Not,
}

/// The filter of a list of executions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExecutionFilter {
    pub(super) most: usize,
    pub(super) status: Option<Status>,
}

/// A search among the capabilities.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SearchQuery {
    pub(super) query: String,
    pub(super) most: usize,
}

/// Longest search text, in bytes.
const MAX_QUERY_BYTES: usize = 1_000;

/// The body of a request whose workflow was sent as its lines.
pub(super) fn of_lines(lines: &[u8]) -> Result<Bytes, Problem> {
    let lines = std::str::from_utf8(lines)
        .map_err(|_| Problem::malformed("invalid_json", "the body is not UTF-8"))?;
    let body = Json::object([("workflow", Json::from(lines))]);
    Ok(Bytes::from(body.to_string()))
}

/// A workflow to validate.
pub(super) fn validate(body: &Bytes) -> Result<Request, Problem> {
    let members = Members::read(body, &["workflow", "input", "level"])?;
    members.request()
}

/// A workflow to be executed.
pub(super) fn execute(body: &Bytes) -> Result<(Request, WaitMode), Problem> {
    let known = [
        "workflow", "input", "level", "onError", "async", "session", "validate",
    ];
    let members = Members::read(body, &known)?;
    if members.flag("validate")? == Some(false) {
        let message =
            "validate: every workflow is validated; leave it out. level: lenient accepts more";
        return Err(Problem::malformed("invalid_field", message));
    }
    let mut request = members.request()?;
    request.on_error = members
        .enum_value("onError", "stop or continue", OnError::from_name)?
        .unwrap_or_default();
    request.session = match members.get("session") {
        None => None,
        Some(Json::String(session)) if (1..=256).contains(&session.len()) => Some(session.clone()),
        Some(_) => return Err(wrong("session", "a string of 1 to 256 bytes")),
    };
    let wait = match members.flag("async")? {
        Some(true) => WaitMode::Not,
        Some(false) | None => WaitMode::ForTheEnd,
    };
    Ok((request, wait))
}

/// A search.
pub(super) fn search(body: &Bytes) -> Result<SearchQuery, Problem> {
    const DEFAULT: usize = 5;
    let members = Members::read(body, &["query", "top_k"])?;
    let query = members.required_text("query")?.to_owned();
    if query.len() > MAX_QUERY_BYTES {
        let message = format!("query: expected at most {MAX_QUERY_BYTES} bytes");
        return Err(Problem::malformed("invalid_field", message));
    }
    let most = match members.get("top_k") {
        None => DEFAULT,
        Some(most) => match most.as_i64().map(usize::try_from) {
            Some(Ok(most @ 1..=100)) => most,
            _ => return Err(wrong("top_k", "a whole number from 1 to 100")),
        },
    };
    Ok(SearchQuery { query, most })
}

/// A list of executions.
pub(super) fn listing(query: Option<&str>) -> Result<ExecutionFilter, Problem> {
    let mut listing = ExecutionFilter {
        most: 100,
        status: None,
    };
    let pairs = query.unwrap_or_default().split('&');
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("limit", number) => {
                let most = number
                    .parse()
                    .ok()
                    .filter(|most| (1..=1_000).contains(most));
                listing.most =
                    most.ok_or_else(|| wrong("limit", "a whole number from 1 to 1000"))?;
            }
            ("status", name) => {
                let status = Status::from_name(name);
                let expected = "pending, running, success, partial_success, failed or cancelled";
                listing.status = Some(status.ok_or_else(|| wrong("status", expected))?);
            }
            (name, _) => {
                let message = format!(
                    "unknown parameter {}; known are limit and status",
                    shorten(name)
                );
                return Err(Problem::malformed("unknown_field", message));
            }
        }
    }
    Ok(listing)
}

/// A name from a client, shortened for a message.
fn shorten(name: &str) -> String {
    const MAX_SHOWN: usize = 100;
    match name.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{:?}...", name.get(..end).unwrap_or_default()),
        None => format!("{name:?}"),
    }
}

fn wrong(member: &str, expected: &str) -> Problem {
    Problem::malformed("invalid_field", format!("{member}: expected {expected}"))
}

// === impl Members ===

impl Members {
    fn read(body: &[u8], known: &[&str]) -> Result<Self, Problem> {
        let json = a2abus_executor::parse(body).map_err(|error| {
            Problem::malformed("invalid_json", format!("the body is not JSON: {error}"))
        })?;
        // Refuse duplicate members: an earlier reader of the body, such as a proxy, may have used the other value.
        if let Some(member) = json.first_repeated() {
            let message = format!("duplicate member {}", shorten(&member));
            return Err(Problem::malformed("invalid_field", message));
        }
        let Json::Object(members) = json else {
            let message = "the body must be a JSON object";
            return Err(Problem::malformed("not_an_object", message));
        };
        // Refuse unknown members: otherwise a misspelt one would be ignored, and the workflow would run differently
        // than intended.
        let mut names = members.iter().map(|(name, _)| name.as_str());
        if let Some(name) = names.find(|name| !known.contains(name)) {
            let (name, known) = (shorten(name), known.join(", "));
            let message = format!("unknown member {name}; known are {known}");
            return Err(Problem::malformed("unknown_field", message));
        }
        Ok(Self(members))
    }

    /// A member, if present; `null` counts as absent.
    fn get(&self, name: &str) -> Option<&Json> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn request(&self) -> Result<Request, Problem> {
        let input = match self.get("input") {
            None => Object::default(),
            Some(Json::Object(input)) => input.clone(),
            Some(_) => return Err(wrong("input", "an object")),
        };
        let levels = "strict, moderate or lenient";
        let strictness = self.enum_value("level", levels, Strictness::from_name)?;
        Ok(Request {
            workflow: Bytes::copy_from_slice(self.required_text("workflow")?.as_bytes()),
            input,
            strictness: strictness.unwrap_or_default(),
            ..Request::default()
        })
    }

    fn required_text(&self, name: &str) -> Result<&str, Problem> {
        match self.get(name) {
            Some(Json::String(text)) => Ok(text),
            Some(_) => Err(wrong(name, "a string")),
            None => {
                let message = format!("{name} is missing");
                Err(Problem::malformed("missing_field", message))
            }
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, Problem> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(wrong(name, "true or false")),
        }
    }

    fn enum_value<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.as_str().and_then(read) {
                Some(value) => Ok(Some(value)),
                None => Err(wrong(name, expected)),
            },
        }
    }
}
