//! The bridge and the transport it runs on in memory: no servers, and mostly a paused clock.

mod memory_battery;
