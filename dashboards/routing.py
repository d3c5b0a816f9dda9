"""Websocket routes."""

from channels.routing import URLRouter
from django.urls import path

from controlplane.live.asgi import Application
from dashboards.consumers import LiveConsumer

websocket_application: Application = URLRouter([path("ws/live", LiveConsumer.as_asgi())])
