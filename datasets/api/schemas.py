"""JSON schemas of what the API answers about data."""

from controlplane.api.json_schema import BOOLEAN, INTEGER, STRING, TIME, Schema, listed, partial, record
from jobs.api.schemas import CODE_ORIGIN

CODE_ENTRY = partial(
    record(
        "One file of a tree. `hash`: SHA-256 of its content, hexadecimal. `link`: the target of a symbolic link, which"
        " has no other field but its path.",
        path=STRING,
        size={**INTEGER, "minimum": 0},
        hash=STRING,
        executable=BOOLEAN,
        link=STRING,
    ),
    "size",
    "hash",
    "executable",
    "link",
)
CODE_UPLOAD = record(
    "A tree that was begun: its name, and the hashes of the files that are to be sent. None is missing: commit it.",
    tree=STRING,
    missing=listed(STRING),
)
CODE_TREE = partial(
    record(
        "A tree that jobs of the project can run. The detail has `diff`, from the commit to the tree, or where"
        " `is_diff_cut` its beginning.",
        **CODE_ORIGIN,
        id=INTEGER,
        files=INTEGER,
        size_bytes=INTEGER,
        diff=STRING,
        is_diff_cut=BOOLEAN,
        created_by=STRING,
        created_at=TIME,
        used_at=TIME,
    ),
    "diff",
    "is_diff_cut",
)

COMPONENTS: dict[str, Schema] = {"CodeEntry": CODE_ENTRY, "CodeUpload": CODE_UPLOAD, "CodeTree": CODE_TREE}
