//! Properties of every document, whatever an agent writes.

use a2abus_models::Json;
use a2abus_models::a2e_workflow::{
    Document, FieldTemplate, OutputPath, Path, RelativePath, Strictness, Template, Workflow,
    WorkflowLimits,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::build::{flat, one};
use super::policy;

/// Validates at every strictness: a workflow that is valid at one level is valid at the more lenient ones.
fn judge(bytes: Vec<u8>) {
    let document = Document::parse(&bytes.into(), &WorkflowLimits::default());
    let valid = |strictness| document.validate(&policy(), None, strictness).is_valid();
    let (strict, moderate, lenient) = (
        valid(Strictness::Strict),
        valid(Strictness::Moderate),
        valid(Strictness::Lenient),
    );
    assert!(strict <= moderate && moderate <= lenient);
    if moderate {
        document.into_workflow().unwrap();
    }
}

// === generated workflows ===

fn key() -> impl Strategy<Value = String> {
    "[a-zé0-9_-]{1,6}"
}

fn output() -> impl Strategy<Value = String> {
    vec((prop_oneof![Just('/'), Just('.')], key()), 0..3).prop_flat_map(|rest| {
        key().prop_map(move |first| {
            let rest: String = rest.iter().map(|(c, key)| format!("{c}{key}")).collect();
            format!("/workflow/{first}{rest}")
        })
    })
}

fn bracket() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<u32>().prop_map(|index| format!("[{index}]")),
        any::<String>().prop_map(|key| format!("[{}]", json!(key))),
        key().prop_map(|key| format!(".{key}")),
    ]
}

fn path() -> impl Strategy<Value = String> {
    (output(), vec(bracket(), 0..3)).prop_map(|(path, brackets)| path + &brackets.concat())
}

fn field() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(".".to_owned()),
        (key(), vec(bracket(), 0..3)).prop_map(|(key, brackets)| key + &brackets.concat()),
    ]
}

fn template() -> impl Strategy<Value = String> {
    vec(
        prop_oneof![
            "[a-z {}é]{0,5}",
            path().prop_map(|path| format!("{{{path}}}"))
        ],
        0..4,
    )
    .prop_map(|parts| parts.concat())
}

fn field_template() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-z é]{0,5}",
        Just("{{".into()),
        Just("}}".into()),
        field().prop_map(|f| format!("{{{f}}}"))
    ];
    vec(part, 0..4).prop_map(|parts| parts.concat())
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<String>()
            .prop_filter("no brace of a template", |s| !s.contains('{'))
            .prop_map(Value::from),
        template().prop_map(Value::from),
        path().prop_map(Value::from),
        path().prop_map(|path| json!({"path": path})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            vec((key(), inner), 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn operator() -> impl Strategy<Value = &'static str> {
    select(vec![
        "==",
        "!=",
        ">",
        "<",
        ">=",
        "<=",
        "in",
        "contains",
        "startsWith",
        "endsWith",
    ])
}

fn expression() -> impl Strategy<Value = Value> {
    let function = select(vec!["upper", "length", "not"]);
    prop_oneof![
        field().prop_map(Value::from),
        (field(), function).prop_map(|(f, function)| json!({"field": f, "function": function})),
        value().prop_map(|value| json!({"value": value})),
        path().prop_map(|path| json!({"path": path})),
        field_template().prop_map(|text| json!({"template": text})),
    ]
}

fn transform() -> impl Strategy<Value = (&'static str, Value)> {
    let order = select(vec!["asc", "desc"]);
    let aggregation = select(vec![
        "count",
        "sum",
        "avg",
        "average",
        "first",
        "countDistinct",
    ]);
    let members =
        vec((key(), expression()), 0..3).prop_map(|m| Value::Object(m.into_iter().collect()));
    prop_oneof![
        (field(), order, 0..9_u32)
            .prop_map(|(f, o, n)| ("sort", json!({"field": f, "order": o, "offset": n}))),
        field().prop_map(|f| ("group", json!({"field": f}))),
        (members, any::<bool>())
            .prop_map(|(m, merge)| ("map", json!({"fields": m, "merge": merge}))),
        vec(field(), 0..3).prop_map(|fields| ("select", json!({"fields": fields, "limit": 2}))),
        field_template().prop_map(|text| ("map", json!({"template": text}))),
        (aggregation.clone(), field())
            .prop_map(|(f, x)| ("aggregate", json!({"operation": f, "field": x}))),
        (aggregation, field(), field()).prop_map(|(f, x, g)| {
            let named = json!([{"operation": f, "field": x}, {"operation": "count", "as": "n"}]);
            ("aggregate", json!({"aggregations": named, "groupBy": g}))
        }),
    ]
}

fn call() -> impl Strategy<Value = Value> {
    let method = select(vec!["GET", "POST", "PUT", "DELETE", "PATCH"]);
    let header = prop_oneof![
        template().prop_map(Value::from),
        path().prop_map(|path| json!({"path": path})),
        key().prop_map(|id| json!({"credentialRef": {"id": id}})),
    ];
    let url = prop_oneof![
        path().prop_map(|path| format!("{{{path}}}")),
        (key(), path()).prop_map(|(k, p)| format!("https://api.example.com/{k}/{{{p}}}?x=1")),
    ];
    let members = (method, url, header, value(), 1_000..300_000_u32, output());
    members.prop_map(|(method, url, header, body, timeout, output)| {
        json!({"ApiCall": {
            "method": method,
            "url": url,
            "headers": {"X-A": header, "x-b": "c"},
            "body": body,
            "timeout": timeout,
            "outputPath": output,
        }})
    })
}

fn filter() -> impl Strategy<Value = Value> {
    let members = (path(), field(), operator(), value(), output());
    members.prop_map(|(path, field, operator, value, output)| {
        json!({"FilterData": {
            "inputPath": path,
            "conditions": [{"field": field, "operator": operator, "value": value}],
            "outputPath": output,
        }})
    })
}

fn ids() -> impl Strategy<Value = Vec<&'static str>> {
    vec(select(vec!["op0", "op1", "op2"]), 0..3)
}

