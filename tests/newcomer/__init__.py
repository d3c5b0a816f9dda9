"""An app that registers one of each kind of extension, and is named only in INSTALLED_APPS. See
tests/house/test_registration.py."""
