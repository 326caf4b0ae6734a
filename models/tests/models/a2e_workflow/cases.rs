//! The examples of the specification, and its statements.

use a2abus_models::a2e_workflow::operation::{HeaderValue, Test};
use a2abus_models::a2e_workflow::{
    Dialect, Document, OperationKind, OutputPath, Path, PathError, Policy, RelativePath, Segment,
    Strictness, Template, Workflow, WorkflowLimits,
};
use bytes::Bytes;

use super::build::{call, filter, flat, merge, one};
use super::{all_issues, codes, document, object, policy, report};

const FETCH: &str = concat!(
    r#"{"type":"operationUpdate","operationId":"fetch-users","operation":{"ApiCall":"#,
    r#"{"method":"GET","url":"https://api.example.com/users","outputPath":"/workflow/users"}}}"#
);

#[test]
fn the_examples_of_the_specification_are_judged_by_its_rules() {
    let fetch = |name: &str| {
        format!(
            r#"{{"ApiCall":{{"method":"GET","url":"https://api.example.com/{name}",
            "outputPath":"/workflow/{name}"}}}}"#
        )
    };
    let example_1 = flat(&[("fetch-data", &fetch("data"))], r#"["fetch-data"]"#);
    assert!(all_issues(&report(&example_1, "{}")).is_empty());
    let active = r#"{"FilterData":{"inputPath":"/workflow/users",
        "conditions":[{"field":"status","operator":"==","value":"active"}],
        "outputPath":"/workflow/active-users"}}"#;
    let example_2 = flat(
        &[("fetch-users", &fetch("users")), ("filter-active", active)],
        r#"["fetch-users","filter-active"]"#,
    );
    assert!(all_issues(&report(&example_2, "{}")).is_empty());
    let process = r#"{"Conditional":{
        "condition":{"path":"/workflow/count","operator":">","value":0},
        "ifTrue":["process-data"],"ifFalse":["skip"]}}"#;
    let example_3 = flat(
        &[
            ("check-count", &fetch("count")),
            ("process-if-needed", process),
        ],
        r#"["check-count","process-if-needed"]"#,
    );
    assert_eq!(
        all_issues(&report(&example_3, "{}")),
        ["unknown_operation@process-if-needed"; 2]
    );
}

#[test]
fn line_ends_blank_lines_and_a_byte_order_mark_do_not_count() {
    let text = format!(
        "\u{feff}\r\n{FETCH}\r\n \n{}\r\n\n",
        concat!(
            r#"{"type":"beginExecution","executionId":"e","_agentId":"runner/1","#,
            r#""operationOrder":["fetch-users"]}"#
        )
    );
    let workflow = Workflow::parse(&text.into(), &WorkflowLimits::default()).unwrap();
    assert_eq!(workflow.execution_id.as_deref(), Some("e"));
    assert_eq!(workflow.agent.as_deref(), Some("runner/1"));
    assert_eq!(workflow.operation("fetch-users").unwrap().line, 2);
    let marked = document(&format!("{FETCH}\n\u{feff}{FETCH}"));
    assert_eq!(marked.issues()[0].code.as_str(), "invalid_json");
    assert_eq!(marked.issues()[0].line, Some(2));
}

#[test]
fn paths_lead_into_storages_that_are_granted() {
    let filter = |path: &str| {
        format!(
            r#"{{"FilterData":{{"inputPath":{path:?},"outputPath":"/workflow/kept",
            "conditions":[{{"field":"x","operator":"==","value":{{"path":"/sessionStorage/k"}}}}]}}}}"#
        )
    };
    let text = flat(&[("f", &filter("/localStorage[\"a/b\"].rows"))], r#"["f"]"#);
    let maybe = "warning path_maybe_missing@f";
    assert_eq!(all_issues(&report(&text, "{}")), [maybe, maybe]);
    let stored = document(&text).into_workflow().unwrap().stored;
    let stored: Vec<_> = stored
        .iter()
        .map(|(of, key)| (of.as_str(), key.as_str()))
        .collect();
    assert_eq!(stored, [("localStorage", "a/b"), ("sessionStorage", "k")]);

    let local = Policy {
        storages: ["localStorage"].into_iter().collect(),
        ..policy()
    };
    let report = document(&text).validate(&local, None, Strictness::Moderate);
    assert_eq!(codes(&report.errors), ["storage_not_permitted@f"]);
    for wrong in [
        "/localStorage",
        "/localStorage[0]",
        "/file/x",
        "/localStorage/",
    ] {
        assert!(Path::parse(wrong).is_err(), "{wrong}");
    }
    assert!(OutputPath::parse("/localStorage/x").is_err());
    let template =
        Template::parse("{/localStorage/a.n} of {localStorage/b} in {workflow/c}").unwrap();
    let paths: Vec<_> = template.references().map(ToString::to_string).collect();
    assert_eq!(paths, ["/localStorage/a.n", "/workflow/c"]);
}

