//! The transforms map and select. Source: docs/protocols/a2e-workflows.md §4.2.

use a2abus_models::a2e_workflow::transform::{Expression, Function, Merge, Projection, Slice};
use a2abus_models::a2e_workflow::{FieldTemplate, RelativePath};
use a2abus_models::{Array, Json, Object};
use a2abus_plugin::Text;
use indexmap::IndexMap;

use super::function;
use super::scope::{Scope, slice};
use super::text::fill;
use crate::failure::Failure;
use crate::meter::Meter;
use crate::model::field;

/// A prepared projection, applied to many elements.
enum PreparedProjection<'a> {
    One(Source<'a>),
    Object(Vec<Member<'a>>, Merge),
}

struct Member<'a> {
    name: Text,
    source: Source<'a>,
    missing: Missing,
}

/// Where a value comes from.
enum Source<'a> {
    Field(&'a RelativePath, Option<Function>),
    Value(Json),
    Template(&'a FieldTemplate),
}

/// The value for a missing field.
#[derive(Clone, Copy)]
enum Missing {
    Null,
    Nothing,
}

/// A value for every element.
pub(super) fn map(
    projection: &Projection,
    part: Slice,
    input: &Array,
    scope: &Scope<'_>,
) -> Result<Json, Failure> {
    let maker = PreparedProjection::new(projection, scope)?;
    // Each element gives one value, so the slice may be taken first.
    let input = slice(input, part);
    let mut made = Vec::new();
    for item in input {
        scope.meter.step()?;
        made.push(maker.make(item, scope.meter)?);
    }
    Ok(made.into())
}

/// The value of an object; a slice of it if it is an array.
pub(super) fn select(
    projection: &Projection,
    part: Slice,
    object: &Json,
    scope: &Scope<'_>,
) -> Result<Json, Failure> {
    let selected = PreparedProjection::new(projection, scope)?.make(object, scope.meter)?;
    Ok(match &selected {
        Json::Array(array) if part != Slice::default() => slice(array, part).to_vec().into(),
        _ => selected,
    })
}

// === impl PreparedProjection ===

impl<'a> PreparedProjection<'a> {
    fn new(projection: &'a Projection, scope: &Scope<'_>) -> Result<Self, Failure> {
        Ok(match projection {
            Projection::Field(field, function) => Self::One(Source::Field(field, *function)),
            Projection::Template(template) => Self::One(Source::Template(template)),
            Projection::Fields(fields, merge) => {
                // By name, so that a repeated field is one member.
                let fields: IndexMap<_, _> = fields.iter().map(|f| (f.text(), f)).collect();
                let members = fields.into_iter().map(|(name, field)| Member {
                    name: name.clone(),
                    source: Source::Field(field, None),
                    missing: Missing::Nothing,
                });
                Self::Object(members.collect(), *merge)
            }
            Projection::Computed(members, merge) => {
                let members = members.iter().map(|(name, expression)| {
                    Ok(Member {
                        name: name.clone(),
                        source: Source::new(expression, scope)?,
                        missing: Missing::Null,
                    })
                });
                Self::Object(members.collect::<Result<_, _>>()?, *merge)
            }
        })
    }

    /// The value of an element, counted.
    fn make(&self, item: &Json, meter: &Meter<'_>) -> Result<Json, Failure> {
        match self {
            Self::One(source) => match source.take(item, meter)? {
                Some(value) => Ok(value),
                None => meter.keep(Json::Null),
            },
            Self::Object(members, merge) => {
                let mut object = match (merge, item) {
                    (Merge::Keep, Json::Object(own)) => {
                        meter.weigh(item.weight())?;
                        own.clone()
                    }
                    _ => {
                        meter.weigh(Json::WEIGHT)?;
                        Object::default()
                    }
                };
                for member in members {
                    member.put(item, &mut object, meter)?;
                }
                Ok(object.into())
            }
        }
    }
}

// === impl Member ===

impl Member<'_> {
    /// Puts the member of an element into an object.
    fn put(&self, item: &Json, object: &mut Object, meter: &Meter<'_>) -> Result<(), Failure> {
        let value = match (self.source.take(item, meter)?, self.missing) {
            (Some(value), _) => value,
            (None, Missing::Null) => meter.keep(Json::Null)?,
            (None, Missing::Nothing) => return Ok(()),
        };
        meter.weigh(Object::MEMBER_WEIGHT + self.name.len())?;
        if let Some(old) = object.get(&self.name) {
            meter.release(Object::member_weight(&self.name, old));
        }
        object.insert(self.name.clone(), value);
        Ok(())
    }
}

