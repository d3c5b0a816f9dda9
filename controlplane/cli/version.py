"""The version that `yard version` prints; a test compares it with pyproject.toml."""

VERSION = "0.1.0"