#[test]
fn the_line_that_begins_may_bring_the_input() {
    let filter = r#"{"FilterData":{"inputPath":"/workflow/users","conditions":[],"outputPath":"/workflow/kept"}}"#;
    let with = |input: &str| {
        let begin = format!(r#""beginExecution","input":{input}"#);
        flat(&[("f", filter)], r#"["f"]"#).replace(r#""beginExecution""#, &begin)
    };
    let text = with(r#"{"users":[1,2.50]}"#);
    assert_eq!(
        all_issues(&report(&text, "{}")),
        ["warning empty_conditions@f"]
    );
    let workflow = document(&text).into_workflow().unwrap();
    assert_eq!(
        a2abus_models::Json::Object(workflow.input.clone()).to_string(),
        r#"{"users":[1,2.50]}"#
    );
    let again = workflow.to_jsonl(&"made".into());
    assert_eq!(document(&again).into_workflow().unwrap(), workflow);

    // The request's input takes precedence.
    let missing = with(r#"{"people":[]}"#);
    assert!(all_issues(&report(&missing, "{}")).contains(&"path_not_found@f".to_owned()));
    let wrong = with(r#"{"users":{}}"#);
    assert!(all_issues(&report(&wrong, "{}")).contains(&"type_mismatch@f".to_owned()));
    assert_eq!(all_issues(&report(&wrong, r#"{"users":[]}"#)).len(), 1);

    let wrapped = concat!(
        r#"{"operationUpdate":{"workflowId":"w","operations":[{"id":"a","operation":{"Wait":{"duration":1}}}]}}"#,
        "\n",
        r#"{"beginExecution":{"workflowId":"w","root":"a","input":{"x":1}}}"#
    );
    let workflow = document(wrapped).into_workflow().unwrap();
    assert_eq!(workflow.input.len(), 1);
}

#[test]
fn the_order_of_the_wrapped_dialect_begins_with_its_root() {
    let text = r#"{"operationUpdate":{"workflowId":"w","operations":[
        {"id":"b","operation":{"Wait":{"duration":2}}},
        {"id":"a","operation":{"Wait":{"duration":1}}},
        {"id":"l","operation":{"Loop":{"inputPath":"/workflow/xs","operations":["d"]}}},
        {"id":"d","operation":{"Wait":{"duration":4}}}]}}"#
        .replace('\n', "");
    let text = format!(
        "{text}\n{}",
        r#"{"beginExecution":{"workflowId":"w","root":"a"}}"#
    );
    let workflow = document(&text).into_workflow().unwrap();
    assert_eq!(workflow.order, ["a", "b", "l"]);
    assert_eq!(workflow.dialect, Dialect::Wrapped);
    assert_eq!(workflow.execution_id, None);
    assert!(
        workflow
            .to_jsonl(&"made".into())
            .contains(r#""executionId":"made""#)
    );
}

#[test]
fn a_later_definition_replaces_an_earlier_one_and_its_issues() {
    let text = concat!(
        r#"{"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":-1}}}"#,
        "\n",
        r#"{"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":10.0}}}"#,
        "\n",
        r#"{"type":"beginExecution","executionId":"e","operationOrder":["w"]}"#
    );
    assert_eq!(
        all_issues(&report(text, "{}")),
        ["warning operation_replaced@w"]
    );
    let workflow = document(text).into_workflow().unwrap();
    assert_eq!(workflow.operations.len(), 1);
    assert_eq!(workflow.operations[0].line, 2);
}

#[test]
fn strictness_moves_warnings_and_paths_and_never_permissions() {
    let text = one(&filter("[]", "/workflow/x"));
    let document = document(&text);
    let strict = document.validate(&policy(), None, Strictness::Strict);
    assert_eq!(
        codes(&strict.errors),
        ["empty_conditions@a", "path_not_found@a"]
    );
    assert!(strict.warnings.is_empty());
    let lenient = document.validate(&policy(), None, Strictness::Lenient);
    assert!(lenient.is_valid());
    assert_eq!(
        codes(&lenient.warnings),
        ["empty_conditions@a", "path_not_found@a"]
    );
    assert_eq!(
        lenient
            .warnings
            .iter()
            .map(|i| i.severity.as_str())
            .collect::<Vec<_>>(),
        ["warning"; 2]
    );
    let wrong_kind = document.validate(&policy(), Some(&object(r#"{"x":1}"#)), Strictness::Lenient);
    assert_eq!(
        codes(&wrong_kind.warnings),
        ["empty_conditions@a", "type_mismatch@a"]
    );
    let nothing = document.validate(&Policy::default(), None, Strictness::Lenient);
    assert_eq!(codes(&nothing.errors), ["operation_not_permitted@a"]);
}

#[test]
fn issues_help_and_say_where() {
    let merge = r#"{"MergeData":{"sources":["/workflow/user","/workflow/users"],
        "strategy":"concatt","outputPath":"/workflow/m","extra":1}}"#;
    let text = flat(
        &[("a", r#"{"Filterdata":{}}"#), ("b", merge)],
        r#"["a","b"]"#,
    );
    let report = report(&text, "{}");
    let found = |code: &str| {
        let mut all = report.errors.iter().chain(&report.warnings);
        all.find(|issue| issue.code.as_str() == code)
            .unwrap()
            .clone()
    };
    let unknown_type = found("unknown_operation_type");
    assert_eq!(
        unknown_type.suggestion.as_deref(),
        Some("did you mean \"FilterData\"?")
    );
    assert_eq!(unknown_type.line, Some(1));
    let strategy = found("invalid_field");
    assert_eq!(
        strategy.suggestion.as_deref(),
        Some("did you mean \"concat\"?")
    );
    assert_eq!(strategy.line, Some(2));
    assert!(
        strategy
            .message
            .starts_with("strategy: expected one of concat, union")
    );
    let written = strategy.to_json().to_string();
    assert!(written.starts_with(
        r#"{"severity":"error","code":"invalid_field","level":"structural","message":"#
    ));
    assert!(written.contains(r#""operationId":"b","line":2,"suggestion":"did you mean"#));
    assert_eq!(
        found("path_not_found").message.split(' ').next(),
        Some("/workflow/user")
    );
}

#[test]
fn no_secret_is_shown() {
    let text = one(
        r#"{"ApiCall":{"method":"GET","url":"https://api.example.com/",
        "headers":{"Authorization":"Bearer hush-hush","Host":"hush-hush"},
        "outputPath":"/workflow/a"}}"#,
    );
    let found = document(&text);
    assert_eq!(found.issues()[0].code.as_str(), "invalid_field");
    assert!(!format!("{found:?}").contains("hush"));
    let workflow = document(&text.replace(r#","Host":"hush-hush""#, ""))
        .into_workflow()
        .unwrap();
    assert!(!format!("{workflow:?}").contains("hush"));
    let OperationKind::ApiCall(call) = &workflow.operations[0].kind else {
        panic!("a call");
    };
    let HeaderValue::Template(text) = &call.headers[0].1 else {
        panic!("text");
    };
    assert_eq!(text.to_string(), "Bearer hush-hush");
}

#[test]
fn a_producer_in_a_branch_may_not_have_run() {
    let test = r#"{"Conditional":{"condition":{"path":"/workflow/n","operator":"isEmpty"},
        "ifTrue":["m"]}}"#;
    let merged = merge(r#"["/workflow/n","/workflow/n"]"#, "concat", "/workflow/m");
    let store = r#"{"StoreData":{"inputPath":"/workflow/m[0].x","storage":"localStorage",
        "key":"k"}}"#;
    let text = &flat(
        &[("c", test), ("m", &merged), ("s", store)],
        r#"["c","m","s"]"#,
    );
    assert_eq!(
        all_issues(&report(text, r#"{"n":[]}"#)),
        ["warning path_maybe_missing@s"]
    );
    let workflow = document(text).into_workflow().unwrap();
    let OperationKind::Conditional(conditional) = &workflow.operations[0].kind else {
        panic!("a conditional");
    };
    assert_eq!(conditional.test, Test::Empty);
}

#[test]
fn paths_are_read_by_their_grammar() {
    let good = [
        "/workflow/users",
        "/workflow/users[0].name",
        "/workflow/u/0/n",
        r#"/workflow/o["a.b"][10][9999999999]"#,
        "/workflow/é.length",
    ];
    for text in good {
        assert_eq!(Path::parse(text).unwrap().to_string(), text);
    }
    let escaped = Path::parse(r#"/workflow/o["\u0061\"]"]"#).unwrap();
    assert_eq!(escaped.segments()[1], Segment::Quoted("a\"]".into()));
    assert_eq!(escaped.to_string(), r#"/workflow/o["a\"]"]"#);
    let bad = [
        "",
        "/workflow",
        "/workflow/",
        "/workflow//a",
        "workflow/a",
        "/other/a",
        "/workflow/a[-1]",
        "/workflow/a[01]",
        "/workflow/a[12345678901]",
        "/workflow/a[]",
        "/workflow/a[0",
        "/workflow/a b",
        "/workflow/a~b",
        "/workflow/a.",
        "/workflow[0]",
        "/workflow/a]",
        r#"/workflow/a["x]"#,
        "/workflow/a\n",
        r#"/workflow/a["x" ]"#,
    ];
    for text in bad {
        assert!(Path::parse(text).is_err(), "{text:?}");
    }
    assert_eq!(
        OutputPath::parse("/workflow/a[0]"),
        Err(PathError::BracketInOutput)
    );
    assert_eq!(
        OutputPath::parse("/workflow/a.b/c").unwrap().to_string(),
        "/workflow/a.b/c"
    );
    for text in [".", "a", "addr.city", "tags[0]", r#"["a b"]"#, "a/b"] {
        assert_eq!(RelativePath::parse(text).unwrap().to_string(), text);
    }
    for text in ["", "a b", ".a", "/a", "a..b", "[x]"] {
        assert!(RelativePath::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_path_has_at_most_4096_bytes() {
    for (bytes, is_path) in [(4_096, true), (4_097, false)] {
        let expected = if is_path {
            Ok(())
        } else {
            Err(PathError::TooLong)
        };
        let key = "k".repeat(bytes - 1);
        let quoted = "k".repeat(bytes - 4);
        for path in [
            format!("/workflow/{key}"),
            format!("/localStorage/{key}"),
            format!("/localStorage[\"{quoted}\"]"),
            format!("/workflow/a/{}", "k".repeat(bytes - 3)),
        ] {
            assert_eq!(Path::parse(&path).map(drop), expected, "{bytes} bytes");
            let template = Template::parse(&format!("{{{path}}} and more text"));
            assert_eq!(template.map(drop), expected, "{bytes} bytes");
        }
        for field in [format!("{key}k"), format!("a.{}", "k".repeat(bytes - 2))] {
            let parsed = RelativePath::parse(&field);
            assert_eq!(parsed.map(drop), expected, "{bytes} bytes");
        }
    }
}

#[test]
fn templates_are_text_and_references() {
    let template = Template::parse(r#"{a}{/workflow/x}-{workflow/o["}"]}{"#).unwrap();
    assert_eq!(
        template.to_string(),
        r#"{a}{/workflow/x}-{/workflow/o["}"]}{"#
    );
    assert_eq!(template.references().count(), 2);
    assert!(
        Template::parse("{/workflow/x}")
            .unwrap()
            .as_reference()
            .is_some()
    );
    for text in [
        "{/workflow/x",
        "{/workflow/a b}",
        "{/workflow/}",
        "{workflow/x y}",
    ] {
        assert!(Template::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn hostile_documents_cost_time_in_proportion_to_their_size() {
    let pair = |i: usize| {
        let next = i + 1;
        let operation = format!(
            r#"{{"Conditional":{{"condition":{{"path":"/workflow/q{i}","operator":">","value":0}},
            "ifTrue":["c{next}","c{next}"],"ifFalse":["c{next}"]}}}}"#
        );
        let line = flat(&[(&format!("c{i}"), &operation)], "[]");
        line.lines().next().unwrap().to_owned()
    };
    // Doubles the ways through it with every operation.
    let chain: Vec<String> = (0..4_000).map(pair).collect();
    let begin = r#"{"type":"beginExecution","executionId":"e","operationOrder":["c0"]}"#;
    let members: Vec<_> = (0..20_000).map(|i| format!(r#""duratio{i}":1"#)).collect();
    let texts = [
        format!("{}\n{begin}", chain.join("\n")),
        format!("{}\n{}", chain.join("\n"), begin.replace("c0", "c3999")),
        "1\n".repeat(500_000),
        format!("\"{}\"", "{workflow/".repeat(20_000)),
        one(&call(&format!(
            r#""method":"POST","url":"{0}","headers":{{"x":"{0}"}},"body":["{0}"]"#,
            "{workflow/a}{".repeat(6_000)
        ))),
        one(&format!(r#"{{"Wait":{{{}}}}}"#, members.join(","))),
    ];
    for text in texts {
        let started = cpu_time();
        let report = report(&text, "{}");
        let spent = cpu_time() - started;
        assert!(!report.is_valid());
        assert!(report.errors.len() + report.warnings.len() <= 1_001);
        // Quadratic ones take minutes.
        assert!(spent.as_secs() < 10, "{text:.80}: {spent:?}");
    }
}

#[test]
fn a_long_template_costs_time_in_proportion_to_its_size() {
    let text = "{workflow/a}".repeat(400_000);
    let started = cpu_time();
    let template = Template::parse(&text).unwrap();
    let spent = cpu_time() - started;
    assert_eq!(template.references().count(), 400_000);
    // A copy of the rest for each reference takes minutes.
    assert!(spent.as_secs() < 10, "{spent:?}");
}

/// The CPU time of this thread: unlike the clock, it does not depend on the load of the machine.
fn cpu_time() -> std::time::Duration {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = spent.split_whitespace().next().unwrap().parse().unwrap();
    std::time::Duration::from_nanos(nanoseconds)
}

#[test]
fn limits_are_those_given() {
    let mut limits = WorkflowLimits::default();
    limits.max_line_bytes = 200;
    limits.max_depth = 5;
    let line = |line: String| {
        Document::parse(&Bytes::from(line), &limits).issues()[0]
            .code
            .as_str()
    };
    assert_eq!(
        line(format!("{{\"a\":\"{}\"}}", "x".repeat(200))),
        "workflow_too_large"
    );
    // Nothing is said about what the line would have defined.
    let long = FETCH.replace("fetch-users", &"u".repeat(200));
    let begin = r#"{"type":"beginExecution","executionId":"e","operationOrder":["u"]}"#;
    let document = Document::parse(&format!("{long}\n{begin}").into(), &limits);
    let report = document.validate(&Policy::default(), None, Strictness::Moderate);
    let [issue] = &report.errors[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        issue.message,
        "the line is larger than the limit of 200 bytes"
    );
    assert_eq!(line("[".repeat(6) + &"]".repeat(6)), "invalid_json");
    assert_eq!(line("[".repeat(5) + &"]".repeat(5)), "not_an_object");
    let lines = vec![Bytes::from(FETCH); 9_000];
    let codes: Vec<_> = Document::from_lines(lines, &WorkflowLimits::default())
        .issues()
        .iter()
        .map(|issue| issue.code.as_str())
        .filter(|code| *code != "operation_replaced")
        .collect();
    assert_eq!(codes, ["workflow_too_large"]);
}