// === impl Source ===

impl<'a> Source<'a> {
    fn new(expression: &'a Expression, scope: &Scope<'_>) -> Result<Self, Failure> {
        Ok(match expression {
            Expression::Field(field, function) => Self::Field(field, *function),
            Expression::Value(json) => Self::Value(json.by_value()),
            Expression::Reference(path) => Self::Value(scope.model.read(path)?),
            Expression::Template(template) => Self::Template(template),
        })
    }

    /// The value for an item, counted; `None` when it is missing.
    fn take(&self, item: &Json, meter: &Meter<'_>) -> Result<Option<Json>, Failure> {
        meter.step()?;
        match self {
            Self::Field(path, None) => field(item, path)
                .map(|value| meter.keep(value.into_owned()))
                .transpose(),
            Self::Field(path, Some(function)) => field(item, path)
                .map(|value| function::apply(*function, &value, meter))
                .transpose(),
            Self::Value(value) => meter.keep(value.clone()).map(Some),
            Self::Template(template) => {
                meter.weigh(Json::WEIGHT)?;
                fill(template, item, meter).map(|text| Some(text.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::failure::FailureCode;
    use crate::operation::testing::{
        check, check_fails, check_weight, operation, parse, run, run_within,
    };
    use a2abus_models::Json;

    fn config(transform: &str, input: &str, config: &str) -> String {
        format!(
            r#"{{"inputPath":"/workflow/{input}","transform":"{transform}","config":{config},"outputPath":"/workflow/o"}}"#
        )
    }

    fn check_all(model: &str, cases: &[(&str, &str, &str, &str)]) {
        for (transform, input, with, expected) in cases {
            let config = config(transform, input, with);
            check("TransformData", model, &[(&config, expected)]);
        }
    }

    const PEOPLE: &str = r#"{"people":[
        {"name":"Ana","mail":"a@x","tags":["p","q"],"addr":{"city":"Rom"}},
        {"name":"Bö","age":null,"addr":{"city":"Ulm"}},
        7],"rate":1.5,"one":{"name":"Zoë","list":[1,2,3],"length":5}}"#;

    #[test]
    fn map_returns_one_value_per_element() {
        check_all(
            PEOPLE,
            &[
                (
                    "map",
                    "people",
                    r#"{"field":"name"}"#,
                    r#"["Ana","Bö",null]"#,
                ),
                (
                    "map",
                    "people",
                    r#"{"field":"name","function":"length"}"#,
                    "[3,2,null]",
                ),
                (
                    "map",
                    "people",
                    r#"{"field":"tags.length"}"#,
                    "[2,null,null]",
                ),
                (
                    "map",
                    "people",
                    r#"{"fields":["name","addr.city","name"]}"#,
                    r#"[{"name":"Ana","addr.city":"Rom"},{"name":"Bö","addr.city":"Ulm"},{}]"#,
                ),
                (
                    "map",
                    "people",
                    r#"{"fields":{"n":"name","k":{"value":{"x":[1]}},"r":{"path":"/workflow/rate"},"u":{"field":"name","function":"upper"},"t":{"template":"{name}!"}}}"#,
                    r#"[{"n":"Ana","k":{"x":[1]},"r":1.5,"u":"ANA","t":"Ana!"},
                        {"n":"Bö","k":{"x":[1]},"r":1.5,"u":"BÖ","t":"Bö!"},
                        {"n":null,"k":{"x":[1]},"r":1.5,"u":null,"t":"!"}]"#,
                ),
                (
                    "map",
                    "people",
                    r#"{"fields":{"name":{"field":"name","function":"upper"},"x":{"value":0}},"merge":true,"offset":1}"#,
                    r#"[{"name":"BÖ","age":null,"addr":{"city":"Ulm"},"x":0},{"name":null,"x":0}]"#,
                ),
                (
                    "map",
                    "people",
                    r#"{"fields":["addr.city"],"merge":true,"limit":1}"#,
                    r#"[{"name":"Ana","mail":"a@x","tags":["p","q"],"addr":{"city":"Rom"},"addr.city":"Rom"}]"#,
                ),
                ("map", "people", r#"{"field":"."  ,"limit":0}"#, "[]"),
                (
                    "map",
                    "people",
                    r#"{"field":".","offset":4000000000}"#,
                    "[]",
                ),
                (
                    "map",
                    "people",
                    r#"{"field":".","offset":2,"limit":9}"#,
                    "[7]",
                ),
            ],
        );
    }

    #[test]
    fn a_template_writes_strings_as_they_are_and_other_values_as_json() {
        check_all(
            r#"{"rows":[{"s":"a\"b","n":1.0,"b":false,"z":null,"l":[1,"x"],"o":{"k":null},"big":12345678901234567890}]}"#,
            &[(
                "map",
                "rows",
                r#"{"template":"{{{s}}} {n} {b} <{z}{missing}> {l} {o} {big} {s.length}"}"#,
                r#"["{a\"b} 1.0 false <> [1,\"x\"] {\"k\":null} 12345678901234567890 3"]"#,
            )],
        );
    }

    #[test]
    fn select_takes_an_object_or_every_element_of_an_array() {
        check_all(
            PEOPLE,
            &[
                ("select", "one", r#"{"field":"name"}"#, "\"Zoë\""),
                ("select", "one", r#"{"field":"nothing"}"#, "null"),
                ("select", "one", r#"{"field":"length"}"#, "5"),
                (
                    "select",
                    "one",
                    r#"{"field":"list","offset":1,"limit":1}"#,
                    "[2]",
                ),
                (
                    "select",
                    "one",
                    r#"{"fields":["name","nothing","list[0]"],"limit":0}"#,
                    r#"{"name":"Zoë","list[0]":1}"#,
                ),
                (
                    "select",
                    "one",
                    r#"{"fields":{"a":"nothing","b":{"field":"name"}}}"#,
                    r#"{"a":null,"b":"Zoë"}"#,
                ),
                (
                    "select",
                    "people",
                    r#"{"field":"addr"}"#,
                    r#"[{"city":"Rom"},{"city":"Ulm"},null]"#,
                ),
                (
                    "select",
                    "people",
                    r#"{"fields":["age"],"offset":1}"#,
                    r#"[{"age":null},{}]"#,
                ),
            ],
        );
        check_fails(
            "TransformData",
            PEOPLE,
            &[
                (
                    &config("select", "rate", r#"{"field":"a"}"#),
                    FailureCode::TypeMismatch,
                ),
                (
                    &config("map", "one", r#"{"field":"a"}"#),
                    FailureCode::TypeMismatch,
                ),
                (
                    &config("map", "none", r#"{"field":"a"}"#),
                    FailureCode::PathNotFound,
                ),
                (
                    &config(
                        "map",
                        "people",
                        r#"{"fields":{"a":{"path":"/workflow/none"}}}"#,
                    ),
                    FailureCode::PathNotFound,
                ),
            ],
        );
    }

    #[test]
    fn the_size_of_results_is_counted_exactly() {
        let model = r#"{"rows":[{"a":"x","b":[1]},{"a":"é","b":{"c":"d"}}]}"#;
        for with in [
            r#"{"field":"b"}"#,
            r#"{"fields":["a","b","a"]}"#,
            r#"{"fields":{"a":{"template":"<{a}>"},"n":{"field":"a","function":"string"}},"merge":true}"#,
            r#"{"template":"{a}{b}{b}"}"#,
        ] {
            check_weight("TransformData", &config("map", "rows", with), model);
        }
    }

    #[test]
    fn filling_many_large_templates_stops_at_the_limit() {
        let large = "x".repeat(1 << 20);
        let rows = vec![Json::object([("a", Json::from(large))]); 10_000];
        let model = Json::object([("rows", Json::from(rows))]);
        for with in [
            r#"{"template":"{a}"}"#,
            r#"{"fields":{"t":{"template":"{a}"},"n":{"field":"a","function":"upper"}}}"#,
            r#"{"field":"a","function":"upper"}"#,
        ] {
            let made = run(
                &operation("TransformData", &config("map", "rows", with)),
                &model,
            );
            assert_eq!(
                made.map_err(|e| e.code),
                Err(FailureCode::LimitExceeded),
                "{with}"
            );
        }
    }

    #[test]
    fn map_stops_at_the_deadline() {
        let model = parse(&format!(r#"{{"rows":[{}1]}}"#, "1,".repeat(5_000)));
        for (transform, with) in [
            ("map", r#"{"field":"."}"#),
            ("sort", "{}"),
            ("group", r#"{"field":"."}"#),
            ("aggregate", r#"{"operation":"count"}"#),
        ] {
            let operation = operation("TransformData", &config(transform, "rows", with));
            let run = |elapsed| {
                run_within(&operation, &model, 32 << 20, Duration::from_millis(elapsed))
                    .map(|_| ())
                    .map_err(|e| e.code)
            };
            assert_eq!(run(999), Ok(()), "{transform}");
            assert_eq!(run(1000), Err(FailureCode::ExecutionTimeout), "{transform}");
        }
    }
}
