//! Parses the configuration of an operation into its typed form.

use std::time::Duration;

use crate::a2e_workflow::config_transform;
use crate::a2e_workflow::facts::{Kind, Requirement};
use crate::a2e_workflow::fields::{
    Fields, OUTPUT_PATH, Scope, field, integer, list, members, output_path, parse_name,
    parse_name_with_aliases, path, text, unknown_name,
};
use crate::a2e_workflow::issue::{Code, quote_name};
use crate::a2e_workflow::operation::{
    ApiCall, Conditional, DEFAULT_TIMEOUT, FilterCondition, FilterData, HeaderValue, Loop,
    MergeData, Method, OperationKind, OperationType, Operator, Storage, StoreData, Strategy, Test,
    Wait,
};
use crate::a2e_workflow::path::Path;
use crate::a2e_workflow::target::UrlTemplate;
use crate::a2e_workflow::template::{Body, BodyError, Operand, Part, Template};
use crate::a2e_workflow::workflow::Dialect;
use crate::json::Json;
use crate::wire_enum::WireEnum;
use a2abus_plugin::Text;

/// Parses a configuration. `None` if it has an error; the readable parts are in the facts.
pub(super) fn read(
    scope: &mut Scope<'_>,
    of: OperationType,
    config: &Json,
) -> Option<OperationKind> {
    let fields = Fields::open(scope, config, "", known_members(of))?;
    match of {
        OperationType::ApiCall => api_call(scope, &fields).map(OperationKind::ApiCall),
        OperationType::FilterData => filter_data(scope, &fields).map(OperationKind::FilterData),
        OperationType::TransformData => {
            config_transform::read(scope, &fields).map(OperationKind::TransformData)
        }
        OperationType::Conditional => conditional(scope, &fields).map(OperationKind::Conditional),
        OperationType::Loop => loop_over(scope, &fields).map(OperationKind::Loop),
        OperationType::StoreData => store_data(scope, &fields).map(OperationKind::StoreData),
        OperationType::Wait => wait(scope, &fields).map(OperationKind::Wait),
        OperationType::MergeData => merge_data(scope, &fields).map(OperationKind::MergeData),
    }
}

fn known_members(of: OperationType) -> &'static [&'static str] {
    match of {
        OperationType::ApiCall => &["method", "url", "headers", "body", "timeout", OUTPUT_PATH],
        OperationType::FilterData => &["inputPath", "conditions", OUTPUT_PATH],
        OperationType::TransformData => &["inputPath", "transform", "config", OUTPUT_PATH],
        OperationType::Conditional => &["condition", "ifTrue", "ifFalse"],
        OperationType::Loop => &["inputPath", "operations", OUTPUT_PATH],
        OperationType::StoreData => &["inputPath", "storage", "key"],
        OperationType::Wait => &["duration"],
        OperationType::MergeData => &["sources", "strategy", OUTPUT_PATH],
    }
}

// === ApiCall ===

