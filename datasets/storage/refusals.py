"""Errors for storage classes whose storage system cannot be opened."""

from datasets.storage.base import Blocked


def not_configured(name: str) -> Blocked:
    """Return the refusal for a storage class that is no longer configured."""
    words = f"The storage class {name} is no longer configured; add it to TRAINYARD_STORAGE_CLASSES."
    return Blocked("class_not_configured", words)


def package_missing(error: ImportError) -> Blocked:
    """Return the refusal for a driver whose package is not installed. Retries do not help (`is_passing` False)."""
    words = f"This storage class needs packages of requirements-netapp.txt: {error}"
    return Blocked("package_missing", words, is_passing=False)
