//! From the configuration of TransformData to its typed form.

use crate::a2e_workflow::facts::{Kind, Need};
use crate::a2e_workflow::fields::{
    Fields, Scope, field, flag, integer, list, members, parse_word, parse_word_with_aliases, path,
    text,
};
use crate::a2e_workflow::path::RelativePath;
use crate::a2e_workflow::template::FieldTemplate;
use crate::a2e_workflow::transform::{
    Aggregate, AggregateFunction, Expression, Figure, Figures, Function, Merge, Projection, Slice,
    SortKey, SortOrder, Transform, TransformData, TransformName,
};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

const ALIASES: [(&str, TransformName); 2] = [
    ("groupBy", TransformName::Group),
    ("reduce", TransformName::Aggregate),
];

pub(super) fn read(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<TransformData> {
    let name = fields.need(scope, "transform", |scope, at, json| {
        parse_word_with_aliases(scope, at, json, &ALIASES)
    });
    let none = Object::new();
    let config = fields.may(scope, "config", |scope, at, json| {
        json.as_object().or_else(|| scope.invalid(at, "an object"))
    });
    let config = config.map(|config| Fields::of(config.unwrap_or(&none), "config"));
    let (need, kind) = name.map_or((Need::Any, Kind::Unknown), |name| {
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

/// The required input and the result of a transform.
fn kinds(name: TransformName, config: &Object) -> (Need, Kind) {
    match name {
        TransformName::Map | TransformName::Sort => (Need::Array, Kind::Array),
        TransformName::Group => (Need::Array, Kind::Object),
        TransformName::Aggregate if config.contains("groupBy") => (Need::Array, Kind::Array),
        TransformName::Aggregate if config.contains("aggregations") => (Need::Array, Kind::Object),
        TransformName::Aggregate => (Need::Array, Kind::Scalar),
        TransformName::Select => (Need::ArrayOrObject, Kind::Unknown),
    }
}

fn transform(scope: &mut Scope<'_>, name: TransformName, config: &Fields<'_>) -> Option<Transform> {
    match name {
        TransformName::Map => map(scope, config),
        TransformName::Sort => sort(scope, config),
        TransformName::Group => {
            scope.check_members(config.object(), "config", &["field"]);
            config.need(scope, "field", field).map(Transform::Group)
        }
        TransformName::Aggregate => aggregate(scope, config).map(Transform::Aggregate),
        TransformName::Select => select(scope, config),
    }
}

fn slice(scope: &mut Scope<'_>, config: &Fields<'_>) -> Option<Slice> {
    let count = |scope: &mut Scope<'_>, at: &str, json: &Json| {
        integer(scope, at, json, 0..=u64::from(u32::MAX))
    };
    let offset = config.may(scope, "offset", count);
    let limit = config.may(scope, "limit", count);
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
            let field = config.need(scope, "field", field);
            let function = config.may(scope, "function", parse_word::<Function>);
            Projection::Field(field?, function?)
        }
        "fields" => {
            let merge = match config.may(scope, "merge", flag) {
                Some(Some(true)) => Merge::Keep,
                _ => Merge::Drop,
            };
            config.need(scope, "fields", |scope, at, json| {
                projected(scope, at, json, merge)
            })?
        }
        _ => Projection::Template(config.need(scope, "template", field_template)?),
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
        "field" => Projection::Field(config.need(scope, "field", field)?, None),
        _ => config.need(scope, "fields", |scope, at, json| {
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
            let field = fields.need(scope, "field", field);
            let function = fields.may(scope, "function", parse_word::<Function>);
            Some(Expression::Field(field?, function?))
        }
        "value" => object.get("value").cloned().map(Expression::Value),
        "path" => {
            let path = fields.need(scope, "path", path)?;
            scope.reads(&path, Need::Any);
            Some(Expression::Reference(path))
        }
        _ => fields
            .need(scope, "template", field_template)
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
        scope.check_members(config.object(), "config", &["by", "limit", "offset"]);
        config.need(scope, "by", |scope, at, json| {
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
    let field = fields.may(scope, "field", field);
    let order = fields.may(scope, "order", parse_word::<SortOrder>);
    Some(SortKey {
        field: field?.unwrap_or_else(RelativePath::item),
        order: order?.unwrap_or(SortOrder::Ascending),
    })
}

// === aggregate ===

fn aggregate(scope: &mut Scope<'_>, config: &Fields<'_>) -> Option<Aggregate> {
    let group_by = config.may(scope, "groupBy", field);
    let figures = match config.one_of(scope, &["operation", "aggregations"])? {
        "operation" => {
            scope.check_members(
                config.object(),
                "config",
                &["operation", "field", "groupBy"],
            );
            let written = config.object().get("operation").and_then(Json::as_str);
            let is_grouped = matches!(group_by, Some(Some(_)));
            figure(scope, config).map(|figure| {
                if !is_grouped {
                    return Figures::One(figure);
                }
                // An aggregate of a group is a member, named by the word as written.
                let name = figure.default_name(written.unwrap_or_default());
                Figures::Named(vec![(name, figure)])
            })
        }
        _ => {
            scope.check_members(config.object(), "config", &["aggregations", "groupBy"]);
            config
                .need(scope, "aggregations", |scope, at, json| {
                    list(scope, at, json, named_figure)
                })
                .map(Figures::Named)
        }
    };
    Some(Aggregate {
        group_by: group_by?,
        figures: figures?,
    })
}

fn named_figure(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<(Text, Figure)> {
    let fields = Fields::open(scope, json, at, &["operation", "field", "as"])?;
    let figure = figure(scope, &fields);
    let name = fields.may(scope, "as", text);
    let written = fields.object().get("operation").and_then(Json::as_str);
    let (name, figure) = (name?, figure?);
    let name = name
        .cloned()
        .unwrap_or_else(|| figure.default_name(written.unwrap_or_default()));
    Some((name, figure))
}

fn figure(scope: &mut Scope<'_>, fields: &Fields<'_>) -> Option<Figure> {
    let function = fields.need(scope, "operation", |scope, at, json| {
        match json.as_str().and_then(aggregate_function) {
            Some(function) => Some(function),
            None => parse_word(scope, at, json),
        }
    });
    let counts = function == Some(AggregateFunction::Count);
    let field = if counts || fields.object().contains("field") {
        fields.may(scope, "field", field)
    } else {
        fields.need(scope, "field", field).map(Some)
    };
    Some(Figure {
        function: function?,
        field: field?,
    })
}

/// `average` is as good as `avg`.
fn aggregate_function(word: &str) -> Option<AggregateFunction> {
    if word == "average" {
        return Some(AggregateFunction::Average);
    }
    AggregateFunction::from_word(word)
}
