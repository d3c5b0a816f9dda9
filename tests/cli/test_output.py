"""What is printed: tables, data, and nothing that a terminal would obey."""

import json
import math
import re
from datetime import UTC, datetime

import pytest
import yaml

from controlplane.cli import formats, jsonpath, yaml_dump
from controlplane.cli.errors import CliError
from controlplane.cli.output import as_json
from controlplane.cli.tables import Column, plain_table
from controlplane.cli.terminal import log_line
from controlplane.unsafe_text import visible
from tests.cli.conftest import job
from tests.cli.scripted import page

ESCAPE = "\x1b"


def test_a_volume_is_described_with_the_age_of_its_measurement(server, yard):
    volume = {
        "id": "1",
        "name": "data",
        "project": "team-a",
        "status": {"state": "ready", "message": ""},
        "used_bytes": 0,
        "size_bytes": 1 << 30,
        "is_measured_in_part": False,
        "measured_at": datetime.now(UTC).isoformat(),
        "files": 0,
        "access_mode": "ReadWriteOnce",
        "storage_class": "standard",
        "service_tier": "",
        "origin": None,
        "is_size_enforced": True,
        "snapshot_minutes": None,
        "keep_last": None,
        "keep_days": None,
        "created_at": None,
        "created_by": "ana",
        "jobs": [],
    }
    server.on("GET", "volumes", page(volume))
    assert re.search(r"0 B of 1 GiB, measured \S+ ago\n", yard("volume", "describe", "data").out)
    server.on("GET", "volumes", page(volume | {"measured_at": None}))
    assert "0 B of 1 GiB\n" in yard("volume", "describe", "data").out
    for is_enforced, said in (
        (True, "yes"),
        (False, "no: jobs"),
        (None, "by the cluster's storage driver, if"),
    ):
        server.on("GET", "volumes", page(volume | {"is_size_enforced": is_enforced}))
        assert re.search(rf"Size enforced: +{said}", yard("volume", "describe", "data").out)
    ruled = {"snapshot_minutes": 5, "next_snapshot_at": "2026-11-29T10:13:22Z"}
    server.on("GET", "volumes", page(volume | ruled))
    assert re.search(
        r"Snapshots: +every 5 min, the next at 2026-11-29 10:13:22Z\n", yard("volume", "describe", "data").out
    )


def test_list_jobs_as_a_table(server, yard):
    waiting = job(
        "b-4-gg",
        "queued",
        runtime_seconds=None,
        pods=[],
        progress=None,
        reason={"code": "preempted", "message": ""},
    )
    server.on("GET", "projects/team-a/jobs", page(job(), {**waiting, "gpus": 0.5, "created_at": None}))
    ran = yard("list", "jobs")
    lines = ran.out.splitlines()
    assert lines[0].split() == [
        "NAME",
        "STATE",
        "KIND",
        "GPUS",
        "NODE",
        "RUNTIME",
        "AGE",
        "PROGRESS",
        "REASON",
    ]
    assert lines[1].startswith("hyper1  running  train     1  dgx1-1    1m12s")
    assert "epoch 1/5, 40/100, eta 30s" in lines[1]
    assert lines[2].startswith("b-4-gg  queued   train   0.5  -             -  ")
    assert lines[2].split()[-4:] == ["-", "-", "-", "preempted"]
    assert lines[2].index("preempted") == lines[0].index("REASON")


def test_a_finished_job_has_no_time_left(server, yard):
    server.on("GET", "projects/team-a/jobs", page(job(state="succeeded")))
    shown = yard("list", "jobs").out
    assert "epoch 1/5, 40/100" in shown
    assert "eta" not in shown
    server.on("GET", f"jobs/{job()['id']}", job(state="stopped"))
    server.on("GET", f"jobs/{job()['id']}/events", page())
    assert "epoch 1/5, 40/100, loss=0.3" in yard("describe", job()["id"]).out


def test_top_jobs_of_all_projects(server, yard):
    server.on("GET", "jobs", page(job()))
    assert yard("top", "jobs", "-A").out == yard("top", "jobs").out
    assert yard("top", "jobs", "-A", "-p", "team-a").code == 0


def test_wide_shows_more_and_all_projects_names_them(server, yard):
    server.on("GET", "jobs", page(job()))
    ran = yard("list", "jobs", "-A", "-o", "wide")
    assert {"PROJECT", "USER", "IMAGE", "PRIORITY", "ATTEMPT", "ID"} <= set(ran.out.splitlines()[0].split())


