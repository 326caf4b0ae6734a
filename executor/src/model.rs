//! The data model of one execution: reading and writing by path.
//!
//! Source: docs/protocols/a2e-workflows.md §2.

use a2abus_models::a2e_workflow::operation::Storage;
use a2abus_models::a2e_workflow::{OutputPath, Path, RelativePath, Segment};
use a2abus_models::{Json, Object};
use a2abus_plugin::Text;

use crate::failure::{Failure, FailureCode};

/// The value of `/workflow`, and the loops that are running.
#[derive(Debug, Default)]
pub(crate) struct Model {
    root: Object,
    /// Stored values that paths can read, by key.
    local: Object,
    session: Object,
    /// The outermost first.
    loops: Vec<Iteration>,
}

/// One iteration of a loop. Source: docs/protocols/a2e-workflows.md §D7.
#[derive(Debug)]
pub(crate) struct Iteration {
    pub(crate) item: Json,
    pub(crate) index: usize,
}

// === impl Model ===

impl Model {
    pub(crate) fn new(input: Object) -> Self {
        Self {
            root: input,
            local: Object::default(),
            session: Object::default(),
            loops: Vec::new(),
        }
    }

    pub(crate) fn root(&self) -> &Object {
        &self.root
    }

    pub(crate) fn weight(&self) -> usize {
        Json::from(self.root.clone()).weight()
    }

    /// Adds the stored value of a key, for the paths that read it.
    pub(crate) fn put_stored(&mut self, storage: Storage, key: Text, value: Json) {
        match storage {
            Storage::Local => self.local.insert(key, value),
            Storage::Session => self.session.insert(key, value),
            // Paths cannot read files.
            Storage::File => None,
        };
    }

    /// The memory of all these values.
    pub(crate) fn stored_weight(&self) -> usize {
        let weight = |object: &Object| Json::from(object.clone()).weight();
        weight(&self.local) + weight(&self.session)
    }

    /// The same, after this value has replaced the previous value of its key.
    pub(crate) fn stored_weight_with(&self, storage: Storage, key: &Text, value: &Json) -> usize {
        let mut after = Self {
            local: self.local.clone(),
            session: self.session.clone(),
            ..Self::default()
        };
        after.put_stored(storage, key.clone(), value.clone());
        after.stored_weight()
    }

    /// Restores the previous value.
    pub(crate) fn restore(&mut self, root: Object) {
        self.root = root;
    }

    /// The iteration of the innermost loop.
    pub(crate) fn iteration(&self) -> Option<usize> {
        self.loops.last().map(|iteration| iteration.index)
    }

    pub(crate) fn enter(&mut self, iteration: Iteration) {
        self.loops.push(iteration);
    }

    pub(crate) fn leave(&mut self) {
        self.loops.pop();
    }

    /// The value of a path; `None` when it is missing.
    pub(crate) fn get(&self, path: &Path) -> Option<Json> {
        let (first, rest) = path.segments().split_first()?;
        let key = first.key();
        match path.storage() {
            Some(Storage::Local) => return follow(self.local.get(&key)?, rest),
            Some(Storage::Session) => return follow(self.session.get(&key)?, rest),
            Some(Storage::File) => return None,
            None => {}
        }
        match self.loop_member(&key) {
            Some(value) => follow(&value, rest),
            None => follow(self.root.get(&key)?, rest),
        }
    }

    /// The value of a path that must exist.
    pub(crate) fn read(&self, path: &Path) -> Result<Json, Failure> {
        self.get(path).ok_or_else(|| {
            Failure::new(FailureCode::PathNotFound, format!("{path} does not exist"))
                .with("path", path.to_string())
        })
    }

    /// The member `item`, `index` or `parent` of the innermost loop, which hides a member of the data model with the
    /// same name.
    fn loop_member(&self, key: &str) -> Option<Json> {
        let mut iterations = self.loops.iter().rev();
        let iteration = iterations.next()?;
        match key {
            "item" => Some(iteration.item.clone()),
            "index" => Some(iteration.index.into()),
            "parent" => iterations.next().map(Iteration::to_value),
            _ => None,
        }
    }

