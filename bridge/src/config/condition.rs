//! Does a value meet a condition?

use std::fmt;

use a2abus_plugin::Text;
use globset::{Glob, GlobMatcher};

use super::routing::{ConditionConfig, DialectsConfig};
use crate::names::Pattern;

/// A compiled condition. Evaluating it allocates nothing.
#[derive(Debug, Clone)]
pub(crate) enum Condition {
    Exact(Text),
    Prefix(Text),
    Suffix(Text),
    Glob(Text, Box<GlobMatcher>),
    Any(Vec<Condition>),
    All(Vec<Condition>),
    Not(Box<Condition>),
}

/// The literal text that every value meeting a condition has in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor<'a> {
    /// The whole value.
    Whole(&'a str),
    /// The beginning of the value; not empty.
    Prefix(&'a str),
}

/// Characters with a meaning in globs. Everything before the first of them is literal.
const GLOB_SYNTAX: [char; 7] = ['*', '?', '[', ']', '{', '}', '\\'];

impl<'a> Anchor<'a> {
    fn prefix(text: &'a str) -> Option<Vec<Self>> {
        (!text.is_empty()).then(|| vec![Self::Prefix(text)])
    }
}

/// Whether a value meets a condition. No value meets a condition that cannot be compiled.
pub(crate) fn condition_holds(config: &ConditionConfig, value: &str) -> bool {
    Condition::new(config).is_ok_and(|condition| condition.holds(Some(value)))
}

impl Condition {
    /// Compiles the condition.
    ///
    /// # Errors
    /// When one of its globs cannot be compiled.
    pub(crate) fn new(config: &ConditionConfig) -> Result<Self, globset::Error> {
        match config {
            ConditionConfig::Pattern(pattern) => Self::pattern(pattern),
            ConditionConfig::AnyOf(patterns) => patterns
                .iter()
                .map(|pattern| Self::pattern(pattern))
                .collect::<Result<_, _>>()
                .map(Self::Any),
            ConditionConfig::Dialects(dialects) => Self::dialects(dialects),
        }
    }

    fn pattern(pattern: &Pattern) -> Result<Self, globset::Error> {
        if pattern.is_glob() {
            Self::glob(pattern.text())
        } else {
            Ok(Self::Exact(pattern.text().clone()))
        }
    }

    fn glob(text: &Text) -> Result<Self, globset::Error> {
        let glob = Glob::new(text)?;
        Ok(Self::Glob(text.clone(), Box::new(glob.compile_matcher())))
    }

    fn dialects(config: &DialectsConfig) -> Result<Self, globset::Error> {
        let DialectsConfig {
            exact,
            prefix,
            suffix,
            glob,
            any,
            all,
            not,
        } = config;
        let text = |text: &Option<String>| text.as_deref().map(Text::from);
        let list = |list: &[ConditionConfig]| list.iter().map(Self::new).collect::<Result<_, _>>();
        let mut conditions = Vec::new();
        conditions.extend(text(exact).map(Self::Exact));
        conditions.extend(text(prefix).map(Self::Prefix));
        conditions.extend(text(suffix).map(Self::Suffix));
        if let Some(glob) = glob {
            conditions.push(Self::glob(glob.text())?);
        }
        if let Some(any) = any {
            conditions.push(Self::Any(list(any)?));
        }
        if let Some(all) = all {
            conditions.push(Self::All(list(all)?));
        }
        if let Some(not) = not {
            conditions.push(Self::Not(Box::new(Self::new(not)?)));
        }
        Ok(match (conditions.pop(), conditions.is_empty()) {
            (Some(only), true) => only,
            (last, _) => {
                conditions.extend(last);
                Self::All(conditions)
            }
        })
    }

    /// Whether the value, or its absence, meets the condition.
    pub(crate) fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Self::Exact(text) => value == Some(text),
            Self::Prefix(text) => value.is_some_and(|value| value.starts_with(text.as_str())),
            Self::Suffix(text) => value.is_some_and(|value| value.ends_with(text.as_str())),
            Self::Glob(_, glob) => value.is_some_and(|value| glob.is_match(value)),
            Self::Any(conditions) => conditions.iter().any(|c| c.holds(value)),
            Self::All(conditions) => conditions.iter().all(|c| c.holds(value)),
            Self::Not(condition) => !condition.holds(value),
        }
    }

    /// Whether the condition lists the values that meet it.
    pub(crate) fn is_list(&self) -> bool {
        match self {
            Self::Exact(_) => true,
            Self::Any(conditions) => conditions.iter().all(Self::is_list),
            _ => false,
        }
    }

    /// The literal texts that every matching value equals or begins with, if they are known. They are keys of the hash
    /// tables in `RouteTable`.
    pub(crate) fn anchors(&self) -> Option<Vec<Anchor<'_>>> {
        match self {
            Self::Exact(text) => Some(vec![Anchor::Whole(text)]),
            Self::Prefix(text) => Anchor::prefix(text),
            Self::Glob(text, _) => {
                let literal = text.split(GLOB_SYNTAX).next();
                Anchor::prefix(literal.unwrap_or_default())
            }
            Self::Any(conditions) => conditions
                .iter()
                .map(Self::anchors)
                .collect::<Option<Vec<_>>>()
                .map(|anchors| anchors.concat()),
            // All conditions have to hold, so the anchors of any one of them are enough.
            Self::All(conditions) => conditions.iter().find_map(Self::anchors),
            Self::Suffix(_) | Self::Not(_) => None,
        }
    }
}

