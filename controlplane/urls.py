"""Two trees: the REST API and the pages; the two probes, and metrics with a token of their own, need no sign-in."""

from django.urls import include, path

from controlplane import exposition, health

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", exposition.metrics, name="metrics"),
    path("api/v1/", include("controlplane.api.urls")),
    path("", include("dashboards.urls")),
]
handler400 = "dashboards.pages.errors.bad_request"
handler403 = "dashboards.pages.errors.forbidden"
handler404 = "dashboards.pages.errors.not_found"
handler500 = "dashboards.pages.errors.server_error"