    /// Writes a value at a path. Creates missing objects on the way, and fails at values of other types.
    pub(crate) fn write(&mut self, path: &OutputPath, value: Json) -> Result<(), Failure> {
        let keys: Vec<Text> = path.path().segments().iter().map(Segment::key).collect();
        match write(&mut self.root, &keys, value) {
            Ok(()) => Ok(()),
            Err(kind) => {
                let message = format!("{path} goes through {kind}, which has no members");
                Err(Failure::new(FailureCode::TypeMismatch, message).with("path", path.to_string()))
            }
        }
    }
}

impl Iteration {
    fn to_value(&self) -> Json {
        Json::object([("item", self.item.clone()), ("index", self.index.into())])
    }
}

/// The error is the kind of the value that is in the way. A refused write changes nothing.
fn write(object: &mut Object, keys: &[Text], value: Json) -> Result<(), &'static str> {
    let Some((first, rest)) = keys.split_first() else {
        return Ok(());
    };
    if rest.is_empty() {
        object.insert(first.clone(), value);
        return Ok(());
    }
    match object.get(first) {
        Some(Json::Object(_)) => object.change(first, |member| match member {
            Json::Object(inner) => write(inner, rest, value),
            other => Err(other.kind()),
        }),
        Some(other) => Err(other.kind()),
        None => {
            let mut inner = Object::default();
            let written = write(&mut inner, rest, value);
            object.insert(first.clone(), inner);
            written
        }
    }
}

/// The value of a field of an element; `None` when it is missing.
pub(crate) fn field<'a>(
    item: &'a Json,
    field: &RelativePath,
) -> Option<std::borrow::Cow<'a, Json>> {
    use std::borrow::Cow;
    if let Some(value) = item.get(field.text()) {
        return Some(Cow::Borrowed(value));
    }
    let mut value = item;
    let mut segments = field.segments().iter();
    while let Some(segment) = segments.next() {
        match step(value, segment)? {
            SegmentValue::To(next) => value = next,
            SegmentValue::Length(length) => {
                return follow(&length, segments.as_slice()).map(Cow::Owned);
            }
        }
    }
    Some(Cow::Borrowed(value))
}

fn follow(value: &Json, segments: &[Segment]) -> Option<Json> {
    let mut value = value;
    for (at, segment) in segments.iter().enumerate() {
        match step(value, segment)? {
            SegmentValue::To(next) => value = next,
            SegmentValue::Length(length) => return follow(&length, segments.get(at + 1..)?),
        }
    }
    Some(value.clone())
}

/// The target of a segment: an existing value, or a computed number.
enum SegmentValue<'a> {
    To(&'a Json),
    Length(Json),
}

