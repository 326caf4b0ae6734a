"""The conformance kit of MCP against the agent `everything` of the demonstration, and against the same as an attached server
of a second bridge: every scored scenario must pass."""

import contextlib
import json
import os
import re
import subprocess
import urllib.request

from ports import free_port
from world import until

REVISIONS = ("2025-11-25", "2026-07-28")


def is_up(base):
    """Whether the bridge answers."""
    try:
        return urllib.request.urlopen(f"{base}/a2a/health", timeout=5).status == 200
    except OSError:
        return False


@contextlib.asynccontextmanager
async def everything(program, directory):
    """The agent on a bridge of its own, and the URL of that."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    command = [program, "demo", "--agents", "everything", "--serve", "--listen", f"127.0.0.1:{port}"]
    async with served(command, base, directory):
        yield base


@contextlib.asynccontextmanager
async def served(command, base, directory):
    """A bridge as a process."""
    with open(os.path.join(directory, "everything.log"), "ab") as log:
        bridge = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        await until(f"{base} is served", lambda: is_up(base))
        yield
    finally:
        bridge.terminate()
        bridge.wait(30)


@contextlib.asynccontextmanager
async def attached(program, directory, server):
    """The server at this URL, attached to a bridge of its own, and the URL of that."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    agent = {"to": {"transport": "local", "topic": "everything"}, "attach": {"url": server}}
    config = {
        "transports": {"local": {"type": "memory"}},
        "agents": {"everything": agent},
        "http": {"listen": f"127.0.0.1:{port}"},
        "admin": {"listen": f"127.0.0.1:{free_port()}"},
    }
    file = os.path.join(directory, "conformance.json")
    with open(file, "w") as written:
        json.dump(config, written)
    async with served([program, "serve", "-c", file], base, directory):
        yield base


def check(base, directory, report, what):
    """Runs the kit once for each revision."""
    node, kit = os.environ["CLIENTS_NODE_22"], os.environ["CLIENTS_MCP_KIT"]
    for revision in REVISIONS:
        url = f"{base}/mcp/agents/everything"
        run = [node, kit, "server", "--url", url, "--requirements", revision]
        ended = subprocess.run(run, capture_output=True, text=True, timeout=300, cwd=directory)
        summary = ended.stdout.partition("=== SUMMARY ===")[2]
        failed = re.findall(r"^✗ .*$", summary, re.MULTILINE)
        wrong = "\n".join(failed) + ended.stderr[-500:] if ended.returncode else None
        report.note(f"{what}, {revision}", wrong)
        print(f"{what}, {revision}: {'FAILED' if wrong else 'passes'}", flush=True)


async def conformance(program, directory, report):
    """Runs the kit against both."""
    async with everything(program, directory) as base:
        check(base, directory, report, "conformance kit of MCP")
        async with attached(program, directory, f"{base}/mcp/agents/everything") as chained:
            check(chained, directory, report, "conformance kit of MCP, attached")
