"""Command lines of the systems that Trainyard replaces, in the spellings that their manuals use."""

import shlex

import pytest

from controlplane.cli import registry
from controlplane.cli.__main__ import build_parser
from controlplane.cli.aliases import ALIASES, rewrite
from tests.cli.conftest import job
from tests.cli.scripted import page

SIZES = "--gpus=1 --workers=3 --max-workers=9 --min-workers=1"
LINES = [
    ("project set team-a", "config project team-a"),
    ("project list", "list projects"),
    ("list", "list jobs"),
    ("list -A", "list jobs -A"),
    ("list jobs", "list jobs"),
    ("get hyper1", "describe job hyper1"),
    ("describe job hyper1", "describe job hyper1"),
    ("describe hyper1 -o yaml", "describe job hyper1 -o yaml"),
    ("describe node dgx1-1", "describe node dgx1-1"),
    ("submit --name hyper1 --image quickstart --gpu 1", "submit hyper1 --image quickstart --gpus 1"),
    ("submit hyper1 -i quickstart -g 1", "submit hyper1 -i quickstart -g 1"),
    ("submit -i quickstart -g 1 --name=hyper1", "submit hyper1 -i quickstart -g 1"),
    (
        "submit --name j --image i --gpu=1 --command python --args train.py --args --lr=1",
        "submit j --image i --gpus=1 --command python --args train.py --args --lr=1",
    ),
    ("submit --name j --image i -v /data:/data --local-image", "submit j --image i -v /data:/data"),
    ("submit-mpi --name dist --processes=3 --gpu 1 -i i", "submit-mpi dist --processes=3 --gpus 1 -i i"),
    ("submit mpijob --name=dist --workers=3 --image=i", "submit-mpi dist --processes=3 --image=i"),
    ("logs hyper1 -t 10", "logs hyper1 -t 10"),
    ("logs hyper1 --tail 10", "logs hyper1 --tail 10"),
    (
        f'submit etjob --name=el {SIZES} --working-dir=/w "python t.py $workers"',
        f'submit-elastic el {SIZES} --working-dir=/w -- sh -c "python t.py $workers"',
    ),
    ("submit etjob --name=el --workers=3 run.sh", "submit-elastic el --workers=3 -- sh -c run.sh"),
    ("submit etjob --name el --workers 3", "submit-elastic el --workers 3"),
    ("scaleout etjob --name=el --count=1 --timeout=10m", "scaleout el --count=1 --timeout=10m"),
    ("scalein etjob --name el --count 1", "scalein el --count 1"),
    ("top node", "top nodes"),
    ("top job", "top jobs"),
    ("job list -A", "list jobs -A"),
    ("list token", "list tokens"),
    ("user list", "list users"),
    ("describe jobs hyper1", "describe job hyper1"),
    ("describe projects team-a", "describe project team-a"),
    ("node describe dgx1-1", "describe node dgx1-1"),
    ("describe list", "describe job list"),
    ("delete job hyper1", "delete hyper1"),
    ("logs job hyper1 -f", "logs hyper1 -f"),
    ("stop job", "stop job"),
    ("get job hyper1", "describe job hyper1"),
    ("delete hyper1", "delete hyper1"),
    ("bash hyper1", "bash hyper1"),
    ("whoami", "whoami"),
    ("submit j -- train --name x --gpu 2 --local-image", "submit j -- train --name x --gpu 2 --local-image"),
    ("list jbos", "list jbos"),
    ("describe jbo hyper1", "describe jbo hyper1"),
    ("nonsense --gpu 1", "nonsense --gpu 1"),
]


@pytest.mark.parametrize(("line", "meaning"), LINES)
def test_rewritten(line, meaning):
    assert rewrite(shlex.split(line)) == shlex.split(meaning)


@pytest.mark.parametrize(("line", "meaning"), LINES[:-3])
def test_what_comes_out_parses(line, meaning):
    found = registry.resolve(rewrite(shlex.split(line)))
    assert found is not None
    command, words = found
    end = words.index("--") if "--" in words else len(words)
    from controlplane.cli.commands.submit import prepare_words

    build_parser(command).parse(prepare_words(words[:end]))


def test_rewriting_twice_changes_nothing_more():
    for line, _ in LINES:
        once = rewrite(shlex.split(line))
        assert rewrite(once) == once


def test_help_lists_each_alias(yard):
    text = yard("help", "aliases").out
    for alias in ALIASES:
        assert f"yard {alias.spelling} " in text
        assert f"=  yard {alias.meaning}" in text


def test_each_listed_alias_becomes_what_is_listed():
    """The list that people read is the behaviour, word for word, wherever it can be run."""
    for alias in ALIASES:
        for spelling, meaning in zip(
            alias.spelling.split(", "), alias.meaning.split(" (")[0].split(", "), strict=True
        ):
            line = shlex.split(spelling.replace(" ...", ""))
            wanted = shlex.split(meaning.replace(" ...", ""))
            assert rewrite(line) == wanted, spelling


def test_an_alias_asks_the_server_the_same_thing(server, yard):
    server.on("POST", "projects/team-a/jobs", job())
    assert yard("submit", "--name", "hyper1", "--image", "quickstart", "--gpu", "1").code == 0
    assert yard("submit", "hyper1", "-i", "quickstart", "-g", "1").code == 0
    first, second = server.requests("POST", "projects/team-a/jobs")
    assert first.body == second.body == {"name": "hyper1", "image": "quickstart", "gpus": 1, "kind": "train"}


def test_project_set_is_config_project(server, yard, monkeypatch):
    monkeypatch.delenv("TRAINYARD_PROJECT")
    assert yard("project", "set", "team-b").code == 0
    server.on("GET", "projects/team-b/jobs", page())
    assert yard("list").code == 0
