//! The bridge and the transport it runs on in memory: no servers, and mostly a paused clock.

mod answers;
mod http;
mod memory_battery;
