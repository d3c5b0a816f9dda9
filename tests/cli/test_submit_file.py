"""`yard submit --file`: many jobs from a file, in batches."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.commands.submit_file import BATCH_BYTES, batches
from tests.cli.conftest import job
from tests.cli.scripted import Reply, ScriptedServer, problem

BATCH = "projects/team-a/jobs/batch"
TWO = [{"name": "s1", "env": {"LR": "0.1"}}, {"name": "s2", "gpus": 2}]


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "sweep"
    path.write_text(text)
    return str(path)


def sweep(tmp_path: Path, count: int) -> str:
    return written(tmp_path, "".join(json.dumps({"name": f"s{number}"}) + "\n" for number in range(count)))


def accepted(*names: str) -> Reply:
    return Reply(201, {"results": [job(name) for name in names]})


def names(server: ScriptedServer) -> list[list[str]]:
    return [[body["name"] for body in asked.body["jobs"]] for asked in server.requests("POST", BATCH)]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(TWO),
        f"\n {json.dumps(TWO, indent=1)}\n",
        "".join(f"{json.dumps(one)}\n\n" for one in TWO),
        "\n".join(json.dumps(one, indent=2) for one in TWO),
        '- name: s1\n  env: {LR: "0.1"}\n- name: s2\n  gpus: 2\n',
    ],
    ids=["array", "array on lines", "JSON lines", "objects", "YAML"],
)
def test_jobs_are_read_from_each_form_and_told_as_one_is(server, yard, tmp_path, text):
    server.on("POST", BATCH, accepted("s1", "s2"))
    ran = yard("submit", "--file", written(tmp_path, text))
    assert ran.code == 0
    [asked] = server.asked
    assert asked.body == {"jobs": [{"kind": "train", **one} for one in TWO]}
    one, two = ran.out.splitlines()
    assert one == f"job s1 submitted to team-a as {job('s1')['id']}"
    assert two.startswith("job s2 ")
    assert ran.err == "2 of 2 jobs were submitted to team-a\n"


def test_options_are_for_the_fields_that_a_job_does_not_give(server, yard, tmp_path):
    text = json.dumps([*TWO, {"name": "s3", "kind": "mpi", "command": ["mpirun"], "workers": 2}])
    server.on("POST", BATCH, accepted("s1", "s2", "s3"))
    line = ["-f", written(tmp_path, text), "-g", "0.5", "-i", "quickstart", "--", "python", "train.py"]
    assert yard("submit", *line).code == 0
    shared = {"kind": "train", "gpus": 0.5, "image": "quickstart", "command": ["python", "train.py"]}
    third = {"name": "s3", "kind": "mpi", "command": ["mpirun"], "workers": 2}
    assert server.asked[0].body == {"jobs": [shared | TWO[0], shared | TWO[1], shared | third]}


def test_standard_input_is_a_file_too(server, yard, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(TWO)))
    server.on("POST", BATCH, accepted("s1", "s2"))
    assert yard("submit", "-f", "-", "--interactive").code == 0
    assert [body["kind"] for body in server.asked[0].body["jobs"]] == ["interactive", "interactive"]


def test_a_hundred_go_into_a_request_each_with_a_key_of_its_own(server, yard, tmp_path):
    server.on("POST", BATCH, accepted("a"), accepted("b"), accepted("c"))
    ran = yard("submit", "-f", sweep(tmp_path, 250), "-o", "json")
    assert ran.code == 0
    assert names(server) == [
        [f"s{number}" for number in each] for each in (range(100), range(100, 200), range(200, 250))
    ]
    assert len({asked.headers["Idempotency-Key"] for asked in server.asked}) == 3
    assert json.loads(ran.out) == {"results": [job("a"), job("b"), job("c")]}


def test_large_jobs_go_in_smaller_batches():
    large = [{"name": f"s{number}", "args": ["x" * 300_000]} for number in range(7)]
    made = list(batches([*large, {"name": "huge", "args": ["x" * 2_000_000]}, {"name": "last"}]))
    assert [len(batch) for batch in made] == [3, 3, 1, 1, 1]
    assert all(len(json.dumps(batch)) < BATCH_BYTES + 1000 for batch in made if batch[0]["name"] != "huge")


def test_what_was_accepted_before_a_refusal_is_told_and_stands(server, yard, tmp_path):
    errors = [
        {"pointer": "/jobs/3/gpus", "code": "out_of_range", "detail": "Too many."},
        {"pointer": "/jobs/4/env/1A", "code": "bad_name", "detail": "No name."},
    ]
    refusal = problem(400, "invalid", "Too many.; No name.", errors=errors)
    server.on("POST", BATCH, accepted(*(f"s{number}" for number in range(100))), refusal)
    ran = yard("submit", "-f", sweep(tmp_path, 250))
    assert ran.code == 2
    assert len(server.asked) == 2
    assert len(ran.out.splitlines()) == 100
    assert ran.err.splitlines() == [
        "100 of 250 jobs were submitted to team-a",
        "yard: refused (invalid)",
        "  s103.gpus: Too many.",
        "  s104.env.1A: No name.",
    ]


def test_data_of_what_was_accepted_before_a_refusal(server, yard, tmp_path):
    server.on("POST", BATCH, accepted("a"), problem(409, "queue_full", "It is full."))
    ran = yard("submit", "-f", sweep(tmp_path, 150), "-o", "json")
    assert ran.code == 5
    assert json.loads(ran.out) == {"results": [job("a")]}
    assert ran.err == "1 of 150 jobs were submitted to team-a\nyard: It is full. (queue_full)\n"
    server.on("POST", BATCH, problem(409, "queue_full", "It is full."))
    ran = yard("submit", "-f", sweep(tmp_path, 150), "-o", "json")
    assert (ran.out, ran.err.splitlines()[0]) == ("", "0 of 150 jobs were submitted to team-a")


def test_a_job_without_a_name_is_told_by_its_number(server, yard, tmp_path):
    errors = [{"pointer": "/jobs/1/name", "code": "required", "detail": "Give the job a name."}]
    server.on("POST", BATCH, accepted(*["s"] * 100), problem(400, "required", "Name.", errors=errors))
    lines = "".join(json.dumps({"name": f"s{number}"}) + "\n" for number in range(101)) + '{"gpus": 1}\n'
    assert "  job 102.name: Give the job a name." in yard("submit", "-f", written(tmp_path, lines)).err


def test_an_answer_that_is_lost_leaves_open_whether_those_jobs_are_there(server, yard, tmp_path):
    server.on("POST", BATCH, accepted(*["s"] * 100), Reply(is_cut=True))
    ran = yard("submit", "-f", sweep(tmp_path, 150))
    assert ran.code == 6
    assert "100 of 150 jobs were submitted" in ran.err
    assert "the next 50 may have been submitted" in ran.err


def test_ones_own_key_is_kept_by_what_is_the_same_and_not_by_what_was_corrected(server, yard, tmp_path):
    server.on("POST", BATCH, accepted("s"))
    for count in (150, 150, 151):
        assert yard("submit", "-f", sweep(tmp_path, count), "--idempotency-key", "nightly").code == 0
    keys = [asked.headers["Idempotency-Key"] for asked in server.asked]
    assert all(key.startswith("nightly-") for key in keys)
    assert keys[0] == keys[2] == keys[4]
    assert keys[1] == keys[3]
    assert len(set(keys)) == 3


def test_a_dry_run_of_many_creates_nothing_and_says_so(server, yard, tmp_path):
    server.on("POST", BATCH, Reply(200, {"results": [job("s1"), job("s2")]}))
    ran = yard("submit", "-f", written(tmp_path, json.dumps(TWO)), "--dry-run")
    assert server.asked[0].query == {"dry_run": "true"}
    assert ran.out == "2 of 2 jobs would be accepted by team-a (nothing was created)\n"
    assert ran.err == ""


def test_a_warning_that_many_jobs_have_is_told_once(server, yard, tmp_path):
    warned = [job(name) | {"warnings": ["mine:1 is not in the catalogue."]} for name in ("s1", "s2")]
    server.on("POST", BATCH, Reply(201, {"results": warned}))
    assert yard("submit", "-f", written(tmp_path, json.dumps(TWO))).err.count("warning: mine:1") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a list of jobs"),
        ("[]", "is not a list of jobs"),
        ("just words", "is not a list of jobs"),
        ('["s1"]', "is not a list of jobs"),
        ("jobs:\n- name: s1\n", "is not a list of jobs"),
        ('[{"name": "s1"}', "cannot be read"),
        ('{"name": "s1"}\n{"name": }\n', "line 2"),
        ("- a: [\n", "cannot be read"),
        ("- &a\n  b: *a\n", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_what_is_no_list_of_jobs_is_refused_before_anything_is_sent(server, yard, tmp_path, text, said):
    ran = yard("submit", "-f", written(tmp_path, text))
    assert (ran.code, said in ran.err, server.asked) == (2, True, []), ran.err


def test_a_date_in_yaml_is_the_text_that_it_was(server, yard, tmp_path):
    server.on("POST", BATCH, accepted("s1"))
    yard("submit", "-f", written(tmp_path, "- name: s1\n  env: {DAY: 2026-01-31}\n"))
    assert server.asked[0].body["jobs"][0]["env"] == {"DAY": "2026-01-31"}


@pytest.mark.parametrize("words", [["s1"], ["--wait"], ["--logs"]])
def test_what_is_for_one_job_is_not_for_many(server, yard, tmp_path, words: list[Any]):
    ran = yard("submit", *words, "-f", sweep(tmp_path, 2))
    assert (ran.code, server.asked) == (2, [])
    assert "are for one job, and --file for many" in ran.err


def test_a_file_that_is_not_there(server, yard):
    ran = yard("submit", "-f", "/nowhere/sweep.jsonl")
    assert (ran.code, "/nowhere/sweep.jsonl cannot be read" in ran.err) == (2, True)
