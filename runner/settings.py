"""Where Racewatch keeps things on this host, from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from runner.subject import Folders


@dataclass(frozen=True)
class Settings:
    """RACEWATCH_HOME (default: the user's cache folder) and RACEWATCH_STORE (default: below it)."""

    home: Path
    store: str

    @classmethod
    def load(cls) -> Settings:
        """From the environment."""
        home = Path(os.environ.get("RACEWATCH_HOME") or platformdirs.user_cache_dir("racewatch"))
        home = home.absolute()
        return cls(home, os.environ.get("RACEWATCH_STORE") or str(home / "store"))

    @property
    def folders(self) -> Folders:
        """For a subject's sources and builds."""
        return Folders(self.home, self.store)

    @property
    def runs(self) -> Path:
        """Logs of runs, a folder for each."""
        return self.home / "runs"
