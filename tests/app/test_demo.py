"""What `make demo` makes and tells: who can sign in, whether anything runs, where to look, and what data there is."""

import os
import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.models import Lease, User
from controlplane.supervisor.instance import claim, read_instance
from datasets.management.commands.demo_data import picture
from datasets.models import Dataset
from datasets.queries.lake import lake_of, manifest_named
from jobs.models import Job


def demo(command: str = "demo") -> str:
    said = StringIO()
    call_command(command, stdout=said)
    return said.getvalue()


def test_it_says_who_may_sign_in_and_that_nothing_runs(cast, settings):
    settings.PUBLIC_URL = "https://yard.example"
    said = demo()
    shown = dict(re.findall(r"^  (\w+) +(\S{16})$", said, re.MULTILINE))
    assert shown.keys() == {"dora"}  # the cast's own ana, ben and chi keep their passwords
    assert User.objects.get(username="dora").check_password(shown["dora"])
    assert "Users from before keep their passwords: ana, ben, chi." in said
    assert "changepassword ana" in said
    assert "`make up` is not running" in said
    assert "https://yard.example/" in said
    assert Job.objects.filter(user__username="ana").exists()


def test_without_an_instance_it_names_the_directory_in_which_it_looked(db, settings):
    settings.STATE_DIR = "/srv/yard"
    with pytest.raises(CommandError, match=r"no cluster in /srv/yard yet.*the same TRAINYARD_STATE_DIR"):
        demo()


def test_again_with_a_running_loop_it_makes_nothing_new_and_says_where_to_look(cast, settings):
    settings.PUBLIC_URL = "https://yard.example"
    demo()
    Lease.objects.update_or_create(name="loop", defaults={"completed_at": timezone.now()})
    said = demo()
    assert "0 jobs were submitted. Watch them at https://yard.example/" in said
    assert "not running" not in said
    assert "the passwords are shown" not in said
    assert "ana, ben, chi, dora" in said


def test_the_address_is_that_of_the_running_instance_unless_one_is_stated(cast, settings, tmp_path):
    settings.STATE_DIR, settings.STATED_URL = tmp_path, ""
    Lease.objects.update_or_create(name="loop", defaults={"completed_at": timezone.now()})
    lock = claim(read_instance({"TRAINYARD_STATE_DIR": str(tmp_path), "TRAINYARD_PORT": "8123"}))
    assert "Watch them at http://127.0.0.1:8123/" in demo()
    settings.STATED_URL = "https://yard.example"
    assert "Watch them at https://yard.example/" in demo()
    os.close(lock)


def test_the_data_of_the_demo_can_be_read_and_is_made_once(cast, own_lakes):
    demo()
    assert demo("demo_data") == "Data: dataset xray of team-c, volume checkpoints of team-a.\n"
    dataset = Dataset.objects.get(name="xray")
    newest = dataset.versions.get(number=2)
    assert (newest.files, newest.files_added, newest.files_changed) == (31, 6, 1)
    assert str(dataset.tags.get(name="reviewed").version) == "xray@1"
    entry = manifest_named(dataset.project, newest.manifest).find(b"nodule/025.png")
    assert entry is not None
    content = lake_of(dataset.project).read(entry.digest)
    assert content == picture(25)
    assert demo("demo_data") == "Data: is there already.\n"


def test_the_data_of_the_demo_needs_its_teams(db):
    with pytest.raises(CommandError, match="There is no project team-c"):
        demo("demo_data")
