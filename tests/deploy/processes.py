"""The commands that are shipped, as processes on a real Kafka and NATS: the pods of the chart, the systemd unit of the
Debian package. Each is called."""

import asyncio
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import signal
import subprocess
import sys
import time

import confluent_kafka.admin
import nats
import promql_parser
import yaml

from common import CHART, DEADLINE, PROGRAM, REPO, RUN, Process, ask, bridge_of, call, dead_links, environment_of, get, inside, new_root, objects, render, report, undocumented
from ports import free_port

KAFKA = os.environ["A2ABUS_TEST_KAFKA"]
NATS = os.environ["A2ABUS_TEST_NATS"]
UNIQUE = f"deploy-{os.getpid()}"
ENTRYPOINT = json.loads(re.search(r"^ENTRYPOINT (.*)$", (REPO / "Containerfile").read_text(), re.M).group(1))


def main():
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": KAFKA})
    path = RUN / "topics.yaml"
    path.write_text(yaml.safe_dump(configuration()))
    result = call(PROGRAM, "topics", "apply", "-c", path, "--partitions", "2", "--replicas", "1")
    report("a2abus topics apply", [result.stdout + result.stderr] if result.returncode else [])
    command = [sys.executable, pathlib.Path(__file__).parent / "agents.py", KAFKA, f"{UNIQUE}.weather", NATS, f"{UNIQUE}.agents.echo"]
    agents = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        report("agents on Kafka and NATS", [] if agents.stdout.readline() == "ready\n" else ["they did not start"])
        pods()
        package()
        laptop()
    finally:
        agents.kill()
        agents.wait()
        left = admin.list_topics(timeout=60).topics
        for gone in admin.delete_topics([topic for topic in left if topic.startswith(f"{UNIQUE}.")]).values():
            gone.exception(60)
        asyncio.run(delete_streams())


async def delete_streams():
    """Those of the state."""
    connection = await nats.connect(NATS)
    streams = connection.jetstream()
    for stream in await streams.streams_info():
        if stream.config.name.startswith(f"{UNIQUE}_".upper()):
            await streams.delete_stream(stream.config.name)
    await connection.close()


def configuration():
    return {
        "transports": {"kafka": {"type": "kafka", "brokers": [KAFKA]}, "nats": {"type": "nats", "servers": [NATS]}},
        "bindings": [{"name": "requests", "transport": "kafka", "topics": [f"{UNIQUE}.requests"], "group": UNIQUE, "dead_letter": {"topic": f"{UNIQUE}.dlq"}}],
        "routes": [{"name": "weather", "when": {"targetagent": "weather"}, "to": [{"transport": "kafka", "topic": f"{UNIQUE}.weather"}]}],
        "default_route": [{"transport": "nats", "topic": UNIQUE + ".agents.{targetagent}", "names": "escape"}],
        "calls": {"reply_topic": f"{UNIQUE}.replies", "reply_partitions": 2},
        "agents": {"weather": {"description": "Knows the weather", "to": {"transport": "kafka", "topic": f"{UNIQUE}.weather"}}},
        "state": {"log": "nats", "create": True, "prefix": UNIQUE},
    }


