"""What `make demo` tells: who can sign in, whether anything runs, and where to look."""

import re
from io import StringIO

from django.core.management import call_command
from django.utils import timezone

from controlplane.models import Lease, User
from jobs.models import Job


def demo() -> str:
    said = StringIO()
    call_command("demo", stdout=said)
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


def test_again_with_a_running_loop_it_makes_nothing_new_and_says_where_to_look(cast, settings):
    settings.PUBLIC_URL = "https://yard.example"
    demo()
    Lease.objects.update_or_create(name="loop", defaults={"completed_at": timezone.now()})
    said = demo()
    assert "0 jobs were submitted. Watch them at https://yard.example/" in said
    assert "not running" not in said
    assert "the passwords are shown" not in said
    assert "ana, ben, chi, dora" in said
