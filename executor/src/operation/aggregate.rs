//! The transform aggregate. Source: docs/protocols/a2e-workflows.md §4.2.

mod accumulator;

use std::borrow::Cow;
use std::collections::HashSet;

use a2abus_models::a2e_workflow::RelativePath;
use a2abus_models::a2e_workflow::transform::{
    Aggregate, AggregateFunction, Aggregation, Aggregations,
};
use a2abus_models::{Array, Json, Object};

use self::accumulator::Accumulator;
use super::distinct::{Distinct, ValueSlot};
use crate::failure::{Failure, FailureCode};
use crate::meter::Meter;
use crate::model::field;

/// Which group each element is in.
struct Groups<'a> {
    /// The number of the group of every element, in order.
    of: Vec<usize>,
    /// The key values of each group; empty if there is only one group.
    values: Option<Vec<Cow<'a, Json>>>,
}

/// The aggregates of an array, or of each of its groups.
pub(super) fn aggregate(
    config: &Aggregate,
    input: &Array,
    meter: &Meter<'_>,
) -> Result<Json, Failure> {
    let groups = match &config.group_by {
        Some(by) => Groups::by(by, input, meter)?,
        None => Groups::one(input.len()),
    };
    let named;
    let aggregations = match (&config.aggregations, &groups.values) {
        (Aggregations::Named(aggregations), _) => aggregations.as_slice(),
        (Aggregations::One(aggregation), Some(_)) => {
            let name = aggregation.default_name(aggregation.function.as_str());
            named = [(name, aggregation.clone())];
            named.as_slice()
        }
        (Aggregations::One(aggregation), None) => {
            let values = values_of(aggregation, input, meter)?;
            let column = column(aggregation.function, &values, &groups, meter)?;
            return Ok(column.into_iter().next().unwrap_or_default());
        }
    };
    let mut rows: Vec<Object> = groups.heads(config.group_by.as_ref(), meter)?;
    // Several aggregates often use the same field.
    for same in aggregations.chunk_by(|(_, a), (_, b)| a.field == b.field) {
        let Some((_, first)) = same.first() else {
            continue;
        };
        let values = values_of(first, input, meter)?;
        for (name, aggregation) in same {
            let column = column(aggregation.function, &values, &groups, meter)?;
            for (row, value) in rows.iter_mut().zip(column) {
                meter.weigh(Object::MEMBER_WEIGHT + name.len())?;
                row.insert(name.clone(), value);
            }
        }
    }
    let mut rows = rows.into_iter().map(Json::from);
    Ok(match groups.values {
        Some(_) => rows.collect::<Array>().into(),
        None => rows.next().unwrap_or_default(),
    })
}

/// The values that an aggregate uses; nothing if the field is null or missing.
fn values_of<'a>(
    aggregation: &Aggregation,
    input: &'a Array,
    meter: &Meter<'_>,
) -> Result<Vec<Option<Cow<'a, Json>>>, Failure> {
    let values = input.iter().map(|item| {
        meter.step()?;
        Ok(match &aggregation.field {
            Some(path) => field(item, path).filter(|value| !value.is_null()),
            None => Some(Cow::Borrowed(item)),
        })
    });
    values.collect()
}

