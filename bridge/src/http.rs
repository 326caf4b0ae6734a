//! How is HTTP served? Listeners, connections and their limits, and code for requests and responses of all interfaces.
//!
//! [`serve`] puts a router on a socket. The routers are in [`crate::doors`].
//!
//! Source: docs/design.md §9.

pub(crate) mod body;
mod connection;
pub(crate) mod hosts;
mod late;
pub(crate) mod messages;
pub(crate) mod negotiate;
mod open_connections;
pub(crate) mod respond;
mod serve;
pub(crate) mod sse;
mod stall;
mod streams;

pub(crate) use self::connection::{ConnectionBounds, Ending};
pub(crate) use self::hosts::Hosts;
pub(crate) use self::serve::{Listener, affordable, serve};

pub(crate) use self::connection::Peer;
