//! The codes of permissions, dependencies, types and warnings: for each an invalid workflow, and one that is nearly
//! invalid.

use std::collections::BTreeSet;

use a2abus_models::a2e_workflow::{Apis, Code, Policy};

use super::build::{
    CONDITION, WAIT, call, check, check_with, conditional, filter, flat, get, loop_over, merge,
    one, store, transform, with_header,
};
use super::{policy, report};

#[test]
fn variables_of_loops_are_reserved() {
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
    let both = merge(
        r#"["/workflow/parent","/workflow/x"]"#,
        "concat",
        "/workflow/parent",
    );
    let looped = [("l", &*loop_over("/workflow/xs", r#"["a"]"#)), ("a", &both)];
    check(
        &flat(&looped, r#"["l"]"#),
        &["path_not_found@a", "reserved_path@a"],
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
fn issues_with_headers_name_the_header() {
    let compressed = one(&with_header("Accept-Encoding", r#""gzip""#));
    check(&compressed, &["invalid_field@a"]);
    let unknown = one(&with_header("x-key", r#"{"credentialRef":{"id":"k"}}"#));
    for (text, name) in [(compressed, "Accept-Encoding"), (unknown, "x-key")] {
        let report = report(&text, "{}");
        let message = &report.errors[0].message;
        assert!(message.contains(name), "{message}");
    }
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
    let body = r#""method":"POST","url":"https://api.example.com/",
        "body":{"a":[{"credentialRef":{"id":"k"}}]}"#;
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
    // Operations that an unused operation controls run on their own.
    check(
        &flat(&[("a", &branch("b")), ("b", WAIT)], r#"["b"]"#),
        &["warning unused_operation@a"],
    );
}

#[test]
fn missing_data_and_wrong_types_are_reported() {
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
            r#"{{"Conditional":{{"condition":{{"path":"{path}","operator":"empty"}},
                "ifTrue":[]}}}}"#
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
fn error_codes_are_distinct() {
    let codes: BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(codes.len(), Code::ALL.len());
}
