//! Conversions from configuration types to the types of the libraries.

use a2abus_plugin::{MapOptions, TypePrefix};
use a2abus_transports::content_mode::{ContentMode, ProtocolBinding};
use a2abus_transports::memory::Memory;
use a2abus_transports::{AnyTransport, TransportError};

use super::{
    BindingConfig, Config, Family, MappingConfig, Mode, Name, Notifications, OnUnknown, Role,
    StateConfig, StateLog, TransportConfig, TransportType,
};

impl TransportConfig {
    /// How the transport carries CloudEvents.
    #[must_use]
    pub fn protocol_binding(&self) -> ProtocolBinding {
        match self.transport_type() {
            TransportType::Kafka => ProtocolBinding::Kafka,
            TransportType::Nats => ProtocolBinding::Nats,
            TransportType::Memory => ProtocolBinding::Memory,
        }
    }

    /// Creates the transport, which connects in the background. The bus does not have to be reachable.
    ///
    /// # Errors
    /// When a secret cannot be read or the client refuses its settings.
    pub async fn connect(&self) -> Result<AnyTransport, TransportError> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => {
                Ok(a2abus_transports::kafka::Kafka::connect(config.clone())?.into())
            }
            #[cfg(feature = "nats")]
            Self::Nats(config) => Ok(a2abus_transports::nats::Nats::connect(config.clone())
                .await?
                .into()),
            Self::Memory(config) => Ok(Memory::new(config.clone()).into()),
        }
    }
}

impl BindingConfig {
    /// What happens to objects of no known family. With `convert` they are not rejected: they may be its input.
    #[must_use]
    pub fn effective_on_unknown(&self) -> OnUnknown {
        match self.on_unknown {
            OnUnknown::Reject if self.convert.is_some() => OnUnknown::Wrap,
            on_unknown => on_unknown,
        }
    }

    /// Whether it reads answers with core NATS, on a transport of this type. Then every replica reads all of them
    /// itself, and the group only decides which one makes dead letters, and copies for processes without the binding.
    #[must_use]
    pub fn reads_core_answers(&self, kind: Option<TransportType>) -> bool {
        let is_core = kind == Some(TransportType::Nats) && self.durable.is_none();
        is_core && self.role == Role::Responses
    }

    /// The binding that the bridge itself adds for misplaced answers on a transport; `None` if the name of the transport
    /// is too long for it. It has no topics; the reply reader decides what to read.
    #[must_use]
    pub fn of_replies(transport: &Name) -> Option<Self> {
        let name = format!("replies-{}", transport.text());
        let value =
            serde_json::json!({"name": name, "transport": transport.text().as_str(), "topics": []});
        let mut binding: Self = serde_json::from_value(value).ok()?;
        binding.role = Role::Responses;
        Some(binding)
    }
}

impl Config {
    /// The bindings that the bridge adds for misplaced answers: one for each Kafka transport. The bridge uses those of
    /// the transports on which it makes calls.
    #[must_use]
    pub fn reply_bindings(&self) -> Vec<BindingConfig> {
        let transports = self.transports.iter().filter(|(_, transport)| {
            self.calls.enabled && transport.transport_type() == TransportType::Kafka
        });
        transports
            .filter_map(|(name, _)| BindingConfig::of_replies(name))
            .collect()
    }

    /// Leaves out what a process that only makes calls does not use. The directories and the replica number belong to
    /// `a2abus serve`, which may run beside it.
    pub(crate) fn keep_calls_only(&mut self) {
        // Their topics tell where answers arrive.
        self.bindings.retain(|binding| {
            let transport = self.transports.get(&binding.transport);
            binding.reads_core_answers(transport.map(TransportConfig::transport_type))
        });
        self.admin.enabled = false;
        self.workflows.enabled = false;
        self.calls.replica = None;
        if self.state.place() == StateLog::Embedded {
            self.state = StateConfig::default();
        }
    }
}

impl From<&MappingConfig> for MapOptions {
    fn from(config: &MappingConfig) -> Self {
        let mut options = Self::default();
        // The schema has already rejected invalid prefixes.
        if let Ok(prefix) = TypePrefix::new(config.type_prefix.clone()) {
            options.type_prefix = prefix;
        }
        options.notifications = config.notifications.into();
        options.streams = match config.stream_mcptype {
            super::StreamMcptype::Stream => a2abus_plugin::Streams::AsStreams,
            super::StreamMcptype::Response => a2abus_plugin::Streams::AsResponses,
        };
        options
    }
}

impl From<Notifications> for a2abus_plugin::Notifications {
    fn from(config: Notifications) -> Self {
        match config {
            Notifications::AsNotifications => Self::AsNotifications,
            Notifications::AsRequests => Self::AsRequests,
        }
    }
}

impl From<Family> for a2abus_plugin::Family {
    fn from(config: Family) -> Self {
        match config {
            Family::Jsonrpc => Self::JsonRpc,
            Family::Legacy => Self::Legacy,
            Family::A2eMessage => Self::A2eMessage,
            Family::A2eWorkflow => Self::A2eWorkflow,
            Family::E2a => Self::E2a,
            Family::Cloudevent => Self::CloudEvent,
        }
    }
}

impl From<Mode> for ContentMode {
    fn from(config: Mode) -> Self {
        match config {
            Mode::Binary => Self::Binary,
            Mode::Structured => Self::Structured,
        }
    }
}
