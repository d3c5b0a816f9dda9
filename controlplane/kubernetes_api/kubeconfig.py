"""The text of a kubeconfig as plain data: the one place where it is read, by the API's checks and by the engine. Pure.

It is somebody else's text and full of secrets: it is bounded, nothing in it refers to another place in it, and no
message quotes more of it than names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

MOST_BYTES = 256 * 1024
MOST_TOKEN_BYTES = 16 * 1024
LEAST_SECRET = 4  # characters: anything shorter is found in every sentence
HIDDEN = "[hidden]"
_PROGRAM = (
    "command",
    "apiVersion",
    "interactiveMode",
    "provideClusterInfo",
    "installHint",
)  # of exec: no secrets


class KubeconfigUnreadable(ValueError):
    """Why this is no kubeconfig, in words that do not quote it."""


class _Loader(yaml.SafeLoader):
    """Without anchors and aliases, which no kubeconfig has, and with which a few lines become gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        events: Any = self  # which has no types
        event = events.peek_event()
        if event.anchor is not None:
            raise KubeconfigUnreadable("The kubeconfig has YAML anchors or aliases: write it without them.")
        return super().compose_node(parent, index)


def read_kubeconfig(text: str) -> dict[str, Any]:
    """Return a kubeconfig that has a list of contexts. Raises KubeconfigUnreadable."""
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise KubeconfigUnreadable(f"The kubeconfig is larger than {MOST_BYTES // 1024} KiB.")
    try:
        config = _Loader(text).get_single_data()
    except KubeconfigUnreadable:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)  # the error's own words would quote the text
        where = f" near line {mark.line + 1}" if mark else ""
        raise KubeconfigUnreadable(f"The kubeconfig is not YAML{where}.") from None
    if not isinstance(config, dict) or not isinstance(config.get("contexts"), list):
        raise KubeconfigUnreadable("This is not a kubeconfig: it has no list of contexts.")
    return config


def entries(config: Mapping[str, Any], plural: str) -> list[dict[str, Any]]:
    """The entries of one list of a kubeconfig that have a name."""
    found = config.get(plural)
    if not isinstance(found, list):
        return []
    return [entry for entry in found if isinstance(entry, dict) and isinstance(entry.get("name"), str)]


def chosen_context(config: Mapping[str, Any], name: str) -> str:
    """The name, or that of the current context without one. Raises KubeconfigUnreadable where there is no such."""
    current = config.get("current-context")
    wanted = name or (current if isinstance(current, str) else "")
    names = [entry["name"] for entry in entries(config, "contexts")]
    if wanted and wanted in names:
        return wanted
    asked = f"has no context {quoted(wanted)}" if wanted else "has no current context; name one"
    known = ", ".join(shortened(each) for each in names[:20]) or "none"
    raise KubeconfigUnreadable(f"The kubeconfig {asked}. It has: {known}.")


def shortened(name: str) -> str:
    """A name as a message may have it."""
    return name if len(name) <= 100 else f"{name[:100]}..."


def quoted(name: str) -> str:
    return repr(shortened(name))


def clean_token(token: object) -> str:
    """A token as a header may carry it, without the white space around it. Raises ValueError, without the token."""
    text = token.strip() if isinstance(token, str) else ""
    if not text or len(text) > MOST_TOKEN_BYTES or not all("!" <= character <= "~" for character in text):
        raise ValueError(
            f"A token is at most {MOST_TOKEN_BYTES} ASCII characters, without spaces and control characters."
        )
    return text


def secrets_of(text: str) -> tuple[str, ...]:
    """All that a kubeconfig's users have and nobody may read, longest first; nothing of what cannot be read."""
    try:
        users = entries(read_kubeconfig(text), "users")
    except KubeconfigUnreadable:
        return ()
    words = {word for user in users for value in _texts(user.get("user")) for word in (value, *value.split())}
    return tuple(sorted((word for word in words if len(word) >= LEAST_SECRET), key=len, reverse=True))


def hidden(message: str, secrets: tuple[str, ...]) -> str:
    """The message without any of the secrets, as they are or as `repr` writes them."""
    for secret in secrets:
        for form in (secret, repr(secret)[1:-1], repr(secret.encode())[2:-1]):
            message = message.replace(form, HIDDEN)
    return message


def without_token(body: bytes, headers: Mapping[str, str]) -> bytes:
    """What a server answered, without the token that it was sent."""
    token = headers.get("Authorization", "").removeprefix("Bearer ").encode()
    return body.replace(token, HIDDEN.encode()) if len(token) >= LEAST_SECRET else body


def _texts(value: Any, key: str = "") -> Iterator[str]:
    """Every text at any depth that may be a secret."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from _texts(inside, str(name))
    elif isinstance(value, list):
        for inside in value:
            yield from _texts(inside, key)
    elif value is not None and not isinstance(value, bool) and key not in _PROGRAM:
        yield str(value)
