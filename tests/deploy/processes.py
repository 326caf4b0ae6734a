"""The commands that are shipped, as processes on a real Kafka and NATS: the pods of the chart, the systemd unit of the
Debian package. Each is called."""

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
import promql_parser
import yaml

from common import (CHART, DEADLINE, PROGRAM, REPO, RUN, Process, add_libraries, ask, bridge_of, call, environment_of, get, link,
                    new_root, objects, render, report)

KAFKA = os.environ["A2ABUS_TEST_KAFKA"]
NATS = os.environ["A2ABUS_TEST_NATS"]
UNIQUE = f"deploy-{os.getpid()}"
ENTRYPOINT = json.loads(re.search(r"^ENTRYPOINT (.*)$", (REPO / "Containerfile").read_text(), re.M).group(1))


def main():
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": KAFKA})
    path = RUN / "topics.yaml"
    path.write_text(yaml.safe_dump(configuration()))
    done = call(PROGRAM, "topics", "apply", "-c", path, "--partitions", "1", "--replicas", "1")
    report("a2abus topics apply", [done.stdout + done.stderr] if done.returncode else [])
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
        for gone in admin.delete_topics([topic for topic in left if topic.startswith(UNIQUE)]).values():
            gone.exception(60)


def configuration():
    return {
        "transports": {"kafka": {"type": "kafka", "brokers": [KAFKA]}, "nats": {"type": "nats", "servers": [NATS]}},
        "bindings": [{"name": "requests", "transport": "kafka", "topics": [f"{UNIQUE}.requests"], "group": UNIQUE, "dead_letter": {"topic": f"{UNIQUE}.dlq"}}],
        "routes": [{"name": "weather", "when": {"targetagent": "weather"}, "to": [{"transport": "kafka", "topic": f"{UNIQUE}.weather"}]}],
        "default_route": [{"transport": "nats", "topic": UNIQUE + ".agents.{targetagent}", "names": "escape"}],
        "calls": {"reply_topic": f"{UNIQUE}.replies", "reply_partitions": 2},
    }


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


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
    workflows = {"enabled": True, "agents": [{"id": "reporter", "keys": [{"file": "/run/secrets/reporter/key"}], "operations": ["*"], "storages": ["*"]}]}
    stateful = base | {"persistence": {"enabled": True}, "replicas": 1, "config": configuration() | {"workflows": workflows}, "secrets": [{"name": "reporter"}]}
    documents = objects(render(CHART, values_file("stateful", stateful), "1.34.0"))
    with pod("stateful", documents) as bridge:
        report("stateful: becomes ready", bridge.until_ready(ports["admin"]))
        report("stateful: a call on NATS", ask(ports["http"], "echo", {"n": 2}))
        kept = list((RUN / "stateful/var/lib/a2abus/workflows").iterdir())
        report("stateful: its records are in the volume", [] if kept else ["nothing is in it"])
        report("stateful: drains", bridge.stop(60))
    sidecar = REPO / "examples/sidecar"
    documents = objects(render(sidecar, values_file("sidecar", {"a2abus": {"config": configuration(), "ports": ports}}), "1.34.0"))
    with pod("sidecar", documents) as bridge:
        report("sidecar: becomes ready", bridge.until_ready(ports["admin"]))
        report("sidecar: a call on Kafka", ask(ports["http"], "weather", {"n": 3}))
        report("sidecar: drains", bridge.stop(60))


def pod(name, documents):
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
    return Process(root, ENTRYPOINT + container["args"], environment_of(container, "a2abus-0"))


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


