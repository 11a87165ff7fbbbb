"""Explanation of a conversation by the tables of the last minute: owner, limit and queue."""

from app.explain.explain import explain
from app.explain.material import Choice, choose, far_end, nothing_passes
from app.explain.model import Explanation
from app.explain.page import lines

__all__ = [
    "Choice", "Explanation", "choose", "explain", "far_end", "lines",
    "nothing_passes",
]  # fmt: skip
