//! `a2abus call`: how it ends without an answer.

use std::time::{Duration, Instant};

use super::{CONFIG, config, run};

#[test]
fn a_call_ends_at_its_timeout_when_the_bus_cannot_be_reached() {
    // Nobody listens on this port.
    for bus in [
        "{ type: kafka, brokers: ['127.0.0.1:1'] }",
        "{ type: nats, servers: ['nats://127.0.0.1:1'] }",
    ] {
        let (_folder, file) = config(&format!(
            "transports: {{ bus: {bus} }}\ndefault_route: [{{ transport: bus, topic: agents }}]\n"
        ));
        let file = file.to_str().unwrap();
        let ends_in_time = || {
            let start = Instant::now();
            let output = run(&["call", "-c", file, "-t", "300ms", "agent", "ping"], "");
            let took = start.elapsed();
            assert_eq!(
                (output.status, output.stdout.as_str()),
                (1, ""),
                "{}",
                output.stderr
            );
            let last = output.stderr.lines().last().unwrap();
            assert!(
                last.starts_with("a2abus: not connected within 300ms: "),
                "{last}"
            );
            // A machine with much to do may not get so far as to try.
            let says_why = last.contains("transport bus: ") || last.ends_with(": still starting");
            assert!(says_why, "{last}");
            println!("it took {took:?}");
            // Without the bound it is 30 s, and a question to the cluster may take 10 s.
            took < Duration::from_secs(8)
        };
        // A stall of the machine delays one call, and a missing bound all of them.
        assert!((0..3).any(|_| ends_in_time()), "no call ended in time");
    }
}

#[test]
fn a_call_over_memory_fails_at_once_with_its_cure() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    // Without the check it waits for the answer until its timeout.
    let output = run(&["call", "-c", file, "-t", "5m", "agent", "tools/call"], "");
    assert_eq!((output.status, output.stdout.as_str()), (1, ""));
    for part in ["only inside the process of the bridge", "POST /rpc/{agent}"] {
        assert!(output.stderr.contains(part), "{}", output.stderr);
    }
    let arguments = ["call", "-c", file, "--notify", "agent", "notifications/x"];
    let output = run(&arguments, "");
    assert_eq!((output.status, output.stdout.as_str()), (0, ""));
    let warns = output.stderr.contains("nobody gets the notification");
    assert!(warns, "{}", output.stderr);
}

#[test]
fn a_call_is_checked_with_the_limits_of_the_configuration() {
    let (_folder, file) = config(&format!("{CONFIG}limits: {{ max_depth: 8 }}\n"));
    let nested = "[".repeat(20) + &"]".repeat(20);
    let file = file.to_str().unwrap();
    let output = run(&["call", "-c", file, "agent", "ping", &nested], "");
    assert_eq!((output.status, output.stdout.as_str()), (2, ""));
    let refused = output.stderr.contains("the request is refused");
    assert!(refused, "{}", output.stderr);
    let output = run(&["call", "-c", file, "agent", "tools/call", "3"], "");
    let expected = "the request is refused: /params: ";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
    let output = run(&["call", "-c", file, "-t", "foo", "agent", "ping"], "");
    let is_told = output.stderr.contains("expected a number and a unit");
    assert!(is_told && output.status == 2, "{}", output.stderr);
}
