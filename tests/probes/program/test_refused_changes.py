"""Replacements that fail: the running program stays, with its maps and its place in the chain."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from bpf.attach.attachment import Hook
from bpf.attach.chain import MAX_PROBES, Stage
from bpf.compiler import CompileError
from bpf.errors import KernelError, ProbedeckError, UsageError
from probes.program import loading
from probes.program.metrics import make_map
from probes.program.probe import ProgramProbe
from tests.probes.program.tools import (
    COUNTER,
    DEEP,
    PACKETS,
    TC_COUNTER,
    Loose,
    config,
    direction,
    held_ids,
    metric,
    only,
    replace,
    snapshots,
    total,
)
from tests.probes.program.variants import VARIANTS

BROKEN = {
    "syntax": (config("int count(struct xdp_md *ctx) { return", PACKETS), CompileError),
    "verifier": (
        config(
            COUNTER.replace("= 0;", "= bpf_get_prandom_u32();").replace("if (n)\n", ""), PACKETS
        ),
        CompileError,
    ),
    "no program": (config("BPF_ARRAY(packets, u64, 1);", PACKETS), UsageError),
    "two programs": (
        config(COUNTER + COUNTER.split("\n", 2)[2].replace("count", "again"), PACKETS),
        UsageError,
    ),
    "no such function": (config(COUNTER, PACKETS, function="cuont"), UsageError),
    "no such map": (config(COUNTER, metric("bytes")), UsageError),
    "no per-CPU map": (config(COUNTER, metric("packets", agg="sum")), UsageError),
    "no such interface": (config(COUNTER, PACKETS, interface="nosuch0"), UsageError),
    "no room on the stack": (config(DEEP, PACKETS), KernelError),
}


@pytest.fixture
def unchanged(loose: Loose) -> Iterator[ProgramProbe]:
    """A probe that has counted 5 packets; what fails must not have changed a thing."""
    probe = loose.add(config(COUNTER, PACKETS))
    loose.send(5)
    program, held = only(probe).program.info().id, held_ids()
    yield probe
    *objects, descriptors = held_ids()
    assert objects == [*held[:2]]
    assert descriptors <= held[2]  # the compile helper may end meanwhile
    assert only(probe).program.info().id == program
    assert (probe.generation, probe.previous, probe.window) == (1, None, 0)
    assert len(loose.hooks.in_use()) == 1
    loose.send(2)
    assert total(probe.export()) == 7


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_leaves_all_as_it_is(
    loose: Loose, unchanged: ProgramProbe, what: str
) -> None:
    """S1.6."""
    wrong, error = BROKEN[what]
    with pytest.raises(error) as caught:
        replace(unchanged, wrong)
    assert isinstance(caught.value, ProbedeckError)
    assert "\n" not in str(caught.value)
    with pytest.raises(error):
        loose.add(wrong.model_copy(update={"name": "other"}))


def test_a_program_that_needs_the_whole_stack_is_refused_with_the_reason(
    unchanged: ProgramProbe,
) -> None:
    """S1.6: it verifies alone, but not in a chain."""
    with pytest.raises(KernelError) as caught:
        replace(unchanged, BROKEN["no room on the stack"][0])
    assert str(caught.value) == (
        "ingress cannot be put in a chain: the verifier refused count: "
        "R1 type=scalar expected=ctx; a probe may use 504 bytes of stack"
    )


def test_a_hook_that_cannot_be_attached_leaves_all_as_it_is(
    loose: Loose, unchanged: ProgramProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.6: in either direction; the other one keeps its program."""

    def refuse(point: object) -> None:
        raise KernelError("lo takes no tc egress program")

    monkeypatch.setattr(loose.hooks, "attach", refuse)
    both = config(COUNTER, PACKETS, egress=direction(TC_COUNTER, PACKETS))
    with pytest.raises(KernelError, match="lo takes no"):
        replace(unchanged, both)
    with pytest.raises(KernelError, match="lo takes no"):
        loose.add(both.model_copy(update={"name": "other"}))


def test_a_kernel_that_gives_no_more_maps_leaves_all_as_it_is(
    unchanged: ProgramProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.6: whichever map it is."""
    make = make_map
    for works in range(3):
        made: list[int] = []

        def making(declared: object, made: list[int] = made, works: int = works) -> int:
            if len(made) == works:
                raise KernelError("map packets cannot be made: " + errno.errorcode[errno.ENOMEM])
            made.append(1)
            return make(declared)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(loading, "make_map", making)
            with pytest.raises(KernelError, match="cannot be made"):
                replace(unchanged, VARIANTS[3])


@pytest.mark.parametrize("hook", ["tc", None])
def test_a_full_chain_leaves_all_as_it_is(
    loose: Loose, unchanged: ProgramProbe, hook: str | None
) -> None:
    """S1.6: also where the other direction had a place already."""
    if hook:
        moved = config(TC_COUNTER, PACKETS, hook=hook)
        where = Hook.TC_INGRESS
    else:
        moved = config(COUNTER, PACKETS, egress=direction(TC_COUNTER, PACKETS))
        where = Hook.TC_EGRESS
    point = loose.hooks.acquire(only(unchanged).interface, where)
    stages = [Stage() for _ in range(MAX_PROBES)]
    with unchanged.compile(moved) as compiled:
        for stage in stages:
            point.chain.append(stage, compiled.sides[-1].program.loaded())
        with pytest.raises(UsageError, match="at most 32 probes"):
            unchanged.replace(compiled)
    loose.hooks.release(point)


def test_a_roll_back_that_finds_no_room_changes_nothing(loose: Loose) -> None:
    """S1.6: neither direction changes; as soon as the chain has room, the roll-back succeeds."""
    probe = loose.add(config(COUNTER, PACKETS, egress=direction(TC_COUNTER, PACKETS)))
    loose.send(1)
    replace(probe, config(TC_COUNTER, PACKETS, hook="tc"))
    point = loose.hooks.acquire(only(probe).interface, Hook.TC_EGRESS)
    stages = [Stage() for _ in range(MAX_PROBES)]
    with probe.compile(probe.config) as compiled:
        for stage in stages:
            point.chain.append(stage, compiled.sides[0].program.loaded())
        with pytest.raises(UsageError, match="at most 32 probes"):
            probe.roll_back()
        assert (probe.generation, probe.previous) == (2, 1)
        loose.send(40)
        loose.send(5, hook=Hook.TC_INGRESS)
        assert total(probe.export()) == 5
        for stage in stages:
            point.chain.remove(stage)
    probe.roll_back()
    loose.send(3)
    loose.send(7, hook=Hook.TC_EGRESS)
    assert {s.side: int(s.rows["value"][0]) for s in snapshots(probe.export())} == {
        "ingress": 3,
        "egress": 7,
    }
    for stage in stages:
        stage.close()
    loose.hooks.release(point)