/// One aggregate of every group, with its memory counted.
fn column(
    function: AggregateFunction,
    values: &[Option<Cow<'_, Json>>],
    groups: &Groups<'_>,
    meter: &Meter<'_>,
) -> Result<Vec<Json>, Failure> {
    let mut accumulators = vec![Accumulator::new(function); groups.len()];
    // The number of the value, and the pairs of group and value seen so far.
    let (mut distinct, mut pairs) = (Distinct::new(), HashSet::new());
    for (value, group) in values.iter().zip(&groups.of) {
        meter.step()?;
        let (Some(value), Some(accumulator)) = (value, accumulators.get_mut(*group)) else {
            continue;
        };
        if function == AggregateFunction::CountDistinct {
            let place = distinct.put(Cow::Borrowed(value), meter)?;
            let (ValueSlot::New(number) | ValueSlot::Known(number)) = place;
            if !pairs.insert((*group, number)) {
                continue;
            }
        }
        accumulator.add(value);
    }
    let finished = accumulators.into_iter().map(|accumulator| {
        let value = accumulator.finish();
        meter.keep(value.ok_or_else(|| out_of_range(function))?)
    });
    finished.collect()
}

fn out_of_range(function: AggregateFunction) -> Failure {
    let function = function.as_str();
    let message = format!("the {function} is beyond the range of numbers, about 1.8e308");
    Failure::new(FailureCode::InvalidValue, message)
        .suggest("leave such large numbers out with FilterData")
}

// === impl Groups ===

impl<'a> Groups<'a> {
    fn one(elements: usize) -> Self {
        Self {
            of: vec![0; elements],
            values: None,
        }
    }

    fn by(by: &RelativePath, input: &'a Array, meter: &Meter<'_>) -> Result<Self, Failure> {
        let mut values = Distinct::new();
        let mut of = Vec::with_capacity(input.len());
        for item in input {
            let value = field(item, by).unwrap_or(Cow::Borrowed(&Json::Null));
            let (ValueSlot::New(group) | ValueSlot::Known(group)) = values.put(value, meter)?;
            of.push(group);
        }
        Ok(Self {
            of,
            values: Some(values.into_values()),
        })
    }

    fn len(&self) -> usize {
        self.values.as_ref().map_or(1, Vec::len)
    }

    /// The objects of the groups before their aggregates, with their memory counted.
    fn heads(&self, by: Option<&RelativePath>, meter: &Meter<'_>) -> Result<Vec<Object>, Failure> {
        let (Some(by), Some(values)) = (by, &self.values) else {
            meter.weigh(Json::WEIGHT)?;
            return Ok(vec![Object::default()]);
        };
        let heads = values.iter().map(|value| {
            meter.weigh(Json::WEIGHT + Object::MEMBER_WEIGHT + by.text().len())?;
            let value = meter.keep(value.clone().into_owned())?;
            Ok(Object::from_iter([(by.text().clone(), value)]))
        });
        heads.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::failure::FailureCode;
    use crate::operation::testing::{check, check_fails, check_weight, operation, parse, run};
    use a2abus_models::Json;

    fn config(with: &str) -> String {
        format!(
            r#"{{"inputPath":"/workflow/rows","transform":"aggregate","config":{with},"outputPath":"/workflow/o"}}"#
        )
    }

    /// The result of each function for a list: count, sum, avg, min, max, first, last, countDistinct.
    fn check_aggregates(values: &str, expected: [&str; 8]) {
        let values = parse(values);
        let rows = values.as_array().unwrap().iter();
        let rows: Vec<_> = rows.map(|v| Json::object([("v", v.clone())])).collect();
        let model = Json::object([("rows", Json::from(rows))]);
        let functions = [
            "count",
            "sum",
            "avg",
            "min",
            "max",
            "first",
            "last",
            "countDistinct",
        ];
        for (function, expected) in functions.into_iter().zip(expected) {
            let config = config(&format!(r#"{{"operation":"{function}","field":"v"}}"#));
            let made = run(&operation("TransformData", &config), &model).unwrap();
            assert_eq!(made.to_string(), expected, "{function} of {values}");
        }
    }

    #[test]
    fn aggregates_ignore_nulls_and_values_of_other_types() {
        check_aggregates(
            "[]",
            ["0", "0", "null", "null", "null", "null", "null", "0"],
        );
        check_aggregates(
            "[null,null]",
            ["0", "0", "null", "null", "null", "null", "null", "0"],
        );
        check_aggregates("[1,2,3]", ["3", "6", "2", "1", "3", "1", "3", "3"]);
        check_aggregates("[1,2]", ["2", "3", "1.5", "1", "2", "1", "2", "2"]);
        check_aggregates(
            r#"[null,"z","a",true,[1],null]"#,
            ["4", "0", "null", "\"a\"", "\"z\"", "\"z\"", "[1]", "4"],
        );
        check_aggregates(
            r#"["0",true,5,1,1.0,"1",false,{"a":1},{"a":1.0}]"#,
            [
                "9",
                "7",
                "2.3333333333333335",
                "1",
                "5",
                "\"0\"",
                "{\"a\":1.0}",
                "7",
            ],
        );
        check_aggregates(
            "[0.5,1.5]",
            ["2", "2", "1", "0.5", "1.5", "0.5", "1.5", "2"],
        );
        check_aggregates(
            "[-0.0]",
            ["1", "0", "0", "-0.0", "-0.0", "-0.0", "-0.0", "1"],
        );
    }

    #[test]
    fn integers_are_added_exactly() {
        check_aggregates(
            "[9007199254740993,1]",
            [
                "2",
                "9007199254740994",
                "4503599627370497",
                "1",
                "9007199254740993",
                "9007199254740993",
                "1",
                "2",
            ],
        );
        check_aggregates(
            "[9223372036854775807,9223372036854775807]",
            [
                "2",
                "18446744073709551614",
                "9223372036854775807",
                "9223372036854775807",
                "9223372036854775807",
                "9223372036854775807",
                "9223372036854775807",
                "1",
            ],
        );
        check_aggregates(
            "[12345678901234567890,12345678901234567891,12345678901234567890.0]",
            [
                "3",
                "3.70370367037037e19",
                "1.2345678901234567e19",
                "12345678901234567890",
                "12345678901234567891",
                "12345678901234567890",
                "12345678901234567890.0",
                "2",
            ],
        );
    }

    #[test]
    fn a_sum_beyond_the_range_of_numbers_fails() {
        let sum = config(r#"{"operation":"sum","field":"."}"#);
        let average = config(r#"{"operation":"avg","field":"."}"#);
        let out_of_range = FailureCode::InvalidValue;
        for model in [
            r#"{"rows":[1e400]}"#,
            r#"{"rows":[1.5,-1e400]}"#,
            r#"{"rows":[1e400,-1e400]}"#,
        ] {
            let cases = [
                (sum.as_str(), out_of_range),
                (average.as_str(), out_of_range),
            ];
            check_fails("TransformData", model, &cases);
        }
        let model = r#"{"rows":[1e308,1e308]}"#;
        check_fails("TransformData", model, &[(&sum, out_of_range)]);
        check("TransformData", model, &[(&average, "1e308")]);
        let model = r#"{"rows":[1e308,1e308,-1e308]}"#;
        check("TransformData", model, &[(&sum, "1e308")]);
    }

    #[test]
    fn aggregates_are_named() {
        let model = r#"{"rows":[{"g":"x","n":1},{"g":1,"n":2},{"n":3},{"g":1.0,"n":4},{"g":"x"},{"g":null,"n":6},{"g":[1],"n":7},{"g":[1.0]}]}"#;
        check(
            "TransformData",
            model,
            &[
                (&config(r#"{"operation":"count"}"#), "8"),
                (
                    &config(r#"{"operation":"average","field":"n"}"#),
                    "3.8333333333333335",
                ),
                (
                    &config(
                        r#"{"aggregations":[{"operation":"count"},{"operation":"average","field":"n"},{"operation":"max","field":"n","as":"top"}]}"#,
                    ),
                    r#"{"count":8,"average_n":3.8333333333333335,"top":7}"#,
                ),
                (&config(r#"{"aggregations":[]}"#), "{}"),
                (
                    &config(
                        r#"{"aggregations":[{"operation":"count","as":"x"},{"operation":"max","field":"n","as":"x"}]}"#,
                    ),
                    r#"{"x":7}"#,
                ),
                (
                    &config(r#"{"groupBy":"g","operation":"sum","field":"n"}"#),
                    r#"[{"g":"x","sum_n":1},{"g":1,"sum_n":6},{"g":null,"sum_n":9},{"g":[1],"sum_n":7}]"#,
                ),
                (
                    &config(
                        r#"{"groupBy":"g","aggregations":[{"operation":"count"},{"operation":"countDistinct","field":"g"},{"operation":"first","field":"n","as":"f"}]}"#,
                    ),
                    r#"[{"g":"x","count":2,"countDistinct_g":1,"f":1},{"g":1,"count":2,"countDistinct_g":1,"f":2},
                        {"g":null,"count":2,"countDistinct_g":0,"f":3},{"g":[1],"count":2,"countDistinct_g":1,"f":7}]"#,
                ),
                (
                    &config(r#"{"groupBy":"g","aggregations":[{"operation":"count","as":"g"}]}"#),
                    r#"[{"g":2},{"g":2},{"g":2},{"g":2}]"#,
                ),
            ],
        );
        check(
            "TransformData",
            r#"{"rows":[]}"#,
            &[
                (&config(r#"{"groupBy":"g","operation":"count"}"#), "[]"),
                (
                    &config(r#"{"aggregations":[{"operation":"sum","field":"n"}]}"#),
                    r#"{"sum_n":0}"#,
                ),
            ],
        );
        check_fails(
            "TransformData",
            r#"{"rows":"x"}"#,
            &[(
                &config(r#"{"operation":"count"}"#),
                FailureCode::TypeMismatch,
            )],
        );
    }

    #[test]
    fn the_size_of_results_is_counted_exactly() {
        let model = r#"{"rows":[{"g":"x","n":"long enough to be counted"},{"g":[1],"n":[2]}]}"#;
        for with in [
            r#"{"operation":"first","field":"n"}"#,
            r#"{"aggregations":[{"operation":"first","field":"n"},{"operation":"count"}]}"#,
            r#"{"groupBy":"g","aggregations":[{"operation":"last","field":"n"},{"operation":"count"}]}"#,
        ] {
            check_weight("TransformData", &config(with), model);
        }
    }

    proptest! {
        #[test]
        fn distinct_values_match_a_naive_search(
            picks in prop::collection::vec((0_usize..9, 0_usize..9), 0..50),
        ) {
            let kinds = parse(r#"[1,1.0,"1",true,[1],[1.0],{"a":1,"b":2},{"b":2,"a":1},12345678901234567890]"#);
            let kind = |at: usize| kinds.as_array().unwrap().get(at).unwrap().clone();
            let mut expected: Vec<(Json, Vec<Json>)> = Vec::new();
            for (group, value) in picks.iter().map(|(g, v)| (kind(*g), kind(*v))) {
                let at = match expected.iter().position(|(known, _)| *known == group) {
                    Some(at) => at,
                    None => {
                        expected.push((group, Vec::new()));
                        expected.len() - 1
                    }
                };
                let (_, values) = expected.get_mut(at).unwrap();
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            let expected: Vec<Json> = expected
                .into_iter()
                .map(|(group, values)| Json::object([("g", group), ("d", values.len().into())]))
                .collect();
            let rows: Vec<Json> = picks
                .iter()
                .map(|(g, v)| Json::object([("g", kind(*g)), ("v", kind(*v))]))
                .collect();
            let model = Json::object([("rows", Json::from(rows))]);
            let config = config(r#"{"groupBy":"g","aggregations":[{"operation":"countDistinct","field":"v","as":"d"}]}"#);
            let made = run(&operation("TransformData", &config), &model);
            prop_assert_eq!(made, Ok(Json::from(expected)));
        }
    }
}
