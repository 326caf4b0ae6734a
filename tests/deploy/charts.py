"""Charts and examples without a broker: lint, golden files, schemas of Kubernetes and of custom resources, `a2abus check`."""

import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import yaml

from common import CHART, HELM, PROGRAM, REPO, RUN, bridge_of, call, environment_of, objects, render, report

# The oldest that the chart allows, one in between, and the newest that is known here.
VERSIONS = ("1.30.0", "1.34.0", "1.37.0")
GOLDEN = REPO / "tests/deploy/golden"
CASES = [(f"helm-{path.name.removesuffix('-values.yaml')}", CHART, path) for path in sorted((CHART / "ci").glob("*.yaml"))]
CASES += [(name, CHART, REPO / f"examples/{name}/values.yaml") for name in ("strimzi", "nats-operator")]
CASES += [("sidecar", REPO / "examples/sidecar", None)]
BUS = ["--set-json", 'config={"transports":{"nats":{"type":"nats","servers":["nats://nats:4222"]}}}']
# A process with a name and a number of its own.
NAMED = '{"transports":{"kafka":{"type":"kafka","brokers":"kafka,other:9093","instance_id":"one"}},"calls":{"replica":7}}'
# Values that must be refused, and a part of the message.
REFUSED = [
    ([], "names no bus"),
    ([*BUS, "--set", "existingConfigMap=other"], "give the configuration once"),
    ([*BUS, "--set", "replica=3"], "replica"),
    ([*BUS, "--set", "replicas=0"], "replicas"),
    ([*BUS, "--set", "replicas=40"], "reply_partitions"),
    ([*BUS, "--set", "autoscaling.enabled=true", "--set-json", 'keda={"enabled":true,"triggers":[{"type":"cron","metadata":{}}]}'], "cannot both decide"),
    ([*BUS, "--set", "keda.enabled=true"], "nothing waits"),
    ([*BUS, "--set", "terminationGracePeriodSeconds=30"], "the drain would be cut off"),
    ([*BUS, "--set", "terminationGracePeriodSeconds=95", "--set", "config.http.drain_grace=1m 30s"], "take 95 s"),
    ([*BUS, "--set", "config.http.drain_grace=90"], "as 25s or 1m30s"),
    ([*BUS, "--set", "config.http.drain_grace=5x"], "as 25s or 1m30s"),
    ([*BUS, "--set", "config.admin.enabled=false"], "the probes of the pod"),
    ([*BUS, "--set", "ingress.enabled=true"], "`ingress.hosts` is empty"),
    ([*BUS, "--set", "gateway.enabled=true"], "`gateway.parentRefs` is empty"),
    (["--set", "configFile=- a list"], "not YAML"),
    ([*BUS, "--set", "config.state.log=embedded"], "its files need `persistence.enabled`"),
    ([*BUS, "--set", "config.state.log=embedded", "--set", "persistence.enabled=true"], "run one replica"),
    (["--set", "configFile=transprots: {}"], "`transprots` is not a key of the configuration"),
    (["--set", "configFile=transports:"], "names no bus"),
    ([*BUS, "--set", "config.http.listn=x"], "`http.listn` is not a key of the configuration: the keys there are allowed_hosts"),
    ([*BUS, "--set", "config.transports.nats.jetstream.mange=true"], "`transports.nats.jetstream.mange` is not a key"),
    ([*BUS, "--set-json", 'config.bindings=[{"name":"a","topcs":[]}]'], "`bindings[0].topcs` is not a key"),
    ([*BUS, "--set-json", 'config.routes=[{"name":"a","to":[{"topc":"x"}]}]'], "`routes[0].to[0].topc` is not a key"),
    ([*BUS, "--set", "config.http=on"], "`http` of the configuration must be a section"),
    ([*BUS, "--set", "config.bindings.name=a"], "`bindings` of the configuration must be a list"),
    ([*BUS, "--set", "autoscaling.enabled=true", "--set", "autoscaling.minReplicas=9"], "`autoscaling.minReplicas` (9) is more than"),
    ([*BUS, "--set-json", 'keda={"enabled":true,"minReplicas":9,"triggers":[{"type":"cron","metadata":{}}]}'], "`keda.minReplicas` (9) is more than"),
    ([*BUS, "--set", "config.calls.replica=0"], "`calls.replica` is the number of one replica"),
    (["--set-json", f"config={NAMED}", "--set", "config.calls=null"], "`transports.kafka.instance_id` is the name of one process"),
    (["--set", "mode=sidecar", "--set", "persistence.enabled=true", *BUS], "`persistence` needs `mode: workload`"),
    (["--set", "mode=sidecar", "--set-json", f"config={NAMED}", "--set", "config.calls=null"], "`transports.kafka.instance_id` is the name of one process"),
]
# Manifests of an example, and what prints them.
PRINTED = [
    ("strimzi", "kafka.yaml", ["--output", "strimzi", "--acls", "--cluster", "agents", "--partitions", "12", "--replicas", "3"]),
    ("nats-operator", "streams.yaml", ["--output", "nack", "--replicas", "3"]),
]
CUSTOM = json.loads((REPO / "tests/deploy/schemas/custom.json").read_text())


