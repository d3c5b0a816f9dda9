"""Configuration of `yard`: server, credentials and default project.

Environment variables (TRAINYARD_URL, TRAINYARD_TOKEN, TRAINYARD_PROJECT) override the config file: JSON with
named contexts, readable only by its owner because it contains tokens. TRAINYARD_CONFIG changes its path. A
context belongs to one server: with TRAINYARD_URL, only the context stored for that URL is used, and never
another one's token or project.
"""

from __future__ import annotations

import os
from typing import TypedDict

from controlplane.cli.errors import USAGE, CliError

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_CONTEXT = "default"


class Context(TypedDict, total=False):
    """A server that the user logged in to: its URL, the user's token for it, and the default project. Every key may
    be missing."""

    url: str
    token: str
    project: str


class ConfigFile(TypedDict):
    """The content of the config file. `current`: the name of the context in use; `contexts`: all contexts by name."""

    current: str
    contexts: dict[str, Context]


class Config:
    """The settings of one run of `yard`. Environment variables override the config file, except with `context`: the
    name of a context to use instead. What reads the file raises CliError (2) if that is unreadable or malformed."""

    def __init__(self, environ: dict[str, str], context: str | None = None) -> None:
        named = ("TRAINYARD_URL", "TRAINYARD_TOKEN", "TRAINYARD_PROJECT") if context else ()
        self._environ = {name: value for name, value in environ.items() if name not in named}
        self._wanted_context = context
        self._file: ConfigFile | None = None

    @property
    def path(self) -> str:
        """Return the config file's path, whether or not it exists."""
        moved = self._environ.get("TRAINYARD_CONFIG")
        if moved:
            return moved
        base = self._environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
        return os.path.join(base, "trainyard", "config.json")

    @property
    def file(self) -> ConfigFile:
        """Return the file's content; without a file, no contexts. The file is read once. Raise CliError (2) if it is
        unreadable or malformed."""
        if self._file is None:
            self._file = _read(self.path)
        return self._file

    @property
    def context_name(self) -> str:
        """Return the name of the context in use: the selected one, else the current one. If TRAINYARD_URL names
        another server, return the context of that server, or the URL itself if there is none."""
        if self._wanted_context:
            return self._wanted_context
        current, url = self.file["current"], self._environ.get("TRAINYARD_URL", "").rstrip("/")
        contexts = self.file["contexts"]
        if not url or _is_for(contexts.get(current, {}), url):
            return current
        names = (name for name, context in contexts.items() if _is_for(context, url))
        return next(names, url)

    @property
    def context(self) -> Context:
        """Return the context in use; {} if the file has none. Raise CliError (2) if the selected context does not
        exist."""
        contexts = self.file["contexts"]
        if self._wanted_context and self._wanted_context not in contexts:
            known = ", ".join(sorted(contexts)) or "none yet"
            raise CliError(
                f"no context {self._wanted_context!r} (known: {known})", USAGE, "log in with: yard login URL"
            )
        return contexts.get(self.context_name, {})

    @property
    def url(self) -> str:
        """Return the server's base URL without a trailing slash: TRAINYARD_URL, else that of the context, else
        DEFAULT_URL."""
        return (self._environ.get("TRAINYARD_URL") or self.context.get("url") or DEFAULT_URL).rstrip("/")

    @property
    def token(self) -> str:
        """Return the API token: TRAINYARD_TOKEN, else that of the context in use; "" if there is none. A token of
        another server is never returned."""
        return self._environ.get("TRAINYARD_TOKEN") or self.context.get("token", "")

    @property
    def project(self) -> str:
        """Return the default project: TRAINYARD_PROJECT, else the context's; "" if there is none."""
        return self._environ.get("TRAINYARD_PROJECT") or self.context.get("project", "")

    def update_context(self, name: str, changes: Context) -> None:
        """Set the keys of `changes` in the context `name`, which is created if it is missing. Make it the current
        context and write the file."""
        self._merge(name, changes)
        self.file["current"] = name
        self.save()

    def choose_project(self, name: str) -> None:
        """Store `name` as the default project of the context in use, and write the file. Another context does not
        become current."""
        self._merge(self.context_name, {"url": self.url, "project": name})
        self.save()

    def forget_token(self) -> None:
        """Remove the token of the context in use, and write the file."""
        self.file["contexts"].get(self.context_name, {}).pop("token", None)
        self.save()

    def _merge(self, name: str, changes: Context) -> None:
        stored: Context = {**self.file["contexts"].get(name, {}), **changes}
        self.file["contexts"][name] = stored

    def save(self) -> None:
        """Write the file atomically, readable only by its owner (mode 0600). Its directory is created if it is
        missing. Raise CliError (2) if it cannot be written."""
        try:
            self._write()
        except OSError as error:
            raise CliError(f"cannot write {self.path}: {error}", USAGE) from error

    def _write(self) -> None:
        import json

        os.makedirs(os.path.dirname(os.path.abspath(self.path)), mode=0o700, exist_ok=True)
        temporary = f"{self.path}.{os.getpid()}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(self.file, stream, indent=2)
            stream.write("\n")
        os.replace(temporary, self.path)


def _is_for(context: Context, url: str) -> bool:
    return (context.get("url") or DEFAULT_URL).rstrip("/") == url


def _read(path: str) -> ConfigFile:
    import json

    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except FileNotFoundError:
        return {"current": DEFAULT_CONTEXT, "contexts": {}}
    except (OSError, ValueError) as error:
        raise CliError(f"cannot read {path}: {error}", USAGE) from error
    if not isinstance(content, dict) or not isinstance(content.get("contexts"), dict):
        raise CliError(f"{path} is not a yard config file", USAGE, "move it away and run: yard login URL")
    return {"current": str(content.get("current") or DEFAULT_CONTEXT), "contexts": content["contexts"]}