/// Source: docs/protocols/a2e-workflows.md §D6.
fn step<'a>(value: &'a Json, segment: &Segment) -> Option<SegmentValue<'a>> {
    match (value, segment) {
        (Json::Object(object), Segment::Slash(key) | Segment::Dot(key) | Segment::Quoted(key)) => {
            object.get(key).map(SegmentValue::To)
        }
        (Json::Array(array), Segment::Index(index)) => array
            .get(usize::try_from(*index).ok()?)
            .map(SegmentValue::To),
        (Json::Array(array), Segment::Dot(key)) if key == "length" => {
            Some(SegmentValue::Length(array.len().into()))
        }
        (Json::String(text), Segment::Dot(key)) if key == "length" => {
            Some(SegmentValue::Length(text.chars().count().into()))
        }
        (Json::Array(array), Segment::Slash(key) | Segment::Dot(key)) => {
            let digits = key.bytes().all(|byte| byte.is_ascii_digit());
            let index: usize = digits.then(|| key.parse().ok())??;
            array.get(index).map(SegmentValue::To)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(root: &str) -> Model {
        let root = crate::parse(root.as_bytes()).unwrap();
        Model::new(root.as_object().unwrap().clone())
    }

    #[test]
    fn paths_read_members_elements_and_lengths() {
        let model = model(
            r#"{"u":[{"n":"Ana","t":["x"]},{"n":null}],"o":{"a.b":5,"length":"own","7":1},"s":"naïve"}"#,
        );
        for (path, expected) in [
            ("/workflow/u[0].n", Some("\"Ana\"")),
            ("/workflow/u/0/n", Some("\"Ana\"")),
            ("/workflow/u.0.t[0]", Some("\"x\"")),
            ("/workflow/u[1].n", Some("null")),
            ("/workflow/u[1].m", None),
            ("/workflow/u[2]", None),
            ("/workflow/u/-1", None),
            ("/workflow/u.length", Some("2")),
            ("/workflow/u/length", None),
            ("/workflow/u.length.length", None),
            ("/workflow/s.length", Some("5")),
            ("/workflow/o.length", Some("\"own\"")),
            ("/workflow/o[\"a.b\"]", Some("5")),
            ("/workflow/o[7]", None),
            ("/workflow/o.7", Some("1")),
            ("/workflow/item", None),
        ] {
            let found = model.get(&Path::parse(path).unwrap());
            assert_eq!(
                found.map(|value| value.to_string()).as_deref(),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn a_loop_shadows_item_index_and_parent() {
        let mut model = model(r#"{"item":"own","parent":"own"}"#);
        let get = |model: &Model, path: &str| {
            model
                .get(&Path::parse(path).unwrap())
                .map(|value| value.to_string())
        };
        model.enter(Iteration {
            item: crate::parse(br#"{"c":["x"]}"#).unwrap(),
            index: 3,
        });
        assert_eq!(get(&model, "/workflow/item.c[0]").as_deref(), Some("\"x\""));
        assert_eq!(get(&model, "/workflow/parent").as_deref(), Some("\"own\""));
        model.enter(Iteration {
            item: "x".into(),
            index: 0,
        });
        assert_eq!(get(&model, "/workflow/item").as_deref(), Some("\"x\""));
        assert_eq!(get(&model, "/workflow/parent.index").as_deref(), Some("3"));
        model.leave();
        model.leave();
        assert_eq!(get(&model, "/workflow/item").as_deref(), Some("\"own\""));
    }

    #[test]
    fn writing_creates_objects_and_fails_at_other_values() {
        let mut model = model(r#"{"a":{"x":1},"n":7,"l":[1]}"#);
        let shared = model.root().clone();
        let mut write = |path: &str| {
            model
                .write(&OutputPath::parse(path).unwrap(), Json::Bool(true))
                .map_err(|e| e.code)
        };
        assert_eq!(write("/workflow/a.y.z"), Ok(()));
        assert_eq!(write("/workflow/b/c"), Ok(()));
        assert_eq!(write("/workflow/n"), Ok(()));
        assert_eq!(write("/workflow/n/m"), Err(FailureCode::TypeMismatch));
        assert_eq!(write("/workflow/l/0"), Err(FailureCode::TypeMismatch));
        let expected = r#"{"a":{"x":1,"y":{"z":true}},"n":true,"l":[1],"b":{"c":true}}"#;
        assert_eq!(Json::from(model.root().clone()).to_string(), expected);
        assert_eq!(shared.len(), 3, "whoever held the old value still does");
        assert_eq!(
            model.weight(),
            crate::parse(expected.as_bytes()).unwrap().weight()
        );
    }

    #[test]
    fn a_field_name_is_looked_up_whole_before_it_is_read_as_a_path() {
        let item = crate::parse(br#"{"a.b":1,"a":{"b":2,"c":3},"t":["v"]}"#).unwrap();
        let get = |text: &str| {
            let path = RelativePath::parse(text).unwrap();
            field(&item, &path).map(|value| value.to_string())
        };
        assert_eq!(get("a.b").as_deref(), Some("1"));
        assert_eq!(get("a.c").as_deref(), Some("3"));
        assert_eq!(get("t[0]").as_deref(), Some("\"v\""));
        assert_eq!(get("t.length").as_deref(), Some("1"));
        assert_eq!(get(".").as_deref(), Some(item.to_string().as_str()));
        assert_eq!(get("x"), None);
    }
}
