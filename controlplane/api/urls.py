"""The control plane's REST routes below /api/v1/, and the routes that other apps declare in `api.urls`."""

from django.urls import include, path, re_path

from controlplane.api import lean_rest_framework  # noqa: F401  first, for its effect on the imports below
from controlplane.api.views import accounts, clusters, departments, events, projects, schema
from controlplane.registration import app_modules

urlpatterns = [
    path("login", accounts.Login.as_view(), name="login"),
    path("whoami", accounts.Whoami.as_view(), name="whoami"),
    path("tokens", accounts.Tokens.as_view(), name="tokens"),
    path("tokens/<str:token_id>", accounts.TokenDetail.as_view(), name="token"),
    path("users", accounts.Users.as_view(), name="users"),
    path("users/<str:username>", accounts.UserDetail.as_view(), name="user"),
    path("clusters", clusters.Clusters.as_view(), name="clusters"),
    path("clusters/<str:name>", clusters.ClusterDetail.as_view(), name="cluster"),
    path("clusters/<str:name>/view", clusters.ClusterSchedulerView.as_view(), name="cluster-view"),
    path("clusters/<str:name>/check", clusters.ClusterCheck.as_view(), name="cluster-check"),
    path("node-pools", clusters.NodePools.as_view(), name="node-pools"),
    path("node-pools/<str:name>", clusters.NodePoolDetail.as_view(), name="node-pool"),
    path("nodes", clusters.Nodes.as_view(), name="nodes"),
    path("departments", departments.Departments.as_view(), name="departments"),
    path("departments/<str:name>", departments.DepartmentDetail.as_view(), name="department"),
    path("projects", projects.Projects.as_view(), name="projects"),
    path("projects/<str:name>", projects.ProjectDetail.as_view(), name="project"),
    path("projects/<str:name>/members", projects.Members.as_view(), name="members"),
    path("projects/<str:name>/members/<str:username>", projects.MemberDetail.as_view(), name="member"),
    *(path("", include(module)) for module in app_modules("api.urls") if module.__name__ != __name__),
    path("events", events.Events.as_view(), name="events"),
    path("audit", events.Audit.as_view(), name="audit"),
    path("openapi.json", schema.OpenApi.as_view(), name="openapi"),
    re_path(r"^(?P<rest>.*)$", schema.Nowhere.as_view(), name="nowhere"),
]
app_name = "api"
