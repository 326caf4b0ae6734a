//! The metrics of the configuration: whether a changed file is in use.

use prometheus::{Error, IntCounter, IntGauge};

use super::registrar::{Definition, Registrar, add_one, per_value, unix_time};

/// The metrics of the configuration.
#[derive(Debug)]
pub(super) struct ReloadMetrics {
    reloads: Vec<IntCounter>,
    successful: IntGauge,
    success_timestamp: IntGauge,
    restart_needed: IntGauge,
}

/// The result of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigReload {
    /// All changes are in use.
    Applied,
    /// Some changes need a restart; the others are in use.
    RestartNeeded,
    /// There are no changes.
    Unchanged,
    /// The file is invalid; the old configuration stays in use.
    Refused,
}

// === impl ReloadMetrics ===

impl ReloadMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        let reloads = on.counters(RELOADS)?;
        let metrics = Self {
            reloads: per_value(&reloads, &ConfigReload::ALL.map(ConfigReload::as_str))?,
            successful: on.gauge(SUCCESSFUL)?,
            success_timestamp: on.gauge(SUCCESS_TIMESTAMP)?,
            restart_needed: on.gauge(RESTART_NEEDED)?,
        };
        // The configuration at start-up is valid.
        metrics.succeeded();
        Ok(metrics)
    }

    pub(super) fn count(&self, what: ConfigReload) {
        add_one(&self.reloads, what as usize);
        if what == ConfigReload::Refused {
            return self.successful.set(0);
        }
        self.succeeded();
        let is_needed = what == ConfigReload::RestartNeeded;
        self.restart_needed.set(i64::from(is_needed));
    }

    fn succeeded(&self) {
        self.successful.set(1);
        self.success_timestamp.set(unix_time());
    }
}

// === impl ConfigReload ===

impl ConfigReload {
    /// Every outcome, in the order of declaration.
    pub const ALL: [Self; 4] = [
        Self::Applied,
        Self::RestartNeeded,
        Self::Unchanged,
        Self::Refused,
    ];

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::RestartNeeded => "restart_needed",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

const RELOADS: Definition = Definition {
    name: "a2abus_config_reloads_total",
    unit: "reloads",
    labels: &["result"],
    help: "Times that a changed configuration was read; restart_needed when a part of it needs a restart, refused when \
        it is invalid and nothing has changed.",
};
const SUCCESSFUL: Definition = Definition {
    name: "a2abus_config_last_reload_successful",
    unit: "0 or 1",
    labels: &[],
    help: "0 while the configuration file is invalid and therefore not in use, otherwise 1.",
};
const SUCCESS_TIMESTAMP: Definition = Definition {
    name: "a2abus_config_last_reload_success_timestamp_seconds",
    unit: "seconds",
    labels: &[],
    help: "Unix time at which a valid configuration was last read.",
};
const RESTART_NEEDED: Definition = Definition {
    name: "a2abus_config_restart_needed",
    unit: "0 or 1",
    labels: &[],
    help: "1 while the configuration file has changes that need a restart, otherwise 0.",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn each_label_value_has_its_own_counter() {
        let metrics = Metrics::new().unwrap();
        for (index, what) in ConfigReload::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, index);
            metrics.config_reload(what);
            let text = metrics.render().unwrap();
            let line = format!(
                "a2abus_config_reloads_total{{result=\"{}\"}} 1",
                what.as_str()
            );
            assert!(text.contains(&line), "{line}\n{text}");
            let is_right = i32::from(what != ConfigReload::Refused);
            let line = format!("a2abus_config_last_reload_successful {is_right}");
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }
}
