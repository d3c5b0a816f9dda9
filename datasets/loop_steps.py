"""Work of the loop for data: remove code and content of datasets that nothing needs."""

from controlplane.loop.steps import LoopStep
from datasets.actions.code_aging import remove_old_code
from datasets.actions.lake_collection import collect_all_lakes
from datasets.actions.volume_care import measure_volumes

STEPS = (
    LoopStep("code-aging", remove_old_code, every_seconds=600),
    LoopStep("lake-collection", collect_all_lakes, every_seconds=3600),
    LoopStep("volume-measuring", measure_volumes, every_seconds=30),
)
