//! What most tests begin with: a bridge on buses in memory, and the request of a caller.

use a2abus_bridge::Bridge;
use a2abus_bridge::calls::Request;
use a2abus_bridge::config::Config;
use a2abus_bridge::readiness::Readiness;
use a2abus_plugin::{Hint, Limits, decode};
use a2abus_transports::AnyTransport;
use a2abus_transports::memory::Memory;
use bytes::Bytes;
use support::battery::within;
use tokio::task::yield_now;

/// A bridge; `bus` is the bus of the transport with this name.
pub(crate) async fn build<'a>(config: Config, bus: impl Fn(&str) -> &'a Memory) -> Bridge {
    let transports = config.transports.keys();
    let transports = transports.map(|name| {
        let memory = bus(name.as_str()).connect();
        (name.clone(), AnyTransport::Memory(memory))
    });
    let transports = transports.collect();
    Bridge::build_on(config, transports).await.unwrap()
}

pub(crate) async fn until_ready(readiness: &Readiness) {
    within("the bridge is ready", async {
        while !readiness.is_ready() {
            yield_now().await;
        }
    })
    .await;
}

/// A request as the bridge itself makes it, with this payload.
pub(crate) fn request(payload: impl Into<Bytes>, caller: &'static str) -> Request {
    let unit = decode(&payload.into(), &Hint::default(), &Limits::default());
    Request {
        unit: unit.into_only().unwrap().unwrap(),
        data: None,
        call: None,
        target: None,
        timeout: None,
        bounds_first_part: false,
        accepts_parts: None,
        key: None,
        arrived: std::time::Instant::now(),
        caller: caller.into(),
        headers: Vec::new(),
    }
}
