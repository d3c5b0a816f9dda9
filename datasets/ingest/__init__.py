"""Read a directory into a dataset version: walk, compare, hash, pack. Uses the standard library alone,
because `yard` runs it too."""
