//! Writes a workflow in the flat dialect.

use std::fmt::Write as _;

use crate::a2e_workflow::operation::{
    ApiCall, Conditional, DEFAULT_TIMEOUT, FilterData, HeaderValue, OperationKind, Test,
};
use crate::a2e_workflow::template::{Operand, reference_json};
use crate::a2e_workflow::transform::{
    Aggregate, Expression, Figure, Figures, Function, Merge, Projection, Slice, SortKey, Transform,
};
use crate::a2e_workflow::{Operation, Workflow};
use crate::json::Json;
use a2abus_plugin::Text;

impl Workflow {
    /// Writes it as JSON Lines of the flat dialect, in a canonical form: what is left out of the
    /// input for its default is left out, old names are replaced. Reading it gives the same
    /// workflow. `new_id` is the execution id of a workflow that has none.
    /// Source: docs/protocols/a2e-workflows.md §1.
    #[must_use]
    pub fn to_jsonl(&self, new_id: &Text) -> String {
        let mut lines = String::new();
        for Operation { id, kind, .. } in &self.operations {
            let operation = Json::object([(kind.operation_type().as_str(), kind.to_json())]);
            let message = Json::object([
                ("type", Json::from("operationUpdate")),
                ("operationId", id.clone().into()),
                ("operation", operation),
            ]);
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{message}");
        }
        let mut begin = vec![
            ("type", Json::from("beginExecution")),
            (
                "executionId",
                self.execution_id.as_ref().unwrap_or(new_id).clone().into(),
            ),
            ("operationOrder", texts(&self.order)),
        ];
        begin.extend(self.agent.clone().map(|agent| ("_agentId", agent.into())));
        if !self.input.is_empty() {
            begin.push(("input", Json::Object(self.input.clone())));
        }
        let _ = writeln!(lines, "{}", Json::object(begin));
        lines
    }
}

/// The members of a configuration, of which some may be left out.
type Members = Vec<(&'static str, Json)>;

fn texts(texts: &[Text]) -> Json {
    texts
        .iter()
        .cloned()
        .map(Json::from)
        .collect::<Vec<_>>()
        .into()
}

fn shown(value: &impl ToString) -> Json {
    value.to_string().into()
}

impl OperationKind {
    /// Its configuration, as it is written in a workflow.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let members = match self {
            Self::ApiCall(call) => api_call(call),
            Self::FilterData(filter) => filter_data(filter),
            Self::TransformData(data) => {
                let (name, config) = transform(&data.transform);
                let mut members = vec![
                    ("inputPath", shown(&data.input)),
                    ("transform", name.into()),
                ];
                if !config.is_empty() {
                    members.push(("config", Json::object(config)));
                }
                members.push(("outputPath", shown(&data.output)));
                members
            }
            Self::Conditional(conditional) => self::conditional(conditional),
            Self::Loop(data) => {
                let mut members = vec![
                    ("inputPath", shown(&data.input)),
                    ("operations", texts(&data.operations)),
                ];
                members.extend(data.output.as_ref().map(|path| ("outputPath", shown(path))));
                members
            }
            Self::StoreData(data) => vec![
                ("inputPath", shown(&data.input)),
                ("storage", data.storage.as_str().into()),
                ("key", data.key.clone().into()),
            ],
            Self::Wait(wait) => vec![("duration", millis(wait.duration))],
            Self::MergeData(data) => vec![
                (
                    "sources",
                    data.sources.iter().map(shown).collect::<Vec<_>>().into(),
                ),
                ("strategy", data.strategy.as_str().into()),
                ("outputPath", shown(&data.output)),
            ],
        };
        Json::object(members)
    }
}

fn millis(duration: std::time::Duration) -> Json {
    // Durations of a workflow are below 2^32 ms.
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .into()
}

fn api_call(call: &ApiCall) -> Members {
    let mut members = vec![
        ("method", call.method.as_str().into()),
        ("url", shown(&call.url)),
    ];
    if !call.headers.is_empty() {
        let headers = call
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), header(value)));
        members.push(("headers", Json::object(headers)));
    }
    members.extend(call.body.as_ref().map(|body| ("body", body.to_json())));
    if call.timeout != DEFAULT_TIMEOUT {
        members.push(("timeout", millis(call.timeout)));
    }
    members.push(("outputPath", shown(&call.output)));
    members
}

