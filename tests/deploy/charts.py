"""Charts and examples without a broker: lint, golden files, schemas of Kubernetes and of custom resources, `a2abus check`."""

import difflib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import yaml

from common import CHART, HELM, PROGRAM, REPO, RUN, bridge_of, call, dead_links, environment_of, objects, render, report, undocumented

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
    ([], "has no `transports`"),
    ([*BUS, "--set", "existingConfigMap=other"], "set the configuration once"),
    (["--set-json", 'config={"transports":{"nats":{"type":"nats","servers":["nats://nats:4222"],"auth":{"token":{"env":"NATS_TOKEN"}}}}}'], "environment variable NATS_TOKEN, which nothing sets"),
    (["--set", "existingConfigMap=other,env[0].name=A2ABUS_HTTP__DRAIN_GRACE", "--set-string", "env[0].value=120s"], "set `http.drain_grace` in the configuration"),
    (["--set-json", 'config={"transports":{"nats":{"type":"nats","servers":["nats://user:secret@nats:4222"]}}}'], "has a login in plain text"),
    (["--set-json", 'config={"transports":{"nats":{"type":"nats","servers":"nats://nats, nats://token@nats:4222"}}}'], "has a login in plain text"),
    ([*BUS, "--set-json", 'config.agents={"a":{"to":{"transport":"nats","topic":"a"},"attach":{"url":"http://a/mcp","headers":{"Authorization":"Bearer secret"}}}}'], "headers.Authorization` of the configuration is a secret in plain text"),
    ([*BUS, "--set", "replica=3"], "replica"),
    ([*BUS, "--set", "replicas=0"], "replicas"),
    (["--set-json", f"config={NAMED}", "--set", "persistence.enabled=true,replicas=40"], "reply_partitions"),
    ([*BUS, "--set", "autoscaling.enabled=true", "--set-json", 'keda={"enabled":true,"triggers":[{"type":"cron","metadata":{}}]}'], "cannot both decide"),
    ([*BUS, "--set", "keda.enabled=true"], "no backlog"),
    ([*BUS, "--set", "terminationGracePeriodSeconds=39"], "set at least 40"),
    ([*BUS, "--set", "terminationGracePeriodSeconds=95", "--set", "config.http.drain_grace=1m 30s"], "take 95 s"),
    ([*BUS, "--set", "config.http.drain_grace=90"], "such as 25s or 1m30s"),
    ([*BUS, "--set", "config.http.drain_grace=5x"], "such as 25s or 1m30s"),
    ([*BUS, "--set", "config.admin.enabled=false"], "the probes of the pod"),
    ([*BUS, "--set", "ingress.enabled=true"], "`ingress.hosts` is empty"),
    ([*BUS, "--set", "gateway.enabled=true"], "`gateway.parentRefs` is empty"),
    (["--set", "configFile=- a list"], "not YAML"),
    ([*BUS, "--set", "config.state.log=embedded"], "its files need `persistence.enabled`"),
    ([*BUS, "--set", "config.state.log=embedded", "--set", "persistence.enabled=true"], "run one replica"),
    (["--set", "configFile=transprots: {}"], "`transprots` is not a key of the configuration"),
    (["--set", "configFile=transports:"], "has no `transports`"),
    ([*BUS, "--set", "config.http.listn=x"], "`http.listn` is not a key of the configuration: the keys in this section are allowed_hosts"),
    ([*BUS, "--set", "config.transports.nats.jetstream.mange=true"], "`transports.nats.jetstream.mange` is not a key"),
    ([*BUS, "--set-json", 'config.bindings=[{"name":"a","topcs":[]}]'], "`bindings[0].topcs` is not a key"),
    ([*BUS, "--set-json", 'config.routes=[{"name":"a","to":[{"topc":"x"}]}]'], "`routes[0].to[0].topc` is not a key"),
    ([*BUS, "--set", "config.http=on"], "`http` of the configuration must be a section"),
    ([*BUS, "--set", "config.bindings.name=a"], "`bindings` of the configuration must be a list"),
    ([*BUS, "--set", "autoscaling.enabled=true", "--set", "autoscaling.minReplicas=9"], "`autoscaling.minReplicas` (9) is more than"),
    ([*BUS, "--set-json", 'keda={"enabled":true,"minReplicas":9,"triggers":[{"type":"cron","metadata":{}}]}'], "`keda.minReplicas` (9) is more than"),
    ([*BUS, "--set", "config.calls.replica=0"], "`calls.replica` identifies one replica"),
    (["--set-json", f"config={NAMED}", "--set", "config.calls=null"], "`transports.kafka.instance_id` identifies one process"),
    (["--set", "mode=sidecar", "--set", "persistence.enabled=true", *BUS], "only `mode: workload` uses `persistence.enabled`: "),
    (["--set", "mode=sidecar", "--set-json", f"config={NAMED}", "--set", "config.calls=null"], "`transports.kafka.instance_id` identifies one process"),
]
# A Kafka transport more, and its twin by the name of its variable.
TWINS = 'config.transports={"a-b":{"type":"kafka","brokers":"kafka"},"a_b":{"type":"kafka","brokers":"kafka"}}'
SIDECAR = [*BUS, "--set", "mode=sidecar"]
REFUSED += [
    ([*BUS, "--set", "ports.admin=8080"], "`ports.http` and `ports.admin` are both 8080"),
    ([*BUS, "--set", "config.http.enabled=false,ingress.enabled=true,ingress.hosts={a.example.com}"], "`ingress` leads to the Service for callers"),
    ([*BUS, "--set", "config.http.enabled=false,gateway.enabled=true,gateway.hostnames={a.example.com},gateway.parentRefs[0].name=a"], "`gateway` leads to the Service for callers"),
    ([*BUS, "--set", "autoscaling.enabled=true,resources.requests.cpu=null"], "`resources.requests.cpu`, which is not set"),
    ([*BUS, "--set", "resources.limits.memory=512m"], "at '/resources/limits/memory'"),
    ([*BUS, "--set", "resources.requests.memory=1.5m"], "at '/resources/requests/memory'"),
    ([*BUS, "--set", "persistence.size=5GB"], "at '/persistence/size'"),
    ([*BUS, "--set", "podDisruptionBudget.minAvailable=1,podDisruptionBudget.maxUnavailable=1"], "has both `minAvailable` and `maxUnavailable`"),
    ([*BUS, "--set", "podDisruptionBudget.maxUnavailable=150%"], "at '/podDisruptionBudget/maxUnavailable'"),
    ([*BUS, "--set-string", "podDisruptionBudget.maxUnavailable=1"], "at '/podDisruptionBudget/maxUnavailable'"),
    ([*BUS, "--set", "podDisruptionBudget.minAvailable=2"], "no node could ever be drained"),
    ([*BUS, "--set", "podDisruptionBudget.minAvailable=100%"], "no node could ever be drained"),
    ([*BUS, "--set", "fullnameOverride=Bridge"], "fullnameOverride"),
    ([*BUS, "--set", "fullnameOverride=1bridge"], "fullnameOverride"),
    ([*BUS, "--set", f"fullnameOverride={53 * 'a'}"], "fullnameOverride"),
    ([*BUS, "--set", "serviceAccount.name=a_b"], "at '/serviceAccount/name'"),
    ([*BUS, "--set", "secrets[0].name=a..b"], "at '/secrets/0/name'"),
    ([*BUS, "--set", "secrets[0].name=kafka,csiSecrets[0].name=kafka,csiSecrets[0].secretProviderClass=a"], "`kafka` occurs twice in"),
    ([*BUS, "--set", "extraVolumes[0].name=a2abus-config"], 'the name "a2abus-config" is already in use'),
    ([*BUS, "--set", "secrets[0].name=kafka,extraVolumeMounts[0].mountPath=/run/secrets/kafka,extraVolumeMounts[0].name=a"], "something else is mounted"),
    ([*BUS, "--set", "extraVolumeMounts[0].mountPath=/etc/a2abus/certs,extraVolumeMounts[0].name=a"], "inside the ConfigMap: choose another path"),
    ([*BUS, "--set", "config.state.log=embedded,config.state.directory=/data"], "its files need `persistence.enabled`"),
    (["--set-json", TWINS, "--set", "persistence.enabled=true"], "share the environment variable A2ABUS_TRANSPORTS__A_B__INSTANCE_ID"),
    ([*BUS, "--set", "networkPolicy.enabled=true,serviceMonitor.enabled=true"], "set `networkPolicy.monitoring`"),
    *(([*SIDECAR, "--set", f"{name}.enabled=true"], f"only `mode: workload` uses `{name}.enabled`: ")
      for name in ("ingress", "gateway", "networkPolicy", "autoscaling", "keda", "serviceMonitor", "prometheusRule", "dashboard")),
    ([*SIDECAR, "--set", "podLabels.team=agents"], "uses `podLabels.team`: "),
    ([*SIDECAR, "--set", "imagePullSecrets[0].name=registry"], "uses `imagePullSecrets`: "),
    ([*SIDECAR, "--set", "replicas=3,service.port=81,podDisruptionBudget.minAvailable=1,serviceAccount.create=false,podSecurityContext.runAsUser=1,test.agent=a"],
      "uses `podDisruptionBudget.minAvailable`, `podSecurityContext.runAsUser`, `replicas`, `service.port`, `serviceAccount.create`, `test.agent`: "),
]
POLICY = [*BUS, "--set", "networkPolicy.enabled=true"]
ENABLED_NO = "transports: {nats: {type: nats\\, servers: [nats://nats]}}\nhttp: {enabled: no}\n"
TOPICS = 'config={"transports":{"kafka":{"type":"kafka","brokers":"kafka"}},"bindings":[{"name":"a","transport":"kafka","topics":"x"}]}'
REFUSED += [
    ([*POLICY, "--set", "ingress.enabled=true,ingress.hosts={a.example.com}"], "blocks requests through `ingress`: set `networkPolicy.callers`"),
    ([*POLICY, "--set", "gateway.enabled=true,gateway.hostnames={a.example.com},gateway.parentRefs[0].name=a"], "blocks requests through `gateway`"),
    ([*POLICY, "--set", "service.type=LoadBalancer"], "blocks requests through `service.type: LoadBalancer`"),
    *(([*BUS, "--set", f"env[0].name={name},env[0].value=x"], f"`env` has {name}, which the chart sets")
      for name in ("A2ABUS_HTTP__LISTEN", "A2ABUS_INSTANCE", "A2ABUS_ADMIN__ALLOWED_HOSTS", "POD_NAME")),
    ([*BUS, "--set", "persistence.enabled=true,env[0].name=A2ABUS_CALLS__REPLICA,env[0].value=x"], "`env` has A2ABUS_CALLS__REPLICA, which the chart sets"),
    ([*BUS, "--set", "env[0].name=TOKEN,env[1].name=TOKEN"], "`env` has TOKEN twice"),
    ([*BUS, "--set", "env[0].name=A2ABUS_http__listen,env[0].value=x"], "`env` has A2ABUS_http__listen, which the chart sets"),
    *(([*BUS, "--set", f"env[0].name=A2ABUS_{name},env[0].value=x"], f"`env` has A2ABUS_{name}, but the chart needs the value: set `{path}` in the configuration")
      for name, path in (("HTTP__DRAIN_GRACE", "http.drain_grace"), ("CALLS__REPLICA", "calls.replica"), ("STATE__LOG", "state.log"), ("STATE", "state"),
        ("WORKFLOWS__DATA_DIRECTORY", "workflows.data_directory"), ("TRANSPORTS__MY_BUS__INSTANCE_ID", "transports.my_bus.instance_id"), ("http__enabled", "http.enabled"))),
    (["--set", "existingConfigMap=other,env[0].name=A2ABUS_CALLS__REPLICA,env[0].value=x"], "`env` has A2ABUS_CALLS__REPLICA, but the chart needs the value"),
    ([*BUS, "--set", "config.transports.nats.tls.ca_file=/run/secrets/nats/ca.crt,secrets[0].name=nats-ca"],
      "the configuration names /run/secrets/nats/ca.crt, but nothing is mounted there: add `{name: nats}` to `secrets`"),
    *(([*BUS, "--set", f"config.transports.nats.tls.ca_file={path}"], f"the configuration names {path}, but nothing is mounted there: put it into a Secret")
      for path in ("/run/secrets/ca.crt", "/etc/a2abus/ca.crt")),
    *(([*more, "--set", f"config.workflows.enabled=true,config.workflows.{key}=/data/{key}"], f"`workflows.{key}` is /data/{key}, but the file system is read-only there: {cure}")
      for more, cure in ((BUS, "set `persistence.enabled`"), (SIDECAR, "mount a volume")) for key in ("data_directory", "file_directory")),
    ([*BUS, "--set", "persistence.enabled=true,config.workflows.enabled=true,config.workflows.file_directory=/data"], "`workflows.file_directory` is /data, but"),
    ([*SIDECAR, "--set", "config.state.log=embedded,config.state.directory=/data"], "`state.directory` is /data, but"),
    ([*BUS, "--set", "secrets=null"], "missing property 'secrets'"),
    *(([*BUS, "--set", f"image.repository={name}"], f"`image.repository` is {name}: write the tag in `image.tag`")
      for name in ("a2abus:0.1.0", "localhost:5000/a2abus:0.1.0")),
    ([*BUS, "--set", f"image.repository=example.com/a2abus@sha256:{64 * '0'}"], "write the digest in `image.digest`"),
    ([*BUS, "--set", "image.repository=https://example.com/a2abus"], "at '/image/repository'"),
    ([*BUS, "--set", "config.transports.nats.auth.token=hunter2"], "`transports.nats.auth.token` of the configuration is a secret in plain text"),
    *(([*BUS, "--set-json", f"config.{value}"], f"`{path}` of the configuration is a secret in plain text")
      for value, path in (
        ('workflows.agents=[{"id":"a"},{"id":"b","keys":[{"file":"/keys/b"},"hunter2"]}]', "workflows.agents[1].keys[1]"),
        ('workflows.agents=[{"id":"a","keys":"hunter2"}]', "workflows.agents[0].keys[0]"),
        ('workflows.credentials=[{"id":"a","value":"hunter2"}]', "workflows.credentials[0].value"),
        ('a2a.push_notifications.keys=["hunter2"]', "a2a.push_notifications.keys[0]"),
        ('transports.kafka={"type":"kafka","brokers":"kafka","properties":{"ssl.keystore.password":"hunter2"}}', "transports.kafka.properties.ssl.keystore.password"))),
    ([*BUS, "--set", "networkPolicy.enabled=true,config.agents.files.attach.url=http://mcp.tools.svc:8000/mcp"],
      "`networkPolicy` blocks connections to `agents.files.attach.url`"),
    *(([*BUS, "--set", f"listenAddress={address}"], f"`listenAddress` is {address}, but")
      for address in ("127.0.0.1", "127.1.2.3", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]")),
    ([*SIDECAR, "--set", "listenAddress=127.0.0.1"], "`listenAddress` is 127.0.0.1, but"),
    ([*BUS, "--set", "podDisruptionBudget.maxUnavailable=0"], "`podDisruptionBudget.maxUnavailable` is 0: no node"),
    ([*BUS, "--set", "podDisruptionBudget.maxUnavailable=0%"], "`podDisruptionBudget.maxUnavailable` is 0%: no node"),
    ([*BUS, "--set", "podDisruptionBudget.minAvailable=51%"], "`podDisruptionBudget.minAvailable` (51%) is all of 2 replicas"),
    *(([*BUS, "--set", f"keda.nats.monitoringEndpoint={endpoint}"], "write host and port alone")
      for endpoint in ("http://nats:8222", "nats", "nats:8222/jsz")),
    ([*BUS, "--set-json", 'podLabels={"app.kubernetes.io/name":"x"}'], "`podLabels` has app.kubernetes.io/name, which the chart sets"),
    ([*BUS, "--set-json", 'podAnnotations={"checksum/config":"x"}'], "`podAnnotations` has checksum/config, which the chart sets"),
    ([*BUS, "--set-json", 'serviceMonitor.labels={"helm.sh/chart":"x"}'], "`serviceMonitor.labels` has helm.sh/chart"),
    ([*BUS, "--set", "probes.liveness=null"], "liveness"),
    ([*BUS, "--set", "probes=null"], "probes"),
    ([*BUS, "--set", "ports.http=null"], "at '/ports'"),
    (["--set-json", TOPICS, "--set", "keda.enabled=true"], "`bindings[0].topics` of the configuration must be a list"),
    (["--set", f"configFile={ENABLED_NO}"], '`http.enabled` of the configuration is "no": write true or false'),
    ([*BUS, "--set-string", "config.workflows.enabled=true"], '`workflows.enabled` of the configuration is "true"'),
    ([*BUS, "--set", "extraVolumeMounts[0].mountPath=/data,extraVolumeMounts[0].name=data"], '`extraVolumeMounts`: there is no volume "data"'),
    *((["--set", f"configFile=transports: {{nats: {{type: nats\\, servers: [nats://nats]}}}}\n{section}: {{allowed_hosts: [a\\, {host}]}}"], f"Helm reads `{section}.allowed_hosts[1]` of the configuration as {read}")
      for section, host, read in (("http", "1e5", "100000"), ("admin", "012", "10"), ("http", "true", "true"))),
]
# What the files and the directory of bridge/examples/a2abus.yaml need.
VOLUMES_OF_EXAMPLE = ["--set", "persistence.enabled=true,extraVolumeMounts[0].mountPath=/run/secrets,extraVolumeMounts[0].name=keys,extraVolumes[0].name=keys"]
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
    refused(BUS, "set `fullnameOverride`", release="1bus")
    refused(BUS, "set `fullnameOverride`", release="my.bus")
    accepted()
    instances()
    environments()
    written_otherwise()
    names_of_secrets()
    disruptions()
    triggers()
    admitted()
    restarts()
    admin_names()
    restarts_beside_an_agent()
    file_as_it_is()
    for path in sorted((REPO / "examples").glob("*/README.md")):
        as_written(path)
    kubernetes_in_five_minutes()
    systemd_in_five_minutes()


def lint(name, chart, values):
    files = ["-f", values] if values else []
    result = call(HELM, "lint", "--strict", "--quiet", chart, *files)
    report(f"{name}: helm lint --strict", [result.stdout + result.stderr] if result.returncode else [])


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
    result = subprocess.run([os.environ["DEPLOY_CRDS"]], input=json.dumps(by_go), capture_output=True, text=True, timeout=60)
    report(f"{len(by_go)} HTTPRoute as Gateway API has it", [result.stdout + result.stderr] if result.returncode or not by_go else [])
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
        result = call(PROGRAM, "check", "--without-secrets", "-c", path, env=variables)
        wrong = result.returncode != 0 or "error" in result.stderr
        report(f"{name}: a2abus check", [result.stdout + result.stderr] if wrong else [])


def drains(name, documents):
    """The grace period leaves 10 s for the connections after preStop and the drain."""
    pod, container = bridge_of(documents)
    if not pod:
        return
    maps = [document["data"] for document in documents if document["kind"] == "ConfigMap"]
    files = [yaml.safe_load(data["a2abus.yaml"]) for data in maps if "a2abus.yaml" in data]
    default = re.search(r"^\| `drain_grace` \|.*?`(\d+s)`", (REPO / "bridge/CONFIGURATION.md").read_text(), re.M).group(1)
    drain = files[0].get("http", {}).get("drain_grace", default) if files else default
    takes = int(drain[:-1]) * {"s": 1, "m": 60}[drain[-1]] + container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod["terminationGracePeriodSeconds"]
    report(f"{name}: grace period of {grace} s for preStop and a drain of {drain}", [f"they take {takes} s"] if takes + 10 > grace else [])


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
        result = call(promtool, *command)
        faults += [result.stdout + result.stderr] * (result.returncode != 0)
    report(f"{len(names)} alerts: promtool", faults)


def printed(name, path, options):
    """The manifests beside the values are what `a2abus topics plan` prints for them."""
    result = call(PROGRAM, "topics", "plan", "-c", RUN / f"{name}.yaml", *options)
    same(f"{name}: {path.name} as a2abus topics plan prints it", path, result.stdout)


def refused(more, message, release="bus"):
    try:
        render(CHART, None, VERSIONS[1], *more, release=release)
        faults = ["it is rendered"]
    except ValueError as error:
        faults = [] if message in str(error) else [str(error)]
    report(f"refused: {message}", faults)


def variables(*more):
    """The names and values of the environment that the chart renders."""
    _, container = bridge_of(objects(render(CHART, None, VERSIONS[1], *more)))
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def accepted():
    """Values that look like some that are refused."""
    faults = []
    for more in (
        ["--set", "resources=null"],
        ["--set", "terminationGracePeriodSeconds=40"],
        ["--set-json", 'config.workflows={"agents":[{"id":"a","keys":[{"sha256":"00"},{"file":"/keys/a"}]}],"credentials":[{"id":"a","value":{"file":"/keys/b"}}]}'],
        ["--set-json", 'config.transports.kafka={"type":"kafka","brokers":"kafka","properties":{"ssl.cipher.suites":"a"}}'],
        ["--set", "resources.requests=null,resources.limits=null"],
        ["--set", "env[0].name=A2ABUS_TELEMETRY__LOG,env[0].value=debug"],
        ["--set", "env[0].name=A2ABUS_TRANSPORTS__NATS__AUTH__USER,env[0].value=me"],
        ["--set", "config.transports.nats.tls.ca_file=/run/secrets/a/b/ca.crt,extraVolumeMounts[0].mountPath=/run/secrets/a/,extraVolumeMounts[0].name=a,extraVolumes[0].name=a"],
        ["--set", "config.transports.nats.tls.ca_file=/run/secrets/a/ca.crt,extraVolumeMounts[0].mountPath=/run/secrets/a/ca.crt,extraVolumeMounts[0].subPath=ca.crt,extraVolumeMounts[0].name=a,extraVolumes[0].name=a"],
        ["--set", "config.transports.nats.tls.ca_file=/run/secrets/a/ca.crt,csiSecrets[0].name=a,csiSecrets[0].secretProviderClass=a"],
        ["--set", "config.transports.nats.tls.ca_file=/run/secrets/ca.crt,extraVolumeMounts[0].mountPath=/run/secrets,extraVolumeMounts[0].name=a,extraVolumes[0].name=a"],
        ["--set", "config.transports.nats.tls.ca_file=/etc/ssl/certs/ca.crt"],
        ["--set", "persistence.enabled=true,extraVolumeMounts[0].mountPath=/data,extraVolumeMounts[0].name=data"],
        ["--set", "mode=sidecar,extraVolumeMounts[0].mountPath=/data,extraVolumeMounts[0].name=of-the-agent"],
        ["--set", 'test.agent=a"b'],
        ["--set-json", 'config.http={"allowed_hosts":["100000","true"]}'],
        ["--set", "config.workflows.enabled=false,config.workflows.data_directory=/data,config.workflows.file_directory=/data"],
        ["--set", "config.workflows.enabled=true,config.workflows.file_directory=/data/files,extraVolumeMounts[0].mountPath=/data,extraVolumeMounts[0].name=a,extraVolumes[0].name=a"],
        ["--set", "config.workflows.enabled=true,config.workflows.file_directory=/data,securityContext.readOnlyRootFilesystem=false"],
        ["--set", "config.workflows.enabled=true,config.workflows.data_directory=/data,config.workflows.file_directory=/var/lib/a2abus/files,persistence.enabled=true"],
    ):
        try:
            render(CHART, None, VERSIONS[1], *BUS, *more)
        except ValueError as error:
            faults.append(f"{more}: {error}")
    report("values that look like some that are refused", faults)
    known, values = (yaml.safe_load((CHART / name).read_text()) for name in ("files/workload.yaml", "values.yaml"))
    report("defaults of a workload", [f"{name}: {values[name]}" for name, default in known.items() if values[name] != default])


def instances():
    """Two instances in one release share no name and no `job`; the rules of each select its own `job`."""
    place = RUN / "umbrella"
    (place / "charts").mkdir(parents=True)
    (place / "charts/a2abus").symlink_to(CHART)
    dependencies = [{"name": "a2abus", "version": "*", "alias": alias} for alias in ("east", "west")]
    (place / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": "umbrella", "version": "0.1.0", "dependencies": dependencies}))
    one = {"config": json.loads(BUS[1].removeprefix("config=")), "serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
    (place / "values.yaml").write_text(yaml.safe_dump({"east": one, "west": one}))
    documents = objects(render(place, None, VERSIONS[1], release="platform"))
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    faults = sorted({f"twice: {name}" for name in names if names.count(name) > 1})
    labels = {document["metadata"]["name"]: document["metadata"]["labels"] for document in documents if document["kind"] == "Service"}
    rules = {document["metadata"]["name"]: json.dumps(document["spec"]) for document in documents if document["kind"] == "PrometheusRule"}
    monitors = {document["metadata"]["name"]: document["spec"] for document in documents if document["kind"] == "ServiceMonitor"}
    for name in ("platform-east", "platform-west"):
        job = labels[f"{name}-admin"].get(monitors[name]["jobLabel"])
        selected = set(re.findall(r'job=\\"([^"\\]+)', rules[name]))
        faults += [f"{name}: the job is {job}, the rules select {selected}"] * (job != name or selected != {name})
    long = 44 * "a"
    try:
        render(place, None, VERSIONS[1], release=f"{long}-platform")
        faults.append("a name that is cut off is accepted")
    except ValueError as error:
        faults += [str(error)] * ("set `fullnameOverride`" not in str(error))
    (workload,) = [document for document in objects(render(CHART, None, VERSIONS[1], *BUS, release=f"{long}-platform")) if document["kind"] == "Deployment"]
    faults += [f"another name: {workload['metadata']['name']}"] * (workload["metadata"]["name"] != f"{long}-platfor")
    report("two instances of the chart in one release", faults)


def environments():
    """What the environment sets, which wins over the file."""
    pods = variables("--set-json", f"config={NAMED}", "--set", "persistence.enabled=true")
    expected = ("A2ABUS_TRANSPORTS__KAFKA__INSTANCE_ID", "$(POD_NAME)"), ("A2ABUS_CALLS__REPLICA", {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}})
    report("persistence: name and number of the pod win over the file", [f"{name}: {pods.get(name)}" for name, value in expected if pods.get(name) != value])
    ours = {"POD_NAME", "A2ABUS_HTTP__LISTEN", "A2ABUS_ADMIN__LISTEN"}
    others = variables("--set", "existingConfigMap=other")
    (shown,) = objects(render(RUN / "notes", None, VERSIONS[1], "-s", "templates/notes.yaml", "--set", "existingConfigMap=other,persistence.enabled=true"))
    report("existingConfigMap: NOTES say what an embedded state needs", [] if "state.directory: /var/lib/a2abus" in shown["notes"] else [shown["notes"]])
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
    ports = broker_ports(config)
    report("NetworkPolicy: brokers without a port", [] if ports == [4222, 9092, 9093] else [ports])
    ports = broker_ports('{"transports":{"nats":{"type":"nats","servers":"nats://a:4333, nats://b"}}}', "--set", "replicas=40")
    report("servers as a text, and as many replicas on NATS as anybody wants", [] if ports == [4222, 4333] else [ports])
    servers = ["nats://a:4333/", "tls://b:4334/path:1", "nats://[::1]:4335", "nats://[fd00::4336]", "nats://c/:7"]
    ports = broker_ports(json.dumps({"transports": {"nats": {"type": "nats", "servers": servers}}}))
    report("NetworkPolicy: servers with a path, and addresses of IPv6", [] if ports == [4222, 4333, 4334, 4335] else [ports])
    images = set()
    for name in ("a2abus", "localhost:5000/a2abus", "registry.example.com:443/agents/a2abus"):
        images.add(bridge_of(objects(render(CHART, None, VERSIONS[1], *BUS, "--set", f"image.repository={name},image.tag=x")))[1]["image"])
    expected = {"a2abus:x", "localhost:5000/a2abus:x", "registry.example.com:443/agents/a2abus:x"}
    report("images of a registry with a port", [] if images == expected else [images])
    config_file = RUN / "words.yaml"
    config_file.write_text("# no\ntransports: {on: {type: nats, servers: [nats://nats]}}\nroutes:\n  - name: no\n    when: {country: no, say: 'yes: no, on'}\n    to: [{transport: on, topic: y}]\nhttp: {enabled: false}\nagents: {tagged: {description: !!str yes, to: {transport: on, topic: y}}}\n")
    try:
        kinds = [document["metadata"]["name"] for document in objects(render(CHART, None, VERSIONS[1], "--set-file", f"configFile={config_file}"))]
        report("`no` is a text, as the bridge reads it", [] if "bus-a2abus" in kinds and "bus-a2abus-test-call" not in kinds else kinds)
    except ValueError as error:
        report("`no` is a text, as the bridge reads it", [str(error)])
    # Helm reads `on` as a Boolean: the variable of its instance_id would be that of another transport.
    config_file.write_text("transports: {on: {type: kafka, brokers: [kafka]}}\n")
    for name, values in (("a variable", ["--set-file", f"configFile={config_file}", "--set", "persistence.enabled=true"]), ("values", ["--set-json", 'config={"transports":{"true":{"type":"kafka","brokers":["kafka"]}}}'])):
        try:
            render(CHART, None, VERSIONS[1], *values)
            report(f"a name that Helm reads as a Boolean is refused in {name}", ["it is accepted"])
        except ValueError as error:
            report(f"a name that Helm reads as a Boolean is refused in {name}", [] if "reads as true" in str(error) else [str(error)])


def broker_ports(config, *more):
    """The ports of brokers that the NetworkPolicy lets through."""
    documents = objects(render(CHART, None, VERSIONS[1], "--set-json", f"config={config}", "--set", "networkPolicy.enabled=true", *more))
    policy = next(document for document in documents if document["kind"] == "NetworkPolicy")
    return sorted(port["port"] for port in policy["spec"]["egress"][1]["ports"])


def names_of_secrets():
    """Each Secret has a volume whose name Kubernetes takes, however long its own name is, or with dots."""
    long = 70 * "a"
    names = ["plain", "ca.example.com", f"{long}-1", f"{long}-2", f"{'b' * 55}-1", f"{'b' * 55}-2", "a.b", "a-b"]
    secrets = json.dumps([{"name": name} for name in names])
    pod, container = bridge_of(objects(render(CHART, None, VERSIONS[1], *BUS, "--set-json", f"secrets={secrets}")))
    volumes = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    faults = [name for name in volumes if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)]
    mounted = {mount["mountPath"]: volumes.get(mount["name"]) for mount in container["volumeMounts"]}
    faults += [f"{name}: {mounted.get(f'/run/secrets/{name}')}" for name in names if mounted.get(f"/run/secrets/{name}") != name]
    report("Secrets with long names and with dots", faults)


def disruptions():
    """A PodDisruptionBudget has one of its two members."""
    faults = []
    for more, expected in (
        ([], {"maxUnavailable": 1}),
        (["--set", "podDisruptionBudget.maxUnavailable=25%"], {"maxUnavailable": "25%"}),
        (["--set", "podDisruptionBudget.minAvailable=1"], {"minAvailable": 1}),
        (["--set", "podDisruptionBudget.minAvailable=50%"], {"minAvailable": "50%"}),
        (["--set", "podDisruptionBudget.minAvailable=67%,replicas=4"], {"minAvailable": "67%"}),
    ):
        documents = objects(render(CHART, None, VERSIONS[1], *BUS, *more))
        spec = next(document["spec"] for document in documents if document["kind"] == "PodDisruptionBudget")
        found = {key: spec[key] for key in spec if key.endswith("vailable")}
        faults += [f"{more}: {found}"] * (found != expected)
    report("PodDisruptionBudget: a number or a percentage", faults)


def triggers():
    """Large numbers are written in full, and `metadata` overrides what the chart sets for a trigger."""
    more = ["--set-json", 'keda.lagThreshold=1000000,keda.cooldownPeriod=2000000,keda.nats.metadata.lagThreshold="7",terminationGracePeriodSeconds=1000000']
    documents = objects(render(CHART, CHART / "ci/keda-values.yaml", VERSIONS[1], *more))
    (spec,) = [document["spec"] for document in documents if document["kind"] == "ScaledObject"]
    found = [trigger["metadata"]["lagThreshold"] for trigger in spec["triggers"]]
    topics = [trigger["metadata"]["topic"] for trigger in spec["triggers"] if trigger["type"] == "kafka"]
    grace = bridge_of(documents)[0]["terminationGracePeriodSeconds"]
    is_right = (found, topics) == (["1000000", "1000000", "7"], ["agents.requests", "agents.more"]) and (spec["cooldownPeriod"], grace) == (2000000, 1000000)
    report("KEDA: large numbers, and metadata of the user", [] if is_right else [spec, grace])


def admitted():
    """The NetworkPolicy lets in the pod of `helm test`, the pod that NOTES suggest, and no pod without those labels."""
    for name, values in (("helm-full", CHART / "ci/full-values.yaml"), ("helm-existing", CHART / "ci/existing-values.yaml")):
        documents = objects(render(CHART, values, VERSIONS[1]))
        policy = next(document for document in documents if document["kind"] == "NetworkPolicy")
        test = next(document for document in documents if document["kind"] == "Pod")["metadata"]["labels"]
        suggested = re.search(r" --labels=(\S+) ", (GOLDEN / f"notes-{name}.txt").read_text()).group(1)
        suggested = dict(label.split("=") for label in suggested.split(","))
        (peers,) = [rule["from"] for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "http"]
        faults = [f"not let in: {labels}" for labels in (test, suggested) if not any(chooses(peer, labels) for peer in peers)]
        is_open = any(chooses(peer, {}) for peer in peers)
        if is_open != (name == "helm-existing"):
            faults.append("other pods of the namespace: " + ("let in" if is_open else "not let in"))
        report(f"{name}: NetworkPolicy and the pods of helm test and NOTES", faults)


def chooses(peer, labels):
    """Whether a NetworkPolicyPeer is a pod of the same namespace with these labels."""
    expected = peer.get("podSelector", {}).get("matchLabels", {})
    return "podSelector" in peer and "namespaceSelector" not in peer and expected.items() <= labels.items()


def restarts_beside_an_agent():
    """A configuration that needs a restart makes new pods of the agent; one that does not makes none."""
    marks = []
    for more in ([], ["--set", "a2abus.config.limits.max_hops=5"], ["--set", "a2abus.config.calls.timeout=5s"]):
        documents = objects(render(REPO / "examples/sidecar", None, VERSIONS[1], *more))
        (agent,) = [document for document in documents if document["kind"] == "Deployment"]
        marks.append(agent["spec"]["template"]["metadata"]["annotations"]["checksum/config"])
    first, same, other = marks
    report("sidecar: new pods where the configuration needs them", [] if first == same != other else marks)


def restarts():
    """What a running bridge reads again makes no new pods: with an agent, also `agents` and `a2a` in part."""
    card = {"description": "Weather", "to": {"transport": "nats", "topic": "agents.weather"}}
    attached = {**card, "attach": {"command": ["weather"], "dead_letter": "agents.dlq"}}
    base = {"agents": {"weather": card, "tool": attached}, "a2a": {"max_parts": 5}}
    live = [
        {"agents": {"weather": {**card, "description": "Other"}, "tool": attached}},
        {"agents": {"weather": card, "second": card, "tool": attached}},
        {"agents": {"weather": card, "tool": {**attached, "description": "Other"}}},
        {"a2a": {"max_parts": 6, "public_url": "https://agents.example.com"}},
        {"a2a": None},
    ]
    new_pods = [
        {"agents": {"weather": card, "tool": {**attached, "attach": {"command": ["other"], "dead_letter": "agents.dlq"}}}},
        {"agents": {"weather": card}},
        {"agents": {"weather": attached, "tool": attached}},
        {"a2a": {"push_notifications": {"enabled": True}}},
        {"agents": {}},
        {"registry": {"enabled": True}},
    ]
    mark = checksum(base)
    faults = [f"restarts: {change}" for change in live if checksum({**base, **change}) != mark]
    faults += [f"no restart: {change}" for change in new_pods if checksum({**base, **change}) == mark]
    none = checksum({})
    faults += ["no restart: the first agent"] * (checksum(base) == none)
    report("new pods only where a changed `agents` or `a2a` needs them", faults)
    first_routes()


def first_routes():
    """The first route to a transport makes new pods, because only a new process reads answers there; a further one makes none."""
    buses = {"transports": {"nats": {"type": "nats", "servers": ["nats://nats"]}, "kafka": {"type": "kafka", "brokers": ["kafka"]}}}
    to = {name: {"transport": name, "topic": name} for name in buses["transports"]}
    route = {name: {"name": name, "when": {"targetagent": name}, "to": [to[name]]} for name in to}
    card = {"description": "Weather", "to": to["nats"]}
    base = {**buses, "routes": [route["nats"]], "agents": {"weather": card}}
    mark = checksum(base)
    live = [{"routes": [route["nats"], {**route["nats"], "name": "other"}]}, {"routes": []}, {"default_route": [to["nats"]]}]
    new_pods = [{"routes": [route["nats"], route["kafka"]]}, {"default_route": [to["kafka"]]}, {"agents": {"weather": card, "other": {**card, "to": to["kafka"]}}}]
    faults = [f"restarts: {change}" for change in live if checksum({**base, **change}) != mark]
    faults += [f"no restart: {change}" for change in new_pods if checksum({**base, **change}) == mark]
    report("new pods for the first route to a transport", faults)


def checksum(config):
    """The mark of the pods by which a configuration makes new ones."""
    bus = {"transports": {"nats": {"type": "nats", "servers": ["nats://nats"]}}}
    documents = objects(render(CHART, None, VERSIONS[1], "--set-json", f"config={json.dumps({**bus, **config})}"))
    (workload,) = [document for document in documents if document["kind"] == "Deployment"]
    return workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"]


def admin_names():
    """The admin listener answers to the names of its Service, and of the pods of a StatefulSet."""
    faults = []
    for more, names in (
        ([], {"bus-a2abus-admin", "bus-a2abus-admin.agents.svc.cluster.local"}),
        (["--set", "persistence.enabled=true"], {"bus-a2abus-admin.agents.svc.cluster.local", "a2abus-0.bus-a2abus-admin.agents.svc.cluster.local"}),
    ):
        _, container = bridge_of(objects(render(CHART, None, VERSIONS[1], *BUS, *more)))
        hosts = json.loads(environment_of(container, "a2abus-0")["A2ABUS_ADMIN__ALLOWED_HOSTS"])
        faults += [f"{more}: {name} is not in {hosts}" for name in names if name not in hosts]
    report("names of the admin listener", faults)


def file_as_it_is():
    """--set-file configFile keeps the file, comments and indentation included."""
    indented = RUN / "indented.yaml"
    indented.write_text("    # a comment\n\n  # another\ntransports:\n  nats: {type: nats, servers: [nats://nats]}\n")
    for path, more in ((mountable_example(), VOLUMES_OF_EXAMPLE), (indented, [])):
        documents = objects(render(CHART, None, VERSIONS[1], "--set-file", f"configFile={path}", *more))
        maps = [document["data"]["a2abus.yaml"] for document in documents if document["kind"] == "ConfigMap"]
        report(f"{path.name} of --set-file configFile as it is", [] if maps == [path.read_text()] else maps)
    # The example has the paths of a host. The chart mounts nothing there.
    example = ["--set-file", f"configFile={REPO / 'bridge/examples/a2abus.yaml'}"]
    refused(example, "nothing is mounted there")
    refused([*example, *VOLUMES_OF_EXAMPLE], "the configuration names /etc/a2abus/kafka-ca.pem")


def mountable_example():
    """The example configuration, with its CA file below /run/secrets: no volume can hold a file below /etc/a2abus."""
    example = (REPO / "bridge/examples/a2abus.yaml").read_text()
    path = RUN / "a2abus.yaml"
    path.write_text(example.replace("/etc/a2abus/kafka-ca.pem", "/run/secrets/kafka-ca.pem"))
    return path


def commands(text):
    """The commands of a README's console blocks, with continued lines joined."""
    blocks = "\n".join(re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)).replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in blocks.splitlines() if line.startswith("$ ")]