/// The form that `a2abus explain` prints.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, name, conditions: &[Self]| {
            write!(f, "{name} [")?;
            for (index, condition) in conditions.iter().enumerate() {
                let comma = if index == 0 { "" } else { ", " };
                write!(f, "{comma}{condition}")?;
            }
            f.write_str("]")
        };
        match self {
            Self::Exact(text) => write!(f, "{text:?}"),
            Self::Prefix(text) => write!(f, "prefix {text:?}"),
            Self::Suffix(text) => write!(f, "suffix {text:?}"),
            Self::Glob(text, _) => write!(f, "glob {text:?}"),
            Self::Any(conditions) => list(f, "any", conditions),
            Self::All(conditions) => list(f, "all", conditions),
            Self::Not(condition) => write!(f, "not {condition}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(condition: &Value, meets: &[Option<&str>], fails: &[Option<&str>]) {
        let config: ConditionConfig = serde_json::from_value(condition.clone()).unwrap();
        let ready = Condition::new(&config).unwrap();
        for value in meets {
            assert!(ready.holds(*value), "{condition} should take {value:?}");
        }
        for value in fails {
            assert!(
                !ready.holds(*value),
                "{condition} should not take {value:?}"
            );
        }
    }

    #[test]
    fn every_dialect_decides() {
        let some = Some;
        check(
            &json!("a"),
            &[some("a")],
            &[some("A"), some("ab"), some(""), None],
        );
        check(&json!(""), &[some("")], &[some("a"), None]);
        check(
            &json!("a*"),
            &[some("a"), some("a/b.c"), some("a\nb")],
            &[some("ba"), None],
        );
        check(
            &json!("a?c"),
            &[some("abc"), some("a/c")],
            &[some("ac"), some("abbc")],
        );
        check(&json!("a[b"), &[some("a[b")], &[some("ab")]);
        check(&json!("k-[0-9]"), &[some("k-7")], &[some("k-[0-9]"), None]);
        check(&json!("*"), &[some(""), some("é")], &[None]);
        check(
            &json!(["a", "b*"]),
            &[some("a"), some("bc")],
            &[some("ab"), None],
        );
        check(&json!({"exact": "a*"}), &[some("a*")], &[some("ab")]);
        check(&json!({"prefix": "a"}), &[some("ab")], &[some("ba"), None]);
        check(&json!({"suffix": "a"}), &[some("ba")], &[some("ab"), None]);
        check(
            &json!({"glob": "{a,b}[0-9]"}),
            &[some("a1"), some("b9")],
            &[some("c1")],
        );
        check(
            &json!({"prefix": "a", "suffix": "z"}),
            &[some("a-z")],
            &[some("a"), some("z")],
        );
        check(
            &json!({"any": ["a", {"prefix": "b"}]}),
            &[some("a"), some("bb")],
            &[some("c")],
        );
        check(
            &json!({"all": [{"prefix": "a"}, {"not": "ab"}]}),
            &[some("ac")],
            &[some("ab"), some("b")],
        );
        check(&json!({"not": "a"}), &[some("b"), None], &[some("a")]);
        check(
            &json!({"not": {"not": "a"}}),
            &[some("a")],
            &[some("b"), None],
        );
    }
}
