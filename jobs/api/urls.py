"""Routes of jobs, below /api/v1/."""

from controlplane.api.routing import route
from jobs.api import images, jobs, nodes, reads, scaling, telemetry, what_if

urlpatterns = [
    route("nodes/<str:name>", nodes.NodeDetail, "node"),
    route("nodes/<str:name>/cordon", nodes.NodeCordon, "node-cordon"),
    route("nodes/<str:name>/uncordon", nodes.NodeUncordon, "node-uncordon"),
    route("nodes/<str:name>/drain", nodes.NodeDrain, "node-drain"),
    route("nodes/<str:name>/interruption-notice", nodes.NodeInterruptionNotice, "node-interruption-notice"),
    route("nodes/<str:name>/confirm-dead", nodes.NodeConfirmDead, "node-confirm-dead"),
    route("telemetry/overview", telemetry.Overview, "overview"),
    route("telemetry/series", telemetry.SeriesView, "series"),
    route("images", images.Images, "images"),
    route("jobs", jobs.Jobs, "jobs"),
    route("jobs/<str:job_id>", jobs.JobDetail, "job"),
    route("jobs/<str:job_id>/stop", jobs.JobStop, "job-stop"),
    route("jobs/<str:job_id>/suspend", jobs.JobSuspend, "job-suspend"),
    route("jobs/<str:job_id>/resume", jobs.JobResume, "job-resume"),
    route("jobs/<str:job_id>/clone", jobs.JobClone, "job-clone"),
    route("jobs/<str:job_id>/scale", scaling.JobScale, "job-scale"),
    route("jobs/<str:job_id>/scale-operations", scaling.JobScaleOperations, "job-scale-operations"),
    route("jobs/<str:job_id>/pods", reads.JobPods, "job-pods"),
    route("jobs/<str:job_id>/events", reads.JobEvents, "job-events"),
    route("jobs/<str:job_id>/logs", reads.JobLogs, "job-logs"),
    route("jobs/<str:job_id>/metrics", reads.JobMetrics, "job-metrics"),
    route("jobs/<str:job_id>/explain", reads.JobExplain, "job-explain"),
    route("jobs/<str:job_id>/spec", reads.JobSpec, "job-spec"),
    route("projects/<str:name>/jobs", jobs.ProjectJobs, "project-jobs"),
    route("projects/<str:name>/jobs/plan", jobs.ProjectJobPlan, "project-job-plan"),
    route("projects/<str:name>/what-if", what_if.ProjectWhatIf, "project-what-if"),
    route("projects/<str:name>/jobs/batch", jobs.ProjectJobBatch, "project-job-batch"),
]
