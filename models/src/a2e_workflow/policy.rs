//! The permissions of an agent.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::a2e_workflow::operation::{OperationType, Storage};
use crate::a2e_workflow::target::{ApiBase, Forbidden, Target, TargetError};
use a2abus_plugin::Text;

/// The permissions of one agent. The default permits nothing. Source: docs/protocols/a2e-workflows.md §7 and §D8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The operations it may use, by type.
    pub operations: Allowed,
    /// The APIs it may call.
    pub apis: Apis,
    /// The credentials it may refer to, by id.
    pub credentials: Allowed,
    /// All existing credentials, with the APIs that each may be sent to.
    pub bindings: BTreeMap<Text, Apis>,
    /// The storages it may write to.
    pub storages: Allowed,
    /// The maximum number of operations in a workflow (default 20).
    pub max_operations: usize,
    /// The maximum execution time (default 30 s).
    pub max_execution_time: Duration,
}

/// The permitted names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// Every name.
    All,
    /// Only these; an empty list permits nothing.
    Only(Vec<Text>),
}

/// The permitted APIs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Apis {
    /// Whether every globally reachable host is permitted.
    pub any: bool,
    /// The registered bases.
    pub bases: Vec<ApiBase>,
}

/// Why a target may not be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// By the rules against server-side request forgery: `forbidden_target`.
    Forbidden(Forbidden),
    /// No permitted API covers it: `api_not_permitted`.
    NotPermitted,
}

/// Why a credential may not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialRefusal {
    /// It is permitted, but does not exist: `credential_not_found`.
    NotFound,
    /// It is not permitted, or not for this target: `credential_not_permitted`.
    NotPermitted,
}

// === impl Policy ===

impl Default for Policy {
    fn default() -> Self {
        Self {
            operations: Allowed::default(),
            apis: Apis::default(),
            credentials: Allowed::default(),
            bindings: BTreeMap::new(),
            storages: Allowed::default(),
            max_operations: 20,
            max_execution_time: Duration::from_secs(30),
        }
    }
}

impl Policy {
    /// Whether it may use operations of this type.
    #[must_use]
    pub fn permits_operation(&self, operation: OperationType) -> bool {
        self.operations.contains(operation.as_str())
    }

    /// Whether it may write to this storage.
    #[must_use]
    pub fn permits_storage(&self, storage: Storage) -> bool {
        self.storages.contains(storage.as_str())
    }

    /// Checks a target; called before the run, and again with the final URL.
    ///
    /// # Errors
    /// Why it may not be called.
    pub fn check_target(&self, target: &Target) -> Result<(), Refusal> {
        let bases = &self.apis.bases;
        // Another path of the host of an HTTP base is not forbidden, but only the base permits HTTP.
        let is_safe = target.is_encrypted() || target.is_within(bases);
        if let Some(why) = target.forbidden(bases) {
            Err(Refusal::Forbidden(why))
        } else if is_safe && self.apis.permit(target) {
            Ok(())
        } else {
            Err(Refusal::NotPermitted)
        }
    }

    /// Checks whether a credential may be sent to a target; `None` if the target is not known yet.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_credential(
        &self,
        id: &str,
        target: Option<&Target>,
    ) -> Result<(), CredentialRefusal> {
        if !self.credentials.contains(id) {
            return Err(CredentialRefusal::NotPermitted);
        }
        let apis = self.bindings.get(id).ok_or(CredentialRefusal::NotFound)?;
        if target.is_none_or(|target| apis.permit(target)) {
            Ok(())
        } else {
            Err(CredentialRefusal::NotPermitted)
        }
    }
}

// === impl Allowed ===

impl Default for Allowed {
    fn default() -> Self {
        Self::Only(Vec::new())
    }
}

impl Allowed {
    /// Whether the name is permitted.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|other| other == name),
        }
    }
}

/// A list of names; `*` means every name.
impl<N: Into<Text>> FromIterator<N> for Allowed {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        let names: Vec<Text> = names.into_iter().map(Into::into).collect();
        if names.iter().any(|name| name == "*") {
            Self::All
        } else {
            Self::Only(names)
        }
    }
}

// === impl Apis ===

impl Apis {
    /// Parses a list of base URLs; `*` means any.
    ///
    /// # Errors
    /// The fault of the first malformed base.
    pub fn parse<'a>(bases: impl IntoIterator<Item = &'a str>) -> Result<Self, TargetError> {
        let mut apis = Self::default();
        for base in bases {
            if base == "*" {
                apis.any = true;
            } else {
                apis.bases.push(ApiBase::parse(base)?);
            }
        }
        Ok(apis)
    }

    /// Whether a target is permitted.
    #[must_use]
    pub fn permit(&self, target: &Target) -> bool {
        self.any || target.is_within(&self.bases)
    }
}
