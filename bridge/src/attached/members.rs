//! The members of a JSON-RPC message that lead to `params._meta`. Read them with [`crate::object::from_slice`].

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::object::present;

/// A message with parameters.
#[derive(Debug, Deserialize)]
pub(super) struct WithParams<'a> {
    #[serde(default, borrow, deserialize_with = "present")]
    pub(super) params: Option<&'a RawValue>,
}

/// Parameters with `_meta`.
#[derive(Debug, Deserialize)]
pub(super) struct WithMeta<'a> {
    #[serde(rename = "_meta", default, borrow, deserialize_with = "present")]
    pub(super) meta: Option<&'a RawValue>,
}
