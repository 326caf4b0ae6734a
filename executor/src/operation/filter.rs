//! FilterData and the condition of Conditional. Source: docs/protocols/a2e-workflows.md §4.

use std::borrow::Cow;

use a2abus_models::Json;
use a2abus_models::a2e_workflow::operation::{Conditional, FilterCondition, FilterData, Test};

use super::compare::{Comparison, Lists};
use super::scope::Scope;
use crate::failure::Failure;
use crate::meter::Meter;
use crate::model::field;

/// Runs a FilterData and gives its value.
pub(crate) fn filter(operation: &FilterData, scope: &Scope<'_>) -> Result<Json, Failure> {
    let input = scope.array(&operation.input)?;
    let mut lists = Lists::default();
    let comparisons: Vec<_> = operation
        .conditions
        .iter()
        .map(|condition| {
            Comparison::for_many(condition.operator, &condition.value, &mut lists, scope)
        })
        .collect::<Result<_, _>>()?;
    let mut matching = Vec::new();
    for item in &input {
        scope.meter.step()?;
        if fulfils(item, &operation.conditions, &comparisons, scope.meter)? {
            matching.push(scope.meter.keep(item.clone())?);
        }
    }
    Ok(matching.into())
}

fn fulfils(
    item: &Json,
    conditions: &[FilterCondition],
    comparisons: &[Comparison],
    meter: &Meter<'_>,
) -> Result<bool, Failure> {
    for (condition, comparison) in conditions.iter().zip(comparisons) {
        let value = field(item, &condition.field).unwrap_or(Cow::Borrowed(&Json::Null));
        if !comparison.holds(&value, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the condition of a Conditional holds.
pub(crate) fn holds(operation: &Conditional, scope: &Scope<'_>) -> Result<bool, Failure> {
    let value = scope.model.get(&operation.path).unwrap_or_default();
    match &operation.test {
        Test::Compare(operator, operand) => {
            Comparison::once(*operator, operand, scope)?.holds(&value, scope.meter)
        }
        Test::Exists => Ok(!value.is_null()),
        Test::Empty => Ok(match &value {
            Json::Null => true,
            Json::Bool(_) | Json::Number(_) => false,
            Json::String(text) => text.is_empty(),
            Json::Array(array) => array.is_empty(),
            Json::Object(object) => object.is_empty(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use crate::failure::FailureCode;
    use crate::operation::testing::{check, check_fails, check_weight, operation, parse, run};
    use a2abus_models::Json;

    /// The elements of `values`, each as `{"v": …}`, that match this condition.
    fn matching(values: &str, operator: &str, value: &str) -> Vec<String> {
        let values = parse(values);
        let rows = values.as_array().unwrap().iter();
        let rows: Vec<_> = rows.map(|v| Json::object([("v", v.clone())])).collect();
        let model = Json::object([("rows", Json::from(rows))]);
        let config = format!(
            r#"{{"inputPath":"/workflow/rows","conditions":[{{"field":"v","operator":"{operator}","value":{value}}}],"outputPath":"/workflow/o"}}"#
        );
        let made = run(&operation("FilterData", &config), &model).unwrap();
        let made = made.as_array().unwrap().clone();
        made.iter()
            .map(|row| row.get("v").unwrap().to_string())
            .collect()
    }

    #[test]
    fn operators_compare_as_specified() {
        let mixed = r#"[1,1.0,"1",true,null,[1],{"a":1},"abc","ABC",9007199254740993,-0.0]"#;
        for (operator, value, expected) in [
            ("==", "1", "1,1.0"),
            ("==", "true", "true"),
            ("==", "\"1\"", "\"1\""),
            ("==", "null", "null"),
            ("==", "[1.0]", "[1]"),
            ("==", r#"{"a":1.0}"#, r#"{"a":1}"#),
            ("==", "9007199254740992", ""),
            ("==", "9007199254740993.0", "9007199254740993"),
            ("==", "0", "-0.0"),
            (
                "!=",
                "1",
                r#""1",true,null,[1],{"a":1},"abc","ABC",9007199254740993,-0.0"#,
            ),
            (">", "9007199254740992", "9007199254740993"),
            (">=", "1", "1,1.0,9007199254740993"),
            ("<", "1", "-0.0"),
            ("<=", "1", "1,1.0,-0.0"),
            (">", "\"1\"", r#""abc","ABC""#),
            (">=", "\"abc\"", "\"abc\""),
            ("<", "\"abc\"", r#""1","ABC""#),
            (">", "null", ""),
            ("<=", "true", ""),
            (">=", "[1]", ""),
            ("in", r#"[1,"abc",null]"#, r#"1,1.0,null,"abc""#),
            ("in", r#"[[1.0],{"a":1}]"#, r#"[1],{"a":1}"#),
            ("in", "\"xabc1\"", r#""1","abc""#),
            ("in", "\"\"", ""),
            ("in", "1", ""),
            ("in", r#"{"abc":1}"#, ""),
            ("contains", "\"b\"", "\"abc\""),
            ("contains", "1.0", "[1]"),
            ("contains", "\"a\"", r#"{"a":1},"abc""#),
            ("contains", "\"\"", r#""1","abc","ABC""#),
            ("startsWith", "\"ab\"", "\"abc\""),
            ("startsWith", "1", ""),
            ("endsWith", "\"C\"", "\"ABC\""),
            ("endsWith", "\"\"", r#""1","abc","ABC""#),
        ] {
            assert_eq!(
                matching(mixed, operator, value).join(","),
                expected,
                "{operator} {value}"
            );
        }
    }

    #[test]
    fn strings_are_ordered_by_code_point() {
        // In UTF-16 the second would come first.
        let texts = r#"["\uffee","\ud83d\ude00","z","é"]"#;
        assert_eq!(matching(texts, ">", "\"\u{ffee}\""), ["\"😀\""]);
        assert_eq!(matching(texts, "<", "\"é\""), ["\"z\""]);
    }

    #[test]
    fn in_gives_the_same_result_for_long_and_short_lists() {
        let list = r#"[1,"x",null,true,[1,2],{"a":[1],"b":2},12345678901234567890,1e400,0.5,"é"]"#;
        let values = r#"[1.0,"x",null,false,[1.0,2.0],{"b":2.0,"a":[1]},12345678901234567890.0,12345678901234567891,10e399,5e-1,"e\u0301"]"#;
        let expected =
            r#"1.0 "x" null [1.0,2.0] {"b":2.0,"a":[1]} 12345678901234567890.0 10e399 0.5"#;
        assert_eq!(matching(values, "in", list).join(" "), expected);
    }

    #[test]
    fn conditions_are_anded_and_a_missing_field_reads_as_null() {
        check(
            "FilterData",
            r#"{"rows":[{"a":1,"b":2},{"a":1},{"b":2},7,"s",null,[{"a":1}],{"a.b":3,"a":{"b":4}}],
                "n":2,"list":[1,3]}"#,
            &[
                (
                    r#"{"inputPath":"/workflow/rows","conditions":[],"outputPath":"/workflow/o"}"#,
                    r#"[{"a":1,"b":2},{"a":1},{"b":2},7,"s",null,[{"a":1}],{"a.b":3,"a":{"b":4}}]"#,
                ),
                (
                    r#"{"inputPath":"/workflow/rows","conditions":[{"field":"a","operator":"==","value":1},{"field":"b","operator":"==","value":{"path":"/workflow/n"}}],"outputPath":"/workflow/o"}"#,
                    r#"[{"a":1,"b":2}]"#,
                ),
                (
                    r#"{"inputPath":"/workflow/rows","conditions":[{"field":"a","operator":"==","value":null}],"outputPath":"/workflow/o"}"#,
                    r#"[{"b":2},7,"s",null,[{"a":1}]]"#,
                ),
                (
                    r#"{"inputPath":"/workflow/rows","conditions":[{"field":"a","operator":"!=","value":"x"},{"field":"[0].a","operator":"==","value":1}],"outputPath":"/workflow/o"}"#,
                    r#"[[{"a":1}]]"#,
                ),
                (
                    r#"{"inputPath":"/workflow/rows","conditions":[{"field":"a.b","operator":"in","value":{"path":"/workflow/list"}}],"outputPath":"/workflow/o"}"#,
                    r#"[{"a.b":3,"a":{"b":4}}]"#,
                ),
                (
                    r#"{"inputPath":"/workflow/rows","conditions":[{"field":".","operator":"==","value":"s"}],"outputPath":"/workflow/o"}"#,
                    r#"["s"]"#,
                ),
                (
                    r#"{"inputPath":"/workflow/rows","conditions":[{"field":"a","operator":"==","value":"/workflow/n"}],"outputPath":"/workflow/o"}"#,
                    "[]",
                ),
            ],
        );
    }

    #[test]
    fn filter_fails_without_an_array_or_with_a_missing_reference() {
        let conditions = r#"[{"field":"a","operator":"==","value":{"path":"/workflow/x"}}]"#;
        let config = |input: &str, conditions: &str| {
            format!(
                r#"{{"inputPath":"{input}","conditions":{conditions},"outputPath":"/workflow/o"}}"#
            )
        };
        check_fails(
            "FilterData",
            r#"{"o":{},"n":null,"a":[]}"#,
            &[
                (&config("/workflow/o", "[]"), FailureCode::TypeMismatch),
                (&config("/workflow/n", "[]"), FailureCode::TypeMismatch),
                (&config("/workflow/m", "[]"), FailureCode::PathNotFound),
                (
                    &config("/workflow/a", conditions),
                    FailureCode::PathNotFound,
                ),
            ],
        );
        check_weight(
            "FilterData",
            &config("/workflow/a", "[]"),
            r#"{"a":["x",{"y":[1]}]}"#,
        );
    }

    #[test]
    fn a_conditional_supports_exists_and_empty() {
        let model =
            r#"{"n":null,"z":0,"f":false,"s":"","t":"x","a":[],"b":[0],"o":{},"p":{"q":1}}"#;
        let condition = |path: &str, test: &str| {
            format!(r#"{{"condition":{{"path":"/workflow/{path}",{test}}},"ifTrue":["x"]}}"#)
        };
        for (path, exists, empty) in [
            ("m", "false", "true"),
            ("n", "false", "true"),
            ("z", "true", "false"),
            ("f", "true", "false"),
            ("s", "true", "true"),
            ("t", "true", "false"),
            ("a", "true", "true"),
            ("b", "true", "false"),
            ("o", "true", "true"),
            ("p", "true", "false"),
            ("p.q.r", "false", "true"),
        ] {
            let exists_test = condition(path, r#""operator":"exists""#);
            let empty_test = condition(path, r#""operator":"empty""#);
            let alias = condition(path, r#""operator":"isEmpty""#);
            check(
                "Conditional",
                model,
                &[
                    (&exists_test, exists),
                    (&empty_test, empty),
                    (&alias, empty),
                ],
            );
        }
        check(
            "Conditional",
            model,
            &[
                (&condition("m", r#""operator":"==","value":null"#), "true"),
                (&condition("m", r#""operator":"!=","value":1"#), "true"),
                (&condition("m", r#""operator":"<","value":1"#), "false"),
                (
                    &condition(
                        "b",
                        r#""operator":"contains","value":{"path":"/workflow/z"}"#,
                    ),
                    "true",
                ),
                (
                    &condition("z", r#""operator":"in","value":{"path":"/workflow/b"}"#),
                    "true",
                ),
            ],
        );
        check_fails(
            "Conditional",
            model,
            &[(
                &condition("z", r#""operator":"==","value":{"path":"/workflow/m"}"#),
                FailureCode::PathNotFound,
            )],
        );
    }
}
