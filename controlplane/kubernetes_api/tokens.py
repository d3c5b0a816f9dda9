"""Sources of bearer tokens: a kubeconfig, a file that the kubelet replaces, a login program."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson
from kubernetes.client import Configuration
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import InClusterConfigLoader

from controlplane.kubernetes_api.kubeconfig import clean_token
from controlplane.remote_errors import Refused, Unreachable

EXEC_FAILED = "exec_failed"

# A login program may wait for input that it never gets.
_EXEC_SECONDS = 30.0
# Back-off after a failed login, so that a broken login program is not started for every request: the first
# and the longest pause in seconds; doubled, with jitter.
_PAUSE_SECONDS = (1.0, 30.0)
# A token is replaced this many seconds before it expires, so that it is still valid when the server reads it.
_EXEC_EARLY_SECONDS = 60.0
# The environment variables that are passed on to a login program; none contains a secret.
_EXEC_ENVIRONMENT = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")


class TokenSource(Protocol):
    """A source of bearer tokens. `current` returns the token to send, None if none is needed, and raises Refused or
    Unreachable if it cannot get one. `renew(refused)` drops the token that the server refused, if it is still the
    current one, and returns whether there may be another."""

    def current(self) -> str | None: ...

    def renew(self, refused: str | None) -> bool: ...


class NoToken:
    """A source without tokens: a client certificate authenticates instead."""

    def current(self) -> str | None:
        return None

    def renew(self, refused: str | None) -> bool:
        return False


class FixedToken:
    """A token written in the kubeconfig."""

    def __init__(self, token: str) -> None:
        self._token = token

    def current(self) -> str | None:
        return self._token

    def renew(self, refused: str | None) -> bool:
        return False


class MountedToken:
    """A service account's token in a file that the kubelet replaces. The official loader reads the file again every
    minute."""

    def __init__(self, loader: InClusterConfigLoader, configuration: Configuration) -> None:
        self._loader, self._configuration = loader, configuration
        self._header, self._token = "", ""

    def current(self) -> str | None:
        try:
            header = self._configuration.get_api_key_with_prefix("BearerToken") or ""
            if header != self._header:
                self._header, self._token = header, clean_token(header.partition(" ")[2])
        except (OSError, ConfigException) as error:
            raise Unreachable(f"The service account's token cannot be read: {error}") from error
        except ValueError:
            # The original message is dropped, because it may quote the token.
            raise Unreachable("The service account's token is not a token.") from None
        return self._token

    def renew(self, refused: str | None) -> bool:
        if self.current() != refused:
            return True
        # Makes the loader read the file now instead of after its minute.
        self._loader.token_expires_at = datetime.min  # noqa: DTZ901  the loader compares local times
        return self.current() != refused


class ExecToken:
    """A token that a login program prints (client.authentication.k8s.io), kept until shortly before it expires.
    Thread-safe."""

    def __init__(self, plugin: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._plugin, self._clock = plugin, clock
        # Held during a login, so that concurrent requests share one run of the program.
        self._lock = threading.Lock()
        self._token: str | None = None
        self._ends_at: datetime | None = None
        self._failures, self._again_at = 0, 0.0
        self._failure: Exception = Unreachable("no login was tried")

    def current(self) -> str | None:
        """Return the token; run the login program if there is none or it expires soon. Raise Refused or Unreachable
        as `run_login`. After a failure the program is not run for up to 30 s; all callers get the same exception."""
        with self._lock:
            if self._token is None or self._is_ending():
                if self._failures and self._clock() < self._again_at:
                    # The same object is raised many times; otherwise its traceback would grow with each.
                    raise self._failure.with_traceback(None)
                self._log_in()
            return self._token

    def _log_in(self) -> None:
        try:
            self._token, self._ends_at = run_login(self._plugin)
        except (Refused, Unreachable) as error:
            self._failures, self._failure = self._failures + 1, error
            longest = min(_PAUSE_SECONDS[1], _PAUSE_SECONDS[0] * 2 ** min(self._failures, 10))
            self._again_at = self._clock() + longest * random.uniform(0.5, 1.0)
            raise
        self._failures = 0

    def renew(self, refused: str | None) -> bool:
        with self._lock:
            if self._token == refused:
                self._token = None
        return True

    def _is_ending(self) -> bool:
        left = (self._ends_at - datetime.now(UTC)).total_seconds() if self._ends_at else float("inf")
        return left < _EXEC_EARLY_SECONDS


def run_login(plugin: Mapping[str, Any]) -> tuple[str, datetime | None]:
    """Run a kubeconfig's login program, for at most 30 s. Return its token, and when that expires (None if unknown).
    Raise Refused if the program is absent or prints no token, Unreachable if it fails."""
    command, environment = _login_command(plugin)
    version = str(plugin.get("apiVersion", ""))
    request = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment["KUBERNETES_EXEC_INFO"] = orjson.dumps(request).decode()
    try:
        done = subprocess.run(
            command,
            env=environment,
            # A program that asks for input fails at once instead of at the time-out.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_EXEC_SECONDS,
            check=True,
        )
    except FileNotFoundError as error:
        raise Refused(EXEC_FAILED, f"The login program {command[0]!r} is not on this server.") from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        words = f"The login program {command[0]!r} failed ({type(error).__name__}). Its output is not kept."
        # Not chained, because the original exception contains the output, which may be a secret.
        raise Unreachable(words) from None
    return _read_credential(done.stdout, command[0])


def _login_command(plugin: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the login program's command line and environment (without KUBERNETES_EXEC_INFO). Raise Refused if the
    kubeconfig's entry is malformed."""
    environment = {name: os.environ[name] for name in _EXEC_ENVIRONMENT if name in os.environ}
    try:
        environment |= {str(entry["name"]): str(entry["value"]) for entry in plugin.get("env") or ()}
        return [str(plugin.get("command", "")), *map(str, plugin.get("args") or ())], environment
    except (KeyError, TypeError):
        raise Refused(EXEC_FAILED, "The kubeconfig's login program (exec) cannot be read.") from None


def _read_credential(output: bytes, program: str) -> tuple[str, datetime | None]:
    try:
        status = orjson.loads(output)["status"]
        token, end = clean_token(status["token"]), status.get("expirationTimestamp")
        return token, datetime.fromisoformat(end.replace("Z", "+00:00")) if end else None
    except (ValueError, KeyError, TypeError, AttributeError):
        words = (
            f"The login program {program!r} printed no token; certificates from programs are not supported."
        )
        raise Refused(EXEC_FAILED, words) from None
