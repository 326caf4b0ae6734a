//! The transform group. Source: docs/protocols/a2e-workflows.md §4.2.

use std::borrow::Cow;

use a2abus_models::a2e_workflow::RelativePath;
use a2abus_models::{Array, Json, Object};
use a2abus_plugin::Text;
use indexmap::IndexMap;

use super::text::text;
use crate::failure::Failure;
use crate::meter::Meter;
use crate::model::field;

/// The elements by the text of a field.
pub(super) fn group(by: &RelativePath, input: &Array, meter: &Meter<'_>) -> Result<Json, Failure> {
    let mut groups: IndexMap<Text, Vec<Json>> = IndexMap::new();
    for item in input {
        meter.step()?;
        let item_kept = meter.keep(item.clone())?;
        let value = field(item, by).unwrap_or(Cow::Borrowed(&Json::Null));
        let key = key(&value, meter)?;
        let length = key.len();
        match groups.get_mut(&key) {
            Some(elements) => {
                meter.release(length);
                elements.push(item_kept);
            }
            None => {
                meter.weigh(Object::MEMBER_WEIGHT + Json::WEIGHT)?;
                groups.insert(key, vec![item_kept]);
            }
        }
    }
    let groups = groups.into_iter().map(|(key, group)| (key, group.into()));
    Ok(groups.collect::<Object>().into())
}

/// The text of a key, with its memory counted: a string as it is, any other value in a form that is the same for equal
/// values.
fn key(value: &Json, meter: &Meter<'_>) -> Result<Text, Failure> {
    if let Json::String(text) = value {
        meter.weigh(text.len())?;
        return Ok(text.clone());
    }
    text(meter, |out| value.write_canonical(out)).map(Text::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::failure::FailureCode;
    use crate::operation::testing::{check, check_fails, check_weight, operation, parse, run};
    use a2abus_models::Json;

    const CONFIG: &str = r#"{"inputPath":"/workflow/rows","transform":"group","config":{"field":"k"},"outputPath":"/workflow/o"}"#;

    #[test]
    fn keys_are_texts() {
        let model = r#"{"rows":[{"k":"b","n":0},{"k":1,"n":1},{"k":"1","n":2},{"k":1.0,"n":3},{"n":4},{"k":null,"n":5},
            {"k":"null","n":6},{"k":true,"n":7},{"k":[1],"n":8},{"k":{"b":1,"a":[2]},"n":9},{"k":{"a":[2.0],"b":1},"n":10},
            {"k":"","n":11},{"k":1.5,"n":12},"x"]}"#;
        let expected = r#"{"b":[{"k":"b","n":0}],"1":[{"k":1,"n":1},{"k":"1","n":2},{"k":1.0,"n":3}],
            "null":[{"n":4},{"k":null,"n":5},{"k":"null","n":6},"x"],"true":[{"k":true,"n":7}],"[1]":[{"k":[1],"n":8}],
            "{\"a\":[2],\"b\":1}":[{"k":{"b":1,"a":[2]},"n":9},{"k":{"a":[2.0],"b":1},"n":10}],
            "":[{"k":"","n":11}],"1.5":[{"k":1.5,"n":12}]}"#;
        check("TransformData", model, &[(CONFIG, expected)]);
        let made = run(&operation("TransformData", CONFIG), &parse(model)).unwrap();
        let keys: Vec<_> = made
            .as_object()
            .unwrap()
            .iter()
            .map(|(k, _)| k.to_string())
            .collect();
        assert_eq!(keys.join(" "), r#"b 1 null true [1] {"a":[2],"b":1}  1.5"#);
        check_weight("TransformData", CONFIG, model);
        check("TransformData", r#"{"rows":[]}"#, &[(CONFIG, "{}")]);
        check_fails(
            "TransformData",
            r#"{"rows":{}}"#,
            &[(CONFIG, FailureCode::TypeMismatch)],
        );
    }

    #[test]
    fn equal_large_numbers_are_one_group() {
        let model = r#"{"rows":[{"k":10000000000000000},{"k":1e16},{"k":1e400},{"k":10e399}]}"#;
        let expected = r#"{"10000000000000000":[{"k":10000000000000000},{"k":1e16}],"1e400":[{"k":1e400},{"k":10e399}]}"#;
        check("TransformData", model, &[(CONFIG, expected)]);
    }

    proptest! {
        #[test]
        fn groups_match_a_naive_search(keys in prop::collection::vec("[ab1]{0,2}", 0..40)) {
            let rows: Vec<Json> = keys
                .iter()
                .enumerate()
                .map(|(n, key)| Json::object([("k", Json::from(key.as_str())), ("n", n.into())]))
                .collect();
            let mut expected: Vec<(String, Vec<Json>)> = Vec::new();
            for (key, row) in keys.iter().zip(&rows) {
                match expected.iter_mut().find(|(known, _)| known == key) {
                    Some((_, group)) => group.push(row.clone()),
                    None => expected.push((key.clone(), vec![row.clone()])),
                }
            }
            let model = Json::object([("rows", Json::from(rows))]);
            let made = run(&operation("TransformData", CONFIG), &model).unwrap();
            let expected = Json::object(expected.into_iter().map(|(k, g)| (k, Json::from(g))));
            // The text shows the order of the groups too.
            prop_assert_eq!(made.to_string(), expected.to_string());
        }
    }
}
