"""The controller: configurations become probes, and secrets stay hidden."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bpf.attach.attachment import Hook, attach
from bpf.attach.interface import find
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError, UsageError
from probes.config.model import ProbeConfig
from probes.control.builtin_probes import FLOW_PROBE
from probes.control_plane import ControlPlane
from probes.flow.filter import FlowFilter
from probes.flow.options import FlowOptions
from tests.probes.deck import DEAD, UDP, Deck, deck, dispatcher, udp
from tests.probes.program.tools import (
    COUNTER,
    PACKETS,
    TC_COUNTER,
    held_ids,
    metric,
    snapshots,
    total,
)
from tests.support.kernel import TC_MODE
from tests.support.sight import becomes

__all__ = ["deck"]


@pytest.mark.slow
def test_a_configuration_is_all_that_a_probe_needs(compiler: Compiler, deck: Deck) -> None:
    """S1.2, S1.5, S1.6: compiled, verified, injected, exported and taken away again."""
    held = held_ids()
    info = deck.controller.add(deck.config())
    assert deck.xdp() == dispatcher(deck)
    (program,) = info.programs
    assert (info.name, info.builtin, info.generation, info.previous) == ("probe", False, 1, None)
    assert (info.metrics, info.failure) == (("ingress.packets",), "")
    assert (program.side, program.interface, program.hook) == ("ingress", "right", "xdp")
    assert program.function == "count"
    assert program.memory > 0
    deck.receive(5)
    assert total(deck.controller.export("probe")) == 5
    deck.receive(3)
    assert total(deck.controller.remove("probe")) == 3
    assert deck.controller.probes() == ()
    assert deck.xdp() == 0
    assert deck.said("info") == ["removed"]
    assert deck.said("info", "right") == [f"xdp: {program.mode} (the source is for XDP only)"]
    assert total(deck.items) == 8
    assert held_ids() == held


def test_the_controller_is_a_control_plane(deck: Deck) -> None:
    plane: ControlPlane = deck.controller
    assert plane.hook_status() == ()
    plane.add(deck.config(TC_COUNTER, hook="tc"))
    assert [(h.hook, h.mode) for h in plane.hook_status()] == [("tc ingress", TC_MODE)]


def test_an_unknown_name_is_refused_with_the_nearest_one(deck: Deck) -> None:
    """S1.25: by everything that takes one; a name that is taken, too."""
    deck.controller.add(deck.config())
    asked: list[Callable[[], object]] = [
        lambda: deck.controller.export("prob"),
        lambda: deck.controller.roll_back("prob"),
        lambda: deck.controller.remove("prob"),
        lambda: deck.controller.cost("prob"),
        lambda: deck.controller.replace(deck.config(name="prob")),
    ]
    for ask in asked:
        with pytest.raises(UsageError) as caught:
            ask()
        assert str(caught.value) == "no probe 'prob'; did you mean probe?"
    with pytest.raises(UsageError, match="there is a probe 'probe' already; replace it"):
        deck.controller.add(deck.config(DEAD))
    with pytest.raises(UsageError, match="no probe 'flow'"):
        deck.controller.export("flow")
    assert deck.info().generation == 1
    deck.controller.remove("probe")
    with pytest.raises(UsageError, match="no probe 'probe'; there are none"):
        deck.controller.export("probe")


def test_where_it_is_read_only_nothing_is_changed_and_all_may_look(
    deck: Deck, compiled: list[str]
) -> None:
    deck.controller.add(deck.config())
    deck.controller.read_only = "started with --read-only"
    refused: list[Callable[[], object]] = [
        lambda: deck.controller.add(deck.config(name="other")),
        lambda: deck.controller.replace(deck.config(DEAD)),
        lambda: deck.controller.roll_back("probe"),
        lambda: deck.controller.remove("probe"),
        lambda: deck.controller.check(deck.config(DEAD)),
        lambda: deck.controller.cost("probe"),
    ]
    compiled.clear()
    for change in refused:
        with pytest.raises(UsageError, match="read only: started with --read-only"):
            change()
    assert compiled == []
    deck.run(3, udp())
    assert total(deck.controller.export("probe")) == 3
    assert deck.info().generation == 1


def test_anothers_program_on_an_interface_is_left_alone(deck: Deck, compiler: Compiler) -> None:
    """S1.6: neither direction gets a program; beside it, by TC, the probe runs."""
    held = held_ids()
    with compiler.compile(COUNTER, Hook.XDP.prog_type) as foreign:
        attachment = attach(Hook.XDP, foreign.programs["count"].fd, find("right"))
        theirs = deck.xdp()
        both = deck.config(COUNTER).model_copy(
            update={"egress": deck.config(TC_COUNTER, hook="tc").ingress}
        )
        with pytest.raises(ProbedeckError, match="is on right and is left alone"):
            deck.controller.add(both)
        assert not deck.controller.hooks()
        assert deck.controller.probes() == ()
        assert deck.xdp() == theirs
        deck.controller.add(deck.config(TC_COUNTER, hook="tc"))
        deck.receive(4)
        assert total(deck.controller.remove("probe")) >= 4
        assert deck.xdp() == theirs
        attachment.close()
    assert held_ids() == held


SECRET = """\
BPF_ARRAY(packets, u64, 1);
BPF_HASH(secret, u64, u64, 16);
BPF_PERCPU_ARRAY(hidden, u64, 1);

