//! Do the listed streams store what bindings read from them?

use a2abus_transports::overlap;

use super::checker::Checker;
use crate::config::TransportConfig;

/// Refuses topics of which a managed stream stores nothing. A stream that others manage may differ from the list.
pub(super) fn check(checker: &mut Checker<'_>) {
    let (sections, root) = (checker.sections, checker.root);
    let bindings = checker.each_binding().chain(checker.each_attached());
    for (path, binding) in bindings {
        let transport = sections.transports.get(binding.transport.as_str());
        let (Some(Some(TransportConfig::Nats(nats))), Some(stream)) = (transport, &binding.stream)
        else {
            continue;
        };
        let mut listed = nats.jetstream.streams.iter();
        let Some(listed) = listed.find(|listed| listed.name == stream.as_str()) else {
            continue;
        };
        let is_stored = |topic: &str| listed.subjects.iter().any(|it| overlap(it, topic));
        let topics = binding.topics.iter().map(|topic| topic.0.as_str());
        let missing: Vec<&str> = topics.filter(|topic| !is_stored(topic)).collect();
        if missing.is_empty() {
            continue;
        }
        let message = format!(
            "the stream {stream} does not store {}: add this to its subjects in transports.{}.jetstream.streams, or correct the topics",
            missing.join(", "),
            binding.transport
        );
        let path = path.key("stream");
        if nats.jetstream.manage {
            checker.error(path, message);
        } else {
            let problems = &mut *checker.problems;
            problems.unverified(root.site(&path), path, message);
        }
    }
}
