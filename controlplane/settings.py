"""Django settings, read from environment variables only; controlplane/config/environment.py lists the variables."""

import os
import secrets
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlsplit

from controlplane.config import environment as env
from controlplane.config.service_hosts import services_host
from controlplane.config.state_files import make_private
from controlplane.engines.kinds import engine_kinds
from datasets.git_source import SCHEMES as GIT_SCHEMES
from datasets.storage.bucket_config import bucket_config
from datasets.storage.classes import storage_classes

BASE_DIR = Path(__file__).resolve().parent.parent
STATE_DIR = (BASE_DIR / env.text(os.environ, "TRAINYARD_STATE_DIR")).resolve()
LOG_DIR = STATE_DIR / "logs"  # pods' logs: <job>/<attempt>-<rank>.log
# Also sets the umask; every process of the control plane imports this file.
make_private(STATE_DIR)


def _secret_key() -> str:
    """Return the secret key from `secret.key` in STATE_DIR, created with mode 0600 on first use. Safe against
    processes that start at the same time, which all get the same key, and against kills, which leave no empty file."""
    path = STATE_DIR / "secret.key"
    if not path.exists():
        # NamedTemporaryFile creates the file with mode 0600, since no other user may read the key.
        with NamedTemporaryFile("w", dir=STATE_DIR, prefix=".key-") as file:
            file.write(secrets.token_urlsafe(48))
            file.flush()
            os.fsync(file.fileno())
            # If another process was first, the link is refused and its key is used.
            with suppress(FileExistsError):
                os.link(file.name, path)
    return path.read_text().strip()


SECRET_KEY = env.text(os.environ, "TRAINYARD_SECRET_KEY") or _secret_key()
SECRET_KEY_FALLBACKS = env.items(os.environ, "TRAINYARD_SECRET_KEY_FALLBACKS")
DEBUG = False

HOST = env.text(os.environ, "TRAINYARD_HOST")
PORT = env.integer(os.environ, "TRAINYARD_PORT", 1, 65535)
# "" if it is not set.
STATED_URL = env.text(os.environ, "TRAINYARD_PUBLIC_URL").rstrip("/")
PUBLIC_URL = STATED_URL or f"http://{HOST}:{PORT}"
CONNECTIONS = env.integer(os.environ, "TRAINYARD_CONNECTIONS", 64, 100_000)
CONNECTIONS_PER_ADDRESS = env.integer(os.environ, "TRAINYARD_CONNECTIONS_PER_ADDRESS", 0, 100_000)
TRUSTED_PROXIES = env.networks(os.environ, "TRAINYARD_TRUSTED_PROXIES")
SERVICES = services_host(env.text(os.environ, "TRAINYARD_SERVICES_HOST"), PUBLIC_URL, PORT)
ALLOW_REMOTE = env.switch(os.environ, "TRAINYARD_ALLOW_REMOTE")
ALLOW_KUBECONFIG_EXEC = env.switch(os.environ, "TRAINYARD_ALLOW_KUBECONFIG_EXEC")
MIN_RUNTIME_SECONDS = env.integer(os.environ, "TRAINYARD_MIN_RUNTIME_SECONDS", 0, 31_536_000)
QUEUE_ORDER = env.choice(os.environ, "TRAINYARD_QUEUE_ORDER", ("submission", "shortest"))
GANG_AGEING_SECONDS = env.integer(os.environ, "TRAINYARD_GANG_AGEING_SECONDS", 0, 31_536_000)
REQUEUE_RANK_SECONDS = env.integer_or(os.environ, "TRAINYARD_REQUEUE_RANK", "submission", 0, 2_592_000)
USAGE_HALF_LIFE = timedelta(hours=env.integer(os.environ, "TRAINYARD_USAGE_HALF_LIFE_HOURS", 0, 2160))
PLACEMENT = env.choice(os.environ, "TRAINYARD_PLACEMENT", ("packed", "fragmentation"))
CODE_MOST_BYTES = env.integer(os.environ, "TRAINYARD_CODE_MOST_MIB", 1, 10_000) << 20
CODE_KEEP_DAYS = env.integer(os.environ, "TRAINYARD_CODE_KEEP_DAYS", 1, 3650)
ARTIFACT_MOST_BYTES = env.integer(os.environ, "TRAINYARD_ARTIFACT_MOST_GIB", 1, 100_000) << 30
try:
    # None: contents are stored in LAKE_DIR too.
    LAKE_BUCKET = bucket_config(
        env.text(os.environ, "TRAINYARD_LAKE"),
        env.text(os.environ, "TRAINYARD_S3_ENDPOINT"),
        env.text(os.environ, "TRAINYARD_S3_REGION"),
        env.text(os.environ, "TRAINYARD_S3_CREDENTIALS"),
        os.environ,
    )
except ValueError as error:
    raise env.SettingInvalid(str(error)) from error
