"""The flow probe's own source, edited while it runs, and its cost for the verifier."""

from __future__ import annotations

import ctypes as ct
import os
import socket

import pytest

from bpf.abi import ProgInfoStruct
from bpf.attach.attachment import Hook
from bpf.compiler import CompileError
from bpf.errors import UsageError
from bpf.syscall import prog_fd_by_id, prog_test_run, read_info
from probes.config.model import ProbeConfig, Side, dump, parse
from probes.flow.filter import FlowFilter
from probes.flow.hook import SOURCE
from probes.flow.probe import FlowProbe
from probes.reports import Fate
from probes.snapshot import Item, Snapshot
from probes.tunnels import Tunnels
from tests.probes.conftest import LooseProbe, MakeProbe
from tests.probes.flow.test_windows import frame
from tests.probes.program.tools import Traffic, held_ids

FLOW_C = SOURCE.read_text(encoding="utf-8")
TWICE = FLOW_C.replace(
    "record->bytes += size->bytes;", "record->bytes += 2 * size->bytes;"
).replace("record->bytes = size->bytes |", "record->bytes = 2 * size->bytes |")
"""Counts the bytes of a packet twice."""
SIZE = len(frame(1))


def edited(probe: FlowProbe, source: str) -> ProbeConfig:
    return probe.config.with_source("ingress", source)


def put(probe: FlowProbe, config: ProbeConfig) -> Snapshot:
    """Compile and replace; the window that so ended."""
    compiled = probe.compile(config)
    try:
        (window,) = probe.replace(compiled)
    finally:
        compiled.close()
    assert isinstance(window, Snapshot)
    return window


def run(loose: LooseProbe, packets: int, number: int = 1) -> None:
    prog_test_run(loose.fd, frame(number), repeat=packets)


def counted(snapshot: Item) -> tuple[int, int]:
    """Packets and bytes."""
    assert isinstance(snapshot, Snapshot)
    return int(snapshot.rows["packets"].sum()), int(snapshot.rows["bytes"].sum())


def test_flows_of_one_place_and_tag_stay_apart(make_probe: MakeProbe) -> None:
    """Also behind a window whose records are still in memory, where the index is empty."""
    one_place = FLOW_C.replace("hash_of(&packet->key)", "0")
    assert one_place != FLOW_C
    loose = make_probe()
    put(loose.probe, edited(loose.probe, one_place))
    for numbers in (range(1, 6), range(1, 6), range(1, 5), range(1, 5), (4,), (2, 1), range(1, 13)):
        sent = {socket.inet_aton(str(number)): 10 * number for number in numbers}
        for _ in range(2):
            for number in numbers:
                run(loose, 5 * number, number)
        rows = loose.probe.poll().rows
        assert {row["source"].tobytes()[:4]: int(row["packets"]) for row in rows} == sent


@pytest.mark.parametrize("hook", Hook)
def test_an_edited_source_counts_from_the_swap_on(make_probe: MakeProbe, hook: Hook) -> None:
    loose = make_probe(hook)
    probe = loose.probe
    side: Side = "egress" if hook is Hook.TC_EGRESS else "ingress"
    run(loose, 5)
    window = put(probe, probe.config.with_source(side, TWICE))
    assert counted(window) == (5, 5 * SIZE)
    assert (window.generation, window.window) == (1, 1)
    assert (probe.generation, probe.previous) == (2, 1)
    assert getattr(probe.config, side).source == TWICE
    run(loose, 3)
    window = probe.poll()
    assert counted(window) == (3, 3 * 2 * SIZE)
    assert (window.generation, window.window) == (2, 2)


def test_it_goes_back_to_what_it_was(make_probe: MakeProbe) -> None:
    loose = make_probe()
    probe = loose.probe
    with pytest.raises(UsageError, match="probe flow has no generation to go back to"):
        probe.roll_back()
    put(probe, edited(probe, TWICE))
    run(loose, 3)
    _, (window,) = probe.roll_back()
    assert counted(window) == (3, 3 * 2 * SIZE)
    assert (probe.generation, probe.previous) == (3, 2)
    assert probe.config.ingress
    assert probe.config.ingress.source == FLOW_C
    run(loose, 4)
    assert counted(probe.poll()) == (4, 4 * SIZE)
    _, (window,) = probe.roll_back()
    assert counted(window) == (0, 0), "nothing of an earlier window is left in its tables"
    run(loose, 1)
    assert counted(probe.poll()) == (1, 2 * SIZE)


@pytest.mark.slow
def test_no_packet_is_lost_or_doubled_in_between(make_probe: MakeProbe) -> None:
    """S1.26, S4.5: swaps, replacements, roll-backs and other captures under traffic."""
    loose = make_probe()
    probe = loose.probe
    windows: list[Item] = [probe.poll(), probe.poll()]
    held = held_ids()
    with Traffic(loose.fd, frame(1)) as traffic:
        for _ in range(4):
            windows.append(put(probe, edited(probe, FLOW_C + "\n")))
            windows.append(put(probe, edited(probe, FLOW_C)))
            windows.append(probe.poll())
            for _ in range(5):
                windows += probe.roll_back()[1]
                windows += probe.export()
            probe.reconfigure(FlowFilter.parse("udp"))
    windows.append(probe.poll())
    assert sum(counted(window)[0] for window in windows) == traffic.sent
    assert sum(counted(window)[1] for window in windows) == traffic.sent * SIZE
    numbers = [window.window for window in windows if isinstance(window, Snapshot)]
    assert numbers == list(range(1, len(numbers) + 1))
    probe.poll()  # each generation opens its loss counters when it is first read
    now = held_ids()
    assert [len(now[0]), len(now[1]), now[2]] == [len(held[0]), len(held[1]), held[2]]


