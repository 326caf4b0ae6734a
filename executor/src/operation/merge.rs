//! MergeData. Source: docs/protocols/a2e-workflows.md §4.

use std::borrow::Cow;

use a2abus_models::a2e_workflow::Path;
use a2abus_models::a2e_workflow::operation::{MergeData, Strategy};
use a2abus_models::{Array, Json, Object};

use super::distinct::{Distinct, ValueSlot};
use super::scope::{Scope, mismatch};
use crate::failure::{Failure, FailureCode};
use crate::meter::Meter;

/// The deepest nesting that deepMerge goes into.
const MAX_DEPTH: usize = 256;

/// Runs a MergeData and gives its value.
pub(crate) fn merge(operation: &MergeData, scope: &Scope<'_>) -> Result<Json, Failure> {
    let sources = &operation.sources;
    match operation.strategy {
        Strategy::Concat => concat(sources, scope),
        Strategy::Union => union(sources, scope),
        Strategy::Intersect => intersect(sources, scope),
        Strategy::DeepMerge => deep_merge(sources, scope),
    }
}

/// Passes on the elements that concat joins.
fn each_element(
    sources: &[Path],
    scope: &Scope<'_>,
    mut visit: impl FnMut(&Json) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for path in sources {
        scope.meter.step()?;
        match scope.model.read(path)? {
            Json::Null => {}
            Json::Array(array) => {
                for element in &array {
                    scope.meter.step()?;
                    visit(element)?;
                }
            }
            other => visit(&other)?,
        }
    }
    Ok(())
}

fn concat(sources: &[Path], scope: &Scope<'_>) -> Result<Json, Failure> {
    let mut all = Vec::new();
    each_element(sources, scope, |element| {
        all.push(scope.meter.keep(element.clone())?);
        Ok(())
    })?;
    Ok(all.into())
}

fn union(sources: &[Path], scope: &Scope<'_>) -> Result<Json, Failure> {
    let mut distinct = Distinct::new();
    each_element(sources, scope, |element| {
        match distinct.put(Cow::Owned(element.clone()), scope.meter)? {
            ValueSlot::New(_) => scope.meter.weigh(element.weight()),
            ValueSlot::Known(_) => Ok(()),
        }
    })?;
    let values = distinct.into_values().into_iter().map(Cow::into_owned);
    Ok(values.collect::<Array>().into())
}

fn intersect(sources: &[Path], scope: &Scope<'_>) -> Result<Json, Failure> {
    let arrays = sources
        .iter()
        .map(|path| scope.array(path))
        .collect::<Result<Vec<_>, _>>()?;
    let Some((first, others)) = arrays.split_first() else {
        return Ok(Array::default().into());
    };
    let mut distinct = Distinct::new();
    // How many of the sources so far, one after the other, have each value.
    let mut found_in = Vec::new();
    for element in first {
        if let ValueSlot::New(_) = distinct.put(Cow::Borrowed(element), scope.meter)? {
            found_in.push(0);
        }
    }
    for (before, array) in others.iter().enumerate() {
        for element in array {
            if let Some(number) = distinct.find(element, scope.meter)?
                && let Some(count) = found_in.get_mut(number)
                && *count == before
            {
                *count += 1;
            }
        }
    }
    let everywhere = distinct.into_values().into_iter().zip(found_in);
    let common = everywhere
        .filter(|(_, count)| *count == others.len())
        .map(|(value, _)| scope.meter.keep(value.into_owned()));
    Ok(common.collect::<Result<Vec<_>, _>>()?.into())
}