def values_file(name, values):
    path = RUN / f"{name}.values.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def pods():
    """Deployment, StatefulSet and sidecar: their command line and environment, in a root as that of the image."""
    ports = {"http": free_port(), "admin": free_port()}
    base = {"config": configuration(), "ports": ports, "test": {"agent": "weather", "params": {"name": "now", "arguments": {}}}}
    base["prometheusRule"] = base["dashboard"] = {"enabled": True}
    deployment = objects(render(CHART, values_file("deployment", base), "1.34.0"))
    with pod("deployment", deployment) as bridge:
        report("deployment: becomes ready", bridge.until_ready(ports["admin"]))
        probes(deployment, ports)
        report("deployment: calls on Kafka and NATS", ask(ports["http"], "weather", {"city": "Oslo"}) + ask(ports["http"], "echo", {"n": 1}))
        chart_test("an agent on Kafka answers", deployment, ports)
        no_agent = base | {"test": {}}
        chart_test("no agent is named", objects(render(CHART, values_file("no-agent", no_agent), "1.34.0")), ports)
        chart_test("an agent that is not there", objects(render(CHART, values_file("nobody", base | {"test": {"agent": "nobody", "timeoutSeconds": 2}}), "1.34.0")), ports, "no result in the answer")
        status, _ = get(f"http://127.0.0.1:{ports['http']}/rpc/echo", b"{}", {"host": "elsewhere.example.com"})
        report("deployment: only its own names", [] if status == 421 else [f"status {status}"])
        series(deployment, ports)
        mounted(RUN / "deployment/etc/a2abus", {"a2abus.yaml": with_route()})
        reloaded("deployment: the ConfigMap", ports)
        report("deployment: drains within its grace period", bridge.stop(bridge_of(deployment)[0]["terminationGracePeriodSeconds"]))
    stateful(base)
    sidecar = REPO / "examples/sidecar"
    documents = objects(render(sidecar, values_file("sidecar", {"a2abus": {"config": configuration(), "ports": ports}}), "1.34.0"))
    with pod("sidecar", documents) as bridge:
        report("sidecar: becomes ready", bridge.until_ready(ports["admin"]))
        report("sidecar: a call on Kafka", ask(ports["http"], "weather", {"n": 3}))
        report("sidecar: drains", bridge.stop(60))


def stateful(base):
    """Two pods of a StatefulSet: each has its volume, its partitions and its reply partition by its name."""
    workflows = {"enabled": True, "agents": [{"id": "reporter", "keys": [{"file": "/run/secrets/reporter/key"}], "operations": ["*"], "storages": ["*"]}]}
    values = base | {"persistence": {"enabled": True}, "config": configuration() | {"workflows": workflows}, "secrets": [{"name": "reporter"}]}
    names, ports, pods = ("a2abus-0", "a2abus-1"), [], []
    for name in names:
        ports.append({"http": free_port(), "admin": free_port()})
        pods.append(objects(render(CHART, values_file(name, values | {"ports": ports[-1]}), "1.34.0")))
    with pod(names[0], pods[0], names[0]) as first, pod(names[1], pods[1], names[1]) as second:
        report("stateful: two pods become ready", first.until_ready(ports[0]["admin"]) + second.until_ready(ports[1]["admin"]))
        calls = [fault for number in (0, 1) for fault in ask(ports[number]["http"], "weather", {"pod": number}) + ask(ports[number]["http"], "echo", {"n": 2})]
        report("stateful: calls on Kafka and NATS", calls)
        seen = reply_partitions(2)
        report("stateful: the reply partition is the ordinal of the pod", [] if seen == {0: 0, 1: 1} else [seen])
        before = until_members(names)
        report("stateful: the instance_id is the name of the pod", [] if before.keys() == set(names) else [before])
        records = [list((RUN / name / "var/lib/a2abus/workflows").iterdir()) for name in names]
        report("stateful: its records are in the volume", [] if all(records) else ["nothing is in one of them"])
        report("stateful: drains", second.stop(60))
        shutil.rmtree(RUN / "a2abus-1")
        with pod(names[1], pods[1], names[1]) as again:
            faults = again.until_ready(ports[1]["admin"]) + ask(ports[1]["http"], "weather", {"pod": 2})
            after = until_members(names)
            report("stateful: a pod that restarts keeps its partitions", faults + ([] if after == before else [before, after]))
            report("stateful: all drain", first.stop(60) + again.stop(60))


