"""Where things are kept: from the environment, else the user's own cache folder."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from runner.settings import Settings


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RACEWATCH_HOME", raising=False)
    monkeypatch.delenv("RACEWATCH_STORE", raising=False)


def test_without_any_word_it_is_the_users_cache_folder() -> None:
    settings = Settings.load()
    assert settings.home == Path(platformdirs.user_cache_dir("racewatch"))
    assert settings.store == str(settings.home / "store")


def test_racewatch_home_moves_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RACEWATCH_HOME", str(tmp_path))
    settings = Settings.load()
    assert settings.runs == tmp_path / "runs"
    assert settings.folders.cache == tmp_path
    assert settings.folders.store == str(tmp_path / "store")


def test_a_relative_home_does_not_move_with_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RACEWATCH_HOME", "here")
    settings = Settings.load()
    assert settings.home == tmp_path / "here"
    assert settings.store == str(tmp_path / "here" / "store")


def test_the_store_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACEWATCH_STORE", "s3://bucket/prefix")
    assert Settings.load().folders.store == "s3://bucket/prefix"


@pytest.mark.parametrize("name", ["RACEWATCH_HOME", "RACEWATCH_STORE"])
def test_an_empty_word_is_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    expected = Settings.load()
    monkeypatch.setenv(name, "")
    assert Settings.load() == expected
