"""The documents say what is so: the matrix is the one that was found, and the examples for clients run as they stand."""

import asyncio
import os
import re

from world import NATS

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
README = os.path.join(ROOT, "README.md")
CLIENTS = os.path.join(ROOT, "docs", "clients.md")
SECTIONS = ("## Point your client here", "## Point your MCP client here")
# The address in the examples.
DOOR = "http://127.0.0.1:8080"
# What the agent behind them answers: to a message, and at the end of a stream.
ANSWERS = ("-3 degrees", "part 2")


def unlike_documents(rows):
    """The first row that docs/clients.md does not have."""
    with open(CLIENTS) as file:
        lines = set(file.read().splitlines())
    return next((f"it lacks the row {row}" for row in rows if row not in lines), None)


def blocks():
    """Language and text of each block of the sections."""
    with open(README) as file:
        readme = file.read()
    found = []
    for title in SECTIONS:
        _, _, text = readme.partition(f"\n{title}\n")
        section, _, _ = text.partition("\n## ")
        found += re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)
    return found


def program(language, text, directory):
    """The command that runs an example; None where its client is not there, and an error where nobody knows how."""
    match language:
        case "python":
            python = os.environ["CLIENTS_JAF" if "jaf" in text else "CLIENTS_PYTHON"]
            return [python, "-c", text] if python else None
        case "js":
            node = os.environ.get("CLIENTS_NODE")
            if not node:
                return None
            # Its packages are found from where it stands.
            path = os.path.join(node, "readme.mjs")
            with open(path, "w") as file:
                file.write(text)
            return ["node", path]
        case "console":
            return ["bash", "-c", text.removeprefix("$ ")]
        case "json":
            return ["python3", "-c", "import json, sys; json.loads(sys.argv[1]); print('OK')", text]
        case "yaml":
            path = os.path.join(directory, "readme.yaml")
            with open(path, "w") as file:
                file.write(f'transports: {{nats: {{type: nats, servers: ["{NATS}"]}}}}\n{text}')
            return ["check", "-c", path]
    raise ValueError(f"a block of {language}")


async def examples(bridge, report):
    """Runs each, one after the other."""
    found = blocks()
    assert len(found) >= 8, f"{SECTIONS} have {len(found)} blocks"
    for number, (language, text) in enumerate(found, 1):
        what = f"the example {number} of the README ({language})"
        command = program(language, text.replace(DOOR, bridge.door), bridge.directory)
        if command is None:
            print(f"{what}: LEFT OUT", flush=True)
            continue
        expected = ("OK",) if language in ("yaml", "json") else ANSWERS
        if language == "yaml":
            command = [bridge.program, *command]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        output, _ = await asyncio.wait_for(process.communicate(), 180)
        text = output.decode()
        works = process.returncode == 0 and any(one in text for one in expected)
        report.note(what, None if works else f"status {process.returncode}: {text[-2000:]}")
        print(f"{what}: {'works' if works else 'FAILED'}", flush=True)