def reply_partitions(calls):
    """The reply partition of each call to the agent on Kafka, by its argument `pod`."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": KAFKA, "group.id": f"{UNIQUE}.look", "auto.offset.reset": "earliest"})
    reader.subscribe([f"{UNIQUE}.weather"])
    found, until = {}, time.monotonic() + DEADLINE
    while len(found) < calls and time.monotonic() < until:
        message = reader.poll(1)
        if message is None or message.error():
            continue
        arguments = json.loads(message.value())["params"]["arguments"]
        if "pod" in arguments:
            found[arguments["pod"]] = int(dict(message.headers())["ce_replypartition"])
    reader.close()
    return found


def until_members(names):
    """Waits until the group has members of these pods and each has a partition; the partitions of each pod."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": KAFKA})
    found, until = {}, time.monotonic() + DEADLINE
    while time.monotonic() < until:
        group = admin.describe_consumer_groups([UNIQUE])[UNIQUE].result(60)
        # The bridge adds which subscription of the process it is.
        found = {member.group_instance_id.rpartition("-")[0]: [part.partition for part in member.assignment.topic_partitions] for member in group.members}
        if found.keys() == set(names) and all(found.values()):
            break
        time.sleep(0.2)
    return found


def pod(name, documents, pod_name="a2abus-0"):
    """Lays the volumes out as the kubelet does, and starts the container."""
    spec, container = bridge_of(documents)
    root = new_root(name)
    maps = {document["metadata"]["name"]: document["data"] for document in documents if document["kind"] == "ConfigMap"}
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for mount in container["volumeMounts"]:
        place = root / mount["mountPath"][1:]
        place.mkdir(parents=True)
        volume = volumes.get(mount["name"], {})
        contents = {"key": "secret"} if "secret" in volume else {}
        if "configMap" in volume:
            contents = maps[volume["configMap"]["name"]]
        if contents:
            mounted(place, contents)
        if not mount.get("readOnly") and os.geteuid() == 0:
            os.chown(place, 65532, 65532)
    return Process(root, ENTRYPOINT + container["args"], environment_of(container, pod_name))


def mounted(place, contents):
    """Files as the kubelet mounts them, at first and again: links through `..data`, which is replaced as a whole."""
    version = f"..{len(list(place.iterdir()))}"
    (place / version).mkdir()
    for key, text in contents.items():
        (place / version / key).write_text(text)
        if not (place / key).is_symlink():
            (place / key).symlink_to(f"..data/{key}")
    (place / "..new").symlink_to(version)
    (place / "..new").rename(place / "..data")


def with_route():
    """The configuration, and a route to the agent on Kafka."""
    more = configuration()
    more["routes"].append({"name": "moved", "when": {"targetagent": "moved"}, "to": more["routes"][0]["to"]})
    return yaml.safe_dump(more)


def reloaded(name, ports, faults=()):
    """The bridge has read its changed configuration, and the new route leads to an agent."""
    expected = 'a2abus_config_reloads_total{result="applied"} 1'
    until, text = time.monotonic() + DEADLINE, ""
    while expected not in text and time.monotonic() < until:
        time.sleep(0.1)
        _, text = get(f"http://127.0.0.1:{ports['admin']}/metrics")
    shown = [line for line in text.splitlines() if line.startswith("a2abus_config_")]
    report(f"{name}: a changed route is in use", [*faults, *(ask(ports["http"], "moved", {"n": 4}) if expected in text else shown)])


def probes(documents, ports):
    _, container = bridge_of(documents)
    faults = []
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        ask_for = container[name]["httpGet"]
        status, body = get(f"http://127.0.0.1:{ports[ask_for['port']]}{ask_for['path']}")
        if status != 200:
            faults.append(f"{name}: {status} {body}")
    report("deployment: its probes", faults)


def chart_test(name, documents, ports, refusal=None):
    """The script of the chart's test, unchanged; curl connects to this machine whatever the name. If
    `refusal` is given, the script must fail with this text."""
    test = next(document for document in documents if document["kind"] == "Pod")
    container = test["spec"]["containers"][0]
    home = RUN / f"test-{len(os.listdir(RUN))}"
    home.mkdir()
    (home / ".curlrc").write_text(f'connect-to = "::127.0.0.1:{ports["http"]}"\n')
    variables = environment_of(container, "test") | {"HOME": str(home)}
    result = subprocess.run(container["command"] + container["args"], env=variables, capture_output=True, text=True, timeout=120)
    as_expected = result.returncode == 0 if refusal is None else result.returncode != 0 and refusal in result.stderr
    report(f"helm test: {name}", [] if as_expected else [result.stdout + result.stderr])


