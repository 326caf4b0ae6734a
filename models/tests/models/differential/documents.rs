//! Random documents: JSON with everything that the grammar allows, and variants with a few changed bytes.

/// A small random number generator (SplitMix64), so that every run reads the same documents.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below the bound.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True in one of `n` cases.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A document, valid in about half of the cases.
pub(crate) fn document(random: &mut Random) -> Vec<u8> {
    let mut out = String::new();
    white_space(random, &mut out);
    match random.below(16) {
        0..6 => json_rpc(random, &mut out),
        6 => deep(random, &mut out),
        7 => object(random, &mut out, 3),
        _ => value(random, &mut out, 4),
    }
    white_space(random, &mut out);
    let mut document = out.into_bytes();
    if random.one_in(2) {
        for _ in 0..=random.below(3) {
            change(random, &mut document);
        }
    }
    document
}

/// Names that decide something, and others.
const NAMES: [&str; 16] = [
    "jsonrpc",
    "id",
    "method",
    "params",
    "_agentId",
    "_topic",
    "_seq",
    "result",
    "error",
    "specversion",
    "type",
    "protocol",
    "",
    "a",
    "é",
    "😀",
];

fn json_rpc(random: &mut Random, out: &mut String) {
    let mut members = vec![0, 1, 2, 3];
    if random.one_in(3) {
        members[2] = 4;
    }
    if random.one_in(2) {
        members.push(random.below(7));
    }
    if random.one_in(3) {
        members.remove(random.below(4));
    }
    for at in (1..members.len()).rev() {
        members.swap(at, random.below(at + 1));
    }
    out.push('{');
    for (index, member) in members.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        white_space(random, out);
        match member {
            0 => fixed(random, out, "jsonrpc", "2.0"),
            1 => {
                name(random, out, "id");
                id(random, out);
            }
            2 => fixed(random, out, "method", "tools/call"),
            3 => {
                name(random, out, "params");
                params(random, out);
            }
            4 => {
                name(random, out, "result");
                value(random, out, 2);
            }
            _ => {
                let other = random.pick(&NAMES[8..]);
                name(random, out, other);
                value(random, out, 2);
            }
        }
        white_space(random, out);
    }
    out.push('}');
}

/// A member with this name, some of it as escapes.
fn fixed(random: &mut Random, out: &mut String, of: &str, text: &str) {
    name(random, out, of);
    spelt(random, out, text);
}

fn id(random: &mut Random, out: &mut String) {
    match random.below(4) {
        0 => number(random, out),
        1 => out.push_str("null"),
        2 => spelt(random, out, "req-1"),
        _ => string(random, out),
    }
}

fn params(random: &mut Random, out: &mut String) {
    out.push('{');
    for index in 0..random.below(3) {
        if index > 0 {
            out.push(',');
        }
        let of = random.pick(&["_agentId", "_agentId", "_topic", "a"]);
        fixed(random, out, of, "weather-1");
    }
    out.push('}');
}

fn name(random: &mut Random, out: &mut String, of: &str) {
    spelt(random, out, of);
    white_space(random, out);
    out.push(':');
    white_space(random, out);
}

