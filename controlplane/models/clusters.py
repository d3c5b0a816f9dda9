"""Clusters, their node pools, nodes and devices."""

from django.db import models
from django.utils import timezone


class Cluster(models.Model):
    """A cluster: an engine with nodes. `engine` names a kind in engines.kinds, `scheduler` one that it offers, and
    `settings` are those for engines.registry.open_engine. `credentials` is encrypted
    (controlplane.clusters.credentials).

    `state`: `checking` until the preflight's result, then `attached` or `refused`; without a preflight `attached`.
    The loop serves attached clusters only. `checks`: that result, [{"name", "outcome": "ok" | "warning" | "failed",
    "message", "without_it"}].
    """

    CHECKING, ATTACHED, REFUSED = "checking", "attached", "refused"
    STATES = (CHECKING, ATTACHED, REFUSED)

    name = models.CharField(max_length=50)
    engine = models.CharField(max_length=16)
    scheduler = models.CharField(max_length=16, default="planner")
    settings = models.JSONField(default=dict)
    credentials = models.TextField(blank=True, default="")
    state = models.CharField(max_length=8, default=ATTACHED)
    checks = models.JSONField(default=list)
    checked_at = models.DateTimeField(null=True)
    # Overrides TRAINYARD_USAGE_HALF_LIFE_HOURS; 0: past use does not count.
    usage_half_life_hours = models.PositiveSmallIntegerField(null=True)
    is_reachable = models.BooleanField(default=True)
    unreachable_message = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    detached_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            # The name of a detached cluster can be used again.
            models.UniqueConstraint(
                fields=["name"], condition=models.Q(detached_at=None), name="cluster_name_attached"
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=["checking", "attached", "refused"]), name="cluster_state_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def has_found(self, name: str) -> bool:
        """Return whether the check `name` of the last preflight succeeded; False if there was no such check."""
        return any(check["name"] == name and check["outcome"] == "ok" for check in self.checks)

    def names_found(self, name: str) -> list[str]:
        """Return the names that the check `name` of the last preflight found, such as storage classes; [] if there
        was no such check."""
        return next((list(check.get("found", ())) for check in self.checks if check["name"] == name), [])


# The labels and values by which clouds and autoscalers mark spot nodes.
SPOT_LABELS = frozenset(
    {
        ("karpenter.sh/capacity-type", "spot"),
        ("eks.amazonaws.com/capacityType", "SPOT"),
        ("cloud.google.com/gke-spot", "true"),
        ("cloud.google.com/gke-preemptible", "true"),
        ("kubernetes.azure.com/scalesetpriority", "spot"),
    }
)


class NodePool(models.Model):
    """A named group of a cluster's nodes that projects and jobs can be restricted to. `is_spot`: the provider may
    take its nodes away at any time."""

    cluster = models.ForeignKey(Cluster, models.CASCADE, related_name="pools")
    name = models.CharField(max_length=50)
    is_spot = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="node_pool_name")]


class Node(models.Model):
    """A machine that runs pods. A cordoned node keeps its pods and gets no new ones."""

    cluster = models.ForeignKey(Cluster, models.CASCADE, related_name="nodes")
    pool = models.ForeignKey(NodePool, models.SET_NULL, null=True, related_name="nodes")
    name = models.CharField(max_length=253, unique=True)
    milli_cpus = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    # The other resources that pods may use, by the cluster's names: total amounts in whole units.
    extras = models.JSONField(default=dict)
    labels = models.JSONField(default=dict)
    is_ready = models.BooleanField(default=True)
    is_cordoned = models.BooleanField(default=False)
    # Whether its own cluster places no new pods on it.
    is_closed = models.BooleanField(default=False)
    # When its provider takes it away, by an interruption notice, and who gave the notice; "" means its own cluster.
    interruption_at = models.DateTimeField(null=True)
    interruption_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    # Why the engine reports it as not ready or closed.
    message = models.CharField(max_length=500, blank=True, default="")
    seen_at = models.DateTimeField(default=timezone.now)
    # In how many parts each GPU is assigned (1,000: any share, 1: whole only), and whether a pod gets at most one
    # part.
    device_parts = models.PositiveSmallIntegerField(default=1000)
    is_one_part_per_pod = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.name

    @property
    def is_open(self) -> bool:
        """Return whether the node may get new pods when it is ready: it is cordoned neither in Trainyard nor in its
        cluster."""
        return not (self.is_cordoned or self.is_closed)

    @property
    def is_spot(self) -> bool:
        """Return whether the provider may take the node away at any time, by its labels or its pool. Load `pool` with
        the node to save a query."""
        has_label = any(self.labels.get(name) == value for name, value in SPOT_LABELS)
        return has_label or (self.pool is not None and self.pool.is_spot)


class PresentDevices(models.Manager["Device"]):
    """Selects only the devices that the engine still reports."""

    def get_queryset(self) -> models.QuerySet["Device"]:
        return super().get_queryset().filter(is_present=True)


class Device(models.Model):
    """One GPU of a node. Database triggers on Allocation maintain `allocated_milli` (milli-GPUs); its check
    constraint refuses more than the whole device."""

    node = models.ForeignKey(Node, models.CASCADE, related_name="devices")
    index = models.PositiveSmallIntegerField()
    uuid = models.CharField(max_length=64, blank=True, default="")
    model = models.CharField(max_length=100, blank=True, default="")
    memory_mib = models.PositiveIntegerField(default=0)
    allocated_milli = models.IntegerField(default=0)
    utilization = models.FloatField(null=True)  # 0..1, last measured
    memory_used_mib = models.PositiveIntegerField(null=True)
    # When utilisation was last above zero, accurate to some seconds, so that a busy device is not written with each
    # measurement.
    busy_at = models.DateTimeField(null=True)
    # False if the engine no longer reports it; the row is kept for history.
    is_present = models.BooleanField(default=True)

    # Whether a pod outside Trainyard holds it: nothing of ours is then placed on it.
    is_foreign = models.BooleanField(default=False)

    objects = PresentDevices()
    all_objects = models.Manager["Device"]()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "index"], name="device_index"),
            models.CheckConstraint(
                condition=models.Q(allocated_milli__gte=0, allocated_milli__lte=1000),
                name="device_never_double_booked",
            ),
        ]
