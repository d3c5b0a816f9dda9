"""Translated messages for the browser's scripts; see say() in static/js/dom.js."""

from django.utils.translation import gettext as _


def words() -> dict[str, str]:
    """Return the texts that the scripts of every page show, by the key given to say() (static/js/dom.js), in the
    request's language."""
    return {
        "feed_live": _("Live"),
        "feed_connecting": _("Connecting"),
        "feed_stale": _("Quiet since {time}"),
        "feed_lost": _("Offline since {time}"),
        "feed_heard": _("Last event at {time}"),
        "signed_out": _("Signed out; reload to sign in"),
        "close": _("Close"),
        "copied": _("Copied"),
        "picked": _("{count} of {all} on this page selected"),
        "palette": _("Search or jump to…"),
        "palette_empty": _("Nothing has that name."),
        **_keys(),
        **_charts(),
        "gpus_one": _("{gpus} GPU"),
        "gpus_many": _("{gpus} GPUs"),
    }


def words_of(part: str) -> dict[str, str]:
    """Return the texts of scripts that only some pages have: those for `logs`, `shell` or `uploads`."""
    return {"logs": _logs, "shell": _shell, "uploads": _uploads}[part]()


def _logs() -> dict[str, str]:
    """Return the texts of the log viewer."""
    return {
        "log_attempt": _("attempt {number}"),
        "log_attempt_heading": _("Attempt {number}"),
        "log_gap": _("output is missing here: {detail}"),
        "log_matches": _("{count} matching lines"),
        "log_line": _("{count} line"),
        "log_lines": _("{count} lines"),
    }


def _shell() -> dict[str, str]:
    """Return the texts of the terminal."""
    return {
        "shell_closed": _("The shell has ended."),
        "shell_exit": _("The shell ended with code {code}."),
    }


def _keys() -> dict[str, str]:
    """Return the descriptions of keyboard shortcuts."""
    return {
        "key_palette": _("search or jump to"),
        "key_overview": _("overview"),
        "key_jobs": _("jobs"),
        "key_projects": _("projects"),
        "key_nodes": _("nodes"),
        "key_analytics": _("analytics"),
        "key_filter": _("filter this page"),
        "key_rows": _("move between rows, open one"),
        "key_help": _("keyboard shortcuts"),
    }


def _uploads() -> dict[str, str]:
    """Return the messages shown during uploads."""
    return {
        "upload_chosen": _("Files: {files}, {size}"),
        "upload_going": _("Uploading…"),
        "upload_progress": _("{done} of {files} files, {sent} of {size}, {rate}/s, {left} left"),
        "upload_spoken": _("{done} of {files} files uploaded"),
        "upload_waits": _(
            "The server is busy or does not answer; trying again in {seconds} s. Sent files are kept."
        ),
        "upload_stopped": _(
            "Stopped. Sent files are kept for a while: choose the same files again to continue."
        ),
        "upload_broken": _("The connection broke. Sent files are kept: try again to continue."),
        "upload_unchanged": _("Nothing changed: these are the files of version {version}."),
        "upload_lacking": _("The content of {count} files or more did not reach the server; try again."),
        "code_reading": _("Reading: {done} of {files} files"),
        "code_sending": _("Sending: {done} of {files} files that the server lacks"),
        "code_there": _("Files on the server: {files}, {size}. Left out of the folder: {left}."),
        "code_empty": _("The tree has no files."),
        "code_many": _("The tree has {files} files; at most {most}."),
        "code_large": _("The tree has {bytes} bytes; at most {most}."),
        "code_hint": _(
            "List in .yardignore what the job does not need; put data into a dataset or a volume."
        ),
        "upload_unreadable": _("{path} cannot be read, or changes while it is read."),
    }


def _charts() -> dict[str, str]:
    """Return the texts of chart buttons and tables."""
    return {
        "chart_table": _("The chart as a table"),
        "chart_tools": _("Chart tools"),
        "chart_in": _("zoom in"),
        "chart_out": _("zoom out"),
        "chart_reset": _("show the whole range"),
        "chart_image": _("save as an image"),
        "chart_more": _("and {count} more"),
    }
