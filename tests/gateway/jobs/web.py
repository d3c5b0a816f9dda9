"""A job's web server: answers with the request that it got, and sets cookies of several kinds."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SET = (
    "sessionid=its-own; Path=/; Domain=localhost; HttpOnly",
    "yard_session=evil; Path=/",
    "yard_service=evil; Path=/a",
    "=yard_service=evil",
    "__Host-yard_session=evil; Secure; Path=/",
)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/chunks":
            self.answer_in_chunks()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("latin-1")
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = json.dumps({"path": self.path, "headers": headers, "body": body})
            self.answer(302 if self.path == "/away" else 200, "application/json", seen)

    do_POST = do_GET  # noqa: N815 - the name that http.server looks for

    def answer(self, status, kind, text):
        self.send_response(status)
        self.send_header("Location", "/there")
        for cookie in SET:
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def answer_in_chunks(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            self.wfile.write(b"5\r\nline%d\r\n" % number)
        self.wfile.write(b"0\r\n\r\n")


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT_8888"])), Handler).serve_forever()
