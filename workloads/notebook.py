"""A small web server on the pod's port that shows its working directory, as a simple interactive job for
trying ports."""

from __future__ import annotations

import os
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


def main() -> None:
    port = int(os.environ.get("PORT", "8888"))
    with ThreadingHTTPServer(("127.0.0.1", port), SimpleHTTPRequestHandler) as server:
        print(f"serving {os.getcwd()} on port {port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