fn header(value: &HeaderValue) -> Json {
    match value {
        HeaderValue::Template(template) => shown(template),
        HeaderValue::Reference(path) => reference_json(path),
        HeaderValue::Credential(id) => {
            let credential = Json::object([("id", Json::from(id.clone()))]);
            Json::object([("credentialRef", credential)])
        }
    }
}

fn filter_data(filter: &FilterData) -> Members {
    let conditions = filter.conditions.iter().map(|condition| {
        Json::object([
            ("field", shown(&condition.field)),
            ("operator", condition.operator.as_str().into()),
            ("value", condition.value.to_json()),
        ])
    });
    vec![
        ("inputPath", shown(&filter.input)),
        ("conditions", conditions.collect::<Vec<_>>().into()),
        ("outputPath", shown(&filter.output)),
    ]
}

fn conditional(conditional: &Conditional) -> Members {
    let (operator, value) = match &conditional.test {
        Test::Compare(operator, value) => (operator.as_str(), Some(value)),
        Test::Exists => ("exists", None),
        Test::Empty => ("empty", None),
    };
    let mut condition = vec![
        ("path", shown(&conditional.path)),
        ("operator", operator.into()),
    ];
    condition.extend(value.map(|value| ("value", Operand::to_json(value))));
    let mut members = vec![
        ("condition", Json::object(condition)),
        ("ifTrue", texts(&conditional.if_true)),
    ];
    if !conditional.if_false.is_empty() {
        members.push(("ifFalse", texts(&conditional.if_false)));
    }
    members
}

// === TransformData ===

fn transform(transform: &Transform) -> (&'static str, Members) {
    match transform {
        Transform::Map(projection, slice) => ("map", sliced(projected(projection), *slice)),
        Transform::Select(projection, slice) => ("select", sliced(projected(projection), *slice)),
        Transform::Sort(keys, slice) => {
            let keys = keys.iter().map(sort_key).collect::<Vec<_>>();
            ("sort", sliced(vec![("by", keys.into())], *slice))
        }
        Transform::Group(field) => ("group", vec![("field", shown(field))]),
        Transform::Aggregate(data) => ("aggregate", aggregate(data)),
    }
}

fn sliced(mut members: Members, slice: Slice) -> Members {
    if slice.offset > 0 {
        members.push(("offset", slice.offset.into()));
    }
    members.extend(slice.limit.map(|limit| ("limit", limit.into())));
    members
}

fn sort_key(key: &SortKey) -> Json {
    Json::object([
        ("field", shown(&key.field)),
        ("order", key.order.as_str().into()),
    ])
}

fn projected(projection: &Projection) -> Members {
    let (fields, merge) = match projection {
        Projection::Field(field, function) => return with_function(shown(field), *function),
        Projection::Template(template) => return vec![("template", shown(template))],
        Projection::Fields(fields, merge) => (
            Json::from(fields.iter().map(shown).collect::<Vec<_>>()),
            merge,
        ),
        Projection::Computed(members, merge) => {
            let members = members
                .iter()
                .map(|(name, value)| (name.clone(), expression(value)));
            (Json::object(members), merge)
        }
    };
    let mut members = vec![("fields", fields)];
    if *merge == Merge::Keep {
        members.push(("merge", true.into()));
    }
    members
}

fn with_function(field: Json, function: Option<Function>) -> Members {
    let mut members = vec![("field", field)];
    members.extend(function.map(|function| ("function", function.as_str().into())));
    members
}

fn expression(expression: &Expression) -> Json {
    match expression {
        Expression::Field(field, None) => shown(field),
        Expression::Field(field, function) => Json::object(with_function(shown(field), *function)),
        Expression::Value(value) => Json::object([("value", value.clone())]),
        Expression::Reference(path) => reference_json(path),
        Expression::Template(template) => Json::object([("template", shown(template))]),
    }
}

fn aggregate(data: &Aggregate) -> Members {
    let mut members: Members = data
        .group_by
        .iter()
        .map(|field| ("groupBy", shown(field)))
        .collect();
    match &data.figures {
        Figures::One(one) => members.extend(figure(one)),
        Figures::Named(named) => {
            let named = named.iter().map(|(name, one)| {
                let mut members = figure(one);
                if *name != one.default_name(one.function.as_str()) {
                    members.push(("as", name.clone().into()));
                }
                Json::object(members)
            });
            members.push(("aggregations", named.collect::<Vec<_>>().into()));
        }
    }
    members
}

fn figure(figure: &Figure) -> Members {
    let mut members = vec![("operation", figure.function.as_str().into())];
    members.extend(figure.field.as_ref().map(|field| ("field", shown(field))));
    members
}
