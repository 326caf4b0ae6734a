//! Parses the configuration of TransformData into its typed form.

use std::collections::HashSet;

use crate::a2e_workflow::facts::{Kind, Requirement};
use crate::a2e_workflow::fields::{
    Fields, Scope, field, flag, integer, list, members, parse_name, parse_name_with_aliases, path,
    text,
};
use crate::a2e_workflow::issue::{Code, quote_name};
use crate::a2e_workflow::path::RelativePath;
use crate::a2e_workflow::template::FieldTemplate;
use crate::a2e_workflow::transform::{
    Aggregate, AggregateFunction, Aggregation, Aggregations, Expression, Function, Merge,
    Projection, Slice, SortKey, SortOrder, Transform, TransformData, TransformName,
};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

const ALIASES: [(&str, TransformName); 2] = [
    ("groupBy", TransformName::Group),
    ("reduce", TransformName::Aggregate),
];

pub(super) fn read(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<TransformData> {
    let name = fields.required(scope, "transform", |scope, at, json| {
        parse_name_with_aliases(scope, at, json, &ALIASES)
    });
    let none = Object::new();
    let config = fields.optional(scope, "config", |scope, at, json| {
        json.as_object().or_else(|| scope.invalid(at, "an object"))
    });
    let config = config.map(|config| Fields::of(config.unwrap_or(&none), "config"));
    let (need, kind) = name.map_or((Requirement::Any, Kind::Unknown), |name| {
        kinds(name, config.as_ref().map_or(&none, Fields::object))
    });
    let input = fields.input(scope, need);
    let transform = name
        .zip(config)
        .and_then(|(name, config)| transform(scope, name, &config));
    let output = fields.writes(scope, kind);
    Some(TransformData {
        input: input?,
        transform: transform?,
        output: output?,
    })
}

/// The input that a transform requires, and the type of its result.
fn kinds(name: TransformName, config: &Object) -> (Requirement, Kind) {
    match name {
        TransformName::Map | TransformName::Sort => (Requirement::Array, Kind::Array),
        TransformName::Group => (Requirement::Array, Kind::Object),
        TransformName::Aggregate if config.contains("groupBy") => (Requirement::Array, Kind::Array),
        TransformName::Aggregate if config.contains("aggregations") => {
            (Requirement::Array, Kind::Object)
        }
        TransformName::Aggregate => (Requirement::Array, Kind::Scalar),
        TransformName::Select => (Requirement::ArrayOrObject, Kind::Unknown),
    }
}

fn transform(scope: &mut Scope<'_>, name: TransformName, config: &Fields<'_>) -> Option<Transform> {
    match name {
        TransformName::Map => map(scope, config),
        TransformName::Sort => sort(scope, config),
        TransformName::Group => {
            scope.check_members(config.object(), "config", &["field"]);
            config.required(scope, "field", field).map(Transform::Group)
        }
        TransformName::Aggregate => aggregate(scope, config).map(Transform::Aggregate),
        TransformName::Select => select(scope, config),
    }
}

fn slice(scope: &mut Scope<'_>, config: &Fields<'_>) -> Option<Slice> {
    let count = |scope: &mut Scope<'_>, at: &str, json: &Json| {
        integer(scope, at, json, 0..=u64::from(u32::MAX))
    };
    let offset = config.optional(scope, "offset", count);
    let limit = config.optional(scope, "limit", count);
    Some(Slice {
        offset: offset?.unwrap_or(0),
        limit: limit?,
    })
}

// === map and select ===

