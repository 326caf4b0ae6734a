"""An MCP server over stdio with tools that misbehave. The file that EFFECTS names gets a line for each effect."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

child = None
if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A child inherits what is ignored.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
if os.environ.get("BROKEN"):
    sys.exit("this server does not start")
lock = threading.Lock()
cancelled = {}
watched, tasks = set(), set()
answers = {}
poked, lingered = threading.Event(), threading.Event()


def say(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def effect(line):
    with open(os.environ["EFFECTS"], "a") as effects:
        effects.write(line + "\n")


def ask(number):
    """Asks the client, and returns its answer."""
    answered = answers[number] = [threading.Event(), None]
    say({"id": number, "method": "sampling/createMessage", "params": {"messages": []}})
    answered[0].wait()
    return answered[1]


def change(uri):
    """Reports changes of a resource as long as the client watches it."""
    while uri in watched:
        say({"method": "notifications/resources/updated", "params": {"uri": uri}})
        time.sleep(0.1)


def has_grown():
    effects = os.environ.get("EFFECTS", "")
    return os.path.exists(effects) and "grown" in open(effects).read()


def tool(name, **annotations):
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": annotations}


TOOLS = [
    tool("echo", readOnlyHint=True),
    tool("again", idempotentHint=True),
    *map(tool, ["env", "effect", "hang", "crash", "progress", "garbage", "shout", "exact"]),
    *map(tool, ["grow", "ask", "linger", "poke", "close", "processes", "variable", "meta", "rich", "refuse"]),
    {
        "name": "upper",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "times": {"type": "integer"}},
            "required": ["text"],
        },
    },
]
TOOLS = [it for it in TOOLS if it["name"] != os.environ.get("WITHOUT")]


def text(content):
    return {"content": [{"type": "text", "text": content}]}


def call(number, params):
    name, arguments = params["name"], params.get("arguments", {})
    if name == "echo":
        return text(json.dumps(arguments))
    if name == "upper":
        return text(arguments["text"].upper())
    if name == "refuse":
        return {**text("no"), "isError": True}
    if name == "rich":
        page = {"uri": "file:///a", "mimeType": "text/html", "text": "<p>"}
        return {
            "content": [
                {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                {"type": "resource_link", "uri": "https://a.example/b", "name": "b", "mimeType": "text/csv"},
                {"type": "resource", "resource": page},
                {"type": "resource", "resource": {"uri": "file:///c", "blob": "aGk="}},
                {"type": "hologram", "depth": 3},
            ],
            "structuredContent": {"n": 12345678901234567890123},
        }
    if name == "env":
        return text(" ".join(sorted(os.environ)) + " " + os.getcwd())
    if name == "meta":
        return text(json.dumps(params.get("_meta")))
    if name == "variable":
        return text(os.environ[arguments["name"]])
    if name in ("effect", "again"):
        effect(name)
        return text("done")
    if name == "hang":
        effect("begun")
        ended = cancelled.setdefault(number, threading.Event())
        ended.wait()
        effect("cancelled")
        return None
    if name == "ask":
        answer = ask(0)["result"]["text"]
        effect(answer)
        return text(answer)
    if name == "withdraw":
        say({"id": 2, "method": "sampling/createMessage", "params": {"messages": []}})
        for number in (2, 3):
            say({"method": "notifications/cancelled", "params": {"requestId": number}})
        return text("done")
    if name == "linger":
        # It goes on after its cancel, and answers at last.
        effect("begun")
        cancelled.setdefault(number, threading.Event()).wait()
        poked.wait()
        effect("asked" if "result" in ask(1) else "refused")
        say({"id": number, "result": text("late")})
        lingered.set()
        return None
    if name == "poke":
        poked.set()
        lingered.wait()
        return text("done")
    if name == "close":
        os.close(1)
        os.close(2)
        return None
    if name == "processes":
        return text(f"{os.getpid()} {child.pid}")
    if name == "crash":
        effect("crash")
        os._exit(3)
    if name == "progress":
        token, total = params["_meta"]["progressToken"], arguments.get("total", 2)
        for step in range(1, total + 1):
            progress = {"progressToken": token, "progress": step, "total": total}
            if "pad" in arguments:
                progress["message"] = "x" * arguments["pad"]
            say({"method": "notifications/progress", "params": progress})
        return text("done")
    if name == "grow":
        effect("grown")
        say({"method": "notifications/tools/list_changed"})
        return text("done")
    if name == "garbage":
        with lock:
            sys.stdout.write('this is no JSON\n{"jsonrpc":"2.0"}\n[]\n{"id":999999,"result":{}}\n')
        return text("done")
    if name == "shout":
        for _ in range(10 * 1024):
            sys.stderr.write("x" * 1023 + "\n")
        sys.stderr.flush()
        return text("done")
    raise KeyError(name)


def answer(number, method, params):
    if method == "initialize":
        if os.environ.get("MUTE"):
            threading.Event().wait()
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, "tasks": {}, **({"prompts": {}} if os.environ.get("HELD_PROMPTS") else {})},
            "serverInfo": {"name": "fixture", "version": "7"},
        }
    if method == "tools/list":
        return {"tools": TOOLS + [tool("grown")] * has_grown()}
    if method == "tools/call" and "task" in params:
        task = {"taskId": f"{os.getpid()}-{number}", "status": "working"}
        tasks.add(task["taskId"])
        return {"task": task}
    if method == "tools/call":
        return call(number, params)
    if method == "tasks/get":
        if params["taskId"] not in tasks:
            raise KeyError(params["taskId"])
        return {"taskId": params["taskId"], "status": "working"}
    if method == "logging/setLevel":
        effect(f"logs {params['level']}")
    if method == "prompts/list" and os.environ.get("HELD_PROMPTS"):
        # Until a tool has had an effect.
        while not os.path.exists(os.environ["EFFECTS"]):
            time.sleep(0.01)
        return {"prompts": []}
    if method == "resources/subscribe":
        effect(f"{os.getpid()} watches {params['uri']}")
        watched.add(params["uri"])
        threading.Thread(target=change, args=(params["uri"],), daemon=True).start()
    if method == "resources/unsubscribe":
        effect(f"{os.getpid()} no longer watches {params['uri']}")
        watched.discard(params["uri"])
    return {}


def serve(message):
    number, method, params = message["id"], message["method"], message.get("params", {})
    if params.get("name") == "exact":
        # Numbers and spaces that a parser would change.
        with lock:
            sys.stdout.write('{ "result" : {"n":1.0e2,  "s":"\\u00e9"}, "id":%s, "jsonrpc":"2.0" }\n' % json.dumps(number))
            sys.stdout.flush()
        return
    if params.get("name") == "bare":
        with lock:
            sys.stdout.write(json.dumps({"id": number, "result": text("done")}) + "\n")
            sys.stdout.flush()
        return
    try:
        result = answer(number, method, params)
    except KeyError as error:
        say({"id": number, "error": {"code": -32602, "message": f"Unknown tool: {error}"}})
    else:
        if result is not None:
            say({"id": number, "result": result})


for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "notifications/cancelled":
        cancelled.setdefault(message["params"]["requestId"], threading.Event()).set()
    elif "id" in message and "method" not in message:
        answers[message["id"]][1] = message
        answers[message["id"]][0].set()
    elif "id" in message:
        threading.Thread(target=serve, args=(message,), daemon=True).start()
if os.environ.get("STUBBORN"):
    threading.Event().wait()
