"""The text of a kubeconfig as plain data, for validation in the API and for credentials. No I/O.

A kubeconfig is a user's text and full of secrets: its size is bounded, anchors and aliases are refused, and
error messages quote names only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

MOST_BYTES = 256 * 1024
MOST_TOKEN_BYTES = 16 * 1024
# In characters; a shorter text would be found in any message.
LEAST_SECRET = 4
HIDDEN = "[hidden]"
# The fields of `exec` that are no secrets; every other text of it is hidden in messages.
_PROGRAM = (
    "command",
    "apiVersion",
    "interactiveMode",
    "provideClusterInfo",
    "installHint",
)


class KubeconfigUnreadable(ValueError):
    """The text is not a kubeconfig. The message does not quote it."""


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses anchors and aliases: with them a few lines expand to gigabytes, and no
    kubeconfig needs them."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        # The base class of yaml.SafeLoader has no type annotations.
        events: Any = self
        event = events.peek_event()
        if event.anchor is not None:
            raise KubeconfigUnreadable("The kubeconfig has YAML anchors or aliases: write it without them.")
        return super().compose_node(parent, index)


def read_kubeconfig(text: str) -> dict[str, Any]:
    """Return the content of a kubeconfig, which has at least a list of contexts. Raise KubeconfigUnreadable if the
    text is longer than MOST_BYTES, is not YAML, has anchors or aliases, or has no list of contexts."""
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise KubeconfigUnreadable(f"The kubeconfig is larger than {MOST_BYTES // 1024} KiB.")
    try:
        config = _Loader(text).get_single_data()
    except KubeconfigUnreadable:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError) as error:
        # The original message is dropped, because it would quote the text.
        mark = getattr(error, "problem_mark", None)
        where = f" near line {mark.line + 1}" if mark else ""
        raise KubeconfigUnreadable(f"The kubeconfig is not YAML{where}.") from None
    if not isinstance(config, dict) or not isinstance(config.get("contexts"), list):
        raise KubeconfigUnreadable("This is not a kubeconfig: it has no list of contexts.")
    return config


def entries(config: Mapping[str, Any], plural: str) -> list[dict[str, Any]]:
    """Return the named entries of one list of a kubeconfig. `plural`: the list's key, such as "users"; [] without
    that list."""
    found = config.get(plural)
    if not isinstance(found, list):
        return []
    return [entry for entry in found if isinstance(entry, dict) and isinstance(entry.get("name"), str)]


def chosen_context(config: Mapping[str, Any], name: str) -> str:
    """Return the name of the context to use: `name`, or the current one if it is "". Raise KubeconfigUnreadable if
    there is no such context."""
    current = config.get("current-context")
    wanted = name or (current if isinstance(current, str) else "")
    names = [entry["name"] for entry in entries(config, "contexts")]
    if wanted and wanted in names:
        return wanted
    asked = f"has no context {quoted(wanted)}" if wanted else "has no current context; name one"
    known = ", ".join(shortened(each) for each in names[:20]) or "none"
    raise KubeconfigUnreadable(f"The kubeconfig {asked}. It has: {known}.")


def shortened(name: str) -> str:
    """Return the first 100 characters of a name, for a message; "..." marks a longer one."""
    return name if len(name) <= 100 else f"{name[:100]}..."


def quoted(name: str) -> str:
    return repr(shortened(name))


def clean_token(token: object) -> str:
    """Return a token without surrounding white space. Raise ValueError if it is empty, too long, or not fit for an
    HTTP header."""
    text = token.strip() if isinstance(token, str) else ""
    if not text or len(text) > MOST_TOKEN_BYTES or not all("!" <= character <= "~" for character in text):
        raise ValueError(
            f"A token is at most {MOST_TOKEN_BYTES} ASCII characters, without spaces and control characters."
        )
    return text


def secrets_of(text: str) -> tuple[str, ...]:
    """Return all texts in a kubeconfig that may be secrets of its users, longest first; () if it is unreadable. Texts
    shorter than LEAST_SECRET are left out, because they would be found in any message."""
    try:
        users = entries(read_kubeconfig(text), "users")
    except KubeconfigUnreadable:
        return ()
    words = {word for user in users for value in _texts(user.get("user")) for word in (value, *value.split())}
    # A shorter secret may be part of a longer one; replaced first, it would leave the rest readable.
    return tuple(sorted((word for word in words if len(word) >= LEAST_SECRET), key=len, reverse=True))


def hidden(message: str, secrets: tuple[str, ...]) -> str:
    """Return the message with each of the secrets replaced by HIDDEN, also where `repr` has escaped it."""
    for secret in secrets:
        for form in (secret, repr(secret)[1:-1], repr(secret.encode())[2:-1]):
            message = message.replace(form, HIDDEN)
    return message


def without_token(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return a response's body with the token of its request (`headers`) replaced by HIDDEN, because servers may echo
    it."""
    token = headers.get("Authorization", "").removeprefix("Bearer ").encode()
    return body.replace(token, HIDDEN.encode()) if len(token) >= LEAST_SECRET else body


def _texts(value: Any, key: str = "") -> Iterator[str]:
    """Yield every text at any depth of `value` that may be a secret. `key`: the key under which `value` was found."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from _texts(inside, str(name))
    elif isinstance(value, list):
        for inside in value:
            yield from _texts(inside, key)
    elif value is not None and not isinstance(value, bool) and key not in _PROGRAM:
        yield str(value)
