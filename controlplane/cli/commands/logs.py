"""`yard logs`: print a job's output, page by page or live."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable
from typing import Any, NamedTuple

from controlplane.cli import formats, terminal
from controlplane.cli.client import Query
from controlplane.cli.lookup import FINAL_STATES, is_id, job_id, newest_job
from controlplane.cli.output import Output, as_json
from controlplane.cli.parsing import Parser, add_flag, add_job
from controlplane.cli.session import Session
from controlplane.cli.silence import SilenceReporter, state_sentence
from controlplane.cli.sse import resuming

PAGE_LINES = 1000
ATTACH_LINES = 10
NEXT_ATTEMPT_SECONDS = 0.5
LONGEST_WHOLE = 300  # digits
RANK_HELP = "the pod with this rank (default: 0, or in an elastic job its present first worker)"
# A gap's message that begins like this is printed without an introduction.
SAYS_ALL = "output may be missing"


class Selection(NamedTuple):
    """What to print of a log. `rank` None: the job's default one; `attempt` None: the latest; `tail`: the last lines
    only, None: all; `search`: only lines that contain this text; `is_timed`: with times; `is_raw`: progress lines as
    the job wrote them."""

    rank: int | None = None
    attempt: int | None = None
    tail: int | None = None
    search: str | None = None
    is_timed: bool = False
    is_raw: bool = False


def logs_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard logs hyper1 -f",
        "yard logs hyper1 -t 10",
        "yard logs dist1 --rank 2 --attempt 1",
    ]
    add_job(parser)
    add_flag(parser, "-f", "--follow", about="keep running and print lines as they are written")
    parser.add_argument("-t", "--tail", type=int, metavar="N", help="only the last N lines")
    _add_rank(parser)
    parser.add_argument(
        "--attempt", type=int, metavar="A", help="this start of the job (default: the latest)"
    )
    parser.add_argument("--search", metavar="TEXT", help="only lines that contain this text")
    add_flag(parser, "--timestamps", about="put the time before each line")
    _add_raw(parser)


def logs(args: Namespace, session: Session) -> None:
    """Print a job's log as the options select it, with --follow also new lines until the job ends. If there is nothing
    to print, the job's state is printed to standard error."""
    selection = Selection(args.rank, args.attempt, args.tail, args.search, args.timestamps, args.raw)
    identifier, said = _job_with_log(session, args.name)
    if args.follow:
        if not follow(session, identifier, selection, said):
            _explain_emptiness(session, identifier, selection)
    elif session.output.is_data:
        session.output.data(_whole(session, identifier, selection))
    elif not _print_pages(session, identifier, selection) and not said:
        _explain_emptiness(session, identifier, selection)


def _explain_emptiness(session: Session, identifier: str, selection: Selection) -> None:
    """Print the state of a job whose log has no lines to show. Prints nothing for a selected attempt, which that
    state does not explain, or a tail of 0."""
    if selection.attempt is not None or selection.tail == 0:
        return
    nothing = "has printed nothing" if selection.search is None else f"has no line with {selection.search!r}"
    printer = "it" if selection.rank is None else f"rank {selection.rank}"
    session.output.say(f"{state_sentence(session.get(f'jobs/{identifier}'))} ({printer} {nothing})")


def _job_with_log(session: Session, name: str) -> tuple[str, str]:
    """Return (id, printed sentence) of the newest job with this name. If the job is queued, its state is printed;
    otherwise the sentence is "". An id is returned unchanged, without a request."""
    if is_id(name):
        return name, ""
    job = newest_job(session, name)
    said = state_sentence(job) if job["status"]["state"] == "queued" else ""
    if said:
        session.output.say(said)
    return str(job["id"]), said


def _print_pages(session: Session, identifier: str, selection: Selection) -> bool:
    """Print the log page by page; return whether it has a line or a gap."""
    is_any = False
    for page in _pages(session, identifier, selection):
        gaps = page.get("gaps") or []
        _print_gaps(session.output, gaps)
        _print(session.output, page["lines"], selection)
        is_any = is_any or bool(gaps or page["lines"])
    return is_any


def attach_arguments(parser: Parser) -> None:
    parser.examples = ["yard attach hyper1"]
    add_job(parser)
    _add_rank(parser)
    _add_raw(parser)


def attach(args: Namespace, session: Session) -> None:
    """Print the last lines of a job's log, then every new one. Ctrl-C ends only the printing."""
    follow(session, job_id(session, args.name), Selection(rank=args.rank, tail=ATTACH_LINES, is_raw=args.raw))


def _add_rank(parser: Parser) -> None:
    parser.add_argument("--rank", type=int, metavar="R", help=RANK_HELP)


