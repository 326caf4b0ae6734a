//! The literal rules on targets.

use a2abus_models::a2e_workflow::target::{
    ApiBase, Forbidden, Target, is_forbidden_address, is_forbidden_host,
};
use a2abus_models::a2e_workflow::{Allowed, Apis, Policy, Refusal};

const FORBIDDEN: [&str; 48] = [
    "http://127.0.0.1/",
    "https://127.0.0.1:8443/",
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://0/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://10.255.255.255/",
    "https://100.64.0.1/",
    "https://100.100.100.200/latest/meta-data",
    "https://169.254.169.254/latest/meta-data",
    "https://0xa9fea9fe/",
    "https://168.63.129.16/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.1.1/",
    "https://192.0.0.192/",
    "https://192.0.2.1/",
    "https://198.18.0.1/",
    "https://198.51.100.7/",
    "https://203.0.113.7/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://１２７.0.0.1/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[fe80::1]/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    "https://[2001::1]/",
    "https://[2002:7f00:1::]/",
    "https://localhost/",
    "https://LOCALHOST./",
    "https://api.localhost:3000/",
    "https://user@api.example.com/",
    "https://:pw@api.example.com/",
    "file:///etc/passwd",
    "gopher://api.example.com/",
];

fn policy(bases: &[&str]) -> Policy {
    Policy {
        apis: Apis::parse(bases.iter().copied()).unwrap(),
        ..Policy::default()
    }
}

#[test]
fn forbidden_targets_are_refused_whatever_is_permitted() {
    for url in FORBIDDEN {
        let target = Target::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        for bases in [&["*"][..], &["https://api.example.com"], &[]] {
            let checked = policy(bases).check_target(&target);
            assert!(matches!(checked, Err(Refusal::Forbidden(_))), "{url}");
        }
    }
}

#[test]
fn other_targets_are_a_matter_of_permission() {
    let urls = [
        "https://8.8.8.8/",
        "https://[2606:4700::1111]/",
        "https://[64:ff9b::808:808]/",
        "https://api.example.com",
        "https://localhost.example.com/",
        "https://172.32.0.1/",
        "https://[::ffff:8.8.8.8]/",
    ];
    for url in urls {
        let target = Target::parse(url).unwrap();
        assert_eq!(policy(&["*"]).check_target(&target), Ok(()), "{url}");
        assert_eq!(
            policy(&["https://other.example.com"]).check_target(&target),
            Err(Refusal::NotPermitted),
            "{url}"
        );
    }
}

#[test]
fn a_registered_base_permits_only_itself() {
    let own = policy(&["http://127.0.0.1:8080/api"]);
    let check = |url: &str| own.check_target(&Target::parse(url).unwrap());
    assert_eq!(check("http://127.0.0.1:8080/api/x"), Ok(()));
    assert_eq!(check("http://0x7f.1:8080/api"), Ok(()));
    for (url, why) in [
        ("http://127.0.0.1:8080/apis", Forbidden::NotGlobal),
        ("http://127.0.0.1:8080/api/%2e%2e/x", Forbidden::NotGlobal),
        ("http://127.0.0.1:8081/api", Forbidden::NotEncrypted),
        ("https://127.0.0.1:8080/api", Forbidden::NotGlobal),
        ("http://api.example.com/", Forbidden::NotEncrypted),
        ("ftp://127.0.0.1:8080/api", Forbidden::Scheme),
        ("http://me@127.0.0.1:8080/api", Forbidden::UserInfo),
    ] {
        assert_eq!(check(url), Err(Refusal::Forbidden(why)), "{url}");
    }
}

#[test]
fn only_a_base_permits_http() {
    for bases in [
        &["*", "http://api.example.com/v1"][..],
        &["http://api.example.com/v1"],
    ] {
        let own = policy(bases);
        let check = |url: &str| own.check_target(&Target::parse(url).unwrap());
        assert_eq!(check("http://api.example.com/v1/x"), Ok(()));
        for url in ["http://api.example.com/v2", "http://api.example.com/"] {
            assert_eq!(check(url), Err(Refusal::NotPermitted), "{url}");
        }
    }
}

