"""`--watch`: repeat a command's output at every change."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from controlplane.cli.errors import DONE
from controlplane.cli.output import Output
from controlplane.cli.session import Session
from controlplane.cli.sse import SILENCE_SECONDS, ChangeListener, patiently

SETTLE_SECONDS = 0.3
_CLEAR_SCREEN = "\x1b[H\x1b[J"


def watch_command(
    function: Callable[[Namespace, Session], int | None], args: Namespace, session: Session
) -> int:
    """Print the output of the command `function`, then again whenever a change in the control plane changes it, until
    Ctrl-C. Return 0."""
    shown: str | None = None
    session.output.is_line_per_answer = True
    look = partial(_captured, function, args, session)
    changes = ChangeListener(session.client, "activity")
    try:
        while True:
            # A server that cannot be reached at the beginning is an error; one that restarts later is not.
            text = look() if shown is None else patiently(look, session.pause)
            if text != shown:
                _show(text, session.output)
                shown = text
            session.output.flush()
            changes.wait(SILENCE_SECONDS)
            # Wait briefly, so that a burst of changes causes one update.
            session.pause(SETTLE_SECONDS)
    except KeyboardInterrupt:
        return DONE
    finally:
        changes.close()


def _captured(function: Callable[[Namespace, Session], int | None], args: Namespace, session: Session) -> str:
    """Run the command `function` and return its output as text, with the colours that it has on the terminal."""
    real, session.output.stream = session.output.stream, io.StringIO()
    try:
        function(args, session)
        return session.output.stream.getvalue()
    finally:
        session.output.stream = real


def _show(text: str, output: Output) -> None:
    """Write the text. On a terminal a table replaces the previous text and is cut to the window's height. Into a
    pipe, and in a data format, the text is appended."""
    if output.is_terminal and not output.is_data:
        import shutil

        rows = shutil.get_terminal_size().lines - 1
        text = _CLEAR_SCREEN + "\n".join(text.splitlines()[:rows]) + "\n"
    output.stream.write(text)
