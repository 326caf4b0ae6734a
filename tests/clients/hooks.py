"""A listener for push notifications: what is posted to a path can be read from it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hooks(BaseHTTPRequestHandler):
    """Keeps what it is sent, with the token that came along."""

    calls, lock = {}, threading.Lock()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = {"token": self.headers.get("X-A2A-Notification-Token"), "body": body}
        with self.lock:
            self.calls.setdefault(self.path, []).append(call)
        self.send_response(204)
        self.end_headers()

    def do_GET(self):
        with self.lock:
            body = json.dumps(self.calls.get(self.path, [])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def listen(port):
    """Listens until the program ends."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Hooks)
    threading.Thread(target=server.serve_forever, daemon=True).start()