def moved(config: ProbeConfig, **changes: object) -> ProbeConfig:
    assert config.ingress
    return config.model_copy(update={"ingress": config.ingress.model_copy(update=changes)})


REFUSED = {
    "records has another kind, layout or size": FLOW_C.replace(
        "    u32 last;\n", "    u32 last;\n    u64 more;\n"
    ),
    "map records has another": FLOW_C.replace(
        "struct flow_key key;\n    u64 bytes;", "u64 bytes;\n    struct flow_key key;"
    ),
    "map sets has another": FLOW_C.replace("sets, SETS,", "sets, 2 * SETS,"),
    "map cpus is gone": FLOW_C.replace("cpu_state, cpus,", "cpu_state, each,").replace(
        "cpus.lookup", "each.lookup"
    ),
    "must have the program flow": FLOW_C.replace("int flow(", "int flows("),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_source_that_cannot_be_read_like_the_old_one_is_refused(
    make_probe: MakeProbe, said: str
) -> None:
    """S1.6: and all runs on."""
    loose = make_probe()
    probe = loose.probe
    run(loose, 2)
    held = held_ids()
    with pytest.raises(UsageError, match=f"ingress: .*{said}"):
        probe.compile(edited(probe, REFUSED[said]))
    assert held_ids() == held
    assert (probe.generation, probe.window) == (1, 0)
    assert counted(probe.poll()) == (2, 2 * SIZE)


def test_a_source_that_does_not_compile_changes_nothing(make_probe: MakeProbe) -> None:
    """S1.6."""
    loose = make_probe()
    run(loose, 2)
    held = held_ids()
    with pytest.raises(CompileError) as caught:
        loose.probe.compile(
            edited(loose.probe, FLOW_C.replace("return VERDICT_PASS;", "return 0 +;"))
        )
    line = FLOW_C[: FLOW_C.index("return VERDICT_PASS;")].count("\n") + 1
    found = next(d for d in caught.value.diagnostics if d.severity == "error")
    assert found.line == line
    del caught
    assert held_ids() == held
    assert loose.probe.generation == 1
    assert counted(loose.probe.poll()) == (2, 2 * SIZE)


@pytest.mark.parametrize(
    ("what", "changes"),
    [("ingress", {"interface": "lo"}), ("ingress", {"hook": "tc"}), ("ingress", {"metrics": ()})],
)
def test_only_the_sources_may_be_other_ones(
    make_probe: MakeProbe, what: str, changes: dict[str, object]
) -> None:
    """S1.6, S1.25."""
    probe = make_probe().probe
    said = f"of the flow probe only the sources can be replaced, not what {what} says"
    with pytest.raises(UsageError, match=said):
        probe.compile(moved(probe.config, **changes))
    for more in ({"interval": 7}, {"egress": probe.config.ingress}):
        with pytest.raises(UsageError, match=f"not what {next(iter(more))} says"):
            probe.compile(probe.config.model_copy(update=more))


def test_a_configuration_from_a_request_is_as_good(make_probe: MakeProbe) -> None:
    """S1.1: what was read, edited, and sent back."""
    loose = make_probe()
    data = dump(loose.probe.config)
    data["ingress"]["source"] = TWICE
    put(loose.probe, parse(data, "request"))
    run(loose, 3)
    assert counted(loose.probe.poll()) == (3, 3 * 2 * SIZE)


def test_the_report_tells_that_windows_start_empty(make_probe: MakeProbe) -> None:
    probe = make_probe().probe
    compiled = probe.compile(edited(probe, TWICE))
    report = probe.compare(compiled)
    compiled.close()
    assert [(m.side, m.map, m.fate) for m in report.maps] == [("ingress", "records", Fate.WINDOW)]
    assert (report.lost_metrics, report.new_metrics, report.warnings) == ((), (), ())


@pytest.mark.slow
def test_another_capture_in_between_holds(make_probe: MakeProbe) -> None:
    """S4.3: what was compiled before it is compiled again."""
    loose = make_probe()
    probe = loose.probe
    compiled = probe.compile(edited(probe, TWICE))
    run(loose, 4)
    probe.reconfigure(FlowFilter.parse("port:9999"))
    run(loose, 2)
    (window,) = probe.replace(compiled)
    compiled.close()
    assert counted(window) == (4, 4 * SIZE)
    run(loose, 8)
    assert counted(probe.poll()) == (0, 0)
    probe.reconfigure(FlowFilter.parse(""))
    assert probe.config.ingress
    assert probe.config.ingress.source == TWICE
    run(loose, 8)
    assert counted(probe.poll()) == (8, 8 * 2 * SIZE)
    with pytest.raises(UsageError, match="no generation to go back to"):
        probe.roll_back()  # it counted other flows


class _Verified(ct.Structure):
    """struct bpf_prog_info of kernel 5.16."""

    _fields_ = (
        ("before", ProgInfoStruct),
        ("recursion_misses", ct.c_uint64),
        ("verified_insns", ct.c_uint32),
    )


@pytest.mark.parametrize(
    ("tunnels", "most"), [(Tunnels.OUTER, 60_000), (Tunnels.BOTH, 250_000)], ids=str
)
def test_the_verifier_is_soon_done_with_it(
    make_probe: MakeProbe, tunnels: Tunnels, most: int
) -> None:
    """Of a start, the verifier takes a fifth: 34,000 and 176,000 instructions on Linux 6.18.

    Where it does not see that two ways are one, these are twice and three times as many.
    """
    (program,) = make_probe(Hook.TC_INGRESS, tunnels=tunnels).probe.programs()
    info = _Verified()
    fd = prog_fd_by_id(program.program_id)
    read_info(fd, info)
    os.close(fd)
    assert 0 < info.verified_insns < most