fn deep_merge(sources: &[Path], scope: &Scope<'_>) -> Result<Json, Failure> {
    let mut values = sources
        .iter()
        .map(|path| scope.model.read(path).map(|value| (path, value)));
    let Some((first, mut merged)) = values.next().transpose()? else {
        return Ok(Json::Null);
    };
    let needed = match &merged {
        Json::Object(_) => "an object as the first source is",
        Json::Array(_) => "an array as the first source is",
        other => return Err(mismatch(first, other, "an array or an object")),
    };
    scope.meter.weigh(merged.weight())?;
    for source in values {
        let (path, value) = source?;
        match (&merged, &value) {
            (Json::Object(_), Json::Object(_)) | (Json::Array(_), Json::Array(_)) => {
                merge_into(&mut merged, &value, MAX_DEPTH, scope.meter)?;
            }
            _ => return Err(mismatch(path, &value, needed)),
        }
    }
    Ok(merged)
}

/// Merges a later value into an earlier one, whose memory is already counted.
fn merge_into(
    earlier: &mut Json,
    later: &Json,
    depth: usize,
    meter: &Meter<'_>,
) -> Result<(), Failure> {
    meter.step()?;
    let deeper = || depth.checked_sub(1).ok_or_else(too_deep);
    match (&mut *earlier, later) {
        (Json::Object(earlier), Json::Object(later)) => {
            merge_objects(earlier, later, deeper()?, meter)
        }
        (Json::Array(earlier), Json::Array(later)) => {
            merge_arrays(earlier, later, deeper()?, meter)
        }
        _ => {
            meter.release(earlier.weight());
            meter.weigh(later.weight())?;
            *earlier = later.clone();
            Ok(())
        }
    }
}

fn merge_objects(
    earlier: &mut Object,
    later: &Object,
    depth: usize,
    meter: &Meter<'_>,
) -> Result<(), Failure> {
    for (name, value) in later {
        if earlier.get(name).is_some() {
            earlier.change(name, |member| merge_into(member, value, depth, meter))?;
        } else {
            meter.step()?;
            meter.weigh(Object::MEMBER_WEIGHT + name.len() + value.weight())?;
            earlier.insert(name.clone(), value.clone());
        }
    }
    Ok(())
}

fn merge_arrays(
    earlier: &mut Array,
    later: &Array,
    depth: usize,
    meter: &Meter<'_>,
) -> Result<(), Failure> {
    for (index, value) in later.iter().enumerate() {
        let changed = earlier.change(index, |element| merge_into(element, value, depth, meter));
        match changed {
            Some(merged) => merged?,
            None => {
                meter.step()?;
                earlier.push(meter.keep(value.clone())?);
            }
        }
    }
    Ok(())
}

