"""Extract one context of a kubeconfig with all referenced files, for a server that cannot read this machine's
files."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from controlplane.cli.errors import USAGE, CliError
from controlplane.cli.files import parse_yaml, read_text

Entry = dict[str, Any]

_AS_JSON = "or give it as JSON: kubectl config view --flatten --minify --raw -o json"

# Fields with a path, and the field that holds the file's content instead.
_FILES = {
    "certificate-authority": "certificate-authority-data",
    "client-certificate": "client-certificate-data",
    "client-key": "client-key-data",
}


def read_context(path: str, context: str | None) -> str:
    """Return one context of a kubeconfig as text, with the content of all files that it names. `path`: "-" for
    standard input; `context`: its name, None for the current one. Raise CliError (2) if a file cannot be read or
    there is no such context."""
    text = read_text(path)
    config = _parsed(text, path)
    name = context or config.get("current-context")
    names = [str(entry.get("name")) for entry in _entries(config, "contexts")]
    if not name or name not in names:
        asked = f"has no context {name!r}" if name else "has no current context; give --context"
        raise CliError(f"{path} {asked}", USAGE, f"it has: {', '.join(names) or 'none'}")
    chosen = _named(config, "contexts", name)
    folder = os.path.dirname(os.path.abspath(path))
    return _dumped(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "contexts": [chosen],
            "clusters": [_inlined(config, "cluster", chosen, folder)],
            "users": [_inlined(config, "user", chosen, folder)],
        }
    )


def _parsed(text: str, path: str) -> Entry:
    try:
        config = (
            json.loads(text) if text.lstrip().startswith("{") else parse_yaml(text, "a kubeconfig", _AS_JSON)
        )
    except ValueError as error:
        raise CliError(f"{path} cannot be read: {error}", USAGE) from error
    if not isinstance(config, dict):
        raise CliError(f"{path} is not a kubeconfig", USAGE)
    return config


def _dumped(config: Entry) -> str:
    """Return the config as JSON, which is also YAML. Values that YAML read as dates become text again."""
    return json.dumps(config, default=str)


def _entries(config: Entry, plural: str) -> list[Entry]:
    entries = config.get(plural)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _named(config: Entry, plural: str, name: object) -> Entry:
    found = next((entry for entry in _entries(config, plural) if entry.get("name") == name), None)
    singular = plural.removesuffix("s")
    if found is None or not isinstance(found.get(singular), dict):
        raise CliError(f"the kubeconfig has no {singular} named {name!r}", USAGE)
    return found


def _inlined(config: Entry, singular: str, chosen: Entry, folder: str) -> Entry:
    """Return the "cluster" or "user" entry (`singular`) of the context `chosen`, with the content of files in place
    of their paths. `folder`: the directory to which paths are relative."""
    entry = _named(config, f"{singular}s", chosen["context"].get(singular))
    content = dict(entry[singular])
    for path_field, data_field in _FILES.items():
        path = content.pop(path_field, None)
        if path and not content.get(data_field):
            content[data_field] = base64.b64encode(_bytes(folder, str(path))).decode()
    token_file = content.pop("tokenFile", None)
    if token_file and not content.get("token"):
        content["token"] = _bytes(folder, str(token_file)).decode().strip()
    return {**entry, singular: content}


def _bytes(folder: str, path: str) -> bytes:
    """Return the content of a file that the kubeconfig names. `path`: relative to `folder`. Raise CliError (2) if it
    cannot be read."""
    try:
        with open(os.path.join(folder, os.path.expanduser(path)), "rb") as file:
            return file.read()
    except OSError as error:
        raise CliError(f"the kubeconfig names a file that cannot be read: {error}", USAGE) from error
