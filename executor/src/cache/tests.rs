use super::*;
use crate::testing::VirtualClock;

fn cache() -> (Arc<VirtualClock>, Cache) {
    let clock = Arc::new(VirtualClock::default());
    let shared: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    (clock, Cache::new(shared, Caching::default()))
}

fn parse(text: &str) -> Json {
    crate::parse(text.as_bytes()).unwrap()
}

fn call(agent: &str, config: &str) -> Key {
    Key::new(&agent.into(), OperationType::ApiCall).config(&parse(config))
}

fn keep(cache: &Cache, key: impl Fn() -> Key, value: Json, origin: Option<&str>) {
    let miss = cache.get(&key()).unwrap_err();
    cache.insert(key(), &miss, value, origin);
}

#[test]
fn a_cached_result_expires_and_null_is_a_result() {
    let (clock, cache) = cache();
    let key = || call("a", r#"{"url":"x"}"#);
    keep(&cache, key, Json::Null, None);
    clock.advance(Duration::from_millis(299_999));
    assert_eq!(cache.get(&key()).unwrap(), Json::Null);
    clock.advance(Duration::from_millis(1));
    assert!(cache.get(&key()).is_err());
    assert_eq!(cache.lock().weight, 0);
}

#[test]
fn the_lifetime_of_a_result_depends_on_its_type() {
    for (kind, seconds) in [
        (OperationType::ApiCall, 300),
        (OperationType::FilterData, 60),
        (OperationType::TransformData, 60),
        (OperationType::MergeData, 60),
        (OperationType::Conditional, 0),
        (OperationType::Loop, 0),
        (OperationType::StoreData, 0),
        (OperationType::Wait, 0),
    ] {
        let (clock, cache) = cache();
        let key = || Key::new(&"a".into(), kind);
        keep(&cache, key, Json::Bool(true), None);
        assert_eq!(cache.get(&key()).is_ok(), seconds > 0, "{kind:?}");
        clock.advance(
            Duration::from_millis(seconds * 1_000).saturating_sub(Duration::from_millis(1)),
        );
        assert_eq!(cache.get(&key()).is_ok(), seconds > 0, "{kind:?}");
        clock.advance(Duration::from_millis(1));
        assert!(cache.get(&key()).is_err(), "{kind:?}");
    }
}

#[test]
fn results_are_cached_for_the_configured_time() {
    let is_cached = |caching: Caching, kind| {
        let clock = Arc::new(VirtualClock::default());
        let cache = Cache::new(Arc::<VirtualClock>::clone(&clock), caching);
        let key = || Key::new(&"a".into(), kind);
        keep(&cache, key, Json::Bool(true), None);
        clock.advance(Duration::from_secs(9));
        let is_kept = cache.get(&key()).is_ok();
        clock.advance(Duration::from_secs(1));
        assert!(cache.get(&key()).is_err());
        is_kept
    };
    let of_ten_seconds = Caching {
        responses: Duration::from_secs(10),
        ..Caching::OFF
    };
    assert!(is_cached(of_ten_seconds, OperationType::ApiCall));
    assert!(!is_cached(of_ten_seconds, OperationType::MergeData));
    assert!(!is_cached(Caching::OFF, OperationType::ApiCall));
}

#[test]
fn keys_are_equal_for_equal_inputs() {
    let base = || call("a", r#"{"u":[1,{"b":2,"a":3}]}"#);
    for (other, equal) in [
        (call("a", r#"{"u":[1.0,{"a":3,"b":2}]}"#), true),
        (call("b", r#"{"u":[1,{"b":2,"a":3}]}"#), false),
        (call("a", r#"{"u":[1,{"b":2,"a":"3"}]}"#), false),
        (base().value(&Json::Null), false),
        (base().config(&Json::Null), false),
        (
            Key::new(&"a".into(), OperationType::MergeData)
                .config(&parse(r#"{"u":[1,{"b":2,"a":3}]}"#)),
            false,
        ),
    ] {
        assert_eq!(base().hash() == other.hash(), equal);
    }
    let value = |text: &str| base().value(&parse(text)).hash();
    let config = |text: &str| base().config(&parse(text)).hash();
    assert_ne!(value("1"), config("1"), "how it was added counts");
    assert_ne!(
        base().value(&parse("1")).value(&parse("2")).hash(),
        base().value(&parse("2")).value(&parse("1")).hash()
    );
}

#[test]
fn an_input_by_identity_matches_the_same_object_only() {
    let (_, cache) = cache();
    let filter = |input: &Json| Key::new(&"a".into(), OperationType::FilterData).identity(input);
    let input = parse("[1,2,3]");
    keep(&cache, || filter(&input), "result".into(), None);
    assert!(cache.get(&filter(&input.clone())).is_ok());
    assert!(cache.get(&filter(&parse("[1,2,3]"))).is_err());

    // The entry keeps the array alive, so no later value can have its address.
    let address = input.address();
    drop(input);
    for _ in 0..1_000 {
        let other = parse("[1,2,3]");
        assert_ne!(other.address(), address);
        assert!(cache.get(&filter(&other)).is_err());
    }

    for scalar in ["1", "\"text\"", "null", "true", "1.5"] {
        keep(&cache, || filter(&parse(scalar)), scalar.into(), None);
        assert_eq!(cache.get(&filter(&parse(scalar))).unwrap(), scalar.into());
    }
}

#[test]
fn the_least_recently_used_entry_is_evicted_at_1000_entries() {
    let (_, cache) = cache();
    let key = |n: usize| call("a", &n.to_string());
    for n in 0..1_000 {
        keep(&cache, || key(n), n.into(), None);
    }
    assert!(cache.get(&key(0)).is_ok(), "it is used again");
    keep(&cache, || key(1_000), 1_000_usize.into(), None);
    assert!(cache.get(&key(0)).is_ok());
    assert!(cache.get(&key(1)).is_err(), "it was used longest ago");
    assert!(cache.get(&key(2)).is_ok());
    let entries = cache.lock();
    assert_eq!(entries.by_hash.len(), 1_000);
    assert_eq!(entries.by_use.len(), 1_000);
}

#[test]
fn the_cache_holds_at_most_64_mib_including_pinned_inputs() {
    let (_, cache) = cache();
    let key = |n: usize| call("a", &n.to_string());
    let heavy = |mib: usize| Json::from("x".repeat(mib << 20));
    for n in 0..20 {
        keep(&cache, || key(n), heavy(10), None);
        assert!(cache.lock().weight <= MAX_WEIGHT);
    }
    assert!(cache.get(&key(19)).is_ok());
    assert!(cache.get(&key(0)).is_err());
    keep(&cache, || key(20), heavy(65), None);
    assert!(cache.get(&key(20)).is_err(), "larger than all of it");
    assert!(cache.get(&key(19)).is_ok(), "and nothing went for it");

    let input = Json::from(vec![heavy(63)]);
    let filter = || Key::new(&"a".into(), OperationType::FilterData).identity(&input);
    keep(&cache, filter, heavy(2), None);
    assert!(cache.get(&filter()).is_err());
    keep(&cache, filter, Json::Null, None);
    assert!(cache.get(&filter()).is_ok());
    let entries = cache.lock();
    let sum: usize = entries.by_hash.values().map(|entry| entry.weight).sum();
    assert_eq!(entries.weight, sum);
}

#[test]
fn a_change_at_an_origin_evicts_this_agents_responses_from_it() {
    let (_, cache) = cache();
    let (here, there) = ("https://a.example", "https://b.example");
    keep(&cache, || call("a", "1"), 1_i64.into(), Some(here));
    keep(&cache, || call("a", "2"), 2_i64.into(), Some(there));
    keep(&cache, || call("b", "1"), 3_i64.into(), Some(here));
    let merge = || Key::new(&"a".into(), OperationType::MergeData);
    keep(&cache, merge, 4_i64.into(), None);
    cache.invalidate_origin(&"a".into(), here);
    assert!(cache.get(&call("a", "1")).is_err());
    assert!(cache.get(&call("a", "2")).is_ok());
    assert!(cache.get(&call("b", "1")).is_ok());
    assert!(cache.get(&merge()).is_ok());
}

#[test]
fn a_response_requested_before_a_change_is_not_cached_after_it() {
    let (_, cache) = cache();
    let origin = "https://a.example";
    let missing = |cache: &Cache| cache.get(&call("a", "1")).unwrap_err();
    let keep = |cache: &Cache, miss: &Miss| {
        cache.insert(call("a", "1"), miss, 1_i64.into(), Some(origin));
        cache.get(&call("a", "1")).is_ok()
    };

    let before = missing(&cache);
    cache.invalidate_origin(&"a".into(), origin);
    assert!(!keep(&cache, &before));

    let before = missing(&cache);
    cache.invalidate_origin(&"b".into(), origin);
    cache.invalidate_origin(&"a".into(), "https://other.example");
    assert!(keep(&cache, &before), "others have changed something");

    cache.invalidate(None, None);
    let before = missing(&cache);
    for _ in 0..=MAX_EVICTIONS {
        cache.invalidate_origin(&"b".into(), origin);
    }
    assert!(!keep(&cache, &before), "nobody knows any more what was");
}

#[test]
fn an_operator_can_evict_by_agent_and_type() {
    let fill = || {
        let (_, cache) = cache();
        for agent in ["a", "b"] {
            for kind in [OperationType::ApiCall, OperationType::FilterData] {
                keep(&cache, || Key::new(&agent.into(), kind), Json::Null, None);
            }
        }
        cache
    };
    for (agent, kind, gone) in [
        (None, None, 4),
        (Some("a"), None, 2),
        (None, Some(OperationType::FilterData), 2),
        (Some("b"), Some(OperationType::ApiCall), 1),
        (Some("c"), None, 0),
    ] {
        let cache = fill();
        assert_eq!(cache.invalidate(agent, kind), gone);
        assert_eq!(cache.lock().by_hash.len(), 4 - gone);
    }
}

#[test]
fn each_secret_has_one_stable_version() {
    let (_, cache) = cache();
    let version = |text: &str| cache.version(&Secret::new(text.to_owned()));
    assert_eq!(version("s3cr3t"), version("s3cr3t"));
    assert_ne!(version("s3cr3t"), version("s3cr3u"));
}