fn too_deep() -> Failure {
    let message = format!("deepMerge supports at most {MAX_DEPTH} levels");
    Failure::new(FailureCode::LimitExceeded, message)
        .with("limit", "depth")
        .with("max", MAX_DEPTH)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use crate::failure::FailureCode;
    use crate::operation::testing::{
        check, check_fails, check_weight, operation, parse, run, run_within,
    };
    use a2abus_models::Json;

    fn config(strategy: &str, sources: &[&str]) -> String {
        let sources: Vec<_> = sources
            .iter()
            .map(|s| format!("\"/workflow/{s}\""))
            .collect();
        let sources = sources.join(",");
        format!(r#"{{"sources":[{sources}],"strategy":"{strategy}","outputPath":"/workflow/o"}}"#)
    }

    const MODEL: &str = r#"{"a":[1,2,2,"x",null,[1],{"p":1,"q":2}],"b":[2.0,3,"2",[1.0],{"q":2,"p":1}],"c":[[1],2,9,null],
        "e":[],"n":null,"s":"x","o":{"p":{"q":1,"r":[1,{"z":1}]},"k":1},"o2":{"p":{"r":[null,{"y":2},3],"s":0},"k":null,"l":[1]},
        "o3":{"p":4},"l1":[{"i":1},{"i":2},5],"l2":[{"j":1},7]}"#;

    #[test]
    fn concat_and_union_accept_any_source() {
        check(
            "MergeData",
            MODEL,
            &[
                (
                    &config("concat", &["a", "s", "n", "e", "o3", "c"]),
                    r#"[1,2,2,"x",null,[1],{"p":1,"q":2},"x",{"p":4},[1],2,9,null]"#,
                ),
                (&config("concat", &["n", "n"]), "[]"),
                (&config("concat", &["s", "s"]), r#"["x","x"]"#),
                (
                    &config("union", &["a", "b", "s", "n", "c"]),
                    r#"[1,2,"x",null,[1],{"p":1,"q":2},3,"2",9]"#,
                ),
                (&config("union", &["n", "n"]), "[]"),
            ],
        );
    }

    #[test]
    fn intersect_keeps_the_first_occurrence_of_common_values() {
        check(
            "MergeData",
            MODEL,
            &[
                (
                    &config("intersect", &["a", "b"]),
                    r#"[2,[1],{"p":1,"q":2}]"#,
                ),
                (&config("intersect", &["a", "b", "c"]), "[2,[1]]"),
                (
                    &config("intersect", &["a", "a"]),
                    r#"[1,2,"x",null,[1],{"p":1,"q":2}]"#,
                ),
                (&config("intersect", &["a", "e", "b"]), "[]"),
                (&config("intersect", &["e", "a"]), "[]"),
            ],
        );
        check_fails(
            "MergeData",
            MODEL,
            &[
                (&config("intersect", &["a", "s"]), FailureCode::TypeMismatch),
                (&config("intersect", &["e", "n"]), FailureCode::TypeMismatch),
                (
                    &config("intersect", &["a", "zz"]),
                    FailureCode::PathNotFound,
                ),
                (&config("concat", &["a", "zz"]), FailureCode::PathNotFound),
            ],
        );
    }

    #[test]
    fn deep_merge_merges_by_member_and_by_position() {
        check(
            "MergeData",
            MODEL,
            &[
                (
                    &config("deepMerge", &["o", "o2"]),
                    r#"{"p":{"q":1,"r":[null,{"z":1,"y":2},3],"s":0},"k":null,"l":[1]}"#,
                ),
                (
                    &config("deepMerge", &["o", "o2", "o3"]),
                    r#"{"p":4,"k":null,"l":[1]}"#,
                ),
                (
                    &config("deepMerge", &["o3", "o"]),
                    r#"{"p":{"q":1,"r":[1,{"z":1}]},"k":1}"#,
                ),
                (
                    &config("deepMerge", &["l1", "l2"]),
                    r#"[{"i":1,"j":1},7,5]"#,
                ),
                (
                    &config("deepMerge", &["l2", "l1"]),
                    r#"[{"j":1,"i":1},{"i":2},5]"#,
                ),
                (&config("merge", &["e", "l2"]), r#"[{"j":1},7]"#),
            ],
        );
        check_fails(
            "MergeData",
            MODEL,
            &[
                (&config("deepMerge", &["o", "a"]), FailureCode::TypeMismatch),
                (&config("deepMerge", &["a", "o"]), FailureCode::TypeMismatch),
                (&config("deepMerge", &["n", "o"]), FailureCode::TypeMismatch),
                (&config("deepMerge", &["o", "n"]), FailureCode::TypeMismatch),
                (&config("deepMerge", &["s", "s"]), FailureCode::TypeMismatch),
            ],
        );
    }

    #[test]
    fn merged_inputs_do_not_change() {
        let model = parse(MODEL);
        run(
            &operation("MergeData", &config("deepMerge", &["o", "o2", "o3"])),
            &model,
        )
        .unwrap();
        run(
            &operation("MergeData", &config("deepMerge", &["l1", "l2"])),
            &model,
        )
        .unwrap();
        assert_eq!(model.to_string(), parse(MODEL).to_string());
    }

    #[test]
    fn the_size_of_results_is_counted_exactly() {
        for (strategy, sources) in [
            ("concat", ["a", "b"]),
            ("union", ["a", "b"]),
            ("intersect", ["a", "b"]),
            ("deepMerge", ["l2", "l1"]),
        ] {
            check_weight("MergeData", &config(strategy, &sources), MODEL);
        }
    }

    #[test]
    fn merging_many_sources_stops_at_the_limit() {
        let element = Json::from("x".repeat(1 << 10));
        let model = Json::object([("a", Json::from(vec![element; 1024]))]);
        let sources = vec!["a"; 10_000];
        let made = run(&operation("MergeData", &config("concat", &sources)), &model);
        assert_eq!(made.map_err(|e| e.code), Err(FailureCode::LimitExceeded));
        for strategy in ["union", "deepMerge", "intersect"] {
            let operation = operation("MergeData", &config(strategy, &sources));
            let made = run_within(&operation, &model, 32 << 20, Duration::from_secs(1));
            assert_eq!(
                made.map_err(|e| e.code),
                Err(FailureCode::ExecutionTimeout),
                "{strategy}"
            );
        }
    }

    #[test]
    fn deep_merge_has_a_depth_limit() {
        let nested = |levels: usize| {
            let mut value = Json::from(1_i64);
            for _ in 0..levels {
                value = Json::object([("d", value)]);
            }
            value
        };
        let run = |levels| {
            let model = Json::object([("a", nested(levels)), ("b", nested(levels))]);
            run(
                &operation("MergeData", &config("deepMerge", &["a", "b"])),
                &model,
            )
            .map(|_| ())
            .map_err(|e| e.code)
        };
        assert_eq!(run(256), Ok(()));
        assert_eq!(run(257), Err(FailureCode::LimitExceeded));
    }

    #[test]
    fn many_numbers_near_one_double_are_distinguished_fast() {
        let digits: Vec<_> = (0..20_000)
            .map(|n| format!("1234567890123456789000{n:05}"))
            .collect();
        let model = parse(&format!("{{\"a\":[{}]}}", digits.join(",")));
        let made = run(
            &operation("MergeData", &config("union", &["a", "a"])),
            &model,
        )
        .unwrap();
        assert_eq!(made.as_array().unwrap().len(), 20_000);
    }

    fn some_value() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just("null"),
            Just("true"),
            Just("1"),
            Just("1.0"),
            Just("\"1\""),
            Just("12345678901234567890"),
            Just("12345678901234567890.0"),
            Just("0.5"),
        ]
        .prop_map(parse);
        leaf.prop_recursive(2, 6, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Json::from),
                prop::collection::vec(("[ab]", inner), 0..3).prop_map(Json::object),
            ]
        })
    }

    proptest! {
        #[test]
        fn union_and_intersect_match_a_naive_search(
            arrays in prop::collection::vec(prop::collection::vec(some_value(), 0..12), 2..5),
        ) {
            let names = ["a", "b", "c", "d"];
            let names = names.get(..arrays.len()).unwrap();
            let mut union: Vec<Json> = Vec::new();
            for value in arrays.iter().flatten() {
                if !union.contains(value) {
                    union.push(value.clone());
                }
            }
            let mut common: Vec<Json> = Vec::new();
            for value in arrays.first().unwrap() {
                if !common.contains(value) && arrays.iter().all(|array| array.contains(value)) {
                    common.push(value.clone());
                }
            }
            let arrays = arrays.into_iter().map(Json::from);
            let model = Json::object(names.iter().copied().zip(arrays));
            for (strategy, expected) in [("union", union), ("intersect", common)] {
                let made = run(&operation("MergeData", &config(strategy, names)), &model).unwrap();
                prop_assert_eq!(made.to_string(), Json::from(expected).to_string());
            }
        }

        #[test]
        fn a_deep_merge_counts_the_same_memory_as_its_parsed_text(values in prop::collection::vec(some_value(), 2..4)) {
            let values: Vec<_> = values.into_iter().map(|v| Json::object([("m", v)])).collect();
            let names = ["a", "b", "c"];
            let names = names.get(..values.len()).unwrap();
            let model = Json::object(names.iter().copied().zip(values));
            let made = run(&operation("MergeData", &config("deepMerge", names)), &model).unwrap();
            prop_assert_eq!(made.weight(), parse(&made.to_string()).weight());
        }
    }
}
