"""Routes of jobs, below /api/v1/."""

from django.urls import path

from jobs.api import images, jobs, nodes, reads, scaling, telemetry, what_if

urlpatterns = [
    path("nodes/<str:name>", nodes.NodeDetail.as_view(), name="node"),
    path("nodes/<str:name>/cordon", nodes.NodeCordon.as_view(), name="node-cordon"),
    path("nodes/<str:name>/uncordon", nodes.NodeUncordon.as_view(), name="node-uncordon"),
    path("nodes/<str:name>/drain", nodes.NodeDrain.as_view(), name="node-drain"),
    path(
        "nodes/<str:name>/interruption-notice",
        nodes.NodeInterruptionNotice.as_view(),
        name="node-interruption-notice",
    ),
    path("nodes/<str:name>/confirm-dead", nodes.NodeConfirmDead.as_view(), name="node-confirm-dead"),
    path("telemetry/overview", telemetry.Overview.as_view(), name="overview"),
    path("telemetry/series", telemetry.SeriesView.as_view(), name="series"),
    path("images", images.Images.as_view(), name="images"),
    path("jobs", jobs.Jobs.as_view(), name="jobs"),
    path("jobs/<str:job_id>", jobs.JobDetail.as_view(), name="job"),
    path("jobs/<str:job_id>/stop", jobs.JobStop.as_view(), name="job-stop"),
    path("jobs/<str:job_id>/suspend", jobs.JobSuspend.as_view(), name="job-suspend"),
    path("jobs/<str:job_id>/resume", jobs.JobResume.as_view(), name="job-resume"),
    path("jobs/<str:job_id>/clone", jobs.JobClone.as_view(), name="job-clone"),
    path("jobs/<str:job_id>/scale", scaling.JobScale.as_view(), name="job-scale"),
    path(
        "jobs/<str:job_id>/scale-operations",
        scaling.JobScaleOperations.as_view(),
        name="job-scale-operations",
    ),
    path("jobs/<str:job_id>/pods", reads.JobPods.as_view(), name="job-pods"),
    path("jobs/<str:job_id>/events", reads.JobEvents.as_view(), name="job-events"),
    path("jobs/<str:job_id>/logs", reads.JobLogs.as_view(), name="job-logs"),
    path("jobs/<str:job_id>/metrics", reads.JobMetrics.as_view(), name="job-metrics"),
    path("jobs/<str:job_id>/explain", reads.JobExplain.as_view(), name="job-explain"),
    path("jobs/<str:job_id>/spec", reads.JobSpec.as_view(), name="job-spec"),
    path("projects/<str:name>/jobs", jobs.ProjectJobs.as_view(), name="project-jobs"),
    path("projects/<str:name>/jobs/plan", jobs.ProjectJobPlan.as_view(), name="project-job-plan"),
    path("projects/<str:name>/what-if", what_if.ProjectWhatIf.as_view(), name="project-what-if"),
    path("projects/<str:name>/jobs/batch", jobs.ProjectJobBatch.as_view(), name="project-job-batch"),
]
