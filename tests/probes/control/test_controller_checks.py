"""Sources and configurations that the controller checks, refuses, or takes only by force."""

from __future__ import annotations

from typing import Any

import pytest

from bpf.compiler import CompileError
from bpf.errors import KernelError, ProbedeckError, UsageError
from probes.reports import Fate
from tests.probes.deck import DEAD, DROPS, UDP, Deck, deck, dispatcher, polls, udp
from tests.probes.program.tools import (
    DEEP,
    PACKETS,
    held_ids,
    metric,
    total,
)
from tests.support.sight import becomes

__all__ = ["deck"]


def test_a_check_changes_nothing_and_is_not_done_twice(deck: Deck, compiled: list[str]) -> None:
    """S1.6: compile without loading; a swap then takes the checked programs."""
    deck.controller.add(deck.config())
    compiled.clear()
    before, ids = deck.info(), (deck.xdp(), dispatcher(deck))
    check = deck.controller.check(deck.config(DEAD))
    assert compiled == ["probe.ingress.c"]
    assert check.compatibility
    assert [(m.map, m.fate) for m in check.compatibility.maps] == [("packets", Fate.WINDOW)]
    assert check.compatibility.warnings == ()
    assert check.seconds > 0
    assert [cost.side for cost in check.costs] == ["ingress"]
    assert deck.info() == before
    assert (deck.xdp(), dispatcher(deck)) == ids
    deck.controller.replace(deck.config(DEAD))
    assert len(compiled) == 1
    # Of another configuration, or for another probe, it is of no use.
    deck.controller.check(deck.config())
    deck.controller.replace(deck.config(UDP, PACKETS, interval=300))
    assert len(compiled) == 3
    assert deck.controller.check(deck.config(name="other")).compatibility is None
    deck.controller.add(deck.config(name="other"))
    assert len(compiled) == 4


def test_what_was_checked_against_another_probe_is_compiled_again(
    deck: Deck, compiled: list[str]
) -> None:
    deck.controller.add(deck.config())
    deck.controller.check(deck.config(DEAD))
    deck.controller.remove("probe")
    deck.controller.add(deck.config(DEAD))
    assert len(compiled) == 3


def test_a_program_that_passes_other_packets_is_warned_of(deck: Deck) -> None:
    """By running test frames through both; and against what runs, after a roll-back too."""
    drops = ("ingress: IPv4 UDP gets verdict 1, was 2",)
    passes = ("ingress: IPv4 UDP gets verdict 2, was 1",)

    def warnings(source: str) -> tuple[str, ...]:
        report = deck.controller.check(deck.config(source)).compatibility
        assert report
        return report.warnings

    deck.controller.add(deck.config())
    assert (warnings(UDP), warnings(DROPS)) == ((), drops)
    assert deck.controller.replace(deck.config(DROPS)).compatibility.warnings == drops
    assert (warnings(UDP), warnings(DROPS)) == (passes, ())
    deck.controller.roll_back("probe")
    assert (warnings(UDP), warnings(DROPS)) == ((), drops)
    deck.controller.roll_back("probe")
    assert (warnings(UDP), warnings(DROPS)) == (passes, ())
    deck.run(1)
    assert total(deck.controller.export("probe")) == 0, "test frames are counted nowhere"


def verdict(value: str, kind: str = "xdp_md") -> str:
    return (
        "#include <uapi/linux/pkt_cls.h>\nBPF_ARRAY(packets, u64, 1);\n"
        f"int f(struct {kind} *ctx) {{ packets.increment(0); return {value}; }}\n"
    )


CUTS = {
    "XDP_ABORTED": ("xdp", verdict("0")),
    "XDP_DROP": ("xdp", verdict("XDP_DROP")),
    "XDP_TX": ("xdp", verdict("XDP_TX")),
    "XDP_REDIRECT": ("xdp", verdict("bpf_redirect(1, 0)")),
    "XDP_ABORTED, for 77": ("xdp", verdict("77")),
    "TC_ACT_SHOT": ("tc", verdict("TC_ACT_SHOT", "__sk_buff")),
    "TC_ACT_REDIRECT": ("tc", verdict("bpf_redirect(1, 0)", "__sk_buff")),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_program_that_takes_every_packet_must_be_forced(deck: Deck, name: str) -> None:
    hook, source = CUTS[name]
    cuts = f"ingress lets none of the test frames pass ({name}): right receives nothing then"
    cutting = deck.config(source, hook=hook)
    assert deck.controller.check(cutting).cuts == (cuts,)
    with pytest.raises(UsageError) as caught:
        deck.controller.add(cutting)
    assert str(caught.value) == f"probe: {cuts}; use --force to run it anyway"
    assert (deck.controller.probes(), deck.xdp(), deck.items) == ((), 0, [])

    # In the place of a program that passes packets it is refused, too. Forced, it warns once.
    passing = source.replace("return", "if (ctx->data_end - ctx->data < 1) return") + " "
    passing = passing.replace("}\n", f"return {'XDP_PASS' if hook == 'xdp' else 'TC_ACT_OK'}; }}\n")
    deck.controller.add(deck.config(passing, hook=hook))
    with pytest.raises(UsageError, match="ingress lets none of the test frames pass"):
        deck.controller.replace(cutting)
    assert deck.info().generation == 1
    deck.controller.replace(cutting, force=True)
    assert deck.said("warning") == [cuts]
    assert deck.controller.check(cutting).cuts == ()
    deck.controller.replace(cutting)
    assert deck.info().generation == 3


@pytest.mark.slow
def test_what_takes_every_packet_runs_if_it_is_forced(deck: Deck) -> None:
    deck.receive(3)
    info = deck.controller.add(deck.config(verdict("0")), force=True)
    assert list(info.warnings) == deck.said("warning")
    with pytest.raises(AssertionError):
        deck.receive(3)
    assert [text[:31] for text in deck.said("warning")] == ["ingress lets none of the test f"]


@pytest.mark.parametrize("value", ["TC_ACT_OK", "0", "TC_ACT_UNSPEC", "TC_ACT_PIPE"])
def test_a_program_that_lets_packets_go_on_needs_no_force(deck: Deck, value: str) -> None:
    deck.controller.add(deck.config(verdict(value, "__sk_buff"), hook="tc"))
    assert deck.controller.check(deck.config(DROPS)).cuts == ()


WRONG: dict[str, tuple[Any, dict[str, str], type[ProbedeckError]]] = {
    "source": (["int count("], {}, CompileError),
    "verifier": ([UDP.replace("frame + 34 >", "frame + 3 >")], {}, CompileError),
    "metric": ([UDP, metric("packet")], {}, UsageError),
    "interface": ([], {"interface": "rihgt"}, UsageError),
    "stack": ([DEEP], {}, KernelError),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_changes_nothing(deck: Deck, what: str) -> None:
    """S1.6: the same programs run on, to the packet; the failed ones attach nowhere."""
    given, more, error = WRONG[what]
    deck.controller.add(deck.config())
    deck.run(4, udp())
    assert becomes(polls)
    before, ids, held = deck.info(), (deck.xdp(), dispatcher(deck)), held_ids()
    wrong = deck.config(*given, **more)
    with pytest.raises(error):
        deck.controller.replace(wrong)
    with pytest.raises(error):
        deck.controller.add(wrong.model_copy(update={"name": "other"}))
    assert deck.info() == before
    assert (deck.xdp(), dispatcher(deck)) == ids
    assert held_ids() == held
    deck.run(3, udp())
    assert total(deck.controller.export("probe")) == 7
