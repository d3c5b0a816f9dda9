"""Let the server import code from a git repository."""

from __future__ import annotations

import re
import time

from controlplane.cli.errors import USAGE, CliError
from controlplane.cli.session import Session

POLL_SECONDS = 0.5
# The server gives up after ten minutes; without a running worker the import would never end.
LONGEST_SECONDS = 900.0
# Skips the @ of `ssh://git@host/path`, which does not begin a ref.
_REPOSITORY = re.compile(r"(?P<url>[a-z]+://[^/]*/[^@]+)(@(?P<ref>[^@]+))?")


def bring_repository(session: Session, text: str) -> dict[str, str]:
    """Have the server import a repository, `URL@REF` or `URL` for its default branch, and wait for that. Return the
    `code` field of a job's spec. Raise CliError for a malformed URL, and if the import fails or takes longer than
    LONGEST_SECONDS."""
    found = _REPOSITORY.fullmatch(text)
    if found is None:
        raise CliError(f"{text!r} is not a repository", USAGE, "write https://HOST/PATH@BRANCH")
    place = f"{session.project_path}/code-imports"
    fetch = session.client.post(place, {"url": found["url"], "ref": found["ref"] or "HEAD"})
    ends_at = time.monotonic() + LONGEST_SECONDS
    while fetch["state"] == "pending" and time.monotonic() < ends_at:
        time.sleep(POLL_SECONDS)
        fetch = session.get(f"{place}/{fetch['id']}")
    if fetch["state"] == "pending":
        raise CliError(f"{text} was not fetched within {LONGEST_SECONDS:g} s; are workers running?")
    if fetch["state"] == "failed":
        raise CliError(f"{text}: {fetch['reason']['message']} ({fetch['reason']['code']})")
    session.output.say(f"code of {fetch['commit'][:10]} from {found['url']}")
    return {"tree": fetch["tree"], "commit": fetch["commit"]}