def reloaded(name, ports):
    """The bridge has read its changed configuration, and the new route leads to an agent."""
    wanted = 'a2abus_config_reloads_total{result="applied"} 1'
    until, text = time.monotonic() + DEADLINE, ""
    while wanted not in text and time.monotonic() < until:
        time.sleep(0.1)
        _, text = get(f"http://127.0.0.1:{ports['admin']}/metrics")
    shown = [line for line in text.splitlines() if line.startswith("a2abus_config_")]
    report(f"{name}: a changed route is in use", ask(ports["http"], "moved", {"n": 4}) if wanted in text else shown)


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
    """The script of the chart's test, unchanged; curl connects to this machine whatever the name. It fails where a
    `refusal` is given, with those words."""
    test = next(document for document in documents if document["kind"] == "Pod")
    container = test["spec"]["containers"][0]
    home = RUN / f"test-{len(os.listdir(RUN))}"
    home.mkdir()
    (home / ".curlrc").write_text(f'connect-to = "::127.0.0.1:{ports["http"]}"\n')
    variables = environment_of(container, "test") | {"HOME": str(home)}
    done = subprocess.run(container["command"] + container["args"], env=variables, capture_output=True, text=True, timeout=120)
    as_wanted = done.returncode == 0 if refusal is None else done.returncode != 0 and refusal in done.stderr
    report(f"helm test: {name}", [] if as_wanted else [done.stdout + done.stderr])


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
    """The Debian package in a scratch root: what it installs, and the command of its unit."""
    archive = os.environ.get("DEPLOY_DEB")
    root = RUN / "debian"
    if archive:
        done = call("dpkg-deb", "-x", archive, root)
        control = call("dpkg-deb", "-f", archive).stdout
        wanted = ("Package: a2abus", "Depends: ", "Maintainer: ")
        report("debian: unpacks", [done.stderr] * (done.returncode != 0) + [line for line in wanted if line not in control])
        (root / "tmp").mkdir()
        add_libraries(root)
    else:
        root = new_root("debian")
        (root / "etc/a2abus").mkdir(parents=True)
        (root / "lib/systemd/system").mkdir(parents=True)
        shutil.copy(REPO / "packaging/a2abus.yaml", root / "etc/a2abus/a2abus.yaml")
        shutil.copy(REPO / "packaging/a2abus.service", root / "lib/systemd/system/a2abus.service")
    unit = next(root.glob("**/systemd/system/a2abus.service")).read_text()
    shipped = root / "etc/a2abus/a2abus.yaml"
    done = call(PROGRAM, "check", "-c", shipped)
    report("debian: its configuration passes a2abus check", [done.stdout + done.stderr] if done.returncode else [])
    ports = {"http": free_port(), "admin": free_port()}
    # What a user edits: the configuration. The environment file overrides the ports.
    shipped.write_text(yaml.safe_dump(configuration()))
    variables = {"A2ABUS_HTTP__LISTEN": f"127.0.0.1:{ports['http']}", "A2ABUS_ADMIN__LISTEN": f"127.0.0.1:{ports['admin']}"}
    command = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.M).group(1))
    with Process(root, command, variables) as bridge:
        report("systemd: the command of the unit becomes ready", bridge.until_ready(ports["admin"]))
        report("systemd: a call on Kafka", ask(ports["http"], "weather", {"n": 4}))
        shipped.write_text(with_route())
        order = re.search(r"^ExecReload=/bin/kill -(\w+) \$MAINPID$", unit, re.M).group(1)
        bridge.child.send_signal(signal.Signals[f"SIG{order}"])
        reloaded("systemd: ExecReload", ports)
        stop = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1))
        report("systemd: stops within TimeoutStopSec", bridge.stop(stop))


def laptop():
    """The agent of the compose file, called as its README says."""
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
            body = re.search(r"--json '(.*)'$", text, re.M).group(1)
            headers = {"content-type": "application/json"}
            _, answer = get(f"http://127.0.0.1:{ports['http']}/rpc/laptop", body.encode(), headers)
            said = answer.strip() in text
            report("compose: its agent answers as its README says", faults + ([] if started and said else [started + answer]))
            bridge.stop(60)
    finally:
        agent.kill()
        agent.wait()


if __name__ == "__main__":
    main()
