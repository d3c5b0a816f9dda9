"""Websocket of live updates. The hub (controlplane.live) holds topics, access rights and states."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from channels.generic.websocket import AsyncWebsocketConsumer

from controlplane.http.throttle import Rate
from controlplane.live.asgi import Message, Receive, Scope, Send, refuse_websocket
from controlplane.live.client import Refused, sign_in
from controlplane.live.feeds import now_text
from controlplane.live.frames import Frame, error_frame, pong_frame
from controlplane.live.hub import hub
from controlplane.live.identity import BEARER
from controlplane.live.listener import Listener

MESSAGE_MOST_BYTES = 4096
# Pages subscribe to a few topics when they open; scripts that follow many topics send all at once.
MESSAGES_PER_SECOND, MESSAGES_AT_ONCE = 20, 300
# Websocket close code of a client that sends too many messages.
TOO_FAST = 4429
# Time limit for sending a close frame to a client that may not be reading.
CLOSE_SECONDS = 1.0


class LiveConsumer(AsyncWebsocketConsumer):
    """Connection of one browser tab or script. The client sends `subscribe`, `unsubscribe` and `ping`, and
    receives frames."""

    listener: Listener | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ended = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._rate = Rate(MESSAGES_PER_SECOND, MESSAGES_AT_ONCE)
        try:
            self.identity = await sign_in(scope)
        except Refused as refused:
            await refuse_websocket(scope, receive, send, refused.status)
            return
        try:
            await super().__call__(scope, self._until_ended(receive), send)
        finally:
            self._leave()

    async def dispatch(self, message: Message) -> None:
        """Handle a message on the event loop."""
        # Channels' own method would first switch to a thread to close unused database connections, but this
        # consumer opens none.
        handlers = {
            "websocket.connect": self.websocket_connect,
            "websocket.receive": self.websocket_receive,
            "websocket.disconnect": self.websocket_disconnect,
        }
        await handlers[message["type"]](message)

    async def connect(self) -> None:
        offered = self.scope.get("subprotocols") or []
        await self.accept(BEARER if offered[:1] == [BEARER] else None)
        self.listener = Listener(self.identity, self._write, self._end)
        hub().attach(self.listener)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        listener = self.listener
        if listener is None or listener.is_ended:
            return
        if self._rate.is_spent():
            hub().let_go(listener, TOO_FAST, f"at most {MESSAGES_PER_SECOND} messages a second")
            return
        message = _parsed(text_data)
        operation, topic = message.get("op"), message.get("topic")
        if operation == "subscribe":
            since = message.get("since")
            hub().subscribe(listener, topic, since if isinstance(since, int) else None)
        elif operation == "unsubscribe" and isinstance(topic, str):
            hub().unsubscribe(listener, topic)
        elif operation == "ping":
            listener.offer(pong_frame(now_text()))
        else:
            detail = 'Send {"op": "subscribe", "topic": ..., "since": null}, unsubscribe or ping.'
            listener.offer(error_frame(topic, "bad_request", detail))

    async def disconnect(self, code: int) -> None:
        self._leave()

    async def _write(self, frame: Frame) -> None:
        await self.base_send({"type": "websocket.send", "text": frame.text})

    def _leave(self) -> None:
        if self.listener is not None:
            hub().detach(self.listener)
            self.listener = None

    def _end(self, code: int, reason: str) -> None:
        """Close the connection with a websocket close code; the hub calls it when it removes this client."""
        self._closing = asyncio.create_task(self._say_goodbye(code, reason))

    async def _say_goodbye(self, code: int, reason: str) -> None:
        """Send a close frame without waiting for a client that does not read; the connection ends with the
        application."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.close(code, reason)
        except (TimeoutError, OSError):
            # The client left or does not read; when the application ends, the server drops the connection.
            pass
        finally:
            self._ended.set()

    def _until_ended(self, receive: Receive) -> Receive:
        """Return a `receive` that reports a disconnect once the hub has removed the client."""

        async def next_message() -> Message:
            incoming = asyncio.ensure_future(receive())
            ended = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait((incoming, ended), return_when=asyncio.FIRST_COMPLETED)
                # Check for a message first, so that one that has arrived is not lost.
                if incoming.done():
                    return incoming.result()
                return {"type": "websocket.disconnect", "code": 1000}
            finally:
                incoming.cancel()
                ended.cancel()

        return next_message


def _parsed(text: str | None) -> Mapping[str, Any]:
    """Return the message as an object; {} if it is not a JSON object or too long."""
    if text is None or len(text) > MESSAGE_MOST_BYTES:
        return {}
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}
