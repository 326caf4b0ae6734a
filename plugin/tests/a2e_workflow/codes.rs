//! For every code of the table a workflow that has it, and one that nearly has.

use std::collections::BTreeSet;

use a2abus_plugin::protocol::a2e_workflow::{Apis, Code, Policy, Strictness};

use crate::{all_words, document, object, policy};

/// Data that are there in all cases.
const INPUT: &str = r#"{"x":1,"xs":[1],"o":{}}"#;

fn check_with(policy: &Policy, text: &str, expected: &[&str]) {
    let report = document(text).validate(policy, Some(&object(INPUT)), Strictness::Moderate);
    assert_eq!(all_words(&report), expected, "{text}\n{report:?}");
    let mut seen = BTreeSet::new();
    for issue in report.errors.iter().chain(&report.warnings) {
        assert_eq!(issue.level(), issue.code.level());
        seen.insert(issue.code.as_str());
    }
}

fn check(text: &str, expected: &[&str]) {
    check_with(&policy(), text, expected);
}

/// Definitions as `(id, operation)` in the flat dialect, and an order.
fn flat(operations: &[(&str, &str)], order: &str) -> String {
    let mut text = String::new();
    for (id, operation) in operations {
        text += &format!(
            r#"{{"type":"operationUpdate","operationId":"{id}","operation":{operation}}}"#
        );
        text.push('\n');
    }
    text + &format!(r#"{{"type":"beginExecution","executionId":"e","operationOrder":{order}}}"#)
}

fn one(operation: &str) -> String {
    flat(&[("a", operation)], r#"["a"]"#)
}

fn filter(conditions: &str, input: &str) -> String {
    format!(
        r#"{{"FilterData":{{"inputPath":"{input}","conditions":{conditions},"outputPath":"/workflow/f"}}}}"#
    )
}

fn call(members: &str) -> String {
    format!(r#"{{"ApiCall":{{{members},"outputPath":"/workflow/r"}}}}"#)
}

fn get(url: &str) -> String {
    call(&format!(r#""method":"GET","url":"{url}""#))
}

fn with_header(name: &str, value: &str) -> String {
    call(&format!(
        r#""method":"GET","url":"https://api.example.com/","headers":{{"{name}":{value}}}"#
    ))
}

fn transform(name: &str, config: &str) -> String {
    format!(
        r#"{{"TransformData":{{"inputPath":"/workflow/xs","transform":"{name}","config":{config},"outputPath":"/workflow/t"}}}}"#
    )
}

const WAIT: &str = r#"{"Wait":{"duration":1}}"#;
const CONDITION: &str = r#"{"field":"a","operator":"==","value":1}"#;

fn conditional(path: &str, branch: &str) -> String {
    format!(
        r#"{{"Conditional":{{"condition":{{"path":"{path}","operator":"==","value":1}},"ifTrue":{branch}}}}}"#
    )
}

fn loop_over(input: &str, body: &str) -> String {
    format!(r#"{{"Loop":{{"inputPath":"{input}","operations":{body}}}}}"#)
}

fn merge(sources: &str, strategy: &str, output: &str) -> String {
    format!(
        r#"{{"MergeData":{{"sources":{sources},"strategy":"{strategy}","outputPath":"{output}"}}}}"#
    )
}

fn store(storage: &str, key: &str) -> String {
    format!(r#"{{"StoreData":{{"inputPath":"/workflow/x","storage":"{storage}","key":"{key}"}}}}"#)
}

#[test]
fn lines_and_messages() {
    let good = one(WAIT);
    check(&good, &[]);
    check(&format!("{{\n{good}"), &["invalid_json"]);
    check(&format!("{{\"a\":\"\\ud800\"}}\n{good}"), &["invalid_json"]);
    check(&format!("[]\n{good}"), &["not_an_object"]);
    check(&format!("{{}}\n{good}"), &["unknown_message_type"]);
    check(
        &format!("{{\"type\":\"operationupdate\"}}\n{good}"),
        &["unknown_message_type"],
    );
    check("", &["empty_workflow", "missing_begin_execution"]);
    check(good.lines().next().unwrap(), &["missing_begin_execution"]);
    check(
        good.lines().nth(1).unwrap(),
        &["empty_workflow", "unknown_operation@a"],
    );
    check(
        &format!("{good}\n{}", good.lines().next().unwrap()),
        &["update_after_begin@a"],
    );
    check(&format!("{good}\n \r\n"), &[]);
    check(
        &format!("{good}\n{}", good.lines().nth(1).unwrap()),
        &["multiple_begin_execution"],
    );
    let wrapped = r#"{"operationUpdate":{"operations":[]}}"#;
    check(&format!("{wrapped}\n{good}"), &["mixed_dialects"]);
    check(&" ".repeat((1 << 20) + 1), &["workflow_too_large"]);
    check(&format!("{}\n{good}", " ".repeat(1 << 19)), &[]);
    check(
        &format!("{{}}{}\n{good}", " ".repeat(1 << 18)),
        &["workflow_too_large"],
    );
    check(
        &format!("{}\n{good}", good.lines().next().unwrap()),
        &["warning operation_replaced@a"],
    );
}

#[test]
fn members_of_messages() {
    let good = one(WAIT);
    check(
        &good.replace(r#""operationId":"a","#, ""),
        &["empty_workflow", "missing_field", "unknown_operation@a"],
    );
    check(
        &good.replace(r#""executionId":"e","#, ""),
        &["missing_field"],
    );
    check(
        &good.replace(r#","operationOrder":["a"]"#, ""),
        &["missing_field"],
    );
    check(
        &good.replace(&format!(r#","operation":{WAIT}"#), ""),
        &["missing_field@a"],
    );
    check(&good.replace(WAIT, "[]"), &["invalid_field@a"]);
    check(&good.replace(r#""e""#, r#""e e""#), &["invalid_field"]);
    check(&good.replace(r#"["a"]"#, "[]"), &["invalid_field"]);
    check(&good.replace(r#"["a"]"#, r#"["a",1]"#), &["invalid_field"]);
    check(&good.replace(r#""a""#, r#""a.b""#), &["invalid_field@a.b"]);
    check(
        &good.replace(r#""a""#, &format!(r#""{}""#, "a".repeat(100))),
        &[],
    );
    check(&good.replace(r#""e","#, r#""e","_agentId":"x","#), &[]);
    check(
        &good.replace(r#""e","#, r#""e","_agentId":"x y","#),
        &["invalid_field"],
    );
    check(
        &good.replace(r#""e","#, r#""e","note":"x","#),
        &["warning unknown_field"],
    );
    check(
        &good.replace(r#""operationId""#, r#""note":1,"operationId""#),
        &["warning unknown_field@a"],
    );
    let ids: Vec<String> = (0..101).map(|i| format!("\"a{i}\"")).collect();
    let long = document(&flat(&[("a", WAIT)], &format!("[{}]", ids.join(","))));
    assert_eq!(long.issues()[0].code, Code::InvalidField);
    let full = document(&flat(
        &[("a", WAIT)],
        &format!("[{}]", ids[..100].join(",")),
    ));
    assert!(full.issues().is_empty());
}

#[test]
fn wrapped_messages() {
    let wrapped = |operations: &str, begin: &str| {
        format!(
            "{{\"operationUpdate\":{{\"workflowId\":\"w\",\"operations\":{operations}}}}}\n{begin}"
        )
    };
    let begin = r#"{"beginExecution":{"workflowId":"w","root":"a"}}"#;
    let a = r#"{"id":"a","operation":{"Wait":{"duration":1}}}"#;
    check(&wrapped(&format!("[{a}]"), begin), &[]);
    check(
        &wrapped(&format!("[{a},{a}]"), begin),
        &["duplicate_operation@a"],
    );
    check(
        &wrapped(&format!("[{a}]"), r#"{"beginExecution":{}}"#),
        &["missing_field"],
    );
    check(
        &wrapped(&format!("[{a}]"), r#"{"beginExecution":{"root":"b"}}"#),
        &["unknown_operation@b"],
    );
    check(
        &wrapped("{}", begin),
        &["empty_workflow", "invalid_field", "unknown_operation@a"],
    );
    check(&wrapped(&format!("[{a},7]"), begin), &["invalid_field"]);
    let data = r#"{"dataModelUpdate":{"x":1}}"#;
    check(
        &format!("{data}\n{}", wrapped(&format!("[{a}]"), begin)),
        &["warning ignored_message"],
    );
    check(
        &format!("{}\n{data}", wrapped(&format!("[{a}]"), begin)),
        &["update_after_begin"],
    );
    check(
        &wrapped(&format!("[{a}]"), &format!("{begin}\n{begin}")),
        &["multiple_begin_execution"],
    );
    let branch = conditional("/workflow/x", "\"b\"");
    let b = a.replace("\"a\"", "\"b\"");
    check(
        &wrapped(
            &format!(r#"[{{"id":"a","operation":{branch}}},{b}]"#),
            begin,
        ),
        &[],
    );
    check(
        &flat(&[("a", &branch), ("b", WAIT)], r#"["a"]"#),
        &["invalid_field@a", "warning unused_operation@b"],
    );
}

#[test]
fn operations_and_their_types() {
    check(&one("{}"), &["multiple_operation_types@a"]);
    check(
        &one(r#"{"Wait":{"duration":1},"Loop":{}}"#),
        &["multiple_operation_types@a"],
    );
    check(
        &one(r#"{"wait":{"duration":1}}"#),
        &["unknown_operation_type@a"],
    );
    check(&one(r#"{"Wait":5}"#), &["invalid_field@a"]);
    check(
        &one(r#"{"Calculate":{"a":1}}"#),
        &["unknown_operation_type@a"],
    );
    // Its output is not there, it has no other issues itself.
    let reader = filter(&format!("[{CONDITION}]"), "/workflow/y");
    let unknown = r#"{"Fetch":{"outputPath":"/workflow/y"}}"#;
    check(
        &flat(&[("a", unknown), ("b", &reader)], r#"["a","b"]"#),
        &["path_not_found@b", "unknown_operation_type@a"],
    );
    let many: Vec<(String, &str)> = (0..21).map(|i| (format!("w{i}"), WAIT)).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(id, wait)| (id.as_str(), *wait)).collect();
    let order = |n: usize| {
        format!(
            "[{}]",
            (0..n)
                .map(|i| format!("\"w{i}\""))
                .collect::<Vec<_>>()
                .join(",")
        )
    };
    check(&flat(&many, &order(21)), &["too_many_operations"]);
    check(&flat(&many[..20], &order(20)), &[]);
}

#[test]
fn required_members() {
    check(&one(r#"{"ApiCall":{}}"#), &["missing_field@a"; 3]);
    check(&one(r#"{"FilterData":{}}"#), &["missing_field@a"; 3]);
    check(&one(r#"{"TransformData":{}}"#), &["missing_field@a"; 3]);
    check(&one(r#"{"Conditional":{}}"#), &["missing_field@a"; 2]);
    check(
        &one(r#"{"Conditional":{"condition":{},"ifTrue":[]}}"#),
        &["missing_field@a"; 3],
    );
    check(
        &one(
            r#"{"Conditional":{"condition":{"path":"/workflow/x","operator":"exists"},"ifTrue":[]}}"#,
        ),
        &[],
    );
    check(&one(r#"{"Loop":{}}"#), &["missing_field@a"; 2]);
    check(&one(r#"{"StoreData":{}}"#), &["missing_field@a"; 3]);
    check(&one(r#"{"Wait":{}}"#), &["missing_field@a"]);
    check(&one(r#"{"MergeData":{}}"#), &["missing_field@a"; 3]);
    check(
        &one(&filter("[{}]", "/workflow/xs")),
        &["missing_field@a"; 3],
    );
    check(
        &one(&filter(
            r#"[{"field":"a","operator":"==","value":null}]"#,
            "/workflow/xs",
        )),
        &[],
    );
    check(
        &one(&with_header("x", r#"{"credentialRef":{}}"#)),
        &["missing_field@a"],
    );
}

#[test]
fn values_of_members() {
    let invalid = ["invalid_field@a"];
    check(
        &one(&call(r#""method":"get","url":"https://api.example.com/""#)),
        &invalid,
    );
    check(&one(r#"{"Wait":{"duration":10.0}}"#), &[]);
    check(&one(r#"{"Wait":{"duration":10.5}}"#), &invalid);
    check(&one(r#"{"Wait":{"duration":"10"}}"#), &invalid);
    check(&one(r#"{"Wait":{"duration":600001}}"#), &invalid);
    for (timeout, expected) in [
        ("1000", &[][..]),
        ("300000", &[]),
        ("999", &invalid),
        ("300001", &invalid),
    ] {
        let timeout =
            format!(r#""method":"GET","url":"https://api.example.com/","timeout":{timeout}"#);
        check(&one(&call(&timeout)), expected);
    }
    check(&one(&filter("{}", "/workflow/xs")), &invalid);
    check(
        &one(&filter(
            r#"[{"field":"a","operator":"exists","value":1}]"#,
            "/workflow/xs",
        )),
        &invalid,
    );
    check(
        &one(&merge(r#"["/workflow/xs"]"#, "concat", "/workflow/m")),
        &invalid,
    );
    check(&one(&store("indexedDB", "k")), &invalid);
    check(&one(&store("localStorage", "")), &invalid);
    check(&one(&store("localStorage", &"é".repeat(256))), &[]);
    check(&one(&store("localStorage", &"é".repeat(257))), &invalid);
    check(&one(&store("file", "a/_b/c-1.json")), &[]);
    for key in ["a//b", "a/", "-a", "a/.b", "a b", "é"] {
        check(&one(&store("file", key)), &invalid);
    }
    for url in [
        "/users",
        "https://",
        "https:///x",
        "https://api.example.com/a b",
        "https://api.example.com/{x}",
        "https://api.example.com{/workflow/x}",
        "{/workflow/x}://api.example.com/",
        "https://{/workflow/x}/",
        "https://api.example.com/{/workflow/x y}",
        "",
        "https://api.example.com:99999/",
    ] {
        check(&one(&get(url)), &invalid);
    }
    check(
        &one(&get(
            "https://api.example.com/{/workflow/x}?y={workflow/xs}",
        )),
        &[],
    );
    for name in ["Host", "proxy-authorization", "te", "a b", "", "é"] {
        check(&one(&with_header(name, r#""v""#)), &invalid);
    }
    for value in [r#""a\r\nb""#, "7", "{}", r#""\u0000""#] {
        check(&one(&with_header("x", value)), &invalid);
    }
    check(&one(&with_header("x", r#"{"path":"/workflow/x"}"#)), &[]);
}

#[test]
fn paths() {
    let invalid = ["invalid_path@a"];
    check(
        &one(&filter("[]", "/flow/xs")),
        &["invalid_path@a", "warning empty_conditions@a"],
    );
    check(
        &one(&merge(
            r#"["/workflow/xs","/workflow/xs[-1]"]"#,
            "concat",
            "/workflow/m",
        )),
        &invalid,
    );
    check(
        &one(&merge(
            r#"["/workflow/xs","/workflow/xs"]"#,
            "concat",
            "/workflow/m[0]",
        )),
        &invalid,
    );
    check(
        &one(&filter(
            r#"[{"field":"a b","operator":"==","value":1}]"#,
            "/workflow/xs",
        )),
        &invalid,
    );
    let value = |value: &str| {
        filter(
            &format!(r#"[{{"field":".","operator":"==","value":{value}}}]"#),
            "/workflow/xs",
        )
    };
    check(&one(&value(r#"{"path":"/workflow/x[a]"}"#)), &invalid);
    check(&one(&value(r#"{"path":"/etc"}"#)), &[]);
    check(
        &one(&value(r#"{"path":"/workflow/nope"}"#)),
        &["path_not_found@a"],
    );
    check(&one(&value(r#""/workflow/nope""#)), &[]);
    check(&one(&with_header("x", r#"{"path":"/etc"}"#)), &invalid);
    check(&one(&with_header("x", r#""{/workflow/x y}""#)), &invalid);
    let post = |body: &str| {
        call(&format!(
            r#""method":"POST","url":"https://api.example.com/","body":{body}"#
        ))
    };
    check(&one(&post(r#"["{/workflow/x y}"]"#)), &invalid);
    check(
        &one(&post(
            r#"{"a":"/workflow/nope","b":["{/workflow/gone}x"],"c":"/other","d":{"path":"/home"}}"#,
        )),
        &["path_not_found@a"; 2],
    );
    check(&one(&transform("map", r#"{"template":"{a"}"#)), &invalid);
    check(
        &one(&transform("map", r#"{"template":"{{a}} {b.c}"}"#)),
        &[],
    );
}

#[test]
fn transforms() {
    let missing = ["missing_field@a"];
    check(&one(&transform("group", "{}")), &missing);
    check(&one(&transform("map", "{}")), &missing);
    check(
        &one(&transform("select", r#"{"template":"x"}"#)),
        &["missing_field@a", "warning unknown_field@a"],
    );
    check(&one(&transform("aggregate", "{}")), &missing);
    check(
        &one(&transform("aggregate", r#"{"operation":"sum"}"#)),
        &missing,
    );
    check(
        &one(&transform("aggregate", r#"{"operation":"count"}"#)),
        &[],
    );
    check(
        &one(&transform(
            "aggregate",
            r#"{"operation":"average","field":"."}"#,
        )),
        &[],
    );
    check(
        &one(&transform(
            "aggregate",
            r#"{"operation":"median","field":"."}"#,
        )),
        &["invalid_field@a"],
    );
    check(&one(&transform("sort", "{}")), &[]);
    check(
        &one(&transform("sort", r#"{"order":"up"}"#)),
        &["invalid_field@a"],
    );
    check(
        &one(&transform(
            "sort",
            r#"{"by":[{"field":"a","order":"desc"}],"limit":3,"offset":1}"#,
        )),
        &[],
    );
    check(
        &one(&transform("sort", r#"{"limit":-3}"#)),
        &["invalid_field@a"],
    );
    check(&one(&transform("shuffle", "{}")), &["invalid_field@a"]);
    check(&one(&transform("sort", "[]")), &["invalid_field@a"]);
    check(
        &one(&transform("map", r#"{"field":"a","template":"x"}"#)),
        &["invalid_field@a"],
    );
    check(
        &one(&transform(
            "map",
            r#"{"fields":{"u":{"field":"a","function":"shout"}}}"#,
        )),
        &["invalid_field@a"],
    );
    check(
        &one(&transform(
            "map",
            r#"{"fields":{"u":{"path":"/workflow/nope"}},"merge":true}"#,
        )),
        &["path_not_found@a"],
    );
    check(
        &one(&transform("groupBy", r#"{"field":"a"}"#)),
        &["warning deprecated_alias@a"],
    );
    check(
        &one(&transform("reduce", r#"{"operation":"count"}"#)),
        &["warning deprecated_alias@a"],
    );
    check(
        &one(&transform("group", r#"{"field":"a","limit":1}"#)),
        &["warning unknown_field@a"],
    );
    let merged = merge(r#"["/workflow/o","/workflow/o"]"#, "merge", "/workflow/m");
    check(&one(&merged), &["warning deprecated_alias@a"]);
}

#[test]
fn what_loops_set_is_reserved() {
    let body = |output: &str| merge(r#"["/workflow/item","/workflow/index"]"#, "concat", output);
    let looped = |output: &str| {
        flat(
            &[
                ("l", &loop_over("/workflow/xs", r#"["a"]"#)),
                ("a", &body(output)),
            ],
            r#"["l"]"#,
        )
    };
    check(&looped("/workflow/item"), &["reserved_path@a"]);
    check(&looped("/workflow/parent.x"), &["reserved_path@a"]);
    check(&looped("/workflow/items"), &[]);
    let outside = merge(
        r#"["/workflow/x","/workflow/x"]"#,
        "concat",
        "/workflow/item",
    );
    check(&one(&outside), &[]);
    check(&one(&body("/workflow/m")), &["path_not_found@a"; 2]);
    let parent = merge(
        r#"["/workflow/parent.item","/workflow/x"]"#,
        "concat",
        "/workflow/m",
    );
    check(
        &flat(
            &[
                ("l", &loop_over("/workflow/xs", r#"["a"]"#)),
                ("a", &parent),
            ],
            r#"["l"]"#,
        ),
        &["path_not_found@a"],
    );
    let inner = loop_over("/workflow/item", r#"["a"]"#);
    let nested = [
        ("l", &*loop_over("/workflow/xs", r#"["i"]"#)),
        ("i", &inner),
        ("a", &parent),
    ];
    check(&flat(&nested, r#"["l"]"#), &[]);
}

#[test]
fn waits_are_summed_where_nothing_controls_them() {
    let wait = r#"{"Wait":{"duration":15000}}"#;
    let longer = r#"{"Wait":{"duration":15001}}"#;
    check(&flat(&[("a", wait), ("b", wait)], r#"["a","b"]"#), &[]);
    check(
        &flat(&[("a", wait), ("b", longer)], r#"["a","b"]"#),
        &["exceeds_execution_time"],
    );
    let branch = conditional("/workflow/x", r#"["b"]"#);
    check(
        &flat(
            &[("a", wait), ("c", &branch), ("b", longer)],
            r#"["a","c","b"]"#,
        ),
        &[],
    );
}

#[test]
fn permissions() {
    let only = Policy {
        operations: ["Loop"].into_iter().collect(),
        ..policy()
    };
    check_with(&only, &one(WAIT), &["operation_not_permitted@a"]);
    check_with(&only, &one(&loop_over("/workflow/xs", "[]")), &[]);
    let storages = Policy {
        storages: ["sessionStorage"].into_iter().collect(),
        ..policy()
    };
    check_with(
        &storages,
        &one(&store("file", "k")),
        &["storage_not_permitted@a"],
    );
    check_with(&storages, &one(&store("sessionStorage", "k")), &[]);
    let apis = Policy {
        apis: Apis::parse(["https://api.example.com/v1/"]).unwrap(),
        ..policy()
    };
    check_with(
        &apis,
        &one(&get("https://api.example.com/v1/{/workflow/x}")),
        &[],
    );
    check_with(
        &apis,
        &one(&get("https://api.example.com/{/workflow/x}/y")),
        &[],
    );
    for url in [
        "https://api.example.com/v10",
        "https://api.example.com/v1/../v2",
        "https://api.example.com:444/v1",
        "https://api.example.net/v1",
    ] {
        check_with(&apis, &one(&get(url)), &["api_not_permitted@a"]);
    }
    check_with(
        &apis,
        &one(&get("http://api.example.com/v1")),
        &["forbidden_target@a"],
    );
    let none = Policy {
        apis: Apis::default(),
        ..policy()
    };
    check_with(
        &none,
        &one(&get("https://api.example.com/")),
        &["api_not_permitted@a"],
    );
}

#[test]
fn credentials() {
    let bound = |base: &str| (a2abus_plugin::Text::from("k"), Apis::parse([base]).unwrap());
    let here = Policy {
        bindings: [bound("https://api.example.com")].into(),
        ..policy()
    };
    let reference = with_header("authorization", r#"{"credentialRef":{"id":"k"}}"#);
    check_with(&here, &one(&reference), &[]);
    check(&one(&reference), &["credential_not_found@a"]);
    let elsewhere = Policy {
        bindings: [bound("https://other.example.com")].into(),
        ..policy()
    };
    check_with(
        &elsewhere,
        &one(&reference),
        &["credential_not_permitted@a"],
    );
    let ungranted = Policy {
        credentials: ["j"].into_iter().collect(),
        ..here.clone()
    };
    check_with(
        &ungranted,
        &one(&reference),
        &["credential_not_permitted@a"],
    );
    check_with(
        &Policy {
            credentials: ["j"].into_iter().collect(),
            ..policy()
        },
        &one(&reference),
        &["credential_not_permitted@a"],
    );
    let body = r#""method":"POST","url":"https://api.example.com/","body":{"a":[{"credentialRef":{"id":"k"}}]}"#;
    check_with(&here, &one(&call(body)), &["credential_misplaced@a"]);
}

#[test]
fn references_between_operations() {
    let branch = |id: &str| conditional("/workflow/x", &format!(r#"["{id}"]"#));
    check(
        &flat(&[("a", &branch("b"))], r#"["a"]"#),
        &["unknown_operation@a"],
    );
    check(
        &flat(&[("a", WAIT)], r#"["a","b","b"]"#),
        &["duplicate_in_order@b", "unknown_operation@b"],
    );
    check(
        &flat(&[("a", WAIT)], r#"["a","a","a"]"#),
        &["duplicate_in_order@a"],
    );
    check(
        &flat(&[("a", &branch("a"))], r#"["a"]"#),
        &["cyclic_reference@a"],
    );
    check(
        &flat(&[("a", &branch("b")), ("b", &branch("a"))], r#"["a"]"#),
        &["cyclic_reference@a"],
    );
    check(
        &flat(
            &[("a", &branch("c")), ("b", &branch("c")), ("c", WAIT)],
            r#"["a","b"]"#,
        ),
        &[],
    );
    check(
        &flat(&[("a", &branch("b")), ("b", WAIT)], r#"["b","a"]"#),
        &["order_conflict@b"],
    );
    check(
        &flat(&[("a", &branch("b")), ("b", WAIT)], r#"["a","b"]"#),
        &[],
    );
    let deep = [("a", &*branch("b")), ("b", &branch("c")), ("c", WAIT)];
    check(&flat(&deep, r#"["c","a"]"#), &["order_conflict@c"]);
    check(
        &flat(&[("a", WAIT), ("b", WAIT)], r#"["a"]"#),
        &["warning unused_operation@b"],
    );
    // What an unused operation controls runs on its own.
    check(
        &flat(&[("a", &branch("b")), ("b", WAIT)], r#"["b"]"#),
        &["warning unused_operation@a"],
    );
}

#[test]
fn data_are_there_and_of_the_kind() {
    let reader = |input: &str| filter(&format!("[{CONDITION}]"), input);
    let writer = |output: &str| merge(r#"["/workflow/xs","/workflow/xs"]"#, "concat", output);
    let both = |output: &str, input: &str| {
        flat(
            &[("a", &writer(output)), ("b", &reader(input))],
            r#"["a","b"]"#,
        )
    };
    check(&both("/workflow/p", "/workflow/p"), &[]);
    check(&both("/workflow/p", "/workflow/p/0.q"), &[]);
    check(&both("/workflow/p.q", "/workflow/p"), &[]);
    check(&both("/workflow/p/0", "/workflow/p[0]"), &[]);
    check(&both("/workflow/p", "/workflow/pq"), &["path_not_found@b"]);
    check(
        &both("/workflow/p.q", "/workflow/p.r"),
        &["path_not_found@b"],
    );
    check(
        &flat(
            &[("a", &writer("/workflow/p")), ("b", &reader("/workflow/p"))],
            r#"["b","a"]"#,
        ),
        &["path_not_found@b"],
    );
    check(&one(&reader("/workflow/x")), &["type_mismatch@a"]);
    check(&one(&reader("/workflow/o")), &["type_mismatch@a"]);
    check(&one(&reader("/workflow/o.x")), &[]);
    let deep = |source: &str| {
        merge(
            &format!(r#"["{source}","/workflow/o"]"#),
            "deepMerge",
            "/workflow/m",
        )
    };
    check(&one(&deep("/workflow/xs")), &[]);
    check(&one(&deep("/workflow/x")), &["type_mismatch@a"]);
    let count = transform("aggregate", r#"{"operation":"count"}"#);
    check(
        &flat(
            &[("a", &count), ("b", &reader("/workflow/t"))],
            r#"["a","b"]"#,
        ),
        &["type_mismatch@b"],
    );
    let grouped = transform("aggregate", r#"{"operation":"count","groupBy":"."}"#);
    check(
        &flat(
            &[("a", &grouped), ("b", &reader("/workflow/t"))],
            r#"["a","b"]"#,
        ),
        &[],
    );
    // The latest producer counts.
    check(&both("/workflow/x", "/workflow/x"), &[]);
    // A test for presence is never an error.
    let exists = |path: &str| {
        format!(
            r#"{{"Conditional":{{"condition":{{"path":"{path}","operator":"empty"}},"ifTrue":[]}}}}"#
        )
    };
    check(
        &one(&exists("/workflow/nope")),
        &["warning path_maybe_missing@a"],
    );
    check(&one(&exists("/workflow/x.nope")), &[]);
    // The output of a loop is not there in its body.
    let own =
        r#"{"Loop":{"inputPath":"/workflow/xs","operations":["b"],"outputPath":"/workflow/out"}}"#;
    check(
        &flat(&[("a", own), ("b", &reader("/workflow/out"))], r#"["a"]"#),
        &["path_not_found@b"],
    );
}

#[test]
fn warnings_of_configurations() {
    check(
        &one(&filter("[]", "/workflow/xs")),
        &["warning empty_conditions@a"],
    );
    let body = |method: &str, body: &str| {
        call(&format!(
            r#""method":"{method}","url":"https://api.example.com/","body":{body}"#
        ))
    };
    check(
        &one(&body("GET", r#"{"a":"/workflow/nope"}"#)),
        &["warning body_ignored@a"],
    );
    check(&one(&body("GET", "null")), &[]);
    check(&one(&body("PUT", "{}")), &[]);
    check(
        &one(r#"{"Wait":{"duration":1,"unit":"ms"}}"#),
        &["warning unknown_field@a"],
    );
    check(
        &one(&with_header("x", r#"{"path":"/workflow/x","y":1}"#)),
        &["warning unknown_field@a"],
    );
}

#[test]
fn codes_are_distinct_words() {
    let words: BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(words.len(), Code::ALL.len());
}
