"""The menu of ready probes, and the purpose of each probe."""

from __future__ import annotations

import pytest

from app.config.ready_probes import EMPTY, ready_probe, ready_probes
from app.console.screens.programs.model import purpose_of
from bpf.errors import UsageError
from probes.flow.hook import SOURCE as FLOW
from probes.monitor.programs import SOURCE as MONITOR
from probes.path.programs import SOURCES as PATHS
from tests.app.console.screens.programs.bench import bench
from widgets.editor import CodeEditor


def test_every_ready_probe_has_one_line_of_purpose() -> None:
    probes = ready_probes()
    assert probes[0].name == EMPTY
    assert {"packet-counter", "sizes", "blocklist"} <= {each.name for each in probes}
    assert "policies" not in {each.name for each in probes}
    assert all(20 < len(each.purpose) < 110 for each in probes)
    with pytest.raises(UsageError) as caught:
        ready_probe("size")
    assert "sizes" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "purpose"),
    [
        (FLOW.read_text(), "Counts every packet of a hook in the record of its flow"),
        (MONITOR.read_text(), "Counts every packet by protocol, and its flow in a HyperLogLog"),
        (PATHS["egress"].read_text(),
         "Sends a probe whenever an application's packet leaves for a traced destination"),
        ("// SPDX-License-Identifier: X\n// Counts. More.\n", "Counts"),
        ("int f;", ""),
    ],
)  # fmt: skip
def test_the_first_sentence_of_a_source_is_its_purpose(source: str, purpose: str) -> None:
    assert purpose_of(source) == purpose


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
async def test_a_ready_probe_is_chosen_measured_added_and_opened(width: int, height: int) -> None:
    async with bench(width, height) as b:
        await b.press("n")
        assert "Ready probes" in b.text
        assert "Empty probe, a start for your own" in b.text
        assert "43.1" in b.text
        await b.press("escape")
        assert "Ready probes" not in b.text
        assert "empty" not in b.plane.running
        await b.press("n", "enter")
        assert b.plane.running["empty"].config.ingress.interface == "eth0"  # type: ignore[union-attr]
        assert "empty.ingress.c" in b.title
        assert isinstance(b.screen.focused, CodeEditor)
        assert "PARSED" in b.editor.text
        # A second one has another name.
        await b.press("escape", "n", "enter")
        assert "empty-2" in b.plane.running
        await b.press("escape")
        await b.app.action_command("probe.new sizes")
        await b.until_still()
        assert "sizes" in b.plane.running
