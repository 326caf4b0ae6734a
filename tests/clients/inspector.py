"""The command line of the MCP inspector against the agent `everything` of the demonstration, alone and among all agents."""

import json
import os
import subprocess

from conformance import everything

TEXT = "This is a simple text response for testing."


def calls(prefix, scheme):
    """The arguments of each call, and whether its answer is the right one; names begin with the prefix, URIs with the scheme."""
    tool, uri = f"{prefix}test_simple_text", f"{scheme}test://static-text"
    yield ["tools/list"], lambda answer: tool in [one["name"] for one in answer["tools"]]
    yield ["tools/call", "--tool-name", tool], lambda answer: answer["content"][0]["text"] == TEXT
    yield ["resources/list"], lambda answer: uri in [one["uri"] for one in answer["resources"]]


def inspected(url, method, arguments, is_right, directory):
    """Runs the inspector once; what is wrong with what it prints."""
    inspect = [os.environ["CLIENTS_NODE_22"], os.environ["CLIENTS_INSPECTOR"], "--cli"]
    run = [*inspect, url, "--transport", "http", "--method", method, *arguments]
    # It keeps files in the home directory.
    home = {**os.environ, "HOME": directory}
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=directory, env=home)
    try:
        return None if is_right(json.loads(ended.stdout)) else ended.stdout[-500:]
    except (ValueError, LookupError, TypeError) as error:
        return f"{error}: {ended.stdout[-500:]}{ended.stderr[-500:]}"


async def inspector(program, directory, report):
    """Runs the inspector once for each call."""
    servers = {"mcp/agents/everything": ("", ""), "mcp": ("everything.", "a2abus://everything/")}
    async with everything(program, directory) as base:
        for path, names in servers.items():
            for (method, *arguments), is_right in calls(*names):
                wrong = inspected(f"{base}/{path}", method, arguments, is_right, directory)
                report.note(f"inspector, {method} at /{path}", wrong)
                print(f"inspector, {method} at /{path}: {'FAILED' if wrong else 'works'}", flush=True)
