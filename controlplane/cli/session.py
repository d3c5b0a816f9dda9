"""What a command works with: settings, output, and a connection to the server that is opened on first use."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from controlplane.cli.config import Config
from controlplane.cli.errors import FORBIDDEN, LOG_IN, USAGE, CliError
from controlplane.cli.output import Output, checked_format, standard_output

if TYPE_CHECKING:
    from controlplane.cli.client import Client
    from controlplane.cli.tables import Column

# Bounds the requests of one command: twenty pages of the largest size.
ROWS_MOST = 10_000


class Session:
    """The settings, output and connection of one run. `project`: the value of -p, None without."""

    def __init__(self, config: Config, output: Output, project: str | None = None) -> None:
        self.config = config
        self.output = output
        self._project = project
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Return the client for the configured server and token; the first call creates it. Raise CliError (2) if the
        config file, the selected context or the server's address is invalid."""
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self) -> Client:
        """Return another client for the same server, for another thread. The caller closes it."""
        from controlplane.cli.client import Client

        return Client(self.config.url, self.config.token, say=self.output.aside)

    def close(self) -> None:
        """Close the connection to the server, if there is one."""
        if self._client is not None:
            self._client.close()

    @property
    def project(self) -> str:
        """Return the project's name: -p, else TRAINYARD_PROJECT, else the context's default. Raise CliError if there
        is none; its hint is to log in where no token is known."""
        name = self._project or self.config.project
        if not name and not self.config.token:
            raise CliError("not logged in", FORBIDDEN, LOG_IN)
        if not name:
            raise CliError(
                "which project?", USAGE, "name it with -p NAME, or once with: yard config project NAME"
            )
        return name

    @property
    def project_path(self) -> str:
        from controlplane.cli.client import segment

        return f"projects/{segment(self.project)}"

    def pause(self, seconds: float) -> None:
        """Wait `seconds`. It is a method so that tests can replace it."""
        time.sleep(seconds)

    def get(self, path: str, **query: str | int | bool | None) -> Any:
        """Send a GET to an API path and return the response's JSON. Raises as `Client.request`."""
        return self.client.get(path, query)

    def show_list(self, path: str, columns: Sequence[Column], most: int = ROWS_MOST) -> None:
        """Print a list of the API, at most `most` rows. Raises as `Client.request`."""
        self.output.objects(self.client.pages(path, {}, most), columns)


def start_session(args: argparse.Namespace) -> Session:
    """Return the session for the common options. Raise CliError (2) for an unknown output format. Nothing is sent
    yet."""
    environ = dict(os.environ)
    output = standard_output(checked_format(args.output), environ)
    return Session(Config(environ, args.context), output, args.project)
