"""The dashboard's numbers for automation."""

from controlplane.access import visible_project_ids
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.schemas import ref
from controlplane.live.reading import one_moment
from controlplane.live.state import overview_document, read_overview
from controlplane.models import Event


class Overview(ApiView):
    """What the overview page shows, as of one event number."""

    @operation(
        "The cluster in numbers: nodes, GPUs, projects, running and queued jobs", answer=ref("Overview")
    )
    def get(self, call: Call) -> Answer:
        with one_moment():
            seq = Event.objects.last_seq()
            whole = read_overview(seq)
            state = whole.seen_by(visible_project_ids(call.actor))
        return Answer(overview_document(state, seq))
