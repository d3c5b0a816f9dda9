"""REST framework without the packages that it imports for features that no route uses: an HTTP client for its tests,
PostgreSQL's driver, YAML and a highlighter. They take a tenth of the web process's start, and 10 MB of its memory.

Imported before any other module imports REST framework; otherwise without effect.
"""

from controlplane.config.optional_packages import without

with without("requests", "django.contrib.postgres", "pygments", "yaml"):
    import rest_framework.compat  # noqa: F401  for its effect