int count(struct xdp_md *ctx)
{
    u64 value = 0x5ec2e75ec2e75ec2ULL;
    u32 zero = 0;
    u64 *h = hidden.lookup(&zero);

    if (h)
        *h = value;
    secret.update(&value, &value);
    packets.increment(0);
    return XDP_PASS;
}
"""
SECRET_BYTES = 0x5EC2E75EC2E75EC2.to_bytes(8, "little")


def test_what_no_metric_names_leaves_by_no_door(deck: Deck) -> None:
    """S1.9: neither in answers to a front end nor in published items."""
    secret = deck.config(SECRET)
    shown = deck.config(SECRET, PACKETS, metric("secret"))
    deck.controller.add(secret)
    deck.run(3)
    answers: list[object] = [
        deck.controller.check(secret),
        deck.controller.export("probe"),
        deck.controller.probes(),
        deck.controller.cost("probe"),
        deck.controller.replace(secret),
        deck.controller.roll_back("probe"),
        deck.controller.hook_status(),
        deck.controller.remove("probe"),
        deck.controller.history.snapshots(),
        tuple(deck.items),
    ]
    found = [*leaves(answers)]
    assert any(isinstance(leaf, bytes) for leaf in found)
    for leaf in found:
        assert leaf not in (int.from_bytes(SECRET_BYTES, "little"), SECRET_BYTES)
        assert not isinstance(leaf, bytes) or SECRET_BYTES not in leaf
    # The judge sees it where it is shown.
    deck.controller.add(shown)
    deck.run(1)
    answers = [deck.controller.export("probe")]
    assert any(isinstance(leaf, bytes) and SECRET_BYTES in leaf for leaf in leaves(answers))


def leaves(value: object) -> Iterator[object]:
    """Every number, text and array's bytes in an answer."""
    if hasattr(value, "tobytes"):
        yield value.tobytes()
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from leaves(each)
    elif isinstance(value, dict):
        yield from leaves([*value.items()])
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from leaves(getattr(value, name))
    elif not isinstance(value, ProbeConfig):  # what the operator gave himself
        yield value


