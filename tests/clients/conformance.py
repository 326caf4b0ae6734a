"""The conformance kit of MCP against the agent `everything` of the demonstration: every scored scenario must pass."""

import contextlib
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
    with open(os.path.join(directory, "everything.log"), "ab") as log:
        demo = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        await until("the agent everything is served", lambda: is_up(base))
        yield base
    finally:
        demo.terminate()
        demo.wait(30)


async def conformance(program, directory, report):
    """Runs the kit once for each revision."""
    node, kit = os.environ["CLIENTS_NODE_22"], os.environ["CLIENTS_MCP_KIT"]
    async with everything(program, directory) as base:
        for revision in REVISIONS:
            url = f"{base}/mcp/agents/everything"
            run = [node, kit, "server", "--url", url, "--requirements", revision]
            ended = subprocess.run(run, capture_output=True, text=True, timeout=300, cwd=directory)
            summary = ended.stdout.partition("=== SUMMARY ===")[2]
            failed = re.findall(r"^✗ .*$", summary, re.MULTILINE)
            wrong = "\n".join(failed) + ended.stderr[-500:] if ended.returncode else None
            report.note(f"conformance kit of MCP, {revision}", wrong)
            print(f"conformance kit of MCP, {revision}: {'FAILED' if wrong else 'passes'}", flush=True)
