"""One elastic training with all kinds of membership changes and failures, for test_elastic.py; prints the results
as JSON. A process of its own, since workers are forked from it."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import distributed

from tests.waiting import slowness
from workloads.common import elastic, membership
from workloads.elastic.launch import Crew
from workloads.elastic.train import main as train

ARGUMENTS = (
    "--samples",
    "96",
    "--work-ms",
    "0",
    "--checkpoint-steps",
    "0",
    "--policy",
    "linear_learning_rate",
)
RESIZES = 6


class Story:
    """The workers of one training, and waits that suit a machine of any speed."""

    def __init__(
        self, folder: Path, name: str, epochs: int, prepare: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare the training. `folder`: for its files; `prepare`: called in each worker before the training."""
        os.environ["TRAINYARD_CHECKPOINT_DIR"] = str(folder / name / "checkpoints")
        arguments = [*ARGUMENTS, "--epochs", str(epochs)]

        def work() -> int:
            prepare()
            return train(arguments) + 99 * ("torch._dynamo" in sys.modules)

        self.crew = Crew(folder / name, work)

    def until(self, is_so: Callable[[], bool]) -> None:
        self.crew.until(is_so, 30 * slowness())

    def switched(self) -> None:
        """Wait until all members train in the newest generation."""

        def is_so() -> bool:
            found = [self.crew.workers[number].status for number in self.crew.members]
            return all(
                one is not None
                and one.state == membership.TRAINING
                and one.generation == self.crew.generation
                for one in found
            )

        self.until(is_so)

    def grow(self, count: int) -> None:
        fresh = self.crew.start(count)
        self.until(lambda: self.crew.is_ready(fresh))
        self.crew.publish([*self.crew.members, *fresh])
        self.switched()

    def shrink_to(self, numbers: list[int]) -> None:
        leavers = set(self.crew.members) - set(numbers)
        self.crew.publish(numbers)
        self.switched()
        self.until(lambda: all(not self.crew.workers[number].is_alive for number in leavers))

    def lose(self, number: int) -> None:
        """Kill a member and wait until the others train without it."""
        before = self.crew.generation
        self.crew.kill(number)
        self.until(lambda: self.crew.generation > before)
        self.switched()

    def end(self) -> dict[str, Any]:
        """Stop the remaining workers as the control plane does; return each worker's last status and exit code."""
        for number in self.crew.members:
            self.crew.kill(number, signal.SIGTERM)
        self.until(lambda: all(not worker.is_alive for worker in self.crew.workers.values()))
        statuses = {
            number: json.loads((worker.folder / membership.STATUS).read_text())
            for number, worker in self.crew.workers.items()
        }
        codes = {number: worker.exit_code for number, worker in self.crew.workers.items()}
        return {"statuses": statuses, "exit_codes": codes}


def planned(folder: Path) -> dict[str, Any]:
    story, draw = Story(folder, "planned", 100_000), random.Random(7)
    try:
        story.grow(2)
        for _ in range(RESIZES):
            members = list(story.crew.members)
            if len(members) < 2 or (len(members) < 4 and draw.random() < 0.5):
                story.grow(draw.randint(1, 2))
            else:
                story.shrink_to(sorted(draw.sample(members, draw.randint(1, len(members) - 1))))
        return story.end()
    finally:
        story.crew.close()


def failures(folder: Path) -> dict[str, Any]:
    story = Story(folder, "failures", 100_000)
    try:
        story.grow(4)
        story.lose(0)  # hosts the store
        story.lose(2)
        story.grow(1)
        fresh = story.crew.start(1)  # a newcomer that dies before the generation that has it
        story.until(lambda: story.crew.is_ready(fresh))
        story.crew.kill(fresh[0])
        story.crew.publish([*story.crew.members, *fresh])
        story.until(lambda: story.crew.generation >= 6)
        story.switched()
        return story.end()
    finally:
        story.crew.close()


def stuck(folder: Path) -> dict[str, Any]:
    """Run the case in which a stopped member is declared lost, while the others' collective call waits for it.
    Return the results."""
    story = Story(folder, "stuck", 100_000)
    try:
        story.grow(3)
        story.crew.kill(2, signal.SIGSTOP)
        story.crew.publish([0, 1], is_loss=True)
        story.switched()
        story.crew.kill(2)
        return story.end()
    finally:
        story.crew.close()


def abandoned(folder: Path) -> dict[str, Any]:
    """Run the case in which a leaving member dies in the last step that needs it, while the others' collective
    call waits for it: the process is only stopped, and dead for its owner. Return the results."""
    story = Story(folder, "abandoned", 100_000)
    try:
        story.grow(3)
        story.crew.kill(2, signal.SIGSTOP)
        story.crew.publish([0, 1])
        # what its end looks like to the owner; its connections stay open, as they do where gloo misses their end
        story.crew.workers[2].exit_code = -signal.SIGKILL
        story.switched()
        story.crew.workers[2].exit_code = None
        story.crew.kill(2)
        return story.end()
    finally:
        story.crew.close()


def astray(folder: Path) -> dict[str, Any]:
    """Run the case in which a member of three cannot join a generation for which its peers wait: it reaches no
    store in generation 2, and leaves generation 4 when the others are in it, with open connections. Return the
    results."""
    story = Story(folder, "astray", 100_000, fail_to_join)
    try:
        story.grow(3)
        for _ in range(2):
            before = story.crew.generation
            story.crew.publish(story.crew.members)
            story.until(lambda before=before: story.crew.generation > before + 1)
            story.switched()
        return story.end()
    finally:
        story.crew.close()


def fail_to_join() -> None:
    """Let worker 1 fail to join generation 2 and generation 4, as on a machine or network that is too slow."""
    if os.environ["TRAINYARD_RANK"] != "1":
        return
    store_of, agree = elastic._Membered._store_of, elastic.World._agree_on_state
    failed, kept = set[int](), []

    def fail_in(generation: int, now: int) -> None:
        if now == generation and generation not in failed:
            failed.add(generation)
            raise OSError("timed out")

    def reach(self: elastic._Membered, member: membership.Member) -> object:
        fail_in(2, self._world.generation)
        return store_of(self, member)

    def agree_on_state(self: elastic.World) -> int:
        kept.append(distributed.distributed_c10d._get_default_group())
        fail_in(4, self.generation)
        return agree(self)

    elastic._Membered._store_of, elastic.World._agree_on_state = reach, agree_on_state


def whole(folder: Path) -> dict[str, Any]:
    """Run the case in which the training ends after its last epoch. Return the results."""
    story = Story(folder, "whole", 3)
    try:
        fresh = story.crew.start(3)
        story.until(lambda: story.crew.is_ready(fresh))
        story.crew.publish(fresh)
        story.until(lambda: all(not worker.is_alive for worker in story.crew.workers.values()))
        return story.end()
    finally:
        story.crew.close()


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["TRAINYARD_WORLD_SIZE"] = "2"
    json.dump(
        {story.__name__: story(folder) for story in (planned, failures, stuck, abandoned, astray, whole)},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
