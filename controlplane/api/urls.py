"""The control plane's REST routes below /api/v1/, and the routes that other apps declare in `api.urls`."""

from django.urls import include, path, re_path

from controlplane.api import lean_rest_framework  # noqa: F401  first, for its effect on the imports below
from controlplane.api.routing import route
from controlplane.api.views import accounts, clusters, departments, events, projects, schema
from controlplane.registration import app_modules

urlpatterns = [
    route("login", accounts.Login, "login"),
    route("whoami", accounts.Whoami, "whoami"),
    route("tokens", accounts.Tokens, "tokens"),
    route("tokens/<str:token_id>", accounts.TokenDetail, "token"),
    route("users", accounts.Users, "users"),
    route("users/<str:username>", accounts.UserDetail, "user"),
    route("clusters", clusters.Clusters, "clusters"),
    route("clusters/<str:name>", clusters.ClusterDetail, "cluster"),
    route("clusters/<str:name>/view", clusters.ClusterSchedulerView, "cluster-view"),
    route("clusters/<str:name>/check", clusters.ClusterCheck, "cluster-check"),
    route("node-pools", clusters.NodePools, "node-pools"),
    route("node-pools/<str:name>", clusters.NodePoolDetail, "node-pool"),
    route("nodes", clusters.Nodes, "nodes"),
    route("departments", departments.Departments, "departments"),
    route("departments/<str:name>", departments.DepartmentDetail, "department"),
    route("projects", projects.Projects, "projects"),
    route("projects/<str:name>", projects.ProjectDetail, "project"),
    route("projects/<str:name>/members", projects.Members, "members"),
    route("projects/<str:name>/members/<str:username>", projects.MemberDetail, "member"),
    *(path("", include(module)) for module in app_modules("api.urls") if module.__name__ != __name__),
    route("events", events.Events, "events"),
    route("audit", events.Audit, "audit"),
    route("openapi.json", schema.OpenApi, "openapi"),
    re_path(r"^(?P<rest>.*)$", schema.Nowhere.as_view(), name="nowhere"),
]
app_name = "api"
