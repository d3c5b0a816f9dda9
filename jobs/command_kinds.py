"""Names of the commands about jobs and pods, and of their subject kinds."""

START_POD, STOP_POD, FORGET_POD, FORGET_JOB = "start_pod", "stop_pod", "forget_pod", "forget_job"
POD, JOB = "pod", "job"  # Command.subject_kind