LAKE_MAY_BE_INSIDE = env.switch(os.environ, "TRAINYARD_S3_ALLOW_PRIVATE")
LAKE_DIR = (STATE_DIR / env.text(os.environ, "TRAINYARD_LAKE_DIR")).resolve()  # contents of datasets
try:
    STORAGE_CLASSES = storage_classes(env.json_object(os.environ, "TRAINYARD_STORAGE_CLASSES"), STATE_DIR)
except ValueError as error:
    raise env.SettingInvalid(f"TRAINYARD_STORAGE_CLASSES: {error}") from error
CACHE_DIR = (STATE_DIR / env.text(os.environ, "TRAINYARD_CACHE_DIR")).resolve()  # versions beside the GPUs
GIT_SOURCES = env.url_prefixes(os.environ, "TRAINYARD_GIT_SOURCES", GIT_SCHEMES)
HOST_PATHS = env.items(os.environ, "TRAINYARD_HOST_PATHS")
DATASET_SOURCES = env.items(os.environ, "TRAINYARD_DATASET_SOURCES")
BOOTSTRAP_TOKEN = env.text(os.environ, "TRAINYARD_BOOTSTRAP_TOKEN")
CLUSTERS = env.text(os.environ, "TRAINYARD_CLUSTERS")
# Scheduler and settings for the clusters that are registered at the first start, by engine.
CLUSTER_PRESETS = {
    kind.name: env.json_object(os.environ, kind.variable) for kind in engine_kinds().values() if kind.variable
}
METRICS_TOKEN = env.text(os.environ, "TRAINYARD_METRICS_TOKEN")
REDIS_URL = env.text(os.environ, "TRAINYARD_REDIS_URL") or f"redis+socket://{STATE_DIR}/redis/redis.sock"
LOG_LEVEL = env.choice(os.environ, "TRAINYARD_LOG_LEVEL", ("debug", "info", "warning", "error")).upper()

ALLOWED_HOSTS = [
    "127.0.0.1",
    "localhost",
    "[::1]",
    HOST,
    urlsplit(PUBLIC_URL).hostname or HOST,
    *env.items(os.environ, "TRAINYARD_ALLOWED_HOSTS"),
]
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "channels",
    "controlplane.apps.ControlplaneConfig",
    "jobs.apps.JobsConfig",
    "datasets.apps.DatasetsConfig",
    "dashboards.apps.DashboardsConfig",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "controlplane.http.csp.ContentSecurityPolicyMiddleware",
    "controlplane.http.reject_nul.RejectNulMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "controlplane.http.request_user.RequestUserMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

DATABASES = {"default": env.database(env.text(os.environ, "DATABASE_URL"), STATE_DIR)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "controlplane.User"
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
]
LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
CSRF_FAILURE_VIEW = "dashboards.pages.errors.csrf_failure"
SESSION_COOKIE_AGE = 12 * 3600
# Names of our own, so that our cookies are not confused with those of a job's page. The prefix binds a cookie to
# this host; without it, a job's page on a sibling host could set a cookie for both.
COOKIE_PREFIX = "__Host-" if PUBLIC_URL.startswith("https://") else ""
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = f"{COOKIE_PREFIX}yard_session", f"{COOKIE_PREFIX}yard_csrf"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PUBLIC_URL.startswith("https://")
# Not HttpOnly, because the pages' own scripts read this cookie and send it back in a header.
CSRF_COOKIE_HTTPONLY = False
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# Bodies up to 1 MiB are accepted; larger ones get 413.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English")]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = STATE_DIR / "static"
# Also applies to collected static files, which would otherwise be readable for all users of the machine.
FILE_UPLOAD_PERMISSIONS = 0o600
# Only our own pages, none of a package.
STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
WHITENOISE_USE_FINDERS = False
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.api.auth.TokenAuthentication",
        "controlplane.api.auth.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["controlplane.api.parsers.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["controlplane.api.renderers.OrjsonRenderer"],
    "DEFAULT_SCHEMA_CLASS": "controlplane.api.openapi.RouteSchema",
    "EXCEPTION_HANDLER": "controlplane.api.errors.problem_handler",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Trainyard",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "OAS_VERSION": "3.1.0",
}

BELL_LOGGERS = ("celery.beat", "celery.worker.strategy", "celery.app.trace")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "controlplane.config.log_filters.RedactingFormatter",
            "format": "{asctime} {levelname} {name} {message}",
            "style": "{",
        }
    },
    "filters": {"client_faults": {"()": "controlplane.config.log_filters.ClientFaultFilter"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["client_faults"]}
    },
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        # Celery logs three lines for every wake-up, which would hide everything else.
        **{name: {"level": "WARNING" if LOG_LEVEL == "INFO" else LOG_LEVEL} for name in BELL_LOGGERS},
    },
}
