"""Errors that the drivers of storage systems share, and how they quote a system's own message."""

from datasets.storage.base import Blocked

_WORDS_MOST = 400


def not_configured(name: str) -> Blocked:
    """Return the error for the storage class `name` that is no longer configured."""
    words = f"The storage class {name} is no longer configured; add it to TRAINYARD_STORAGE_CLASSES."
    return Blocked("class_not_configured", words)


def package_missing(error: ImportError) -> Blocked:
    """Return the error for a driver whose package is not installed; retries do not help."""
    words = f"This storage class needs packages of requirements-netapp.txt: {error}"
    return Blocked("package_missing", words, is_passing=False)


def one_line(words: str) -> str:
    """Return a storage system's message on one line, truncated to what a database column holds."""
    return " ".join(words.split())[:_WORDS_MOST]