fn conditional() -> impl Strategy<Value = Value> {
    let operator = prop_oneof![operator(), Just("exists"), Just("empty")];
    (path(), operator, value(), ids(), ids()).prop_map(|(path, operator, value, yes, no)| {
        json!({"Conditional": {
            "condition": {"path": path, "operator": operator, "value": value},
            "ifTrue": yes,
            "ifFalse": no,
        }})
    })
}

fn transform_data() -> impl Strategy<Value = Value> {
    (path(), transform(), output()).prop_map(|(path, (name, config), output)| {
        json!({"TransformData": {
            "inputPath": path,
            "transform": name,
            "config": config,
            "outputPath": output,
        }})
    })
}

fn store() -> impl Strategy<Value = Value> {
    let storage = select(vec!["localStorage", "sessionStorage", "file"]);
    (path(), storage, "[a-z_][a-z.-]{0,9}").prop_map(|(path, storage, key)| {
        json!({"StoreData": {"inputPath": path, "storage": storage, "key": key}})
    })
}

fn merge() -> impl Strategy<Value = Value> {
    let strategy = select(vec!["concat", "union", "intersect", "deepMerge", "merge"]);
    (vec(path(), 2..4), strategy, output()).prop_map(|(sources, strategy, output)| {
        json!({"MergeData": {"sources": sources, "strategy": strategy, "outputPath": output}})
    })
}

fn operation() -> impl Strategy<Value = Value> {
    let looped = (path(), ids(), output()).prop_map(|(path, ids, output)| {
        json!({"Loop": {"inputPath": path, "operations": ids, "outputPath": output}})
    });
    prop_oneof![
        call(),
        filter(),
        transform_data(),
        conditional(),
        looped,
        store(),
        (0..600_000_u32).prop_map(|duration| json!({"Wait": {"duration": duration}})),
        merge(),
    ]
}

/// A workflow of valid form in the flat dialect; its references may not exist.
fn workflow() -> impl Strategy<Value = String> {
    vec(operation(), 1..6).prop_map(|operations| {
        let ids: Vec<_> = (0..operations.len()).map(|i| format!("op{i}")).collect();
        let operations: Vec<_> = operations.iter().map(Value::to_string).collect();
        let defined = ids.iter().map(String::as_str);
        let defined: Vec<_> = defined.zip(operations.iter().map(String::as_str)).collect();
        flat(&defined, &json!(ids).to_string())
    })
}