fn map(scope: &mut Scope<'_>, config: &Fields<'_>) -> Option<Transform> {
    let slice = slice(scope, config);
    let choice = config.one_of(scope, &["field", "fields", "template"])?;
    let known: &[&str] = match choice {
        "field" => &["field", "function", "limit", "offset"],
        "fields" => &["fields", "merge", "limit", "offset"],
        _ => &["template", "limit", "offset"],
    };
    scope.check_members(config.object(), "config", known);
    let projection = match choice {
        "field" => {
            let field = config.required(scope, "field", field);
            let function = config.optional(scope, "function", parse_name::<Function>);
            Projection::Field(field?, function?)
        }
        "fields" => {
            let merge = match config.optional(scope, "merge", flag) {
                Some(Some(true)) => Merge::Keep,
                _ => Merge::Drop,
            };
            config.required(scope, "fields", |scope, at, json| {
                projected(scope, at, json, merge)
            })?
        }
        _ => Projection::Template(config.required(scope, "template", field_template)?),
    };
    Some(Transform::Map(projection, slice?))
}

fn select(scope: &mut Scope<'_>, config: &Fields<'_>) -> Option<Transform> {
    scope.check_members(
        config.object(),
        "config",
        &["field", "fields", "limit", "offset"],
    );
    let slice = slice(scope, config);
    let projection = match config.one_of(scope, &["field", "fields"])? {
        "field" => Projection::Field(config.required(scope, "field", field)?, None),
        _ => config.required(scope, "fields", |scope, at, json| {
            projected(scope, at, json, Merge::Drop)
        })?,
    };
    Some(Transform::Select(projection, slice?))
}

/// A list of fields, or an object of computed members.
fn projected(scope: &mut Scope<'_>, at: &str, json: &Json, merge: Merge) -> Option<Projection> {
    match json {
        Json::Array(_) => {
            let fields = list(scope, at, json, field)?;
            Some(Projection::Fields(fields, merge))
        }
        Json::Object(object) => {
            let members = members(scope, at, object, expression)?;
            Some(Projection::Computed(members, merge))
        }
        _ => scope.invalid(at, "an array or an object"),
    }
}

