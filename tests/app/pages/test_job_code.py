"""What a job's page says of its code."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from tests.builders import make_job
from tests.cast import Cast
from tests.code_trees import make_tree

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _store(settings: Any, tmp_path: Path) -> None:
    settings.STATE_DIR = tmp_path


def test_a_job_with_code_names_its_tree_and_commit_and_offers_the_files(cast: Cast):
    about = {"commit": "9c1f2ab3d4e5f6a7", "is_dirty": True, "diff": "+x"}
    tree = make_tree(cast.project, {"train.py": b"print()"}, **about)
    with_code = make_job(cast.project, "with", cast.ben, code={"tree": tree})
    client = Client()
    client.force_login(cast.ben)
    page = client.get(f"/jobs/{with_code.pk}").content.decode()
    archive = f"/api/v1/projects/team-a/code/{tree}/archive"
    assert f'href="{archive}"' in page
    assert "commit 9c1f2ab3d4, with changes" in page
    assert client.get(archive).status_code == 200
    without = make_job(cast.project, "without", cast.ben)
    assert "<dt>Code</dt>" not in client.get(f"/jobs/{without.pk}").content.decode()