def test_filters_and_limit_go_to_the_server(server, yard):
    link = f"{server.url}/api/v1/projects/team-a/jobs?cursor=x"
    server.on("GET", "projects/team-a/jobs", page(job(), next_url=link))
    ran = yard(
        "list", "jobs", "--state", "queued,running", "--kind", "train", "--user", "ana", "--limit", "1"
    )
    assert server.asked[0].query == {"state": "queued,running", "kind": "train", "user": "ana", "limit": "1"}
    assert "more than 1" in ran.err


def test_json_of_a_submit_is_rests_object(server, yard):
    created = job(state="queued")
    server.on("POST", "projects/team-a/jobs", created)
    ran = yard("submit", "hyper1", "-i", "quickstart", "-o", "json")
    assert json.loads(ran.out) == created


def test_yaml_of_a_job_reads_back_as_the_same(server, yard):
    server.on("GET", f"jobs/{job()['id']}", job())
    ran = yard("describe", "job", job()["id"], "-o", "yaml")
    assert yaml.safe_load(ran.out) == job()


AWKWARD = {
    "empties": ["", [], {}, None],
    "words": ["yes", "NO", "null", "~", "true", "- x", "a:", "a: b # c", "=", "<<", 'it\'s "so"', " x "],
    "numbers": ["12", "1e3", "0x1f", "2026-01-02", 1.5, -3, True],
    "lines": "one\ntwo",
    "nested": [[1, [2]], {"a": [{"b": 1}], "c": 2}],
    "unicode": "日本 \u202e",
    "deep": {"a": {"b": {"c": [1, 2, {"d": None}]}}},
    "1e3": "key that looks like a number",
    "null": "key that looks like nothing",
}


@pytest.mark.parametrize(
    "document", [AWKWARD, [], {}, None, "text", 3, [AWKWARD, AWKWARD], [[]], [{}], {"a": [[{}]]}]
)
def test_yaml_reads_back_as_the_same(document):
    assert yaml.safe_load(yaml_dump.dump(document)) == document


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.status.state}", "running"),
        (".status.state", "running"),
        ("status.state", "running"),
        ("{.status.pods[0].node}", "dgx1-1"),
        ("{.status.pods[-1].devices[*].index}", "3"),
        ("{.name} is {.status.state}", "hyper1 is running"),
        ('{.name}{"\\n"}{.kind}', "hyper1\ntrain"),
        ("{.nothing.at.all}", ""),
        ("{.env['BATCH_SIZE']}", "33"),
        ("{.status.pods[?(@.rank==0)].name}", "hyper1-1-0"),
        ('{.status.pods[?(@.node!="dgx1-1")].name}', ""),
        ("{.env}", '{"BATCH_SIZE": "33"}'),
        ("{.status.finished_at}", ""),
        ("{.args[*]}", "train.py"),
        ("{.preemptible}", "true"),
        ("{range .status.pods[*]}{.name}={.node};{end}!", "hyper1-1-0=dgx1-1;!"),
        ("{range .nothing[*]}{.name}{end}", ""),
        ("{range .status.pods[*]}{range .devices[*]}<{.index}>{end},{end}", "<3>,"),
        ("{range .args[*]}{@}{'\\n'}{end}", "train.py\n"),
    ],
)
def test_jsonpath(template, text):
    assert jsonpath.render(template, job()) == text


BAD_TEMPLATES = ["{.a", "{.a[}", "{.a b}", "a}", "{range .results}", "{range .a[*]}{.b}", "{.a}{end}"]


@pytest.mark.parametrize("template", BAD_TEMPLATES)
def test_a_jsonpath_that_is_none_is_a_usage_error(template):
    with pytest.raises(CliError) as refused:
        jsonpath.render(template, job())
    assert refused.value.exit_code == 2


def test_jsonpath_over_a_list(server, yard):
    server.on("GET", "projects/team-a/jobs", page(job("a"), job("b")))
    assert yard("list", "jobs", "-o", "jsonpath={.results[*].name}").out == "a b\n"