fn expression(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<Expression> {
    if json.as_text().is_some() {
        return field(scope, at, json).map(|field| Expression::Field(field, None));
    }
    let Some(object) = json.as_object() else {
        return scope.invalid(at, "a field or an object");
    };
    let fields = Fields::of(object, at);
    let choice = fields.one_of(scope, &["field", "value", "path", "template"])?;
    let known = [choice, "function"];
    let known = if choice == "field" {
        &known
    } else {
        known.get(..1).unwrap_or_default()
    };
    scope.check_members(object, at, known);
    match choice {
        "field" => {
            let field = fields.required(scope, "field", field);
            let function = fields.optional(scope, "function", parse_name::<Function>);
            Some(Expression::Field(field?, function?))
        }
        "value" => object.get("value").cloned().map(Expression::Value),
        "path" => {
            let path = fields.required(scope, "path", path)?;
            scope.reads(&path, Requirement::Any);
            Some(Expression::Reference(path))
        }
        _ => fields
            .required(scope, "template", field_template)
            .map(Expression::Template),
    }
}

fn field_template(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<FieldTemplate> {
    let text = text(scope, at, json)?;
    scope.path_or_issue(at, FieldTemplate::parse(text))
}

// === sort ===

fn sort(scope: &mut Scope<'_>, config: &Fields<'_>) -> Option<Transform> {
    let slice = slice(scope, config);
    let keys = if config.object().contains("by") {
        const OF_ONE_KEY: [&str; 2] = ["field", "order"];
        for name in OF_ONE_KEY {
            if config.object().contains(name) {
                let message =
                    format!("config: {name} is ignored because `by` is given: put it into `by`");
                scope.issue(Code::UnknownField, message);
            }
        }
        let known = ["by", "limit", "offset", "field", "order"];
        scope.check_members(config.object(), "config", &known);
        config.required(scope, "by", |scope, at, json| {
            let keys = list(scope, at, json, |scope, at, json| {
                let key = Fields::open(scope, json, at, &["field", "order"])?;
                sort_key(scope, &key)
            })?;
            if keys.is_empty() {
                return scope.invalid(at, "at least one key");
            }
            Some(keys)
        })
    } else {
        scope.check_members(
            config.object(),
            "config",
            &["field", "order", "limit", "offset"],
        );
        sort_key(scope, config).map(|key| vec![key])
    };
    Some(Transform::Sort(keys?, slice?))
}

fn sort_key(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<SortKey> {
    let field = fields.optional(scope, "field", field);
    let order = fields.optional(scope, "order", parse_name::<SortOrder>);
    Some(SortKey {
        field: field?.unwrap_or_else(RelativePath::item),
        order: order?.unwrap_or(SortOrder::Ascending),
    })
}

// === aggregate ===

fn aggregate(scope: &mut Scope<'_>, config: &Fields<'_>) -> Option<Aggregate> {
    let group_by = config.optional(scope, "groupBy", field);
    let aggregations = match config.one_of(scope, &["operation", "aggregations"])? {
        "operation" => {
            scope.check_members(
                config.object(),
                "config",
                &["operation", "field", "groupBy"],
            );
            let written = config.object().get("operation").and_then(Json::as_str);
            aggregation(scope, config).map(|aggregation| {
                let Some(Some(by)) = &group_by else {
                    return Aggregations::One(aggregation);
                };
                // An aggregate of a group is a member, with the name as written.
                let name = aggregation.default_name(written.unwrap_or_default());
                let named = vec![(name, aggregation)];
                note_replaced(scope, Some(by), &named);
                Aggregations::Named(named)
            })
        }
        _ => {
            scope.check_members(config.object(), "config", &["aggregations", "groupBy"]);
            let named = config.required(scope, "aggregations", |scope, at, json| {
                list(scope, at, json, named_aggregation)
            });
            if let (Some(named), Some(group_by)) = (&named, &group_by) {
                note_replaced(scope, group_by.as_ref(), named);
            }
            named.map(Aggregations::Named)
        }
    };
    Some(Aggregate {
        group_by: group_by?,
        aggregations: aggregations?,
    })
}

/// Warns about results with the name of an earlier one, or of the group: only the last one is kept.
fn note_replaced(
    scope: &mut Scope<'_>,
    group_by: Option<&RelativePath>,
    named: &[(Text, Aggregation)],
) {
    let mut names: HashSet<&str> = group_by.map(|by| by.text().as_str()).into_iter().collect();
    for (name, _) in named {
        if !names.insert(name.as_str()) {
            let name = quote_name(name);
            let message = format!(
                "config: the aggregation {name} replaces an earlier value of the same name: give it another name with `as`, in `aggregations`"
            );
            scope.issue(Code::OperationReplaced, message);
        }
    }
}

fn named_aggregation(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<(Text, Aggregation)> {
    let fields = Fields::open(scope, json, at, &["operation", "field", "as"])?;
    let aggregation = aggregation(scope, &fields);
    let name = fields.optional(scope, "as", text);
    let written = fields.object().get("operation").and_then(Json::as_str);
    let (name, aggregation) = (name?, aggregation?);
    let name = name
        .cloned()
        .unwrap_or_else(|| aggregation.default_name(written.unwrap_or_default()));
    Some((name, aggregation))
}

fn aggregation(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<Aggregation> {
    let function = fields.required(scope, "operation", |scope, at, json| {
        match json.as_str().and_then(aggregate_function) {
            Some(function) => Some(function),
            None => parse_name(scope, at, json),
        }
    });
    let counts = function == Some(AggregateFunction::Count);
    let field = if counts || fields.object().contains("field") {
        fields.optional(scope, "field", field)
    } else {
        fields.required(scope, "field", field).map(Some)
    };
    Some(Aggregation {
        function: function?,
        field: field?,
    })
}

/// Accepts `average` as an alias of `avg`.
fn aggregate_function(name: &str) -> Option<AggregateFunction> {
    if name == "average" {
        return Some(AggregateFunction::Average);
    }
    AggregateFunction::from_name(name)
}
