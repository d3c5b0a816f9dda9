"""Why files of a directory are not in a version: the codes of skipped and unread files, in words."""

LEFT_OUT = {
    "link_leaves_tree": "a link that leads out of the directory",
    "not_a_file": "neither a file nor a link",
}
UNREAD = {
    "changing": "a program writes to it; wait until it has ended",
    "gone": "it was removed during the sync",
    "path_too_long": "its path is longer than the system can open; move it nearer to the top",
    "unreadable": "its permissions or the disk do not let it be read",
}


def in_words(code: str) -> str:
    """Return the code of a skipped or unread file in words; other texts, such as an error of the system, unchanged."""
    return LEFT_OUT.get(code) or UNREAD.get(code, code)