def test_no_ansi_when_not_on_a_terminal(server, yard_process, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    server.on("GET", "projects/team-a/jobs", page(job()))
    for argv in (["list", "jobs"], ["help"], ["list", "jobs", "-o", "json"], ["nonsense"]):
        ran = yard_process(*argv)
        assert ESCAPE not in ran.stdout + ran.stderr


def test_a_table_cell_cannot_move_the_cursor_or_break_a_line(server, yard):
    evil = job(state="queued", reason={"code": "x", "message": f"a\t\r\n{ESCAPE}]0;title\x07b\u202ec"})
    server.on("GET", "projects/team-a/jobs", page(evil))
    ran = yard("list", "jobs")
    assert "a^I^M^J^[]0;title^Gb<202e>c" in ran.out
    assert len(ran.out.splitlines()) == 2


def test_columns_align_with_wide_characters():
    columns = (Column("NAME", lambda row: row), Column("N", lambda row: row, is_number=True))
    assert plain_table(columns, [["日本", "1"], ["ab", "10"]]) == "NAME   N\n日本   1\nab    10\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        (f"{ESCAPE}[31mred{ESCAPE}[0m", f"{ESCAPE}[31mred{ESCAPE}[0m{ESCAPE}[0m"),
        (f"{ESCAPE}[2Jcleared", "^[[2Jcleared"),
        (f"{ESCAPE}]52;c;ZXZpbA==\x07", "^[]52;c;ZXZpbA==^G"),
        (f"{ESCAPE}P1$r{ESCAPE}\\", "^[P1$r^[\\"),
        ("\x9b2J", "<9b>2J"),
        ("10%\r55%\r100%", "100%"),
        ("100%\r", "100%"),
        ("a\tb", "a\tb"),
        ("\u202eevil", "<202e>evil"),
        ("bell\x07", "bell^G"),
        (f"{ESCAPE}[38;5;1mx", f"{ESCAPE}[38;5;1mx{ESCAPE}[0m"),
        ("日本語 ✓", "日本語 ✓"),
    ],
)
def test_log_lines_on_a_terminal(text, shown):
    assert log_line(text, colour=True) == shown


def test_no_color_drops_colours_too():
    assert log_line(f"{ESCAPE}[31mred{ESCAPE}[0m", colour=False) == "red"


def test_messages_show_colours_as_text():
    assert visible(f"{ESCAPE}[31mred\x7f") == "^[[31mred^?"


def test_json_escapes_what_a_terminal_obeys_and_reads_back():
    document = {"text": "\x9b2J\u202e\x7f\x1b[2J", "plain": "日本"}
    text = as_json(document)
    assert not set(text) & set("\x9b\u202e\x7f\x1b")
    assert "日本" in text
    assert json.loads(text) == document


def test_numbers_that_json_cannot_carry_are_refused(server):
    from controlplane.cli.client import Client

    with Client(server.url, "") as client, pytest.raises(CliError) as refused:
        client.post("x", {"gpus": math.nan})
    assert refused.value.exit_code == 2


def test_a_job_is_described_with_its_data(server, yard):
    data = {"dataset": "xray", "version": 1, "mount_path": "/data"}
    report = {"step": 1, "loss": 1 / 3, "accuracy": 0.9411764705882353}
    described = job(progress=report) | {
        "datasets": [
            {**data, "cached": True, "asked": "golden"},
            {
                **data,
                "dataset": "team-b/atlas",
                "version": 3,
                "subset": "small",
                "cached": False,
                "mount_path": "/a",
            },
        ],
        "volumes": [
            {"volume": "ckpt", "mount_path": "/out"},
            {"volume": "base", "mount_path": "/base", "read_only": True},
        ],
        "snapshot_on": ["success", "epoch"],
        "artifacts": [{"path": "out", "name": "model"}],
    }
    server.on("GET", "projects/team-a/jobs", page(described))
    server.on("GET", f"jobs/{described['id']}", described)
    server.on("GET", f"jobs/{described['id']}/events", page())
    ran = yard("describe", "job", described["name"])
    rows = dict(line.split(":", 1) for line in ran.out.splitlines() if ":" in line)
    assert rows["Datasets"].strip() == "xray@1 at /data (golden, cached), team-b/atlas@3/small at /a"
    assert rows["Volumes"].strip() == "ckpt at /out, base at /base (read-only)"
    assert rows["Snapshots on"].strip() == "success, epoch"
    assert rows["Keeps"].strip() == "out as model"
    assert rows["Progress"].strip() == "step 1, loss=0.333333, accuracy=0.941176"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "5s ago"),
        (65, "1m05s ago"),
        (420, "7m ago"),
        (18_000, "5h ago"),
        (18_600, "5h10m ago"),
        (172_800, "2d ago"),
    ],
)
def test_an_age_has_no_second_unit_that_is_zero(monkeypatch, seconds, text):
    monkeypatch.setattr(formats.time, "time", lambda: 1_000_000_000.5 + seconds)
    assert formats.ago(datetime.fromtimestamp(1_000_000_000, UTC).isoformat()) == text