#[test]
fn no_encoded_dots_lead_out_of_the_path_of_a_base() {
    let base = "https://api.example.com/users";
    let mut own = policy(&[base]);
    own.credentials = Allowed::All;
    let bound = Apis::parse([base]).unwrap();
    own.bindings.insert("token".into(), bound);
    let check = |path: &str| {
        let target = Target::parse(&format!("{base}{path}")).unwrap();
        let may_call = own.check_target(&target).is_ok();
        let may_send = own.check_credential("token", Some(&target)).is_ok();
        assert_eq!(may_call, may_send, "{path}");
        may_call
    };
    for path in [
        "/..%2fecho",
        "/..%5cecho",
        "/..;/echo",
        "/..;a=b%2fc/echo",
        "/%2e%2e;/echo",
        "/%252e%252e/echo",
        "/%252E./echo",
        "/%25252e%25252e%25252fecho",
        "/%%32%65%%32%65/echo",
        "/a%2f..%2f..%2fecho",
        "/a%5C..%5C..%5Cecho",
        "/..%3becho",
        "/..%3fecho",
        "/..%23echo",
        "/.%2fecho",
        "/..%2f",
        &format!("/%{}2e./echo", "25".repeat(20)),
    ] {
        assert!(!check(path), "{path}");
    }
    for path in [
        "",
        "/",
        "/a/../b",
        "/a..b/...",
        "/..a;v=1",
        "/a%2Fb",
        "/100%25",
        "/50%",
        "/a%252Fb",
        "/a?next=..%2fecho",
        "/a#..%2fecho",
    ] {
        assert!(check(path), "{path}");
    }
    let target = Target::parse("https://api.example.com/a/..%2fecho").unwrap();
    let whole = policy(&["https://api.example.com"]);
    assert_eq!(
        whole.check_target(&target),
        Ok(()),
        "it has no path to leave"
    );
}

#[test]
fn hosts_and_addresses_are_checked_alike() {
    for host in ["127.0.0.1", "[::1]", "localhost", "0x7f.1", "", "a b"] {
        assert!(is_forbidden_host(host), "{host}");
    }
    assert!(!is_forbidden_host("example.com"));
    for address in [
        "::ffff:10.0.0.1",
        "192.88.99.1",
        "240.0.0.1",
        "3fff::1",
        "5f00::1",
        "fec0::1",
    ] {
        assert!(is_forbidden_address(address.parse().unwrap()), "{address}");
    }
    for address in [
        "1.1.1.1",
        "2a00::1",
        "100.128.0.1",
        "198.20.0.1",
        "169.253.0.1",
    ] {
        assert!(!is_forbidden_address(address.parse().unwrap()), "{address}");
    }
}

#[test]
fn targets_are_normalised() {
    let target = Target::parse("HTTPS://API.Example.com:443/a/../b").unwrap();
    assert_eq!(target.as_str(), "https://api.example.com/b");
    assert_eq!(target.origin(), "https://api.example.com");
    assert_eq!(target.host(), Some("api.example.com"));
    for bad in [
        "ftp://x/",
        "https://x/?q",
        "https://u@x/",
        "x",
        "https://x/#f",
    ] {
        assert!(ApiBase::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_text_that_stands_for_a_value_is_text_like_any_other_in_a_final_url() {
    let policy = policy(&["https://api.example.com/v1/public"]);
    for url in [
        "https://api.example.com/v1/%7B%7D/users",
        "https://api.example.com/%7B%7D/%7B%7D",
        "https://api.example.com/v1/x%7B%7Dy",
    ] {
        let target = Target::parse(url).unwrap();
        let checked = policy.check_target(&target);
        assert_eq!(checked, Err(Refusal::NotPermitted), "{url}");
    }
}
