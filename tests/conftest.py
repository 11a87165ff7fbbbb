"""What all tests have in common."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """What is there now stays to the end: no search for garbage has to look at it again."""
    gc.collect()
    gc.freeze()
