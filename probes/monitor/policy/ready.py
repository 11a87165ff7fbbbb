"""Policies that come with probedeck, with their purposes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from bpf.errors import UsageError, did_you_mean
from probes.monitor.policy.file import load
from probes.monitor.policy.model import Policy

FILE = Path(__file__).with_name("ready.toml")
_POLICY = re.compile(r'((?:^# .*\n)+)\[\[policy\]\]\nname = "(\w+)"', re.MULTILINE)
"""A policy's comment, and its name."""
_NAME = re.compile(r"\s*(\w+)\s*")


@cache
def purposes() -> dict[str, str]:
    """Return the first sentence of each policy's comment, by name, without reading conditions."""
    found = _POLICY.findall(FILE.read_text(encoding="utf-8"))
    texts = ((name, re.sub(r"\s*\n?# ", " ", comment).strip()) for comment, name in found)
    return {name: text.split(". ")[0].rstrip(".") for name, text in texts}


def policy_of(text: str) -> Policy:
    """Return the ready policy of a name, or else the policy in the short form `NAME: ... -> RUN`.

    Raises UsageError.
    """
    if (named := _NAME.fullmatch(text)) is None:
        return Policy.parse_short(text)
    if named[1] not in purposes():
        hint = did_you_mean(named[1], purposes()) or "or type one: NAME: CONDITION -> RUN"
        raise UsageError(f"no ready policy is called {named[1]!r}", hint=hint)
    return next(policy for policy in load(FILE).policy if policy.name == named[1])
