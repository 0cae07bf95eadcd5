"""A small server that speaks SandboxFusion's protocol on this machine, and misbehaves on demand.

It runs programs without isolation: for tests alone.
"""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Fault = Callable[["FusionServer", BaseHTTPRequestHandler], None]
"""Answers one request in place of the server."""


class FusionServer:
    """Answers `POST /run_code`; requests meet the queued faults first, one each."""

    def __init__(self) -> None:
        """Listen on a free port."""
        self.faults: list[Fault | None] = []
        """None lets a request pass."""
        self.always: Fault | None = None
        """Meets every request once `faults` are used up."""
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.connections: set[int] = set()
        self.max_concurrent = 0
        self._num_running = 0
        self._lock = threading.Lock()
        self._released = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                owner.handle(self)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing to stderr."""

        class QuietServer(ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """A connection that either side dropped."""

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and let requests go that hang."""
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for_close(self) -> None:
        """Block until the server is closed."""
        self._released.wait(60.0)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        request = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        with self._lock:
            self.times.append(time.monotonic())
            self.requests.append(request)
            self.connections.add(handler.client_address[1])
            fault = self.faults.pop(0) if self.faults else self.always
            self._num_running += 1
            self.max_concurrent = max(self.max_concurrent, self._num_running)
        try:
            if handler.path != "/run_code":
                send(handler, {"detail": "Not Found"}, status=404)
            elif fault is not None:
                fault(self, handler)
            else:
                send(handler, run_code(request))
        finally:
            with self._lock:
                self._num_running -= 1


def run_code(request: dict[str, Any]) -> dict[str, Any]:
    """Run a program and return SandboxFusion's answer."""
    assert request["language"] == "python"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        program = Path(folder, "program.py")
        program.write_text(request["code"], encoding="utf-8")
        started_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(program)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        run: dict[str, Any] = {"status": "Finished"}
        try:
            out, err = process.communicate((request.get("stdin") or "").encode(), timeout=request["run_timeout"])
            run["return_code"] = process.returncode
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
            run |= {"status": "TimeLimitExceeded", "return_code": None}
        run |= {"execution_time": time.monotonic() - started_s, "stdout": out.decode(), "stderr": err.decode()}
        paths = {name: Path(folder, name) for name in request.get("fetch_files", [])}
        files = {n: base64.b64encode(path.read_bytes()).decode() for n, path in paths.items() if path.is_file()}
    status = "Success" if run["status"] == "Finished" and run["return_code"] == 0 else "Failed"
    return {"status": status, "message": "", "compile_result": None, "run_result": run, "files": files}


def send(handler: BaseHTTPRequestHandler, answer: object, *, status: int = 200, retry_after: str = "") -> None:
    """Send an answer; text goes out as it is, anything else as JSON."""
    body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
    handler.send_response(status)
    if retry_after:
        handler.send_header("retry-after", retry_after)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def status(code: int, *, retry_after: str = "") -> Fault:
    """Answer with an HTTP error."""
    return lambda server, handler: send(handler, {"detail": "a fault"}, status=code, retry_after=retry_after)


def body(answer: object) -> Fault:
    """Answer with this, and status 200."""
    return lambda server, handler: send(handler, answer)


def hang(server: FusionServer, handler: BaseHTTPRequestHandler) -> None:
    """Say nothing until the server is closed."""
    server.wait_for_close()


def drop(server: FusionServer, handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def half(server: FusionServer, handler: BaseHTTPRequestHandler) -> None:
    """Send half an answer and close the connection."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"status": "Success", "mess')
    drop(server, handler)


def flood(server: FusionServer, handler: BaseHTTPRequestHandler) -> None:
    """Send an answer that is far too long."""
    num_parts = 64
    handler.send_response(200)
    handler.send_header("content-length", str(num_parts << 20))
    handler.end_headers()
    for _ in range(num_parts):
        handler.wfile.write(b" " * (1 << 20))


def for_cell(part: str, fault: Fault) -> Fault:
    """Fail requests whose cells contain `part`; others run."""

    def choose(server: FusionServer, handler: BaseHTTPRequestHandler) -> None:
        request = server.requests[-1]
        if part in request["stdin"]:
            fault(server, handler)
        else:
            send(handler, run_code(request))

    return choose


def forged(server: FusionServer, handler: BaseHTTPRequestHandler) -> None:
    """Leave another file in the place of the report."""
    name = server.requests[-1]["fetch_files"][0]
    send(handler, {**NO_FILE, "files": {name: "eyJzdG9wIjogIiJ9"}})  # {"stop": ""}


def miscounting(server: FusionServer, handler: BaseHTTPRequestHandler) -> None:
    """Run another cell than the one that was sent."""
    request = server.requests[-1]
    send(handler, run_code({**request, "stdin": request["stdin"].replace("6*7", "6*8")}))


NO_FILE = {
    "status": "Success",
    "message": "",
    "run_result": {"status": "Finished", "return_code": 0, "stdout": "", "stderr": ""},
    "files": {},
}
TOO_SLOW = {
    "status": "Failed",
    "message": "",
    "run_result": {"status": "TimeLimitExceeded", "execution_time": 9.0, "stdout": "", "stderr": ""},
    "files": {},
}
SERVER_FAILED = {"status": "SandboxError", "message": "no space left", "run_result": None, "files": {}}
WRONG_SCHEMA = {"status": "Success", "output": "42"}
FAULTS: dict[str, Fault] = {
    "429": status(429),
    "503": status(503),
    "500": status(500),
    "502": status(502),
    "404": status(404),
    "413": status(413),
    "drop": drop,
    "half": half,
    "flood": flood,
    "forged": forged,
    "no_json": body("{not json"),
    "list": body([]),
    "wrong_schema": body(WRONG_SCHEMA),
    "server_failed": body(SERVER_FAILED),
    "no_file": body(NO_FILE),
    "too_slow": body(TOO_SLOW),
}
"""By the name of what goes wrong."""
