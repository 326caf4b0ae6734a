"""The Containerfile, the systemd unit and the compose file, without starting them."""

import re
import shutil
import sys
import pathlib

import yaml

from common import PROGRAM, REPO, RUN, call, report

# As `systemd-analyze security` counts: 0 is nothing exposed, 10 everything. In tenths.
EXPOSURE = 15


def main():
    containerfile()
    unit()
    compose()


def containerfile():
    path = REPO / "Containerfile"
    hadolint = pathlib.Path(sys.executable).parent / "hadolint"
    done = call(hadolint, path)
    report("Containerfile: hadolint", [done.stdout + done.stderr] if done.returncode else [])
    last = path.read_text().rpartition("\nFROM ")[2]
    rules = {"one user without rights": r"^USER 65532:65532$", "the program as entry point": r'^ENTRYPOINT \["/usr/bin/a2abus"\]$'}
    missing = [name for name, pattern in rules.items() if not re.search(pattern, last, re.M)]
    if "RUN " in last:
        missing.append("no command runs in the last stage: its base has no shell")
    report("Containerfile: the last stage", missing)


def unit():
    if not shutil.which("systemd-analyze"):
        print("no systemd-analyze: the unit is LEFT OUT")
        return
    path = REPO / "packaging/a2abus.service"
    # The program is not installed here: the copy names one that is there.
    copy = RUN / "a2abus.service"
    copy.write_text(path.read_text().replace("/usr/bin/a2abus", str(PROGRAM)))
    done = call("systemd-analyze", "verify", "--man=no", copy)
    said = [line for line in done.stderr.splitlines() if "a2abus" in line]
    report("systemd: verify", said if done.returncode or said else [])
    done = call("systemd-analyze", "security", "--no-pager", "--offline=yes", f"--threshold={EXPOSURE}", path)
    report(f"systemd: exposed by {EXPOSURE / 10} at most", [] if done.returncode == 0 else [done.stdout[-2000:] + done.stderr])


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
    variables = {"PATH": "/usr/bin:/bin"} | services["a2abus"].get("environment", {})
    done = call(PROGRAM, "check", "-c", folder / "a2abus.yaml", env=variables)
    report("compose: its files, and a2abus check", faults + ([done.stdout + done.stderr] if done.returncode else []))


if __name__ == "__main__":
    main()