fn api_call(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<ApiCall> {
    let method = fields.required(scope, "method", parse_name::<Method>);
    let url = fields.required(scope, "url", url);
    let headers = fields.optional(scope, "headers", |scope, at, json| {
        let Some(object) = json.as_object() else {
            return scope.invalid(at, "an object");
        };
        for (name, _) in object.iter().filter(|(name, _)| !is_settable_header(name)) {
            let message = format!("{at}: {} is not a header that can be set", quote_name(name));
            scope.issue(Code::InvalidField, message);
        }
        members(scope, at, object, header_value)
    });
    let body = match (fields.object().get("body"), method) {
        (None | Some(Json::Null), _) => None,
        (Some(_), Some(Method::Get)) => {
            scope.issue(Code::BodyIgnored, "body: a GET request is sent without one");
            None
        }
        (Some(json), _) => Some(body(scope, json)),
    };
    let timeout = fields.optional(scope, "timeout", |scope, at, json| {
        integer(scope, at, json, 1_000..=300_000).map(Duration::from_millis)
    });
    let output = fields.writes(scope, Kind::Unknown);
    Some(ApiCall {
        method: method?,
        url: url?,
        headers: headers?.unwrap_or_default(),
        body,
        timeout: timeout?.unwrap_or(DEFAULT_TIMEOUT),
        output: output?,
    })
}

fn url(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<UrlTemplate> {
    let url = match UrlTemplate::parse(text(scope, at, json)?) {
        Ok(url) => url,
        Err(error) => {
            scope.issue(Code::InvalidField, format!("{at}: {error}"));
            return None;
        }
    };
    for path in url.references() {
        scope.reads(path, Requirement::Any);
    }
    scope.facts.target = url.target().and_then(Result::ok);
    Some(url)
}

/// Whether it is a valid HTTP header name, and not one that controls the connection.
fn is_settable_header(name: &str) -> bool {
    const OF_THE_CONNECTION: [&str; 9] = [
        // A compressed response would not be read.
        "accept-encoding",
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
        "te",
        "trailer",
        "keep-alive",
    ];
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let lower = name.to_ascii_lowercase();
    !name.is_empty()
        && name.bytes().all(is_token)
        && !lower.starts_with("proxy-")
        && !OF_THE_CONNECTION.contains(&lower.as_str())
}

fn header_value(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<HeaderValue> {
    match json {
        Json::String(text) => header_text(scope, at, text),
        Json::Object(object) if object.contains("credentialRef") => {
            let fields = Fields::open(scope, json, at, &["credentialRef"])?;
            let id = fields.required(scope, "credentialRef", |scope, at, json| {
                Fields::open(scope, json, at, &["id"])?.required(scope, "id", text)
            })?;
            scope.facts.credentials.push((at.to_owned(), id.clone()));
            Some(HeaderValue::Credential(id.clone()))
        }
        Json::Object(object) if object.contains("path") => {
            let path = Fields::open(scope, json, at, &["path"])?.required(scope, "path", path)?;
            scope.reads(&path, Requirement::Any);
            Some(HeaderValue::Reference(path))
        }
        _ => scope.invalid(at, "a string, a path or a credentialRef"),
    }
}

fn header_text(scope: &mut Scope<'_>, at: &str, text: &Text) -> Option<HeaderValue> {
    let template = scope.path_or_issue(at, Template::parse(text))?;
    let breaks_line =
        |part: &Part<Path>| matches!(part, Part::Text(text) if text.contains(['\r', '\n', '\0']));
    if template.parts().iter().any(breaks_line) {
        return scope.invalid(at, "text without line ends and NUL");
    }
    template
        .references()
        .for_each(|path| scope.reads(path, Requirement::Any));
    Some(HeaderValue::Template(template))
}

fn body(scope: &mut Scope<'_>, json: &Json) -> Body {
    let body = Body::parse(json, &mut |error| match error {
        BodyError::Path(error) => scope.issue(Code::InvalidPath, format!("body: {error}")),
        BodyError::Credential => scope.issue(
            Code::CredentialMisplaced,
            "body: a credentialRef is allowed in headers only",
        ),
    });
    body.for_each_reference(&mut |path| scope.reads(path, Requirement::Any));
    body
}

// === conditions ===

fn filter_data(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<FilterData> {
    let input = fields.input(scope, Requirement::Array);
    let conditions = fields.required(scope, "conditions", |scope, at, json| {
        list(scope, at, json, filter_condition)
    });
    if conditions.as_ref().is_some_and(Vec::is_empty) {
        scope.issue(
            Code::EmptyConditions,
            "conditions: without conditions, everything is kept",
        );
    }
    let output = fields.writes(scope, Kind::Array);
    Some(FilterData {
        input: input?,
        conditions: conditions?,
        output: output?,
    })
}

fn filter_condition(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<FilterCondition> {
    let fields = Fields::open(scope, json, at, &["field", "operator", "value"])?;
    let field = fields.required(scope, "field", field);
    let operator = fields.required(scope, "operator", filter_operator);
    let value = fields.required(scope, "value", operand);
    Some(FilterCondition {
        field: field?,
        operator: operator?,
        value: value?,
    })
}

fn filter_operator(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<Operator> {
    if presence(json).is_none() {
        return parse_name(scope, at, json);
    }
    let message = format!("{at}: expected one of {}", Operator::NAMES.join(", "));
    let instead = "only a Conditional has it; compare with null here, using == or !=";
    scope.suggest(Code::InvalidField, message, Some(instead.to_owned()));
    None
}

fn operand(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<Operand> {
    let operand = scope.path_or_issue(at, Operand::parse(json))?;
    if let Operand::Reference(path) = &operand {
        scope.reads(path, Requirement::Any);
    }
    Some(operand)
}

fn conditional(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<Conditional> {
    let condition = fields.required(scope, "condition", condition);
    let if_true = fields.required(scope, "ifTrue", branch);
    let if_false = fields.optional(scope, "ifFalse", branch);
    let (path, test) = condition?;
    Some(Conditional {
        path,
        test,
        if_true: if_true?,
        if_false: if_false?.unwrap_or_default(),
    })
}

fn condition(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<(Path, Test)> {
    let fields = Fields::open(scope, json, at, &["path", "operator", "value"])?;
    let asks_for_presence = fields.object().get("operator").and_then(presence);
    let path = fields.required(scope, "path", path);
    if let Some(path) = &path {
        let presence = asks_for_presence.is_some();
        scope.reads(
            path,
            if presence {
                Requirement::Nothing
            } else {
                Requirement::Any
            },
        );
    }
    let test = asks_for_presence.or_else(|| {
        let comparison = fields.required(scope, "operator", comparison);
        let value = fields.required(scope, "value", operand);
        Some(Test::Compare(comparison?, value?))
    });
    Some((path?, test?))
}

/// The operator of a Conditional, except for the presence tests.
fn comparison(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<Operator> {
    let word = text(scope, at, json)?;
    Operator::from_name(word).or_else(|| {
        let known = [Operator::NAMES, &PRESENCE].concat();
        unknown_name(scope, at, word, &known)
    })
}

/// The operators of a Conditional that take no value.
const PRESENCE: [&str; 3] = ["exists", "empty", "isEmpty"];

fn presence(operator: &Json) -> Option<Test> {
    match operator.as_str()? {
        "exists" => Some(Test::Exists),
        "empty" | "isEmpty" => Some(Test::Empty),
        _ => None,
    }
}

/// The ids of a branch; in the wrapped dialect a single id may be given without a list.
fn branch(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<Vec<Text>> {
    let ids = match json.as_text() {
        Some(id) if scope.dialect == Dialect::Wrapped => vec![id.clone()],
        _ => id_list(scope, at, json)?,
    };
    scope.facts.branches.extend_from_slice(&ids);
    Some(ids)
}

fn id_list(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<Vec<Text>> {
    list(scope, at, json, |scope, at, json| {
        text(scope, at, json).cloned()
    })
}

// === the others ===

fn loop_over(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<Loop> {
    let input = fields.input(scope, Requirement::Array);
    let operations = fields.required(scope, "operations", id_list);
    scope.facts.body = operations.clone().unwrap_or_default();
    let output = fields.optional(scope, OUTPUT_PATH, output_path);
    scope.facts.write = output.clone().flatten().map(|path| (path, Kind::Array));
    Some(Loop {
        input: input?,
        operations: operations?,
        output: output?,
    })
}

fn store_data(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<StoreData> {
    let input = fields.input(scope, Requirement::Any);
    let storage = fields.required(scope, "storage", parse_name::<Storage>);
    scope.facts.storage = storage;
    let key = fields.required(scope, "key", |scope, at, json| {
        let key = text(scope, at, json)?;
        match storage {
            Some(Storage::File) if !is_file_key(key) => {
                scope.invalid(at, "a relative path of at most 200 of A-Z a-z 0-9 . _ -")
            }
            _ if !is_key(key) => scope.invalid(
                at,
                "1 to 256 characters without control characters, but not `.` or `..`",
            ),
            _ => Some(key.clone()),
        }
    });
    Some(StoreData {
        input: input?,
        storage: storage?,
        key: key?,
    })
}

/// The key is a segment of a URL path, where `.` and `..` have another meaning.
fn is_key(key: &str) -> bool {
    !matches!(key, "." | "..")
        && !key.chars().any(char::is_control)
        && (1..=256).contains(&key.chars().count())
}

/// Whether no segment begins with a dot or a hyphen.
fn is_file_key(key: &str) -> bool {
    let starts = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let goes_on = |b: u8| starts(b) || b == b'.' || b == b'-';
    key.len() <= 200
        && key
            .split('/')
            .all(|part| part.bytes().next().is_some_and(starts) && part.bytes().all(goes_on))
}

fn wait(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<Wait> {
    let duration = fields.required(scope, "duration", |scope, at, json| {
        integer(scope, at, json, 0..=600_000).map(Duration::from_millis)
    })?;
    scope.facts.wait = Some(duration);
    Some(Wait { duration })
}

fn merge_data(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<MergeData> {
    let strategy = fields.required(scope, "strategy", |scope, at, json| {
        parse_name_with_aliases(scope, at, json, &[("merge", Strategy::DeepMerge)])
    });
    let (need, kind) = match strategy {
        Some(Strategy::Concat | Strategy::Union) => (Requirement::Any, Kind::Array),
        Some(Strategy::Intersect) => (Requirement::Array, Kind::Array),
        Some(Strategy::DeepMerge) => (Requirement::ArrayOrObject, Kind::Unknown),
        None => (Requirement::Any, Kind::Unknown),
    };
    let sources = fields.required(scope, "sources", |scope, at, json| {
        let sources = list(scope, at, json, |scope, at, json| {
            let path = path(scope, at, json)?;
            scope.reads(&path, need);
            Some(path)
        })?;
        if sources.len() < 2 {
            return scope.invalid(at, "at least two paths");
        }
        Some(sources)
    });
    let output = fields.writes(scope, kind);
    Some(MergeData {
        sources: sources?,
        strategy: strategy?,
        output: output?,
    })
}
