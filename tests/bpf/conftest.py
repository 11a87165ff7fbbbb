"""Fixtures of the kernel's edge: one warm compile helper for all, and a veth pair for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bpf.attach import attachment
from bpf.attach.attachment import Hook
from bpf.compiler import Compiled
from bpf.compiler.client import Compiler
from tests.bpf.tools import COUNTER
from tests.support.veth import End, veth_pair


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    with Compiler(stores=(), idle=3600) as compiler:
        compiler.unconfined()  # starts the helper
        yield compiler


@pytest.fixture(scope="session")
def counters(compiler: Compiler) -> Iterator[dict[Hook, Compiled]]:
    """A probe that counts packets in its map `count`, compiled for each hook."""
    with ExitStack() as stack:
        yield {
            hook: stack.enter_context(
                compiler.compile(COUNTER, hook.prog_type, cflags=[f"-D{hook.macro}"])
            )
            for hook in Hook
        }


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where attachments without a link are noted, instead of /run."""
    monkeypatch.setattr(attachment, "STATE", tmp_path / "state")
    return tmp_path / "state"


@pytest.fixture
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as ends:
        yield ends
