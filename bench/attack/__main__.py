"""Measure the response times of another user during each attack; the goal is a p99 of 500 ms.

Starts an instance on a free port. Each attack runs for 30 s. Meanwhile a user of another project requests a list, a
page, /healthz and a service of a job ten times a second each, on new connections, and opens the live feed. The peer of
each row is the same without an attack.
Run: python -m bench.attack    (--seconds 5 for shorter attacks; names of attacks to run only these)
"""

import argparse
import json
import tempfile
from pathlib import Path

from bench.attack.attacks import ATTACKS
from bench.attack.plant import Plant, Samples, attack, measure, plant
from bench.harness import Row, quantile, report

SECONDS, CALM_SECONDS = 30.0, 10.0
LEAD_SECONDS = 1.0  # of an attack before the first sample, and after the last one
BAR_MS = 500.0
# Making the jobs and stopping them takes longer than most attacks, so they are made for the attack that lists them.
ON_CLONES, CLONES = "lists of large specs", 60


def main() -> None:
    """Measure without an attack, then during each attack, in one run."""
    parser = argparse.ArgumentParser(prog="python -m bench.attack")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("names", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        report("attack", run(Path(directory), options.names or list(ATTACKS), options.seconds))


def run(directory: Path, names: list[str], seconds: float, lead: float = LEAD_SECONDS) -> list[Row]:
    """Return a row for each attack. Each attack begins `lead` seconds before its samples and ends as long after
    them."""
    clones = CLONES if ON_CLONES in names else 0
    with plant(directory, clones) as made:
        # Not counted: the first requests load what the server loads on first use.
        measure(made, min(2.0, seconds))
        calm = measure(made, min(CALM_SECONDS, seconds))
        return [row(name, calm, *under_attack(made, name, seconds, lead)) for name in names]


def under_attack(made: Plant, name: str, seconds: float, lead: float) -> tuple[Samples, dict[str, int]]:
    """Run the attack `name` on the instance `made` for `seconds`, after it has run for `lead` seconds. Return the
    other user's samples of that time, and the numbers of answers that the attack got, by status."""
    with attack(made, name, seconds + 2 * lead) as attacking:
        measure(made, lead)
        samples = measure(made, seconds)
        output, _ = attacking.communicate(timeout=seconds + 120)
    answers: dict[str, int] = json.loads(output or b"{}")
    print(f"{name}: {answers}", flush=True)
    return samples, answers


def row(name: str, calm: Samples, samples: Samples, answers: dict[str, int]) -> Row:
    parts = [
        f"{part} {quantile(kept, 0.5):.0f}/{quantile(kept, 0.99):.0f}"
        for part, kept in samples.by_name.items()
    ]
    counted = ", ".join(f"{answer}: {count}" for answer, count in sorted(answers.items()))
    return Row(
        f"other users under {name}, p99",
        f"<= {BAR_MS:.0f} ms",
        "ms",
        samples.all,
        limit=BAR_MS,
        quantile=0.99,
        peer="no attack",
        peer_samples=calm.all,
        note=f"p50/p99 ms: {', '.join(parts)}; the attack got {counted}",
    )


if __name__ == "__main__":
    main()