/// The text in quotes, each character literal or as an escape.
pub(crate) fn spelt(random: &mut Random, out: &mut String, text: &str) {
    let plain = random.one_in(2);
    out.push('"');
    for c in text.chars() {
        match c {
            '/' if !plain && random.one_in(2) => out.push_str("\\/"),
            c if !plain && random.one_in(4) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn string(random: &mut Random, out: &mut String) {
    const PIECES: [&str; 22] = [
        "a",
        "bc",
        " ",
        "é",
        "日",
        "😀",
        "\u{7f}",
        "\u{2028}",
        "\\\"",
        "\\\\",
        "\\/",
        "\\b",
        "\\f",
        "\\n",
        "\\r",
        "\\t",
        "\\u0041",
        "\\u00E9",
        "\\ud83d\\ude00",
        "0123456789abcdef",
        "\\u0000",
        "]}",
    ];
    const HALVES: [&str; 4] = ["\\ud83d", "\\uDE00", "\\ud83dx", "\\ude00\\ud83d"];
    out.push('"');
    for _ in 0..random.below(6) {
        out.push_str(random.pick(&PIECES));
    }
    if random.one_in(60) {
        out.push_str(random.pick(&HALVES));
    }
    out.push('"');
}

fn number(random: &mut Random, out: &mut String) {
    const WHOLE: [&str; 8] = [
        "0",
        "1",
        "-0",
        "-17",
        "9007199254740993",
        "9223372036854775808",
        "18446744073709551616",
        "-123456789012345678901234567890",
    ];
    const FRACTION: [&str; 5] = ["", "", ".0", ".50", ".000000000000000000001"];
    const EXPONENT: [&str; 7] = ["", "", "", "e1", "E+10", "e-7", "e400"];
    out.push_str(random.pick(&WHOLE));
    out.push_str(random.pick(&FRACTION));
    out.push_str(random.pick(&EXPONENT));
}

fn value(random: &mut Random, out: &mut String, depth: usize) {
    match random.below(if depth == 0 { 6 } else { 10 }) {
        0 => out.push_str("null"),
        1 => out.push_str("true"),
        2 => out.push_str("false"),
        3 => number(random, out),
        4 | 5 => string(random, out),
        6 | 7 => object(random, out, depth - 1),
        _ => array(random, out, depth - 1),
    }
}

fn object(random: &mut Random, out: &mut String, depth: usize) {
    out.push('{');
    white_space(random, out);
    for index in 0..random.below(4) {
        if index > 0 {
            out.push(',');
            white_space(random, out);
        }
        if random.one_in(8) {
            string(random, out);
            out.push(':');
        } else {
            let of = random.pick(&NAMES);
            name(random, out, of);
        }
        value(random, out, depth);
        white_space(random, out);
    }
    out.push('}');
}

fn array(random: &mut Random, out: &mut String, depth: usize) {
    out.push('[');
    white_space(random, out);
    for index in 0..random.below(4) {
        if index > 0 {
            out.push(',');
            white_space(random, out);
        }
        value(random, out, depth);
        white_space(random, out);
    }
    out.push(']');
}

/// Nested about as deep as the limit.
fn deep(random: &mut Random, out: &mut String) {
    let depth = 118 + random.below(14);
    let mut closing = Vec::with_capacity(depth);
    for _ in 0..depth {
        if random.one_in(2) {
            out.push('[');
            closing.push(']');
        } else {
            out.push_str("{\"a\":");
            closing.push('}');
        }
    }
    out.push_str(random.pick(&["1", "[]", "{}", "\"[{\"", "null"]));
    out.extend(closing.into_iter().rev());
}

fn white_space(random: &mut Random, out: &mut String) {
    if random.one_in(6) {
        out.push_str(random.pick(&[" ", "\t", "\n", "\r", " \t\r\n ", "        \n        "]));
    }
}

/// Changes one or a few bytes, mostly to characters with a meaning.
fn change(random: &mut Random, document: &mut Vec<u8>) {
    const BYTES: &[u8] =
        b"{}[],:\"\\ \t\n\r\x0b\x000123456789-+.eEtfnua/\x1f\x7f\x80\xc3\xe9\xed\xf0\xff";
    let byte = random.pick(BYTES);
    if document.is_empty() {
        return document.push(byte);
    }
    let at = random.below(document.len());
    let end = (at + 1 + random.below(8)).min(document.len());
    match random.below(8) {
        0 | 1 => document[at] = byte,
        2 | 3 => document.insert(at, byte),
        4 => drop(document.drain(at..=at)),
        5 => drop(document.drain(at..end)),
        6 => document.truncate(at),
        _ => {
            let again = document[at..end].to_vec();
            document.splice(at..at, again);
        }
    }
}