def main():
    call(HELM, "dependency", "update", REPO / "examples/sidecar")
    custom = []
    for name, chart, values in CASES:
        lint(name, chart, values)
        text = render(chart, values, VERSIONS[1])
        golden(name, text)
        for version in VERSIONS:
            documents = objects(render(chart, values, version))
            schemas(name, version, documents)
        custom += [(name, document) for document in documents if is_custom(document)]
        configuration(name, documents)
        drains(name, documents)
        notes(name, chart, values)
    for name, manifests, options in PRINTED:
        printed(name, REPO / "examples" / name / manifests, options)
    for path in sorted((REPO / "examples").glob("*/*.yaml")):
        custom += [(path.parent.name, document) for document in objects(path.read_text()) if is_custom(document)]
    customs(custom)
    alerts()
    for more, message in REFUSED:
        refused(more, message)
    environments()
    written_otherwise()
    file_as_it_is()


def lint(name, chart, values):
    files = ["-f", values] if values else []
    done = call(HELM, "lint", "--strict", "--quiet", chart, *files)
    report(f"{name}: helm lint --strict", [done.stdout + done.stderr] if done.returncode else [])


def golden(name, text, kind="yaml"):
    same(f"{name}: as its golden file", GOLDEN / f"{name}.{kind}", text)


