"""An HTTP server of a folder with ranges and ETags, whose answers tests can damage."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: names of faults: the connection is closed before or within the answer, the body is shorter than
#: asked for, the server answers late, or with a status
FAULTS = ("refuse", "cut", "short", "slow", "503", "429", "500")


class Server(ThreadingHTTPServer):
    """Serves `folder`; `fault(number, path)` names the fault of a ranged GET, "" for none."""

    daemon_threads = True

    def __init__(self, folder: Path, fault: Callable[[int, str], str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.fault = folder, fault
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[str] = []  # "METHOD path range"
        self.gets = 0
        self.lock = threading.Lock()
        self.stopping = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the client closed."""


@contextlib.contextmanager
def serving(folder: Path, fault: Callable[[int, str], str] = lambda number, path: "") -> Iterator:
    """Run a `Server` in this context."""
    server = Server(folder, fault)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, body: bool) -> None:
        span = self.headers.get("Range", "")
        with self.server.lock:
            self.server.requests.append(f"{self.command} {self.path} {span}".strip())
            self.server.gets += body
            fault = self.server.fault(self.server.gets - 1, self.path) if body else ""
        path = self.server.folder / self.path.partition("?")[0].lstrip("/")
        if fault == "refuse":
            self.close_connection = True
            return
        if fault == "slow":
            self.server.stopping.wait()
        if fault.isdigit() or not path.exists():
            self._send(int(fault or 404), b"", body)
            return
        if path.is_dir():
            base = self.path.rstrip("/")
            links = "".join(f'<a href="{base}/{each.name}">file</a>' for each in path.iterdir())
            self._send(200, f'<a href="?C=N;O=D">Name</a>{links}'.encode(), body)
            return
        data, status = path.read_bytes(), 200
        headers = {"ETag": f'"{zlib.crc32(data):08x}"', "Accept-Ranges": "bytes"}
        if span:
            first, last = map(int, span.removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first : last + 1], 206
        if fault == "short":
            data = data[: len(data) // 2]
        self._send(status, data, body, headers, cut=fault == "cut")

    def _send(
        self, status: int, data: bytes, body: bool, headers: Any = None, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True
