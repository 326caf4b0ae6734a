//! The agent: its permissions, secrets and rate limits.

use std::collections::BTreeMap;
use std::fmt;

use a2abus_models::a2e_workflow::{Apis, Policy};
use a2abus_models::wire_enum;
use a2abus_plugin::Text;
use zeroize::Zeroizing;

use crate::quota::{Limit, Window};

/// A known agent, with everything that its executions use. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub struct Agent {
    id: Text,
    policy: Policy,
    credentials: BTreeMap<Text, Credential>,
    rates: Rates,
}

/// A secret, and where it may be sent. Source: docs/protocols/a2e-workflows.md §7, credentials.
#[derive(Debug, Clone)]
pub struct Credential {
    /// How it is sent in a header.
    pub kind: CredentialKind,
    /// The secret.
    pub secret: Secret,
    /// The APIs it may be sent to.
    pub apis: Apis,
    /// A description for people.
    pub description: Option<String>,
}

wire_enum! {
    /// How a secret is sent in a header.
    CredentialKind {
        /// `Bearer ` and the secret, which may itself begin with `Bearer `.
        BearerToken = "bearer-token",
        /// `Basic ` and the Base64 of the secret, which is `user:password`.
        Basic = "basic",
        /// The secret itself.
        ApiKey = "api-key",
        /// The secret itself.
        Password = "password",
        /// The secret itself.
        Custom = "custom",
    }
}

/// Text that is never printed. Its memory is overwritten when it is dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

/// Rate limits of an agent. Source: docs/protocols/a2e-workflows.md §8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Requests in 60 seconds (default 60).
    pub requests_per_minute: u32,
    /// Requests in an hour (default 1,000).
    pub requests_per_hour: u32,
    /// Requests in a day (default 10,000).
    pub requests_per_day: u32,
    /// API call attempts in 60 seconds (default 30).
    pub api_calls_per_minute: u32,
    /// API call attempts in an hour (default 500).
    pub api_calls_per_hour: u32,
}

// === impl Agent ===

impl Agent {
    /// An agent with this id. The credentials given here replace those that the policy lists as existing.
    #[must_use]
    pub fn new(
        id: Text,
        mut policy: Policy,
        credentials: BTreeMap<Text, Credential>,
        rates: Rates,
    ) -> Self {
        policy.bindings = credentials
            .iter()
            .map(|(id, credential)| (id.clone(), credential.apis.clone()))
            .collect();
        Self {
            id,
            policy,
            credentials,
            rates,
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &Text {
        &self.id
    }

    /// Its permissions.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// All credentials, by id. The policy of the agent says which of them it may use.
    #[must_use]
    pub fn credentials(&self) -> &BTreeMap<Text, Credential> {
        &self.credentials
    }

    /// Its rate limits.
    #[must_use]
    pub fn rates(&self) -> &Rates {
        &self.rates
    }
}

// === impl Secret ===

impl Secret {
    /// A secret with this text.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

// === impl Rates ===

impl Rates {
    /// The limits on requests.
    #[must_use]
    pub fn requests(&self) -> [Limit; 3] {
        [
            Limit::new(self.requests_per_minute, Window::Minute),
            Limit::new(self.requests_per_hour, Window::Hour),
            Limit::new(self.requests_per_day, Window::Day),
        ]
    }

    /// The limits on call attempts.
    #[must_use]
    pub fn api_calls(&self) -> [Limit; 2] {
        [
            Limit::new(self.api_calls_per_minute, Window::Minute),
            Limit::new(self.api_calls_per_hour, Window::Hour),
        ]
    }
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            requests_per_minute: 60,
            requests_per_hour: 1_000,
            requests_per_day: 10_000,
            api_calls_per_minute: 30,
            api_calls_per_hour: 500,
        }
    }
}