def same(name, path, text):
    """The file holds the text; with A2ABUS_BLESS=1 it is written."""
    if os.environ.get("A2ABUS_BLESS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    known = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(known.splitlines(), text.splitlines(), path.name, "now", lineterm="", n=1)
    faults = list(lines)[:30]
    report(name, faults and [*faults, "if that is meant: A2ABUS_BLESS=1 tests/deploy/run"])


def is_custom(document):
    """Custom resources live in groups with a dot that are not Kubernetes' own; a values file has no kind."""
    group = document.get("apiVersion", "").rpartition("/")[0]
    return "kind" in document and "." in group and (not group.endswith(".k8s.io") or group.startswith("gateway."))


def schemas(name, version, documents):
    faults = []
    for document in documents:
        if is_custom(document):
            continue
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except (jsonschema.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            faults.append(f"{document['kind']}: {'/'.join(map(str, getattr(error, 'path', [])))}: {error.message}")
    report(f"{name}: {len(documents)} objects as Kubernetes {version} has them", faults)


def strict(schema):
    """The schema with every member refused that it does not name."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        made.setdefault("additionalProperties", False)
    return made


def customs(found):
    """KEDA and Prometheus by the schemas of their models, Gateway API by its Go types, the others by schemas here."""
    models = json.loads((RUN.parent.parent / "models.json").read_text())
    by_go = [document for _, document in found if document["kind"] == "HTTPRoute"]
    done = subprocess.run([os.environ["DEPLOY_CRDS"]], input=json.dumps(by_go), capture_output=True, text=True, timeout=60)
    report(f"{len(by_go)} HTTPRoute as Gateway API has it", [done.stdout + done.stderr] if done.returncode or not by_go else [])
    counts = {}
    for name, document in found:
        kind = document["kind"]
        if kind == "HTTPRoute":
            continue
        schema = strict(models[kind]) if kind in models else CUSTOM.get(kind, False)
        faults = [f"{name}: {error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]
        counts.setdefault(kind, [0, []])
        counts[kind][0] += 1
        counts[kind][1] += faults
    for kind, (count, faults) in sorted(counts.items()):
        report(f"{count} {kind} as its API has it", faults)


def configuration(name, documents):
    """What is rendered passes `a2abus check`, with the environment of the container over it."""
    _, container = bridge_of(documents)
    for document in documents:
        if document["kind"] != "ConfigMap" or "a2abus.yaml" not in document["data"]:
            continue
        path = RUN / f"{name}.yaml"
        path.write_text(document["data"]["a2abus.yaml"])
        variables = environment_of(container, "a2abus-0") if container else {}
        done = call(PROGRAM, "check", "--without-secrets", "-c", path, env=variables)
        wrong = done.returncode != 0 or "error" in done.stderr
        report(f"{name}: a2abus check", [done.stdout + done.stderr] if wrong else [])


def drains(name, documents):
    """The grace period is longer than preStop and the drain take together."""
    pod, container = bridge_of(documents)
    if not pod:
        return
    maps = [document["data"] for document in documents if document["kind"] == "ConfigMap"]
    files = [yaml.safe_load(data["a2abus.yaml"]) for data in maps if "a2abus.yaml" in data]
    default = re.search(r"^\| `drain_grace` \|.*?`(\d+s)`", (REPO / "bridge/CONFIGURATION.md").read_text(), re.M).group(1)
    drain = files[0].get("http", {}).get("drain_grace", default) if files else default
    takes = int(drain[:-1]) * {"s": 1, "m": 60}[drain[-1]] + container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod["terminationGracePeriodSeconds"]
    report(f"{name}: grace period of {grace} s for preStop and a drain of {drain}", [f"they take {takes} s"] if takes >= grace else [])


def notes(name, chart, values):
    """NOTES.txt, which `helm template` leaves out, is rendered by a copy of the chart that has it among its objects."""
    if chart != CHART:
        return
    copy = RUN / "notes"
    if not copy.exists():
        shutil.copytree(CHART, copy)
        shutil.move(copy / "templates/NOTES.txt", copy / "notes.tpl")
        (copy / "templates/notes.yaml").write_text('notes: {{ tpl (.Files.Get "notes.tpl") . | quote }}')
    (shown,) = objects(render(copy, values, VERSIONS[1], "-s", "templates/notes.yaml"))
    golden(f"notes-{name}", shown["notes"].strip() + "\n", "txt")


def alerts():
    """Each alert fires when it should, and only then."""
    promtool = os.environ.get("DEPLOY_PROMTOOL")
    if not promtool:
        print("no promtool: the alerts are LEFT OUT")
        return
    documents = objects(render(CHART, CHART / "ci/full-values.yaml", VERSIONS[1]))
    rules = next(document["spec"] for document in documents if document["kind"] == "PrometheusRule")
    (RUN / "rules.yaml").write_text(yaml.safe_dump(rules))
    cases = shutil.copy(REPO / "tests/deploy/alerts.yaml", RUN)
    tried = pathlib.Path(cases).read_text()
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    faults = [f"no case for {name}" for name in names if tried.count(f"alertname: {name}") < 2]
    for command in (["check", "rules", RUN / "rules.yaml"], ["test", "rules", cases]):
        done = call(promtool, *command)
        faults += [done.stdout + done.stderr] * (done.returncode != 0)
    report(f"{len(names)} alerts: promtool", faults)


def printed(name, path, options):
    """The manifests beside the values are what `a2abus topics plan` prints for them."""
    done = call(PROGRAM, "topics", "plan", "-c", RUN / f"{name}.yaml", *options)
    same(f"{name}: {path.name} as a2abus topics plan prints it", path, done.stdout)


def refused(more, message):
    try:
        render(CHART, None, VERSIONS[1], *more)
        faults = ["it is rendered"]
    except ValueError as error:
        faults = [] if message in str(error) else [str(error)]
    report(f"refused: {message}", faults)


def variables(*more):
    """The names and values of the environment that the chart renders."""
    _, container = bridge_of(objects(render(CHART, None, VERSIONS[1], *more)))
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def environments():
    """What the environment sets, which wins over the file."""
    pods = variables("--set-json", f"config={NAMED}", "--set", "persistence.enabled=true")
    wanted = ("A2ABUS_TRANSPORTS__KAFKA__INSTANCE_ID", "$(POD_NAME)"), ("A2ABUS_CALLS__REPLICA", {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}})
    report("persistence: name and number of the pod win over the file", [f"{name}: {pods.get(name)}" for name, value in wanted if pods.get(name) != value])
    ours = {"POD_NAME", "A2ABUS_HTTP__LISTEN", "A2ABUS_ADMIN__LISTEN"}
    others = variables("--set", "existingConfigMap=other")
    report("existingConfigMap: the file decides all but the addresses", [] if set(others) == ours else [sorted(others)])


def written_otherwise():
    """Other ways to write the same are accepted."""
    pods = {}
    for text in ("1m30s", "1m 30s", "90 sec", "90000ms", "1min 30seconds"):
        documents = objects(render(CHART, None, VERSIONS[1], *BUS, "--set", f"config.http.drain_grace={text}"))
        pods[text] = bridge_of(documents)[0]["terminationGracePeriodSeconds"]
    report("a drain of 1m30s, however it is written", [] if set(pods.values()) == {105} else [pods])
    empty = "config.http=null,config.admin=null,config.calls=null,config.transports.nats.tls=null,config.telemetry=null"
    text = "transports: {nats: {type: nats, servers: [nats://nats]}}\nhttp:\nadmin:\ncalls:\nstate: {log: }\n"
    faults = []
    for more in ([*BUS, "--set", empty], ["--set", f"configFile={text.replace(',', chr(92) + ',')}"]):
        try:
            render(CHART, None, VERSIONS[1], *more)
        except ValueError as error:
            faults.append(str(error))
    report("sections without keys", faults)
    config = '{"transports":{"kafka":{"type":"kafka","brokers":"one, two:9093"},"nats":{"type":"nats","servers":["nats://nats"]}}}'
    documents = objects(render(CHART, None, VERSIONS[1], "--set-json", f"config={config}", "--set", "networkPolicy.enabled=true"))
    policy = next(document for document in documents if document["kind"] == "NetworkPolicy")
    ports = sorted(port["port"] for port in policy["spec"]["egress"][1]["ports"])
    report("NetworkPolicy: brokers without a port", [] if ports == [4222, 9092, 9093] else [ports])


def file_as_it_is():
    """--set-file configFile keeps the file, comments included."""
    path = REPO / "bridge/examples/a2abus.yaml"
    documents = objects(render(CHART, None, VERSIONS[1], "--set-file", f"configFile={path}"))
    maps = [document["data"]["a2abus.yaml"] for document in documents if document["kind"] == "ConfigMap"]
    report("the file of --set-file configFile as it is", [] if maps == [path.read_text()] else maps)


if __name__ == "__main__":
    main()
