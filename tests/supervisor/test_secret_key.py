"""The instance's key, when nobody gave one: made once, whoever asks at the same time."""

import secrets
from pathlib import Path

import pytest

from controlplane import settings


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "STATE_DIR", tmp_path)
    return tmp_path


def test_a_process_that_starts_while_the_key_is_made_has_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    make, theirs = secrets.token_urlsafe, list[str]()

    def make_slowly(size: int) -> str:
        monkeypatch.setattr(secrets, "token_urlsafe", make)
        theirs.append(settings._secret_key())
        return make(size)

    monkeypatch.setattr(secrets, "token_urlsafe", make_slowly)
    ours = settings._secret_key()
    assert theirs == [ours]
    assert len(ours) >= 48


def test_one_that_is_killed_while_it_makes_the_key_leaves_none(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(size: int) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(secrets, "token_urlsafe", die)
        with pytest.raises(KeyboardInterrupt):
            settings._secret_key()
    assert not (state / "secret.key").exists()
    assert settings._secret_key() == (state / "secret.key").read_text()
    assert (state / "secret.key").stat().st_mode & 0o777 == 0o600
