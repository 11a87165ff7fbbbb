"""What all tests have in common."""

from __future__ import annotations

import gc
import os
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """What whoever runs the tests has set is not what they are about, and is left as it is."""
    os.environ["PROBEDECK_CONFIG"] = "none"
    state = tempfile.TemporaryDirectory(prefix="probedeck-tests-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name


def pytest_collection_finish() -> None:
    """What is there now stays to the end: no search for garbage has to look at it again."""
    gc.collect()
    gc.freeze()
