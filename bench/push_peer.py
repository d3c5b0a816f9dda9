"""The peer of bench.push: a Channels consumer that gets messages by group_send through the in-memory layer, one per
second, of the same size as ours."""

import asyncio
import json
import os
from datetime import UTC, datetime
from typing import Any

import django
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.layers import get_channel_layer
from django.conf import settings

settings.configure(
    SECRET_KEY="a bench serves nobody else",
    CHANNEL_LAYERS={"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}},
)
django.setup()

GROUP = "everybody"
SIZE_BYTES = int(os.environ["PUSH_PEER_BYTES"])
PERIOD_SECONDS = 1.0
_publishers: set["asyncio.Task[None]"] = set()


class Consumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """A consumer as in the documentation of Channels."""

    async def connect(self) -> None:
        await self.channel_layer.group_add(GROUP, self.channel_name)
        await self.accept()

    async def disconnect(self, code: int) -> None:
        await self.channel_layer.group_discard(GROUP, self.channel_name)

    async def tick(self, event: dict[str, str]) -> None:
        await self.send(text_data=event["text"])


async def publish() -> None:
    layer = get_channel_layer()
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        head = json.dumps({"stamp": {"at": datetime.now(UTC).isoformat()}, "padding": ""})
        text = head[:-2] + "x" * max(0, SIZE_BYTES - len(head)) + head[-2:]
        await layer.group_send(GROUP, {"type": "tick", "text": text})


consumer = Consumer.as_asgi()


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Serve websockets with the consumer (ASGI); the publisher starts with the server."""
    if scope["type"] == "lifespan":
        await receive()
        _publishers.add(asyncio.create_task(publish()))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    else:
        await consumer(scope, receive, send)
