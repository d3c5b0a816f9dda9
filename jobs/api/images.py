"""Images that a job can name."""

from controlplane.api.json_schema import ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from jobs.access import visible_jobs
from jobs.images import known_images


class Images(ApiView):
    """The image catalogue, and images that ran in visible projects."""

    @operation("List images to submit with", answer=ref("Images"))
    def get(self, call: Call) -> Answer:
        names = known_images(visible_jobs(call.actor))
        return Answer({"results": [{"name": name} for name in names], "next": None, "previous": None})
