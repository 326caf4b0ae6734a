# Shared by tests/run, tests/clients/run, tests/deploy/run, tests/openapi, tests/brokers/kafka and tests/brokers/nats.
# shellcheck shell=bash

# In English, because the scripts search for words in messages of other programs.
export LC_ALL=C.UTF-8

brokers_src=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
repo_root=$(cd -- "$brokers_src/../.." && pwd -P)
# shellcheck disable=SC2034
brokers_dir=$repo_root/target/brokers

say() { printf '%s: %s\n' "${me:-tests/brokers}" "$*" >&2; }
die() { say "$*"; exit 1; }

# Whether everything must be tested.
case ${A2ABUS_REQUIRE_BROKERS:-} in '' | 0) required=no ;; *) required=yes ;; esac

# left_out WHAT: it is not tested, which fails where everything is required.
left_out() {
  say "$1: LEFT OUT"
  [[ $required == no ]] || die "and it is required"
}

is_port() { [[ $1 =~ ^[0-9]{1,5}$ ]] && ((10#$1 >= 1 && 10#$1 <= 65535)); }

# True if something accepts connections on the loopback port.
port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Prints a free loopback port below the range that the kernel hands to clients
# (32768 and up on Linux): there, a client could take the port of a broker that
# is being restarted, or connect to itself. A file reserves the port for an hour,
# because its server may listen on it only later, and restart.
free_port() {
  local port tries ports=$brokers_dir/ports
  mkdir -p -- "$ports"
  find "$ports" -type f -mmin +60 -delete 2>/dev/null || true
  for ((tries = 0; tries < 1000; tries++)); do
    port=$((15000 + ${SRANDOM:-$RANDOM} % 17000))
    # With noclobber only one process can create the file.
    if (set -o noclobber && : >"$ports/$port") 2>/dev/null && ! port_open "$port"; then
      echo "$port"
      return
    fi
  done
  die "no free port, or no file can be created in $ports"
}

# Prints the first Java of at least version 17, or fails.
find_java() {
  local java version
  for java in "${A2ABUS_JAVA:-}" "${JAVA_HOME:+$JAVA_HOME/bin/java}" \
    "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
    [[ -n $java && -x $java ]] || continue
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    if ((${version:-0} >= 17)); then
      echo "$java"
      return
    fi
  done
  return 1
}
