"""A hub on this machine that the real clients (huggingface_hub, datasets) talk to: repositories are folders.

`<root>/models/<owner>/<name>/` and `<root>/datasets/<owner>/<name>/`; every repository has one commit, whose names are
`main`, `v1` and `refs/convert/parquet`.
"""

import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

COMMIT = "5" * 40
NAMES = ("main", "v1", "refs/convert/parquet", COMMIT)


def _blob(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._answer()

    def do_HEAD(self):
        self._answer()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        self._answer(body)

    def _send(self, content, code=200, **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _answer(self, body=None):
        place = [urllib.parse.unquote(part) for part in urllib.parse.urlparse(self.path).path.strip("/").split("/")]
        if place[0] == "api":
            return self._api(place[1], "/".join(place[2:4]), place[4:], body)
        kind, place = ("datasets", place[1:]) if place[0] == "datasets" else ("models", place)
        path = self.root / kind / place[0] / place[1] / "/".join(place[4:])
        if not (self.root / kind / place[0] / place[1]).is_dir():
            return self._send({}, 404, X_Error_Code="RepoNotFound")
        if place[3] not in NAMES:
            return self._send({}, 404, X_Error_Code="RevisionNotFound")
        if not path.is_file():
            return self._send({}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        return self._send(path.read_bytes(), ETag=f'"{_blob(path)}"', X_Repo_Commit=COMMIT)

    def _api(self, kind, name, more, body):
        repository = self.root / kind / name
        if not repository.is_dir():
            return self._send({}, 404, X_Error_Code="RepoNotFound")
        files = sorted(path for path in repository.rglob("*") if path.is_file())
        entries = [
            {
                "type": "file",
                "path": path.relative_to(repository).as_posix(),
                "size": path.stat().st_size,
                "oid": _blob(path),
            }
            for path in files
        ]
        if more[:1] == ["revision"] and more[1] not in NAMES:
            return self._send({}, 404, X_Error_Code="RevisionNotFound")
        if more[:1] == ["tree"]:
            return self._send(self._tree(entries, "/".join(more[2:])))
        if more[:1] == ["paths-info"]:
            return self._send([entry for entry in entries if entry["path"] in body["paths"]])
        if more[1:] and more[0] not in ("revision",):
            return self._send({}, 404)
        siblings = [{"rfilename": e["path"], "size": e["size"], "blobId": e["oid"]} for e in entries]
        about = {"_id": "1", "id": name, "sha": COMMIT, "private": False, "gated": False, "disabled": False}
        return self._send(about | {"downloads": 0, "likes": 0, "tags": [], "siblings": siblings})

    def _tree(self, entries, folder):
        """Files and folders below a folder, those directly in it unless the query says `recursive`."""
        folders = {str(parent) for entry in entries for parent in PurePosixPath(entry["path"]).parents} - {"."}
        entries = entries + [{"type": "directory", "path": path, "oid": COMMIT, "size": 0} for path in sorted(folders)]
        inside = [entry for entry in entries if entry["path"].startswith(f"{folder}/" if folder else "")]
        if "recursive=true" in self.path.lower():
            return inside
        return [entry for entry in inside if "/" not in entry["path"][len(folder) :].strip("/")]


@contextlib.contextmanager
def local_hub(root: Path) -> Iterator[str]:
    """The address of a hub that gives away what is under `root`, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"root": root}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
