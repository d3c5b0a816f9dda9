"""Pages of scaling reports, which compare jobs of one program with different numbers of workers."""

from django.http import HttpRequest, HttpResponseBase

from controlplane.access import Actor, NotVisible
from dashboards.charts.scaling import CHARTS
from dashboards.pages.base_page import show, signed_in
from dashboards.pages.charts import answer, theme
from dashboards.reads import scaling_report as reads


@signed_in
def scaling_reports(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the list of reports, or the report of `?project=` and `?name=`. Raises NotVisible if the actor sees none
    of its jobs."""
    project, name = request.GET.get("project", ""), request.GET.get("name", "")
    if not name:
        context = {"reports": reads.reports(actor), "label": reads.LABEL}
        return show(request, actor, "dashboards/scaling_reports.html", context)
    runs, silent = reads.report_runs(actor, project, name)
    if not runs and not silent:
        raise NotVisible(f"There is no scaling report {name!r} in project {project!r}.")
    context = {
        "project": project,
        "name": name,
        "runs": runs,
        "silent": silent,
        "query": request.GET.urlencode(),
    }
    return show(request, actor, "dashboards/scaling_report.html", context)


@signed_in
def scaling_chart(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Return the chart `name` (a key of CHARTS) of a project's scaling report. Raises NotVisible for others."""
    if name not in CHARTS:
        raise NotVisible(f"There is no chart {name!r}.")
    runs, _silent = reads.report_runs(actor, request.GET.get("project", ""), request.GET.get("name", ""))
    return answer(CHARTS[name]([run.scaled.run for run in runs], theme(request)))
