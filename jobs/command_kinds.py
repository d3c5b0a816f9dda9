"""Kinds of commands about jobs and their pods, and the subjects that they have."""

START_POD, STOP_POD, FORGET_POD, FORGET_JOB = "start_pod", "stop_pod", "forget_pod", "forget_job"
POD, JOB = "pod", "job"  # Command.subject_kind