def series(documents, ports):
    """Every series that rules and dashboard name is one that the bridge has, and every expression is PromQL."""
    _, text = get(f"http://127.0.0.1:{ports['admin']}/metrics")
    # A family without a series yet is not in the text: those that the sources define count, too.
    known = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
    for source in (REPO / "bridge/src").glob("**/*.rs"):
        known.update(re.findall(r'name: "(a2abus_\w+)"', source.read_text()))
    found = []
    for document in documents:
        if document["kind"] == "PrometheusRule":
            found += [rule["expr"] for group in document["spec"]["groups"] for rule in group["rules"]]
        if document["kind"] == "ConfigMap" and "a2abus.json" in document["data"]:
            panels = json.loads(document["data"]["a2abus.json"])["panels"]
            found += [target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel.get("targets", [])]
    faults = []
    for expression in found:
        try:
            promql_parser.parse(expression)
        except ValueError as error:
            faults.append(f"{expression}: {error}")
        names = {re.sub("_bucket$", "", name) for name in re.findall(r"\ba2abus_\w+", expression)}
        faults += [f"{expression}: no series {name}" for name in names - known]
    report(f"{len(found)} expressions of rules and dashboard", faults if found else ["none found"])


def package():
    """The Debian package in a scratch root: what it installs, the command of its unit, the upgrade and the removal."""
    archive, debian = os.environ.get("DEPLOY_DEB"), os.environ.get("DEPLOY_DEBIAN")
    if not archive or not debian:
        print("no cargo-deb or no Debian: installing the package is LEFT OUT")
        root = new_root("unit")
        (root / "etc/a2abus").mkdir(parents=True)
        shutil.copy(REPO / "packaging/a2abus.service", root)
        service(root, root / "etc/a2abus/a2abus.yaml")
        return
    root = RUN / "debian"
    root.mkdir()
    call("tar", "-C", root, "-xf", debian)
    control = call("dpkg-deb", "-f", archive).stdout
    expected = ("Package: a2abus", "Depends: ", "Maintainer: ")
    report("debian: installs", dpkg(root, "-i", archive) + [line for line in expected if line not in control])
    report("debian: holds the documents that its files name", undocumented(root) + dead_links(root))
    enabled = list(root.glob("etc/systemd/system/*.wants/a2abus.service"))
    report("debian: the service waits for its configuration", [f"enabled: {link}" for link in enabled])
    shipped = root / "etc/a2abus/a2abus.yaml"
    result = call("chroot", root, "a2abus", "check", "-c", "/etc/a2abus/a2abus.yaml")
    report("debian: its configuration passes a2abus check", [result.stdout + result.stderr] if result.returncode else [])
    service(root, shipped)
    mine = shipped.read_text()
    faults = dpkg(root, "-i", archive) + ([] if shipped.read_text() == mine else ["the configuration is another"])
    report("debian: an upgrade keeps the configuration", faults)
    faults = dpkg(root, "-r", "a2abus") + ["the configuration is gone"] * (not shipped.exists())
    report("debian: a removal keeps the configuration", faults + left_behind(root, "usr"))
    report("debian: purge leaves nothing", dpkg(root, "-P", "a2abus") + left_behind(root, "."))


def dpkg(root, *order):
    """Runs dpkg in the root; its message where it fails."""
    result = call("dpkg", f"--root={root}", *order, stdin=subprocess.DEVNULL)
    return [result.stdout + result.stderr] * (result.returncode != 0)


def left_behind(root, below):
    return [str(path) for path in (root / below).rglob("*a2abus*") if "var/log" not in str(path)]


