//! Bytes that no client sends: heads of HTTP/1 and sequences of frames of HTTP/2, made from a seed.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Duration, timeout};

use super::{ATTACKER, Target, connect};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const END_STREAM: u8 = 1;
/// `:method: POST`, `:scheme: http`, `:path: /rpc`, `:authority: localhost`, in HPACK without an index.
const HEAD: &[u8] = b"\x83\x86\x04\x04/rpc\x01\x09localhost";

/// Numbers that look random and are the same in each run: splitmix64.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most);
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Sends each on a connection of its own, sixteen at a time; others are served meanwhile.
pub(super) async fn send_all(target: &Target, payloads: Vec<Vec<u8>>) {
    for some in payloads.chunks(16) {
        let sent = some.iter().map(|payload| async move {
            let Ok(mut stream) = connect(ATTACKER, target.door).await else {
                return;
            };
            // The server may close before it has read all.
            let _ = stream.write_all(payload).await;
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer);
            let _ = timeout(Duration::from_millis(50), read).await;
        });
        futures_util::future::join_all(sent).await;
    }
    target.serves_others().await;
}

/// Heads of HTTP/1 that are wrong in ways that have broken servers.
pub(super) fn heads(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(head).collect()
}

fn head(seed: u64) -> Vec<u8> {
    let mut seeded = Seeded(seed);
    let good = "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    let known = [
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n",
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\nffffffffffffffff\r\n",
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2;x=\"\r\n{}\r\n0\r\nx: y\r\n\r\n",
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked, x\r\n\r\n",
        "POST http://[::1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /rpc/%ff%00 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        "POST /rpc HTTP/9.9\r\nhost: localhost\r\n\r\n",
        "POST /rpc HTTP/1.1\r\n host: localhost\r\n\tx: y\r\n\r\n",
        "POST /rpc HTTP/1.1\nhost: localhost\n\n",
        "CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: localhost\r\norigin: null\r\n\r\n",
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n",
    ];
    match seed % 5 {
        0 => known[seeded.below(known.len())].as_bytes().to_vec(),
        1 => {
            // Many headers, or a long one.
            let lines = seeded.below(400);
            let value = "v".repeat(seeded.below(300));
            let line = format!("x-{}: {value}\r\n", seeded.next());
            let head = "POST /rpc HTTP/1.1\r\nhost: localhost\r\n";
            format!("{head}{}content-length: 2\r\n\r\n{{}}", line.repeat(lines)).into_bytes()
        }
        2 => seeded.bytes(4_000),
        _ => {
            let mut bytes = good.as_bytes().to_vec();
            for _ in 0..=seeded.below(6) {
                let at = seeded.below(bytes.len());
                match seeded.below(3) {
                    0 => bytes[at] = seeded.next() as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, seeded.next() as u8),
                }
            }
            bytes
        }
    }
}

/// Sequences of frames of HTTP/2 that are wrong, or too many.
pub(super) fn sequences(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(sequence).collect()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn sequence(seed: u64) -> Vec<u8> {
    let mut seeded = Seeded(seed);
    let mut bytes = PREFACE.to_vec();
    if seed % 7 != 6 {
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
    }
    let times = 1 + u32::try_from(seeded.below(2_000)).unwrap();
    match seed % 8 {
        // Requests that are cancelled at once.
        0 => {
            for n in 0..times {
                let stream = 2 * n + 1;
                bytes.extend(frame(HEADERS, END_HEADERS, stream, HEAD));
                bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            }
        }
        // A head that never ends.
        1 => {
            bytes.extend(frame(HEADERS, 0, 1, HEAD));
            for _ in 0..times {
                bytes.extend(frame(CONTINUATION, 0, 1, b"\x00\x01x\x01y"));
            }
        }
        2 => (0..times).for_each(|_| bytes.extend(frame(PING, 0, 0, &[0; 8]))),
        3 => (0..times).for_each(|_| bytes.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]))),
        // More streams than are allowed, without an end.
        4 => {
            for n in 0..times {
                bytes.extend(frame(HEADERS, END_HEADERS, 2 * n + 1, HEAD));
            }
        }
        // Windows that overflow, and data of no length.
        5 => {
            bytes.extend(frame(HEADERS, END_HEADERS, 1, HEAD));
            for _ in 0..times {
                bytes.extend(frame(0, 0, 1, &[]));
            }
            bytes.extend(frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()));
            bytes.extend(frame(WINDOW_UPDATE, 0, 1, &0x7fff_ffff_u32.to_be_bytes()));
        }
        // Frames of any kind with anything in them.
        6 => {
            for _ in 0..100 {
                let (kind, flags) = (seeded.next() as u8 % 12, seeded.next() as u8);
                let stream = u32::try_from(seeded.below(9)).unwrap();
                let payload = seeded.bytes(64);
                bytes.extend(frame(kind, flags, stream, &payload));
            }
        }
        // A head with random HPACK data, and one with two hosts.
        _ => {
            let anything = seeded.bytes(200);
            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &anything));
            let mut two = HEAD.to_vec();
            two.extend(b"\x00\x04host\x04evil");
            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 3, &two));
        }
    }
    bytes
}
