"""A server on loopback that answers as the Hugging Face Hub does: models and data sets from local folders."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

COMMIT = "c0ffee" * 6 + "beef"  # of every repository


class FakeHub:
    """A context manager; `models` and `datasets` map names such as `user/name` to folders.

    To those in `gated`, such as `models/user/name`, the user has no access.
    """

    def __init__(self, models: dict[str, Path], datasets: dict[str, Path], gated: set[str]) -> None:
        self.folders = {f"models/{name}": path for name, path in models.items()}
        self.folders |= {f"datasets/{name}": path for name, path in datasets.items()}
        self.gated = gated
        self.requests: list[str] = []  # paths, as they come
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def find(self, path: str) -> tuple[str, Path, str] | None:
        """The kind and name of the repository in a path without `/api`, its folder, and the rest of the path."""
        path = path.removeprefix("/")
        path = path if path.startswith(("models/", "datasets/")) else f"models/{path}"
        for name, folder in self.folders.items():
            if path == name or path.startswith(f"{name}/"):
                return name, folder, path[len(name) + 1 :]
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.requests.append(self.path)
                path = urlsplit(self.path).path
                repository = fake.find(path.removeprefix("/api"))
                if repository is None:
                    self.reply_json(401, {"error": "Invalid username or password."}, "RepoNotFound")
                elif repository[0] in fake.gated and "/resolve/" in path:
                    self.reply_json(403, {"error": f"Access to {repository[0]} is restricted."}, "GatedRepo")
                elif path.startswith("/api/"):
                    self.describe(*repository)
                else:
                    self.send_file(repository[1] / repository[2].split("/", 2)[2])  # resolve/REVISION/FILE

            do_HEAD = do_GET  # noqa: N815

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                repository = fake.find(urlsplit(self.path).path.removeprefix("/api"))
                if repository is None or not repository[2].startswith("paths-info/"):
                    self.reply_json(404, {"error": "Not found"})
                    return
                names = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
                files = [repository[1] / name for name in names]
                self.reply_json(200, [entry(file) for file in files if file.is_file()])

            def describe(self, name: str, folder: Path, rest: str) -> None:
                files = [entry(file) for file in sorted(folder.iterdir())]
                siblings = [{"rfilename": file["path"]} for file in files]
                description = {"id": name.partition("/")[2], "sha": COMMIT, "tags": [], "siblings": siblings}
                self.reply_json(200, files if rest.startswith("tree/") else description)

            def send_file(self, file: Path) -> None:
                if file.is_file():
                    headers = {"ETag": f'"{entry(file)["oid"]}"', "X-Repo-Commit": COMMIT}
                    self.reply(200, file.read_bytes(), headers)
                else:
                    self.reply_json(404, {"error": "Entry not found"}, "EntryNotFound")

            def reply_json(self, status: int, content: object, code: str = "") -> None:
                headers = {"Content-Type": "application/json"} | ({"X-Error-Code": code} if code else {})
                self.reply(status, json.dumps(content).encode(), headers)

            def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        return Handler


def entry(file: Path) -> dict[str, object]:
    """A file of a repository, as the hub lists it."""
    content = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