def service(root, shipped):
    """The unit's command, with the configuration that a user has written, and the ports of the environment over it."""
    unit = next(root.rglob("a2abus.service")).read_text()
    ports = {"http": free_port(), "admin": free_port()}
    shipped.write_text(yaml.safe_dump(configuration()))
    variables = {"A2ABUS_HTTP__LISTEN": f"127.0.0.1:{ports['http']}", "A2ABUS_ADMIN__LISTEN": f"127.0.0.1:{ports['admin']}"}
    command = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.M).group(1))
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(f"\0{UNIQUE}")
    systemd.settimeout(DEADLINE)
    with systemd, Process(root, command, variables | {"NOTIFY_SOCKET": f"@{UNIQUE}"}) as bridge:
        notified = "Type=notify" not in unit or systemd.recv(64) == b"READY=1"
        report("systemd: gets READY=1", [] if notified else ["something else"])
        report("systemd: the command of the unit becomes ready", bridge.until_ready(ports["admin"]))
        report("systemd: a call on Kafka", ask(ports["http"], "weather", {"n": 4}))
        shipped.write_text("routes: {}\n")
        failed = reload(root, unit, variables, bridge)
        report("systemd: ExecReload fails where the file is wrong", [] if "routes" in failed else [failed or "it succeeds"])
        report("systemd: a call after that", ask(ports["http"], "weather", {"n": 5}))
        shipped.write_text(with_route())
        # The bridge also watches its file: this line proves that it received the signal.
        log_line = "SIGHUP: reading the configuration again"
        failed = reload(root, unit, variables, bridge)
        faults = [failed] if failed else []
        until = time.monotonic() + DEADLINE
        while log_line not in bridge.output() and time.monotonic() < until:
            time.sleep(0.1)
        faults += ["no reload by the signal"] * (log_line not in bridge.output())
        reloaded("systemd: ExecReload", ports, faults)
        stop = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1))
        report("systemd: stops within TimeoutStopSec", bridge.stop(stop))


def reload(root, unit, variables, bridge):
    """Runs the commands of ExecReload, as systemd does: stops at the first failure and returns its output."""
    for line in re.findall(r"^ExecReload=(.*)$", unit, re.M):
        command = shlex.split(line.replace("$MAINPID", str(bridge.child.pid)))
        if command[0] == "/bin/kill":
            bridge.child.send_signal(signal.Signals[f"SIG{command[1][1:]}"])
            continue
        result = call(*inside(root), *command, env=variables)
        if result.returncode != 0:
            return result.stdout + result.stderr
    return ""


def laptop():
    """The agent of the compose file, called as its README shows."""
    agent = subprocess.Popen([sys.executable, REPO / "examples/compose/agent.py", NATS, f"{UNIQUE}.agents.laptop"], stdout=subprocess.PIPE, text=True)
    try:
        started = agent.stdout.readline()
        ports = {"http": free_port(), "admin": free_port()}
        root = new_root("laptop")
        (root / "a2abus.yaml").write_text(yaml.safe_dump(configuration()))
        variables = {"A2ABUS_HTTP__LISTEN": f"127.0.0.1:{ports['http']}", "A2ABUS_ADMIN__LISTEN": f"127.0.0.1:{ports['admin']}"}
        with Process(root, [*ENTRYPOINT, "serve", "-c", "/a2abus.yaml"], variables) as bridge:
            faults = bridge.until_ready(ports["admin"])
            text = (REPO / "examples/compose/README.md").read_text()
            body = re.search(r"--json '([^']*)'", text).group(1)
            headers = {"content-type": "application/json"}
            _, answer = get(f"http://127.0.0.1:{ports['http']}/rpc/laptop", body.encode(), headers)
            is_shown = answer.strip() in text
            report("compose: its agent answers as its README shows", faults + ([] if started and is_shown else [started + answer]))
            bridge.stop(60)
    finally:
        agent.kill()
        agent.wait()


if __name__ == "__main__":
    main()
