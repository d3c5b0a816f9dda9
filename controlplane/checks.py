"""System checks that refuse impossible settings at start, each with an id and a hint. `make up` runs them first."""

import difflib
import ipaddress
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register

from controlplane.clusters.settings import SettingsInvalid
from controlplane.config import environment
from controlplane.engines.kinds import EngineKind, engine_kind

TOKEN_LENGTH = 32
SECRET_KEY_LENGTH = 32
# The variables that `yard` reads: in the environment of a server they are no misspelt settings.
CLIENT_VARIABLES = {"TRAINYARD_URL", "TRAINYARD_TOKEN", "TRAINYARD_CONFIG"}
REDIS_SCHEMES = ("redis", "rediss", "redis+socket", "unix")


@register("trainyard")
def check_settings(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Return all problems of the settings at once, so that an operator can correct them in one pass."""
    return [
        *_check_token("TRAINYARD_BOOTSTRAP_TOKEN", settings.BOOTSTRAP_TOKEN, "trainyard.E001"),
        *_check_clusters(),
        *_check_presets(),
        *_check_exposure(),
        *_check_public_url(),
        *_check_services_host(),
        *_check_redis(),
        *_check_secret_key(),
        *_check_token("TRAINYARD_METRICS_TOKEN", settings.METRICS_TOKEN, "trainyard.E008"),
        *_check_spelling(),
        *_check_browser_libraries(),
    ]


def _check_token(variable: str, token: str, identifier: str) -> Iterator[CheckMessage]:
    if token and len(token) < TOKEN_LENGTH:
        message = f"{variable} has {len(token)} characters; {TOKEN_LENGTH} is the least."
        hint = "Make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        yield Error(message, hint=hint, id=identifier)


def _check_clusters() -> Iterator[CheckMessage]:
    # Imported here, because the web processes load this module and never need an engine.
    from controlplane.engines.registry import DEFAULT_CLUSTERS, ClustersSyntaxError, parse_clusters

    try:
        parse_clusters(settings.CLUSTERS)
    except ClustersSyntaxError as error:
        yield Error(str(error), hint=f"The default is {DEFAULT_CLUSTERS}", id="trainyard.E002")


def _check_presets() -> Iterator[CheckMessage]:
    for engine, preset in settings.CLUSTER_PRESETS.items():
        kind = engine_kind(engine)
        if problem := _problem_of(kind, preset):
            hint = 'Like {"scheduler": "planner", "settings": {"work_storage_class": "fast"}}.'
            yield Error(f"{kind.variable} cannot be used: {problem}", hint=hint, id="trainyard.E007")


def _problem_of(kind: EngineKind, preset: Mapping[str, Any]) -> str:
    given = preset.get("settings", {})
    if not preset.keys() <= {"scheduler", "settings"} or not isinstance(given, dict):
        return "it takes scheduler, and settings with names and values."
    try:
        kind.read_settings(given)
    except SettingsInvalid as error:
        return str(error)
    return ""


def _check_exposure() -> Iterator[CheckMessage]:
    has_tls = settings.PUBLIC_URL.startswith("https://")
    if not (_is_loopback(settings.HOST) or settings.ALLOW_REMOTE or has_tls):
        message = (
            f"TRAINYARD_HOST={settings.HOST} opens the control plane to the network, without encryption."
        )
        hint = (
            "Put a TLS proxy before it and say so with TRAINYARD_PUBLIC_URL=https://..., "
            "or set TRAINYARD_ALLOW_REMOTE=yes and name the hosts in TRAINYARD_ALLOWED_HOSTS if the network is trusted."
        )
        yield Error(message, hint=hint, id="trainyard.E003")


def _check_public_url() -> Iterator[CheckMessage]:
    parts = urlsplit(settings.PUBLIC_URL)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path or parts.query:
        message = (
            f"TRAINYARD_PUBLIC_URL={settings.PUBLIC_URL!r} is not an address like https://yard.example.org"
        )
        yield Error(message, hint="Scheme and host only, without a path.", id="trainyard.E004")


def _check_services_host() -> Iterator[CheckMessage]:
    services = settings.SERVICES
    if not services.is_local and services.scheme != "https":
        message = (
            f"TRAINYARD_SERVICES_HOST={services.name} is served without TLS: a job's page can set cookies for other"
            " hosts of the same domain."
        )
        hint = "Put a TLS proxy before it and say so with TRAINYARD_PUBLIC_URL=https://..."
        yield checks.Warning(message, hint=hint, id="trainyard.W003")


def _check_redis() -> Iterator[CheckMessage]:
    scheme = urlsplit(settings.REDIS_URL).scheme
    if scheme not in REDIS_SCHEMES:
        message = (
            f"TRAINYARD_REDIS_URL starts with {scheme or 'nothing'}; known are {', '.join(REDIS_SCHEMES)}."
        )
        yield Error(message, hint="Leave it empty to use the built-in server.", id="trainyard.E005")


def _check_secret_key() -> Iterator[CheckMessage]:
    if len(settings.SECRET_KEY) < SECRET_KEY_LENGTH:
        message = f"TRAINYARD_SECRET_KEY has {len(settings.SECRET_KEY)} characters; {SECRET_KEY_LENGTH} is the least."
        hint = "Make one: python3 -c 'import secrets; print(secrets.token_urlsafe(48))'"
        yield Error(message, hint=hint, id="trainyard.E006")


def _check_spelling() -> Iterator[CheckMessage]:
    known = set(environment.DEFAULTS) | CLIENT_VARIABLES
    for name in sorted(set(os.environ) - known):
        if name.startswith("TRAINYARD_"):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else "docs/reference/settings.md has the list."
            yield checks.Warning(f"{name} is set, and is not a setting.", hint=hint, id="trainyard.W001")


def _check_browser_libraries() -> Iterator[CheckMessage]:
    if not (settings.BASE_DIR / "static" / "vendor").is_dir():
        message = "The browser libraries are missing; pages show tables instead of charts."
        yield checks.Warning(message, hint="make install", id="trainyard.W002")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
