# Shared by tests/run, tests/brokers/kafka and tests/brokers/nats.
# shellcheck shell=bash

brokers_src=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
repo_root=$(cd -- "$brokers_src/../.." && pwd -P)
# shellcheck disable=SC2034
brokers_dir=$repo_root/target/brokers

say() { printf '%s: %s\n' "${me:-tests/brokers}" "$*" >&2; }
die() { say "$*"; exit 1; }

is_port() { [[ $1 =~ ^[0-9]{1,5}$ ]] && ((10#$1 >= 1 && 10#$1 <= 65535)); }

# True if something accepts connections on the loopback port.
port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Prints a free loopback port below the range that the kernel hands to clients
# (32768 and up on Linux): there, a client could take the port of a broker that
# is being restarted, or connect to itself.
free_port() {
  local port
  while :; do
    port=$((15000 + ${SRANDOM:-$RANDOM} % 17000))
    port_open "$port" || break
  done
  echo "$port"
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
