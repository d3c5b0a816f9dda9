"""Settings of a test run: those of the product, with a state directory that is deleted with the run.

pytest-django reads the settings before it imports any conftest.py, so the directory is set here."""

import os
import tempfile
from pathlib import Path

from tests.migrated import ON_POSTGRES, lay_out

_state = tempfile.TemporaryDirectory(prefix="trainyard-tests-")
os.environ["TRAINYARD_STATE_DIR"] = _state.name
# Torch's threads spin while they wait for one another: beside other lanes, half of the time of a small network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRAINYARD_CLUSTERS", "memory:dgx1-1=8x32768,dgx1-2=8x32768")

from controlplane.settings import *  # noqa: E402, F403  after the environment that they read

ALLOWED_HOSTS = [*ALLOWED_HOSTS, "testserver"]  # noqa: F405  the host of Django's test client

GIT_SOURCES = ["https://git.example.org/"]

PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.MD5PasswordHasher"
]  # 100 ms less for every user that a test makes

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):  # noqa: F405  from the product's settings
    # a file, as in the product: the shared-cache memory database locks whole tables between threads
    DATABASES["default"]["TEST"] = {"NAME": f"{_state.name}/test.sqlite3"}  # noqa: F405  the same
    IS_MIGRATED = lay_out(Path(_state.name, "test.sqlite3"))
else:
    IS_MIGRATED = ON_POSTGRES in os.environ
    if IS_MIGRATED:
        DATABASES["default"]["TEST"] = {"NAME": DATABASES["default"]["NAME"]}  # noqa: F405  from the product's settings
STATIC_ROOT.mkdir(parents=True, exist_ok=True)  # noqa: F405  whitenoise warns without it, and warnings are errors
