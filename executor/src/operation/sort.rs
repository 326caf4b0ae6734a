//! The transform sort. Source: docs/protocols/a2e-workflows.md §4.2.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use a2abus_models::a2e_workflow::transform::{Slice, SortKey, SortOrder};
use a2abus_models::{Array, Json, Number};

use super::scope::slice;
use crate::failure::Failure;
use crate::meter::Meter;
use crate::model::field;

/// The sort key of an element.
enum Key<'a> {
    /// With its nearest double, which alone decides most comparisons.
    Number(f64, Cow<'a, Number>),
    Text(&'a str),
    Bool(bool),
    /// An array or an object; equal among themselves.
    Structure,
    /// Null or missing; last in both directions.
    Nothing,
}

type Keyed<'a> = (Key<'a>, &'a Json);

/// The elements in order of these keys.
pub(super) fn sort(
    keys: &[SortKey],
    part: Slice,
    input: &Array,
    meter: &Meter<'_>,
) -> Result<Json, Failure> {
    let mut items: Vec<Keyed<'_>> = input.iter().map(|item| (Key::Nothing, item)).collect();
    // The ranges with equal keys so far. Only there the next key is computed and decides.
    let mut undecided = Vec::from_iter(Some(0..items.len()));
    for key in keys {
        let mut next = Vec::new();
        for run in undecided {
            let start = run.start;
            let Some(run) = items.get_mut(run) else {
                continue;
            };
            for (place, item) in run.iter_mut() {
                meter.step()?;
                *place = Key::of(item, key);
            }
            run.sort_by(|(a, _), (b, _)| a.order(b, key.order));
            next.extend(ties(run, start));
        }
        undecided = next;
    }
    let mut sorted = Vec::new();
    for (_, item) in slice(&items, part) {
        sorted.push(meter.keep((*item).clone())?);
    }
    Ok(sorted.into())
}

/// The places of elements with equal keys, more than one of each, in a sorted run that begins at
/// `start`.
fn ties<'r>(run: &'r [Keyed<'_>], start: usize) -> impl Iterator<Item = Range<usize>> + 'r {
    let mut end = start;
    run.chunk_by(|(a, _), (b, _)| a.order(b, SortOrder::Ascending).is_eq())
        .map(move |equal| {
            let begin = end;
            end += equal.len();
            begin..end
        })
        .filter(|equal| equal.len() > 1)
}

// === impl Key ===

impl<'a> Key<'a> {
    fn of(item: &'a Json, key: &SortKey) -> Self {
        match field(item, &key.field) {
            None => Self::Nothing,
            Some(Cow::Borrowed(value)) => match value {
                Json::Null => Self::Nothing,
                Json::Bool(value) => Self::Bool(*value),
                Json::String(text) => Self::Text(text),
                Json::Array(_) | Json::Object(_) => Self::Structure,
                Json::Number(number) => Self::Number(number.as_f64(), Cow::Borrowed(number)),
            },
            // Only a length is computed.
            Some(Cow::Owned(Json::Number(length))) => {
                Self::Number(length.as_f64(), Cow::Owned(length))
            }
            Some(Cow::Owned(_)) => Self::Nothing,
        }
    }

    fn order(&self, other: &Self, order: SortOrder) -> Ordering {
        let ascending = match (self, other) {
            (Self::Nothing, Self::Nothing) => return Ordering::Equal,
            (Self::Nothing, _) => return Ordering::Greater,
            (_, Self::Nothing) => return Ordering::Less,
            (Self::Number(x, a), Self::Number(y, b)) => match x.partial_cmp(y) {
                Some(order @ (Ordering::Less | Ordering::Greater)) => order,
                _ => a.cmp(b),
            },
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        };
        match order {
            SortOrder::Ascending => ascending,
            SortOrder::Descending => ascending.reverse(),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Number(..) => 0,
            Self::Text(_) => 1,
            Self::Bool(_) => 2,
            Self::Structure => 3,
            Self::Nothing => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::operation::testing::{check, check_weight, operation, parse, run};
    use a2abus_models::Json;

    fn config(with: &str) -> String {
        format!(
            r#"{{"inputPath":"/workflow/rows","transform":"sort","config":{with},"outputPath":"/workflow/o"}}"#
        )
    }

    #[test]
    fn types_are_ranked_and_null_sorts_last_in_both_directions() {
        let model = r#"{"rows":[null,{"a":1},true,"b",[2],10,"B",false,9007199254740993,9007199254740992.0,"é",-1.5,1e400,12345678901234567890,12345678901234567891,"b",[1]]}"#;
        check(
            "TransformData",
            model,
            &[
                (
                    &config("{}"),
                    r#"[-1.5,10,9007199254740992.0,9007199254740993,12345678901234567890,12345678901234567891,1e400,"B","b","b","é",false,true,{"a":1},[2],[1],null]"#,
                ),
                (
                    &config(r#"{"order":"desc"}"#),
                    r#"[{"a":1},[2],[1],true,false,"é","b","b","B",1e400,12345678901234567891,12345678901234567890,9007199254740993,9007199254740992.0,10,-1.5,null]"#,
                ),
                (
                    &config(r#"{"offset":1,"limit":2}"#),
                    "[10,9007199254740992.0]",
                ),
                (&config(r#"{"limit":0}"#), "[]"),
                (&config(r#"{"offset":17}"#), "[]"),
            ],
        );
        check_weight("TransformData", &config(r#"{"limit":3}"#), model);
    }

    #[test]
    fn later_sort_keys_break_ties() {
        check(
            "TransformData",
            r#"{"rows":[{"a":1,"b":"x","n":0},{"a":2,"b":"y","n":1},{"a":1.0,"b":"y","n":2},{"b":"z","n":3},
                {"a":2,"n":4},{"a":null,"b":"z","n":5},{"a":1,"b":"y","n":6},9]}"#,
            &[
                (
                    &config(
                        r#"{"by":[{"field":"a","order":"desc"},{"field":"b"},{"field":"n","order":"desc"}],"limit":6}"#,
                    ),
                    r#"[{"a":2,"b":"y","n":1},{"a":2,"n":4},{"a":1,"b":"x","n":0},{"a":1,"b":"y","n":6},{"a":1.0,"b":"y","n":2},{"b":"z","n":5,"a":null}]"#,
                ),
                (
                    &config(
                        r#"{"by":[{"field":"b.length","order":"desc"},{"field":"a"}],"limit":3,"offset":2}"#,
                    ),
                    r#"[{"a":1,"b":"y","n":6},{"a":2,"b":"y","n":1},{"b":"z","n":3}]"#,
                ),
            ],
        );
    }

    /// The order of two values by the specification; null is last.
    fn naive(a: &Json, b: &Json, descending: bool) -> std::cmp::Ordering {
        let rank = |value: &Json| match value {
            Json::Number(_) => 0,
            Json::String(_) => 1,
            Json::Bool(_) => 2,
            Json::Array(_) | Json::Object(_) => 3,
            Json::Null => 4,
        };
        if a.is_null() || b.is_null() {
            return a.is_null().cmp(&b.is_null());
        }
        let order = rank(a).cmp(&rank(b)).then_with(|| match (a, b) {
            (Json::String(a), Json::String(b)) => a.chars().cmp(b.chars()),
            (Json::Bool(a), Json::Bool(b)) => a.cmp(b),
            _ => match (a.as_number(), b.as_number()) {
                (Some(a), Some(b)) => a.as_f64().total_cmp(&b.as_f64()),
                _ => std::cmp::Ordering::Equal,
            },
        });
        if descending { order.reverse() } else { order }
    }

    proptest! {
        #[test]
        fn sort_is_stable(
            rows in prop::collection::vec((0_usize..12, 0_usize..12), 0..60),
            directions: (bool, bool),
        ) {
            let kinds = parse(r#"[null,1,1.0,2,"a","b","é",true,false,[1],{},-3.5]"#);
            let kinds = kinds.as_array().unwrap();
            let rows: Vec<Json> = rows
                .iter()
                .enumerate()
                .map(|(n, (a, b))| Json::object([
                    ("a", kinds.get(*a).unwrap().clone()),
                    ("b", kinds.get(*b).unwrap().clone()),
                    ("n", n.into()),
                ]))
                .collect();
            let mut expected: Vec<Json> = Vec::new();
            for row in &rows {
                let key = |row: &Json, name| row.get(name).unwrap().clone();
                let after = expected
                    .iter()
                    .rposition(|other| {
                        naive(&key(other, "a"), &key(row, "a"), directions.0)
                            .then_with(|| naive(&key(other, "b"), &key(row, "b"), directions.1))
                            .is_le()
                    })
                    .map_or(0, |at| at + 1);
                expected.insert(after, row.clone());
            }
            let name = |descending| if descending { "desc" } else { "asc" };
            let config = config(&format!(
                r#"{{"by":[{{"field":"a","order":"{}"}},{{"field":"b","order":"{}"}}]}}"#,
                name(directions.0), name(directions.1),
            ));
            let model = Json::object([("rows", Json::from(rows))]);
            let made = run(&operation("TransformData", &config), &model);
            prop_assert_eq!(made, Ok(Json::from(expected)));
        }
    }
}
