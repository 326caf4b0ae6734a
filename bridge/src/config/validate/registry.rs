//! Can agents announce themselves, and can they then be reached?

use super::checker::Checker;
use crate::config::Role;
use crate::config::path::ValuePath;

pub(super) fn check(checker: &mut Checker<'_>) {
    let Some(registry) = &checker.sections.registry else {
        return;
    };
    let section = ValuePath::root().key("registry");
    for (path, binding) in checker.each_binding() {
        if binding.role == Role::Discovery && !registry.enabled {
            let message =
                "needs registry.enabled: true, because only the registry uses announcements";
            checker.error(path.key("role"), message);
        }
    }
    if registry.lease.0 > registry.max_lease.0 {
        checker.error(section.key("lease"), "is longer than registry.max_lease");
    }
    if registry.enabled && registry.destinations.is_empty() {
        let message = "is empty: announced agents are called only if a route leads to them, and cards that name a topic (such as those of `a2abus attach`) are refused; write where their requests go";
        checker.warning(section.key("destinations"), message);
    }
    if !registry.enabled && !registry.destinations.is_empty() {
        checker.warning(
            section.key("destinations"),
            "has no effect without registry.enabled: true",
        );
    }
}
