"""Work of the loop for data: remove code that no job needs."""

from controlplane.loop.steps import LoopStep
from datasets.actions.code_aging import remove_old_code

STEPS = (LoopStep("code-aging", remove_old_code, every_seconds=600),)
