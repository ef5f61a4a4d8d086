"""Loads the module of `runner.trial` that knows a subject's program."""

from __future__ import annotations

import importlib
import sys
from typing import cast

from runner.trial.program import Harness, ParentConfig


def load_harness(config: ParentConfig) -> Harness:
    """The subject's module, after its paths are in place."""
    sys.path[:0] = [path for path in config.python_path if path not in sys.path]
    sys.path.extend(path for path in config.fallback_path if path not in sys.path)
    return cast(Harness, importlib.import_module(f"runner.trial.{config.subject}"))
