//! Resolves names to addresses.

use std::io;
use std::net::IpAddr;

use futures_util::future::BoxFuture;

/// Finds the addresses of names.
pub trait Resolve: Send + Sync {
    /// The addresses of a name, in the order in which to try them.
    ///
    /// # Errors
    /// If there are none, or the lookup fails.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// Asks the operating system.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

// === impl SystemResolver ===

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}
