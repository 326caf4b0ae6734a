//! The memory transport passes the battery, on a clock of its own.

use std::num::NonZeroUsize;

use a2abus_transports::memory::{Memory, MemoryConfig};
use a2abus_transports::{Reading, Topic};
use support::battery::{self, CASES, Environment, Feature};

struct InMemory(Memory);

impl Environment for InMemory {
    type Transport = Memory;

    async fn connect(&self) -> Memory {
        self.0.connect()
    }

    fn durable(&self, _topic: &Topic, name: &str) -> Reading {
        Reading::Group(name.into())
    }

    fn has(&self, feature: Feature) -> bool {
        feature != Feature::Lag
    }

    fn oversize_bytes(&self) -> usize {
        2 << 20
    }

    async fn stop(&self) {
        self.0.set_down("stopped by the test");
    }

    async fn start(&self) {
        self.0.set_up();
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_transport_passes_the_battery() {
    for case in CASES {
        println!("memory: {case}");
        battery::run(case, &InMemory(Memory::default())).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_transport_passes_the_battery_with_little_room() {
    for case in CASES {
        println!("memory with little room: {case}");
        let config = MemoryConfig {
            capacity_messages: NonZeroUsize::new(64).unwrap(),
            ..MemoryConfig::default()
        };
        // These publish more than fits before anything is read, and would rightly get the error that the bus is
        // saturated.
        if matches!(
            case,
            battery::Case::ShutdownDrains | battery::Case::OrderPerKey
        ) {
            continue;
        }
        battery::run(case, &InMemory(Memory::new(config))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_transport_passes_the_battery_on_several_threads() {
    for case in CASES {
        println!("memory on several threads: {case}");
        battery::run(case, &InMemory(Memory::default())).await;
    }
}
