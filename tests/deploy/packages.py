"""The image, the systemd unit, the compose file and the bill of materials, without a broker."""

import json
import os
import pathlib
import re
import shutil
import sys

import yaml

from common import DEADLINE, PROGRAM, REPO, RUN, Process, add_libraries, call, link, report

# As `systemd-analyze security` counts: 0 is nothing exposed, 10 everything. In tenths.
EXPOSURE = 15


def main():
    containerfile()
    image()
    unit()
    compose()
    sbom()


def containerfile():
    path = REPO / "Containerfile"
    shared = re.findall(r"type=cache,target=(\S*target)", path.read_text())
    report("Containerfile: no cache of compiled code, which could be that of another checkout", shared)
    hadolint = pathlib.Path(sys.executable).parent / "hadolint"
    result = call(hadolint, path)
    report("Containerfile: hadolint", [result.stdout + result.stderr] if result.returncode else [])
    last = path.read_text().rpartition("\nFROM ")[2]
    rules = {"one user without rights": r"^USER 65532:65532$", "the program as entry point": r'^ENTRYPOINT \["/usr/bin/a2abus"\]$'}
    missing = [name for name, pattern in rules.items() if not re.search(pattern, last, re.M)]
    if "RUN " in last:
        missing.append("no command runs in the last stage: its base has no shell")
    report("Containerfile: the last stage", missing)


def image():
    """The last stage of the Containerfile, built without a daemon on the libraries of this machine, and started."""
    if not shutil.which("buildah") or os.geteuid() != 0:
        print("not root, or no buildah: the image is LEFT OUT")
        return
    base, built = RUN / "image/base", RUN / "image/built"
    built.mkdir(parents=True)
    link(PROGRAM, built / "a2abus")
    add_libraries(base)
    container = buildah("from", "scratch")
    buildah("copy", container, base, "/")
    buildah("commit", container, "localhost/base")
    stages = ["--build-context", f"build={built}", "--build-arg", "BUILD=scratch", "--build-arg", "BASE=localhost/base"]
    buildah("build", *stages, "-t", "localhost/a2abus", "-f", REPO / "Containerfile", REPO)
    container = buildah("from", "localhost/a2abus")
    config = json.loads(buildah("inspect", container))["OCIv1"]["config"]
    expected = {"User": "65532:65532", "Entrypoint": ["/usr/bin/a2abus"], "Cmd": ["serve", "--config", "/etc/a2abus/a2abus.yaml"]}
    report("image: user, entry point and command", [f"{key}: {config.get(key)}" for key, value in expected.items() if config.get(key) != value])
    root = pathlib.Path(buildah("mount", container))
    with Process(root, [*config["Entrypoint"], "demo"], {"PATH": "/usr/bin"}) as demo:
        status = demo.child.wait(DEADLINE)
        report("image: runs the demo", [] if status == 0 else demo.output().splitlines()[-10:])
    buildah("rm", "--all")
    shutil.rmtree(RUN / "image")


def buildah(*command):
    """What buildah prints; it needs neither a daemon nor namespaces here."""
    place = ["--root", RUN / "image/store", "--runroot", RUN / "image/state", "--storage-driver", "vfs"]
    result = call("buildah", *place, *command, env=os.environ | {"BUILDAH_ISOLATION": "chroot"})
    if result.returncode != 0:
        raise RuntimeError(result.stdout + result.stderr)
    return result.stdout.strip()


def unit():
    if not shutil.which("systemd-analyze"):
        print("no systemd-analyze: the unit is LEFT OUT")
        return
    path = REPO / "packaging/a2abus.service"
    # The program is not installed here: the copy names one that is there.
    copy = RUN / "a2abus.service"
    copy.write_text(path.read_text().replace("/usr/bin/a2abus", str(PROGRAM)))
    result = call("systemd-analyze", "verify", "--man=no", copy)
    messages = [line for line in result.stderr.splitlines() if "a2abus" in line]
    report("systemd: verify", messages if result.returncode or messages else [])
    result = call("systemd-analyze", "security", "--no-pager", "--offline=yes", f"--threshold={EXPOSURE}", path)
    report(f"systemd: exposed by {EXPOSURE / 10} at most", [] if result.returncode == 0 else [result.stdout[-2000:] + result.stderr])


def compose():
    folder = REPO / "examples/compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    faults = []
    for name, service in services.items():
        for needed in service.get("depends_on", {}):
            if needed not in services:
                faults.append(f"{name}: no service {needed}")
        for volume in service.get("volumes", []):
            if not (folder / volume.split(":")[0]).exists():
                faults.append(f"{name}: no file {volume}")
        if ("image" in service) == ("build" in service):
            faults.append(f"{name}: one of image and build")
        if "build" in service:
            # Docker looks for a Dockerfile, and for this file of what it leaves out; podman reads the latter, too.
            context = folder / service["build"]["context"]
            faults += [f"{name}: no file {needed}" for needed in (service["build"]["dockerfile"], ".dockerignore") if not (context / needed).exists()]
    # The drain takes 25 s, and closing the connections up to 10 s more.
    grace = services["a2abus"].get("stop_grace_period")
    faults += [f"a2abus: stop_grace_period is {grace}"] * (grace != "35s")
    variables = {"PATH": "/usr/bin:/bin"} | services["a2abus"].get("environment", {})
    order = services["topics"]["command"][:-2]
    result = call(PROGRAM, *order, "--help")
    faults += [f"{' '.join(order)}: {result.stderr}"] if result.returncode else []
    result = call(PROGRAM, "check", "-c", folder / "a2abus.yaml", env=variables)
    report("compose: its files, and a2abus check", faults + ([result.stdout + result.stderr] if result.returncode else []))


def sbom():
    """What `packaging/release` writes names every component, with its version, origin and licence."""
    if not os.environ.get("DEPLOY_SBOM"):
        print("no cargo-cyclonedx: the software bill of materials is LEFT OUT")
        return
    result = call(REPO / "packaging/release", "--sbom")
    if result.returncode != 0:
        report("software bill of materials", [result.stdout + result.stderr])
        return
    bill = json.loads((REPO / "target/dist/a2abus.cdx.json").read_text())
    parts = {part["name"]: part for part in bill["components"]}
    faults = [f"{name} is not in it" for name in ("rdkafka-sys", "openssl-src", "async-nats", "tokio") if name not in parts]
    for name, part in parts.items():
        faults += [f"{name}: no {key}" for key in ("version", "purl", "licenses") if not part.get(key)]
    locked = set(re.findall(r'^name = "(.*)"$', (REPO / "Cargo.lock").read_text(), re.M))
    faults += [f"{name} is not in Cargo.lock" for name in parts if name not in locked]
    report(f"software bill of materials: {len(parts)} components", faults[:20])


if __name__ == "__main__":
    main()