def test_windows_are_kept_by_metric_and_window(deck: Deck) -> None:
    metrics = PACKETS, metric("all", "packets", snapshot=True)
    deck.controller.add(deck.config(COUNTER, *metrics))
    deck.controller.add(deck.config(COUNTER, name="other"))
    for packets in (3, 4):
        deck.run(packets)
        exported = deck.controller.export("probe")
        assert [s.metric for s in exported] == ["packets", "all"]
        assert total(exported) == packets
    kept = deck.controller.history.snapshots()
    assert [(s.probe, s.window, s.metric, int(s.rows["value"][0])) for s in kept] == [
        ("probe", 1, "packets", 3),
        ("probe", 1, "all", 3),
        ("probe", 2, "packets", 4),
        ("probe", 2, "all", 4),
    ]
    assert [*kept] == snapshots(deck.items)
    assert deck.info().window == 2
    assert total(deck.controller.export("other")) == 7


def test_the_interval_of_a_replacement_holds_from_then_on(deck: Deck) -> None:
    deck.controller.add(deck.config())
    time.sleep(0.2)
    assert not snapshots(deck.items)
    deck.controller.replace(deck.config(interval=0.05))
    assert becomes(lambda: len(snapshots(deck.items)) > 4)
    deck.controller.roll_back("probe")
    time.sleep(0.1)
    windows = len(snapshots(deck.items))
    time.sleep(0.2)
    assert len(snapshots(deck.items)) == windows


@pytest.mark.timing
def test_the_cost_of_what_runs_is_measured_beside_it(deck: Deck) -> None:
    deck.controller.add(deck.config())
    deck.run(2, udp())
    (cost,) = deck.controller.cost("probe")
    assert cost.side == "ingress"
    assert 0 <= cost.ns < 10_000
    assert total(deck.controller.export("probe")) == 2


def test_the_cost_of_a_generation_is_measured_once(deck: Deck, compiled: list[str]) -> None:
    """A client that asks often, even one that may only read, does not occupy the compiler."""
    deck.controller.add(deck.config())
    compiled.clear()
    first = deck.controller.cost("probe")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(deck.controller.cost, ["probe"] * 8)) == [first] * 8
    assert len(compiled) == 1
    deck.controller.read_only = "started with --read-only"
    assert deck.controller.cost("probe") == first
    deck.controller.read_only = ""
    deck.controller.replace(deck.config(DEAD))
    compiled.clear()
    deck.controller.cost("probe")
    assert len(compiled) == 1


def test_a_probe_has_only_so_much_memory_for_its_maps(deck: Deck) -> None:
    """A snapshot metric's map counts twice: packets write to one while the other is read."""
    source = UDP.replace("packets, u64, 1", "packets, u64, 1000")
    deck.controller.configure_programs(15_000)
    for change in (deck.controller.add, deck.controller.check):
        with pytest.raises(UsageError) as caught:
            change(deck.config(source))
        assert "its maps take 16 KiB, and a probe may have 15 KiB" in str(caught.value)
        assert "--probe-memory" in caught.value.hint
    assert deck.controller.probes() == ()
    deck.controller.configure_programs(16_000)
    deck.controller.add(deck.config(source))
    with pytest.raises(UsageError, match="may have"):
        deck.controller.replace(deck.config(UDP.replace("packets, u64, 1", "packets, u64, 1001")))
    assert deck.info().generation == 1


@pytest.mark.slow
def test_a_filter_is_told_to_everybody_whoever_sets_it(deck: Deck) -> None:
    """An event tells the change, and every console and the API show the filter."""
    controller = deck.controller
    assert (controller.interval, controller.capture) == (0.0, "")
    controller.start(FLOW_PROBE, "right", FlowOptions(interval=30, capture="udp"))
    assert (controller.interval, controller.capture) == (30.0, "udp")
    controller.reconfigure(FlowFilter.parse("proto:tcp port:443"))
    assert controller.capture == "proto:tcp port:443"
    assert deck.said("info", "flow")[-1].startswith(
        "generation 2 counts proto:tcp port:443; it took "
    )
    controller.reconfigure(FlowFilter())
    assert controller.capture == ""
    assert deck.said("info", "flow")[-1].startswith("generation 3 counts every flow; ")