def as_written(path):
    """The commands of an example: what Helm installs is rendered, files are there, and so is each namespace."""
    text, faults = path.read_text(), []
    there = set(re.findall(r"in the\s+namespace\s+`(\S+)`", text))
    for command in commands(text):
        arguments = shlex.split(command)
        there |= set(re.findall(r"create namespace (\S+)", command))
        used = arguments[arguments.index("-n") + 1] if "-n" in arguments else None
        if used and used not in there and "--create-namespace" not in arguments:
            faults.append(f"no namespace {used}: {command}")
        there.add(used)
        for option, value in zip(arguments, arguments[1:]):
            if option == "-f" and value.endswith(".yaml") and not (path.parent / value).exists():
                faults.append(f"no file {value}: {command}")
        if "ownerReferences" not in command and re.search(r"get secret.*-o yaml.*apply", command):
            faults.append(f"copies ownerReferences: {command}")
        if arguments[:3] == ["helm", "upgrade", "--install"]:
            result = call(HELM, "template", *arguments[3:], "--kube-version", VERSIONS[1], cwd=path.parent)
            faults += [result.stderr] * result.returncode
    report(f"{path.parent.name}: the commands of its README", faults)


def section(title):
    """A section of the README."""
    return re.search(rf"^## {title}$(.*?)^## ", (REPO / "README.md").read_text(), re.M | re.S).group(1)


