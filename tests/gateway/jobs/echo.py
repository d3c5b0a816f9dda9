"""A job's websocket server: sends its path, then echoes messages until it receives "bye"."""

import os

from websockets.sync.server import serve


def echo(socket):
    socket.send("path " + socket.request.path)
    for message in socket:
        if message == "bye":
            socket.close(4321, "done")
        else:
            socket.send(message)


serve(echo, "127.0.0.1", int(os.environ["PORT_6006"]), subprotocols=["b"]).serve_forever()
