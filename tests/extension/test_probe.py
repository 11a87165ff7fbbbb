"""A built-in probe from outside is an entry, a C program and a class."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.outputs.sink import Sink
from app.outputs.views import WINDOWS
from bpf.attach.interface import Interface
from bpf.errors import UsageError
from probes.config.model import parse
from probes.control.builtin_probes import BuiltinEntry, ProbeHost
from probes.control_plane import ControlPlane
from probes.program.loading import compile_probe
from probes.program.probe import ProgramProbe
from probes.snapshot import REMOVED, Snapshot
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.deck import deck as deck
from tests.support.sight import becomes

SOURCE = """\
#include "probe.h"

BPF_HASH(sizes, u32, u64);

int count(CONTEXT *ctx)
{
    u32 size = bytes_of(ctx);

    sizes.atomic_increment(size, packets_of(ctx));
    return VERDICT_PASS;
}
"""
PACKETS = 7


@dataclass(frozen=True)
class SizeOptions:
    interval: float = 300.0


class SizeProbe(ProgramProbe):
    """Packets by their size."""

    builtin = True


def _prepare(
    host: ProbeHost, interface: Interface, options: SizeOptions
) -> Callable[[], SizeProbe]:
    ingress = {
        "interface": interface.name,
        "source": SOURCE,
        "metrics": [{"name": "sizes", "map": "sizes", "snapshot": True}],
    }
    config = parse({"name": "sizes", "interval": options.interval, "ingress": ingress}, "sizes")

    def make() -> SizeProbe:
        with compile_probe(host.compiler, config, host.hooks) as compiled:
            return SizeProbe(host.compiler, compiled, host.hooks)

    return make


SIZES = BuiltinEntry("sizes", _prepare, passes_all=True)


def sizes(item: Snapshot) -> dict[int, int]:
    return dict(zip(item.rows["key"].tolist(), item.rows["value"].tolist(), strict=True))


def test_its_windows(deck: Deck) -> None:
    probe = deck.controller.start(SIZES, "right", SizeOptions())
    deck.receive(PACKETS)
    (window,) = deck.controller.export("sizes")
    assert PACKETS in sizes(window).values()
    (status,) = deck.controller.hook_status()
    assert (status.interface, window.hooks) == ("right", (status,))
    assert window in deck.controller.history.snapshots("sizes")
    assert probe.window == 1
    with pytest.raises(UsageError, match="there is a probe 'sizes' already"):
        deck.controller.start(SIZES, "right", SizeOptions())


def test_its_interval(deck: Deck) -> None:
    deck.controller.start(SIZES, "right", SizeOptions(interval=0.02), first=0.01)
    assert becomes(lambda: len(deck.controller.history.snapshots("sizes")) >= 3)
    assert deck.controller.interval == 0.02


def test_the_control_plane_has_it(deck: Deck) -> None:
    deck.controller.start(SIZES, "right", SizeOptions())
    plane: ControlPlane = deck.controller
    (info,) = plane.probes()
    assert (info.name, info.builtin, info.metrics) == ("sizes", True, ("ingress.sizes",))
    assert info.programs[0].memory
    drops = info.config.with_source("ingress", SOURCE.replace("VERDICT_PASS", "VERDICT_DROP"))
    assert plane.check(drops).cuts
    edited = info.config.with_source("ingress", SOURCE.replace("packets_of(ctx)", "1"))
    assert plane.replace(edited).generation == 2
    assert plane.roll_back("sizes").generation == 3
    deck.receive(PACKETS)
    (last,) = plane.remove("sizes")
    assert PACKETS in sizes(last).values()
    assert REMOVED in deck.said("info", "sizes")
    assert plane.probes() == ()


@pytest.mark.parametrize("format_name", ["csv", "jsonl"])
def test_files_have_its_tables(deck: Deck, tmp_path: Path, format_name: str) -> None:
    deck.controller.start(SIZES, "right", SizeOptions())
    with closing(Sink(str(tmp_path), format_name, [WINDOWS], metrics=True)) as sink:
        deck.controller.listen(sink.write)
        deck.receive(PACKETS)
        (window,) = deck.controller.export("sizes")
    text = (tmp_path / f"sizes.ingress.sizes.{format_name}").read_text()
    if format_name == "csv":
        found = {int(row["key"]): int(row["value"]) for row in csv.DictReader(text.splitlines())}
    else:
        rows = [json.loads(line) for line in text.splitlines()]
        found = {row["key"]: row["value"] for row in rows}
    assert found == sizes(window)
    assert "sizes" in (tmp_path / f"windows.{format_name}").read_text()
