#!/usr/bin/env bash
# Where does the bridge spend its time in one scenario of benches/side-by-side?
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'EOF'
usage: benches/profile.sh SCENARIO [MESSAGES]

Runs one scenario of benches/side-by-side (kafka-nats, kafka-jetstream, kafka-kafka,
jetstream-kafka) with perf around the bridge, and prints the functions that take
the most time, by themselves and with what they call. The samples stay in
target/profile/SCENARIO.data; with inferno-collapse-perf and inferno-flamegraph on
the path there is a flame graph too, target/profile/SCENARIO.svg.

Needs running brokers (`tests/run --brokers-only` prints the two variables to
set) and perf (linux-perf on Debian), and builds with frame pointers into
target/profile, so that the release build stays as it is.
EOF
}

scenario=${1:-} messages=${2:-200000}
[[ -n $scenario && $scenario != --help && $scenario != -h ]] || { usage; exit 2; }
command -v perf >/dev/null || { echo "perf is missing: apt-get install linux-perf" >&2; exit 1; }

folder=$PWD/target/profile
mkdir -p "$folder"
export CARGO_TARGET_DIR=$folder RUSTFLAGS="-C force-frame-pointers=yes" CFLAGS="-fno-omit-frame-pointer"
cargo build --release --workspace --locked --bin a2abus --bench side-by-side

# What side-by-side starts in place of the bridge.
cat >"$folder/recorded" <<EOF
#!/bin/sh
exec perf record -q -F 997 --call-graph fp -o "$folder/$scenario.data" -- "$folder/release/a2abus" "\$@"
EOF
chmod +x "$folder/recorded"
A2ABUS=$folder/recorded cargo bench --workspace --locked --bench side-by-side -- \
  "$scenario" --only a2abus --rounds 1 --messages "$messages"

report() { perf report -i "$folder/$scenario.data" --stdio -g none --percent-limit 0.7 "$@" 2>/dev/null | grep -v '^#' | grep . ; }
echo; echo "by themselves:"; report --no-children --sort symbol | head -60
echo; echo "with what they call:"; report --children --sort symbol | head -80
if command -v inferno-flamegraph >/dev/null; then
  perf script -i "$folder/$scenario.data" 2>/dev/null | inferno-collapse-perf | inferno-flamegraph >"$folder/$scenario.svg"
  echo "$folder/$scenario.svg"
fi
