"""A server of code trees for pods, as the control plane is one, for engines without a database."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from datasets.code_archive import write_archive
from datasets.code_manifest import Entry, checked
from datasets.code_store import ProjectCode
from tests.code_trees import Files, entries_of, sha256
from tests.serving import serving

TOKEN = "the-token-of-the-attempt"


def keep(root: Path, project_id: int, files: Files, *more: Entry) -> str:
    """Store a tree with these files and further entries in the code store below `root`; return its digest."""
    store = ProjectCode(root, project_id)
    tree = checked([*entries_of(files), *more], 1 << 20)
    digest, _ = store.begin(tree, tree)
    for content in files.values():
        store.put(sha256(content), [content])
    store.finish(digest)
    return digest


@contextmanager
def code_server(store: ProjectCode, address: str = "127.0.0.1") -> Iterator[str]:
    """Context manager that yields the base URL; `/<digest>` is a tree's archive. Answers 404 for a wrong token or
    an unknown tree."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            digest = self.path.rpartition("/")[2]
            if self.headers["X-Trainyard-Code-Token"] != TOKEN or not store.has(digest):
                self.send_error(404)
                return
            body = b"".join(write_archive(store.entries(digest), store.pieces))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((address, 0), Handler) as server, serving(server):
        yield f"http://{address}:{server.server_address[1]}"