def _add_raw(parser: Parser) -> None:
    add_flag(parser, "--raw", about="progress lines as the job wrote them, as into a pipe")


def follow(session: Session, identifier: str, selection: Selection, said: str = "") -> bool:
    """Print lines until the job has ended, over all later attempts; a broken connection is opened again. Return
    whether there was a line. While the log is silent, the job's state and reason are printed to standard error,
    unless equal to `said`."""
    query: dict[str, str | int | bool | None] = {**_chosen(selection), "tail": selection.tail, "follow": True}
    reporter = SilenceReporter(session, identifier, said)
    try:
        while _follow_log(session, f"jobs/{identifier}/logs", query, selection, reporter):
            # The next attempt is shown from its beginning.
            query["tail"] = None
            session.pause(NEXT_ATTEMPT_SECONDS)
        return reporter.has_printed
    finally:
        reporter.close()


def _follow_log(
    session: Session, path: str, query: Query, selection: Selection, reporter: SilenceReporter
) -> bool:
    """Print the log of one attempt to its end. Return whether the job continues with another attempt, which is not
    followed if one was selected."""
    for event in resuming(session.client, path, query, session.pause):
        data = json.loads(event.data) if event.data else {}
        if event.name == "end":
            return selection.attempt is None and data.get("state") not in (None, *FINAL_STATES)
        if event.name in ("line", "gap"):
            reporter.note_line()
        _show(session.output, event.name, data, selection)
    return False


def _show(output: Output, name: str, data: dict[str, Any], selection: Selection) -> None:
    if name == "line":
        _print(output, [data], selection)
        output.flush()
    elif name == "gap":
        _print_gaps(output, [data])
    elif name == "attempt":
        output.say(f"[attempt {data.get('attempt')}]")


def _chosen(selection: Selection) -> dict[str, str | int | bool | None]:
    return {"rank": selection.rank, "attempt": selection.attempt, "search": selection.search}


def _pages(session: Session, identifier: str, selection: Selection) -> Iterable[dict[str, Any]]:
    """Yield the log's pages from the start; with `tail` one page with the last lines."""
    chosen = _chosen(selection)
    path = f"jobs/{identifier}/logs"
    if selection.tail is not None:
        yield session.client.get(path, {**chosen, "tail": selection.tail})
        return
    offset: Any = 0
    while True:
        page = session.client.get(path, {**chosen, "offset": offset, "limit": PAGE_LINES})
        yield page
        if page["next_offset"] in (None, offset):
            return
        # An elastic job's default rank may change between pages, so use that of the first.
        offset, chosen["rank"] = page["next_offset"], page.get("rank")


def _whole(session: Session, identifier: str, selection: Selection) -> dict[str, Any]:
    """Return all pages of the log joined into one."""
    pages = list(_pages(session, identifier, selection))
    joined = {name: [entry for page in pages for entry in page.get(name) or []] for name in ("lines", "gaps")}
    return {**pages[-1], **joined}


def _print(output: Output, lines: Iterable[dict[str, Any]], selection: Selection) -> None:
    """Print lines; with -o json as objects. On a terminal control characters except colours are escaped, and progress
    lines are written for users. A `partial` record is continued by the next record of its stream, so no newline
    follows it."""
    for line in lines:
        if output.is_data:
            output.stream.write(as_json(line) + "\n")
            continue
        text = str(line["text"])
        if output.is_terminal:
            spelt = "" if selection.is_raw or line.get("partial") else spelt_progress(text)
            text = spelt or terminal.log_line(text, colour=output.is_coloured)
        end = "" if line.get("partial") else "\n"
        output.stream.write(f"{line['time']} {text}{end}" if selection.is_timed else f"{text}{end}")


def spelt_progress(text: str) -> str:
    """Return a progress line as text for users, "" for any other line. static/js/progressline.js does the same on
    pages; both are tested with the same samples."""
    if not (text.startswith("{") and '"trainyard"' in text):
        return ""
    try:
        report = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        # A program may print its own JSON, nested to any depth.
        return ""
    # In Python True equals 1, and a program may print {"trainyard": true}.
    is_ours = report.get("trainyard") == 1 and report["trainyard"] is not True
    return formats.progress_line(report) if is_ours else ""


def _integer(digits: str) -> int | float:
    # A number too large for a float becomes infinity, as in a browser.
    return int(digits) if len(digits) < LONGEST_WHOLE else float(digits)


def _print_gaps(output: Output, gaps: Iterable[dict[str, Any]]) -> None:
    for gap in gaps:
        message = str(gap.get("message"))
        what = "" if message.startswith(SAYS_ALL) else "output is missing "
        output.say(f"[{what}after line {gap.get('after')}: {message}]")
