"""Time series: utilisation, allocation, queue lengths."""

from django.db import models


class Sample(models.Model):
    """A metric of one subject over `step_seconds` from `at`: `minimum`, `maximum`, and `total` of `count`
    measurements. `step_seconds` 0: a change point, whose value holds until the subject's next one; allocation is
    stored so, because it must be exact over any range."""

    metric = models.CharField(max_length=32)
    # The kind of subject: cluster, project, node, device or job.
    by = models.CharField(max_length=16)
    subject = models.CharField(max_length=80)
    step_seconds = models.PositiveIntegerField()
    at = models.DateTimeField()
    minimum = models.FloatField()
    maximum = models.FloatField()
    total = models.FloatField()
    count = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["metric", "by", "subject", "step_seconds", "at"], name="sample_once"
            )
        ]
        indexes = [models.Index(fields=["step_seconds", "at"], name="sample_age")]
