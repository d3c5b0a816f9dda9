"""URL routes of the pages: those of this app, and those that other apps declare in `pages.urls`."""

from django.urls import include, path, re_path

from controlplane.registration import app_modules
from dashboards.pages import (
    analytics,
    audit,
    auth,
    charts,
    clusters,
    job_form,
    jobs,
    nav_counts,
    nodes,
    overview,
    projects,
    scaling,
    scaling_report,
    search,
    selected,
    users,
)

NODE = r"(?P<name>[^/]+)"
NODE_VERBS = "cordon|uncordon|drain|interrupt|confirm-dead"
JOB_VERBS = "stop|suspend|resume|delete|retry"
USER_VERBS = "lock|unlock|promote|demote|password"

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("jobs", jobs.job_list, name="jobs"),
    path("new/job", job_form.job_new, name="job-new"),
    path("new/job/plan", job_form.job_plan, name="job-plan"),
    path("new/job/preview.json", job_form.job_preview, name="job-preview"),
    path("jobs/selected", selected.jobs_selected, name="jobs-selected"),
    path("jobs/<str:job_id>", jobs.job_page, name="job"),
    path("jobs/<str:job_id>/outlook", jobs.job_outlook, name="job-outlook"),
    path("jobs/<str:job_id>/log.txt", jobs.job_log, name="job-log"),
    path("jobs/<str:job_id>/log-index.json", jobs.job_log_index, name="job-log-index"),
    re_path(rf"^jobs/(?P<job_id>[^/]+)/do/(?P<verb>{JOB_VERBS})$", jobs.job_verb, name="job-verb"),
    path("jobs/<str:job_id>/scale", scaling.job_scale, name="job-scale"),
    # A separate route, because only members may use it.
    path("jobs/<str:job_id>/terminal", jobs.job_page, {"tab": "terminal"}, name="job-terminal"),
    path("jobs/<str:job_id>/<str:tab>", jobs.job_page, name="job-tab"),
    path("projects", projects.project_list, name="projects"),
    path("new/project", projects.project_new, name="project-new"),
    path("projects/<str:name>", projects.project_page, name="project"),
    path("projects/<str:name>/edit", projects.project_edit, name="project-edit"),
    path("projects/<str:name>/what-if", projects.project_what_if, name="project-what-if"),
    path("projects/<str:name>/delete", projects.project_delete, name="project-delete"),
    path("projects/<str:name>/members/set", projects.member_set, name="member-set"),
    path("projects/<str:name>/members/suggest.json", projects.member_suggest, name="member-suggest"),
    path("projects/<str:name>/members/remove", projects.member_remove, name="member-remove"),
    path("nodes", nodes.node_list, name="nodes"),
    path("nodes/<str:name>", nodes.node_page, name="node"),
    path("nodes/<str:name>/card", nodes.node_card, name="node-card"),
    re_path(rf"^nodes/{NODE}/do/(?P<verb>{NODE_VERBS})$", nodes.node_verb, name="node-verb"),
    path("clusters", clusters.cluster_list, name="clusters"),
    path("new/cluster", clusters.cluster_new, name="cluster-new"),
    path("clusters/<str:name>", clusters.cluster_page, name="cluster"),
    path("clusters/<str:name>/edit", clusters.cluster_edit, name="cluster-edit"),
    re_path(
        r"^clusters/(?P<name>[^/]+)/do/(?P<verb>check|detach)$", clusters.cluster_verb, name="cluster-verb"
    ),
    path("users", users.user_list, name="users"),
    path("users/<str:username>", users.user_page, name="user"),
    re_path(rf"^users/(?P<username>[^/]+)/do/(?P<verb>{USER_VERBS})$", users.user_verb, name="user-verb"),
    path("audit", audit.audit, name="audit"),
    path("tokens", users.token_list, name="tokens"),
    path("tokens/<int:token_id>/revoke", users.token_revoke, name="token-revoke"),
    path("analytics", analytics.analytics, name="analytics"),
    path("scaling-reports", scaling_report.scaling_reports, name="scaling-reports"),
    path("charts/scaling/<str:name>.json", scaling_report.scaling_chart, name="chart-scaling"),
    path("analytics.csv", analytics.analytics_csv, name="analytics-csv"),
    path("charts/utilisation.json", charts.utilisation, name="chart-utilisation"),
    path("charts/allocation.json", charts.allocation, name="chart-allocation"),
    path("charts/projects/<str:name>/allocation.json", charts.project_quota, name="chart-project"),
    re_path(
        rf"^charts/nodes/{NODE}/(?P<metric>utilisation|memory)\.json$", charts.node_use, name="chart-node"
    ),
    path("charts/jobs/<str:job_id>/<str:name>.json", charts.job_curve, name="chart-job"),
    path("charts/analytics/<str:name>.json", analytics.analytics_chart, name="chart-analytics"),
    re_path(r"^charts/template/(?P<theme>light|dark)\.json$", charts.template, name="chart-template"),
    path("counts.json", nav_counts.counts, name="counts"),
    path("search.json", search.search, name="search"),
    path("login", auth.sign_in, name="login"),
    path("logout", auth.sign_out, name="logout"),
    path("setup/<str:secret>", auth.set_up, name="setup"),
    *(path("", include(module)) for module in app_modules("pages.urls")),
]
