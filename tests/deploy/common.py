"""What every check of this directory uses: rendering, a root file system as the image has it, processes, conditions."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from shutil import which

import yaml

REPO = pathlib.Path(__file__).resolve().parents[2]
CHART = REPO / "helm/a2abus"
HELM = os.environ["DEPLOY_HELM"]
PROGRAM = pathlib.Path(os.environ["DEPLOY_PROGRAM"]).resolve()
RUN = pathlib.Path(os.environ["DEPLOY_RUN"])
# A machine may be slow; nothing here waits this long when all is well.
DEADLINE = 120
passed, failed = 0, 0


def report(name, faults):
    """Counts one check; `faults` are its lines, none where it passed."""
    global passed, failed
    if faults:
        failed += 1
        print(f"FAILED {name}")
        for fault in faults:
            print("       " + str(fault).rstrip().replace("\n", "\n       "))
    else:
        passed += 1
        print(f"ok     {name}", flush=True)


def call(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=DEADLINE, **options)


def render(chart, values, version, *more, release="bus"):
    """The text of `helm template`; a failure raises its message."""
    files = ["-f", values] if values else []
    result = call(HELM, "template", release, chart, "-n", "agents", "--kube-version", version, *files, *more)
    if result.returncode != 0:
        raise ValueError(result.stderr)
    return result.stdout


def objects(text):
    return [document for document in yaml.safe_load_all(text) if document]


def bridge_of(documents):
    """The pod that the bridge runs in, and its container."""
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet"):
            pod = document["spec"]["template"]["spec"]
            for container in pod["containers"] + pod.get("initContainers", []):
                if container["name"] == "a2abus":
                    return pod, container
    return None, None


def environment_of(container, pod_name):
    """The variables of a container as the kubelet sets them; those from secrets are `secret`."""
    variables = {"HOSTNAME": pod_name, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    for entry in container.get("env", []):
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            ordinal = "metadata.labels['apps.kubernetes.io/pod-index']"
            value = {"metadata.name": pod_name, ordinal: pod_name.rpartition("-")[2]}[source["fieldRef"]["fieldPath"]]
        else:
            value = "secret" if source else entry["value"]
        variables[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: variables[name.group(1)], value)
    return variables


def new_root(name):
    """A directory with the program, the libraries it needs, and nothing else: what the image holds."""
    root = RUN / name
    (root / "usr/bin").mkdir(parents=True)
    (root / "tmp").mkdir()
    link(PROGRAM, root / "usr/bin/a2abus")
    add_libraries(root)
    return root


def undocumented(root):
    """The documents that the unit and the configuration name, and that are not installed below the root."""
    files = [*root.rglob("a2abus.service"), root / "etc/a2abus/a2abus.yaml"]
    named = {path for file in files for path in re.findall(r"/usr/share/doc/[\w./-]*\w", file.read_text())}
    missing = [f"nothing is at {path}" for path in sorted(named) if not (root / path.removeprefix("/")).exists()]
    return missing if named else ["they name no document"]


def dead_links(root):
    """The links of the installed documents to files that are not installed, and that not only the repository has."""
    documents, faults = root / "usr/share/doc/a2abus", []
    for path in sorted(documents.rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s#]+)", path.read_text()):
            elsewhere = "://" in target or target.startswith(("plugin/", "helm/", "examples"))
            faults += [f"{path.relative_to(documents)}: {target}"] * (not elsewhere and not (path.parent / target).exists())
    return faults if (documents / "README.md").exists() else ["no README.md is installed"]


def link(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def add_libraries(root):
    for library in re.findall(r"(/\S+\.so\S*)", call("ldd", PROGRAM).stdout):
        target = root / library[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(os.path.realpath(library), target)


def inside(root):
    """What a command follows that runs inside a root, as a user without rights where this one may change users."""
    user = 65532
    if os.geteuid() == 0:
        return [which("setpriv"), "--no-new-privs", which("chroot"), f"--userspec={user}:{user}", "--groups=", root]
    return [which("unshare"), "--map-root-user", which("chroot"), root]


class Process:
    """A command inside a root."""

    def __init__(self, root, command, environment):
        self.log = open(root / "log", "w+")
        self.child = subprocess.Popen([*inside(root), *command], env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        self.log.close()

    def output(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def until_ready(self, port):
        """Waits until /readyz says so, and no binding waits for partitions of a pod that has ended before; the last answer where it does not."""
        last = "nothing answers"
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until and self.child.poll() is None:
            status, last = get(f"http://127.0.0.1:{port}/readyz")
            # The answer is of another process if this one has ended.
            if status == 200 and "degraded" not in last and self.child.poll() is None:
                return []
            time.sleep(0.1)
        return [f"not ready: {last}", *self.output().splitlines()[-10:]]

    def stop(self, seconds):
        """SIGTERM, as the platform sends it; faults where it does not end well in that time, or warns of its own end."""
        self.child.terminate()
        try:
            status = self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return [f"still there {seconds} s after SIGTERM"]
        if status != 0:
            return [f"status {status}", *self.output().splitlines()[-10:]]
        last = self.output().rpartition("draining")[2]
        return [line for line in last.splitlines() if re.search(r'\b(WARN|ERROR)\b', line)]


def get(url, data=None, headers=None):
    """Status and body; 0 where nothing answers."""
    request = urllib.request.Request(url, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def ask(port, agent, arguments):
    """One call of an agent; the faults where the answer is not what the agents of this test answer."""
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "now", "arguments": arguments}})
    headers = {"content-type": "application/json", "x-a2a-timeout": "60000"}
    status, answer = get(f"http://127.0.0.1:{port}/rpc/{agent}", body.encode(), headers)
    expected = {"jsonrpc": "2.0", "id": 7, "result": {"echo": arguments}}
    if status == 200 and json.loads(answer) == expected:
        return []
    return [f"{agent}: {status} {answer}"]
