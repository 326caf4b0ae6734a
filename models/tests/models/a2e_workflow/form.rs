//! The codes of the structural and the operation level: for each an invalid workflow, and one that is nearly invalid.

use a2abus_models::a2e_workflow::Code;

use super::build::{
    CONDITION, WAIT, call, check, conditional, filter, flat, get, merge, one, store, transform,
    with_header,
};
use super::{codes, document, report};

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
    check(&good.replace(r#""e","#, r#""e","input":{"x":[1]},"#), &[]);
    check(&good.replace(r#""e","#, r#""e","input":null,"#), &[]);
    check(
        &good.replace(r#""e","#, r#""e","input":[1],"#),
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
    let branch = conditional("/workflow/x", "\"b\"").replace('\n', "");
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
    // Its output does not exist, but it has no other issues itself.
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
            r#"{"Conditional":{"condition":{"path":"/workflow/x","operator":"exists"},
            "ifTrue":[]}}"#,
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
fn an_unknown_operator_is_reported_with_the_known_ones() {
    let only = |operation: &str| {
        let report = report(&one(operation), r#"{"x":1,"xs":[1]}"#);
        // Without a value, that is reported as well: only the operators of presence need none.
        let codes = codes(&report.errors);
        let has_value = operation.contains("\"value\"");
        let missing = ["missing_field@a"].iter().filter(|_| !has_value);
        assert!(
            codes.iter().eq(["invalid_field@a"].iter().chain(missing)),
            "{codes:?}"
        );
        let issue = &report.errors[0];
        let suggestion = issue.suggestion.clone().unwrap_or_default();
        (issue.message.clone(), suggestion)
    };
    let comparisons = "==, !=, >, <, >=, <=, in, contains, startsWith, endsWith";
    for (operator, suggestion) in [
        (r#""exist""#, r#"did you mean "exists"?"#),
        (r#""isempty""#, r#"did you mean "isEmpty"?"#),
        (r#""startswith""#, r#"did you mean "startsWith"?"#),
        (r#""equals","value":1"#, ""),
    ] {
        let (message, suggested) = only(&format!(
            r#"{{"Conditional":{{"condition":{{"path":"/workflow/x","operator":{operator}}},
            "ifTrue":[]}}}}"#
        ));
        assert_eq!(
            message,
            format!("condition.operator: expected one of {comparisons}, exists, empty, isEmpty")
        );
        assert_eq!(suggested, suggestion, "{operator}");
    }
    for (condition, suggestion) in [
        (
            r#""operator":"exists""#,
            "only a Conditional has it; compare with null here, using == or !=",
        ),
        (
            r#""operator":"isEmpty","value":true"#,
            "only a Conditional has it; compare with null here, using == or !=",
        ),
        (
            r#""operator":"startswith","value":"a""#,
            r#"did you mean "startsWith"?"#,
        ),
    ] {
        let condition = format!(r#"[{{"field":"a",{condition}}}]"#);
        let (message, suggested) = only(&filter(&condition, "/workflow/xs"));
        assert_eq!(
            message,
            format!("conditions[0].operator: expected one of {comparisons}")
        );
        assert_eq!(suggested, suggestion, "{condition}");
    }
}

#[test]
fn a_duplicate_member_is_reported() {
    let good = one(&call(
        r#""method":"GET","url":"https://api.example.com/","headers":{"x":"1"},"timeout":1000"#,
    ));
    check(&good, &[]);
    for (member, twice, expected) in [
        (
            r#""type":"operationUpdate""#,
            r#""type":"beginExecution""#,
            "a",
        ),
        (r#""operationId":"a""#, r#""operationId":"b""#, "a"),
        (r#""operation":{"ApiCall""#, r#""operation":7"#, "a"),
        (r#""ApiCall":{"#, r#""ApiCall":{}"#, "a"),
        (r#""method":"GET""#, r#""method":"POST""#, "a"),
        (r#""x":"1""#, r#""x":"2""#, "a"),
        (r#""executionId":"e""#, r#""executionId":"f""#, ""),
        (r#""operationOrder":["a"]"#, r#""operationOrder":[]"#, ""),
    ] {
        let report = report(
            &good.replacen(member, &format!("{twice},{member}"), 1),
            "{}",
        );
        let of = report.errors[0].operation_id.clone().unwrap_or_default();
        let message = report.errors[0].message.as_str();
        assert_eq!(report.errors[0].code, Code::InvalidField, "{message}");
        assert_eq!(
            (report.errors.len(), of.as_str()),
            (1, expected),
            "{message}"
        );
        assert!(message.contains("duplicate member "), "{message}");
    }
    // The data that a workflow sends is not restricted.
    let body = r#""method":"POST","url":"https://api.example.com/","body":{"a":1,"a":2}"#;
    check(&one(&call(body)), &[]);
    let wrapped = r#"{"operationUpdate":{"operations":[{"id":"a","id":"b","operation":{"Wait":{"duration":1}}}]}}
{"beginExecution":{"root":"a","root":"b"}}"#;
    check(wrapped, &["invalid_field", "invalid_field@b"]);
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
    for key in ["", ".", ".."] {
        check(&one(&store("localStorage", key)), &invalid);
        check(&one(&store("sessionStorage", key)), &invalid);
    }
    check(&one(&store("localStorage", "...")), &[]);
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
        &one(&transform("sort", r#"{"by":[{"field":"a"}],"field":"b"}"#)),
        &["warning unknown_field@a"],
    );
    for replaced in [
        r#"{"aggregations":[{"operation":"count"},{"operation":"count"}]}"#,
        r#"{"aggregations":[{"operation":"sum","field":".","as":"s"},{"operation":"max","field":".","as":"s"}]}"#,
        r#"{"groupBy":"g","aggregations":[{"operation":"count","as":"g"}]}"#,
    ] {
        check(
            &one(&transform("aggregate", replaced)),
            &["warning operation_replaced@a"],
        );
    }
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
