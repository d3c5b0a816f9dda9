"""An app that declares one of everything, named in no list but INSTALLED_APPS: tests/house/test_registration.py."""
