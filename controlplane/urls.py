"""The URL configuration: the REST API and the pages, and /metrics, which has a token of its own."""

from django.urls import include, path

from controlplane.http import metrics

urlpatterns = [
    path("metrics", metrics.metrics, name="metrics"),
    path("api/v1/", include("controlplane.api.urls")),
    path("", include("dashboards.urls")),
]
handler400 = "dashboards.pages.errors.bad_request"
handler403 = "dashboards.pages.errors.forbidden"
handler404 = "dashboards.pages.errors.not_found"
handler500 = "dashboards.pages.errors.server_error"