def kubernetes_in_five_minutes():
    """The file of the README is right, and its command renders it."""
    text = section("On Kubernetes")
    place = RUN / "newcomer"
    place.mkdir()
    (place / "helm").symlink_to(REPO / "helm")
    (place / "a2abus.yaml").write_text(re.search(r"<<'END'\n(.*?)^END$", text, re.M | re.S).group(1))
    result = call(PROGRAM, "check", "-c", place / "a2abus.yaml")
    faults = [result.stderr] * result.returncode
    (install,) = [shlex.split(command) for command in commands(text) if command.startswith("helm upgrade")]
    result = call(HELM, "template", *install[3:], "--kube-version", VERSIONS[1], cwd=place)
    report("README: Kubernetes in five minutes", faults + [result.stderr] * result.returncode)


def systemd_in_five_minutes():
    """The files that the README installs by hand are where the unit looks for them, and the configuration is right."""
    place = RUN / "by-hand"
    unit = (REPO / "packaging/a2abus.service").read_text()
    faults = [f"nothing of the unit is at {path}" for path in ("/usr/bin/a2abus", "/etc/a2abus/a2abus.yaml") if path not in unit]
    for arguments in map(shlex.split, commands(section("On Debian"))):
        if arguments[0] != "install":
            continue
        mode, *sources, target = arguments[1:4], *arguments[4:-1], arguments[-1]
        if sources[-1] == "-t":
            sources = [str(path.relative_to(REPO)) for pattern in sources[:-1] for path in REPO.glob(pattern)]
        for source in sources:
            at = place / target.removeprefix("/")
            at = at / pathlib.Path(source).name if "-t" in arguments else at
            faults += [f"no file {source}"] * (not source.startswith("target/") and not (REPO / source).exists())
            stand_in = PROGRAM if source.startswith("target/") else REPO / source
            result = call("install", *mode, stand_in, at)
            faults += [result.stderr] * result.returncode + [f"nothing is at {at}"] * (not at.exists())
    faults += dead_links(place)
    faults += undocumented(place)
    result = call(place / "usr/bin/a2abus", "check", "-c", place / "etc/a2abus/a2abus.yaml")
    report("README: systemd in five minutes", faults + [result.stderr] * result.returncode)


if __name__ == "__main__":
    main()
