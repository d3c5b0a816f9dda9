"""`yard login`, `logout`, `whoami`."""

from __future__ import annotations

import sys
from argparse import Namespace
from urllib.parse import urlsplit

from controlplane.cli import formats
from controlplane.cli.client import Client
from controlplane.cli.errors import UNREACHABLE, USAGE, ApiError, CliError
from controlplane.cli.parsing import Parser, add_flag
from controlplane.cli.session import Session

# Short, because a mistyped address is the most likely reason for no answer.
_FIRST_ANSWER_SECONDS = 5.0
_NOT_LOGGED_IN = 401


def login_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard login http://127.0.0.1:8000",
        "yard login https://yard.example.org --token-stdin < token",
        "yard login https://yard.example.org --username ana --password-stdin < password",
    ]
    parser.add_argument("url", metavar="URL", help="the server's address")
    parser.add_argument("--username", metavar="NAME", help="asked for when not given")
    add_flag(parser, "--password-stdin", about="read the password from standard input")
    add_flag(parser, "--token-stdin", about="read an API token from standard input")
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="an API token (visible to others on this machine: prefer --token-stdin)",
    )
    parser.add_argument(
        "--name", metavar="CONTEXT", help="remember the server under this name (default: host and port)"
    )


def login(args: Namespace, session: Session) -> None:
    """Get an API token for a name and password, or read one; check it and store it in the config file, which only its
    owner can read."""
    url = args.url.rstrip("/")
    token = _token(args, url, session)
    with Client(url, token) as client:
        who = client.get("whoami")
    name = args.name or urlsplit(url).netloc.rpartition("@")[2]
    session.config.update_context(name, {"url": url, "token": token})
    session.output.object(
        who, f"logged in to {url} as {who['username']}; remembered as {name} in {session.config.path}"
    )


def logout_arguments(parser: Parser) -> None:
    parser.examples = ["yard logout"]


def logout(args: Namespace, session: Session) -> None:
    """Remove the stored token from the config file; on the server it stays valid until it is revoked."""
    session.config.forget_token()
    session.output.say(
        f"the token for {session.config.url} is removed from this machine; revoke it with: yard token revoke ID"
    )


def whoami_arguments(parser: Parser) -> None:
    parser.examples = ["yard whoami", "yard whoami -o json"]


def whoami(args: Namespace, session: Session) -> None:
    """Print the user name, the server, whether the token is read-only and the user a site admin, and the role in each
    project."""
    who = session.get("whoami")
    rows: list[tuple[str, object]] = [
        ("User", who["username"]),
        ("Server", session.config.url),
        ("Read-only token", "yes" if who.get("is_read_only") else ""),
        ("Site admin", "yes" if who.get("is_admin") else "no"),
        ("Roles", formats.pairs(who.get("roles"))),
    ]
    session.output.object(who, formats.fields(rows))


def _token(args: Namespace, url: str, session: Session) -> str:
    if args.token:
        return str(args.token)
    if args.token_stdin:
        return _line_of_stdin("token")
    if sys.stdin.isatty():
        _require_server(url)
    username = args.username or _asked("Username: ")
    password = _line_of_stdin("password") if args.password_stdin else _asked_secretly("Password: ")
    _warn_when_readable(url, session)
    with Client(url, "") as client:
        return str(client.post("login", {"username": username, "password": password})["token"])


def _require_server(url: str) -> None:
    """Raise CliError if no control plane answers at this address; called before a password is requested."""
    with Client(url, "", timeout=_FIRST_ANSWER_SECONDS) as client:
        try:
            client.get("whoami")
        except ApiError as error:
            if error.status != _NOT_LOGGED_IN:
                raise CliError(
                    f"{url} answers {error.status}, which is not a Trainyard server's answer", UNREACHABLE
                ) from error


def _line_of_stdin(what: str) -> str:
    line = sys.stdin.readline().strip()
    if not line:
        raise CliError(f"no {what} on standard input", USAGE)
    return line


def _asked(prompt: str) -> str:
    if not sys.stdin.isatty():
        hint = "give --username with --password-stdin, or --token-stdin"
        raise CliError("standard input is not a terminal", USAGE, hint)
    print(prompt, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if not answer:
        raise _no_answer("user name")
    return answer


def _asked_secretly(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise CliError("standard input is not a terminal", USAGE, "give --password-stdin or --token-stdin")
    import getpass

    try:
        return getpass.getpass(prompt, stream=sys.stderr)
    except EOFError:
        raise _no_answer("password") from None


def _no_answer(what: str) -> CliError:
    """Return the CliError for Enter or Ctrl-D at a prompt. First ends the prompt's line on the terminal."""
    print(file=sys.stderr)
    return CliError(f"no {what} given, nothing was stored", USAGE)


def _warn_when_readable(url: str, session: Session) -> None:
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        session.output.say(f"warning: {url} is not encrypted: others on the network can read the password")