fn parse(text: &str) -> Workflow {
    Workflow::parse(&text.to_owned().into(), &WorkflowLimits::default())
        .unwrap_or_else(|issues| panic!("{text}\n{issues:?}"))
}

/// The building blocks of workflows.
const TOKENS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "1",
    "null",
    "\"type\"",
    "\"operationUpdate\"",
    "\"operationId\"",
    "\"operation\"",
    "\"Wait\"",
    "\"Loop\"",
    "\"/workflow/x\"",
    "\"a\"",
    "\"beginExecution\"",
    "\"operationOrder\"",
];

proptest! {
    #[test]
    fn any_bytes_are_judged(bytes in vec(any::<u8>(), 0..400)) {
        judge(bytes);
    }

    #[test]
    fn any_tokens_are_judged(lines in vec(vec(select(TOKENS), 0..30), 0..4)) {
        let lines: Vec<String> = lines.iter().map(|tokens| tokens.concat()).collect();
        judge(lines.join("\n").into_bytes());
    }

    #[test]
    fn any_change_of_a_workflow_is_judged(
        text in workflow(),
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
        cut in 0..4_usize,
    ) {
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, [with]);
        judge(bytes);
    }

    #[test]
    fn any_value_of_a_member_is_either_accepted_or_refused(
        operation in operation(),
        value in value(),
        at in any::<prop::sample::Index>(),
    ) {
        let (name, config) = operation.as_object().unwrap().iter().next().unwrap();
        let mut config = config.clone();
        let members: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        config[at.get(&members)] = value;
        judge(one(&json!({name: config}).to_string()).into_bytes());
    }

    #[test]
    fn written_records_read_back(text in workflow()) {
        let workflow = parse(&text);
        let written = workflow.to_jsonl(&"unused".into());
        let again = parse(&written);
        prop_assert_eq!(&again, &workflow);
        prop_assert_eq!(again.to_jsonl(&"unused".into()), written);
    }

    #[test]
    fn paths_read_back(
        text in path(),
        field in field(),
        output in output(),
        template in template(),
        of_fields in field_template(),
    ) {
        let path = Path::parse(&text).unwrap();
        prop_assert_eq!(&Path::parse(&path.to_string()).unwrap(), &path);
        let field_path = RelativePath::parse(&field).unwrap();
        prop_assert_eq!(field_path.to_string(), field);
        prop_assert_eq!(OutputPath::parse(&output).unwrap().to_string(), output);
        let template = Template::parse(&template).unwrap();
        prop_assert_eq!(&Template::parse(&template.to_string()).unwrap(), &template);
        prop_assert_eq!(FieldTemplate::parse(&of_fields).unwrap().to_string(), of_fields);
    }

    #[test]
    fn any_text_is_a_path_or_not(
        text in any::<String>(),
        tail in "[/.a\\[\\]\"\\\\0-9{} ~é]{0,20}",
    ) {
        let below = format!("/workflow/{text}");
        let of_grammar = format!("/workflow/{tail}");
        let braced = format!("{{{of_grammar}");
        for text in [text, below, of_grammar, braced] {
            if let Ok(path) = Path::parse(&text) {
                prop_assert_eq!(Path::parse(&path.to_string()).unwrap(), path);
            }
            if let Ok(template) = Template::parse(&text) {
                prop_assert_eq!(Template::parse(&template.to_string()).unwrap(), template);
            }
            if let Ok(template) = FieldTemplate::parse(&text) {
                prop_assert_eq!(FieldTemplate::parse(&template.to_string()).unwrap(), template);
            }
            if let Ok(field) = RelativePath::parse(&text) {
                prop_assert_eq!(field.to_string(), text);
            }
        }
    }

    #[test]
    fn the_answer_is_json(bytes in vec(any::<u8>(), 0..100)) {
        let document = Document::parse(&bytes.into(), &WorkflowLimits::default());
        let report = document.validate(&policy(), None, Strictness::Moderate).to_json();
        prop_assert_eq!(report.get("valid").and_then(Json::as_bool), Some(false));
        serde_json::from_str::<Value>(&report.to_string()).unwrap();
    }
}
