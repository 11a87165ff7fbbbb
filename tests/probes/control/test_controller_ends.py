"""However it ends: interfaces that go away, older kernels, and a process that is killed."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.lab import netns
from app.lab.netns import inside
from app.lab.topology import open_end
from bpf.attach import attachment
from bpf.compiler import Compiler
from probes.control.controller import Controller
from tests.bpf.tools import send, xdp_id
from tests.probes.deck import UDP, Deck, deck, dispatcher, link
from tests.probes.flow.test_windows import silent_pair
from tests.probes.program.tools import PACKETS, TC_COUNTER, config, direction, total
from tests.support.sight import becomes
from tests.support.veth import join

pytestmark = pytest.mark.timing

__all__ = ["deck"]


def test_a_probe_waits_for_its_interface_and_counts_when_it_returns(deck: Deck) -> None:
    """Beside a probe of another interface, and also if it is replaced meanwhile."""
    control = deck.controller
    control.add(deck.config())
    control.add(deck.config(TC_COUNTER, name="beside", interface="lo", hook="tc"))
    deck.receive(6)
    link(deck.right, "del")
    assert becomes(lambda: bool(deck.said("warning", "right")))
    assert deck.said("warning", "right") == [
        "the interface went away, and its probes wait for its return"
    ]
    assert deck.info().state == "waits for interface right"
    assert deck.info("beside").state == "runs"
    assert control.failure() is None
    report = control.replace(deck.config())
    assert (report.generation, report.state) == (2, "waits for interface right")
    assert report.compatibility.warnings == ()
    assert control.roll_back("probe").state == "waits for interface right"
    assert deck.said("info")[-1].startswith("generation 3 waits for interface right, after ")

    rejoin(deck, "right")
    # The events come after the hooks, and so tell that all of them are there.
    assert becomes(lambda: _is_back(deck.said("info", "right")[1:]))
    assert deck.info().state == "runs"
    assert deck.xdp() == dispatcher(deck)
    control.export("probe")
    deck.items.clear()
    deck.receive(100)
    report = control.replace(deck.config())
    assert (report.state, report.compatibility.warnings) == ("runs", ())
    deck.receive(100)
    last = control.export("probe")
    assert total(deck.items) == 200
    assert last[0].hooks[0].mode == "native"
    control.remove("probe")
    control.remove("beside")
    assert deck.xdp() == 0


def _is_back(texts: list[str]) -> bool:
    """Whether an interface is up again, and its native hook is attached."""
    up = "the interface is back, and up" in texts or "the interface is up" in texts
    return up and any(text.startswith("xdp: native") for text in texts)


def test_an_interface_keeps_its_probes_under_another_name(deck: Deck) -> None:
    control = deck.controller
    both = deck.config(egress=direction(TC_COUNTER, PACKETS, interface="right"))
    control.add(both)
    link(deck.right, "set", state="down")
    link(deck.right, "set", ifname="wan")
    link(deck.right, "set", state="up")
    assert becomes(lambda: deck.said("info", "wan")[-1:] == ["the interface is up"])
    assert deck.said("info", "wan")[0] == "the interface was renamed from right"
    assert {program.interface for program in deck.info().programs} == {"wan"}
    assert {status.interface for status in control.hook_status()} == {"wan"}
    assert deck.said("warning") == []
    # A file has the old name.
    assert control.replace(both).compatibility.warnings == ()
    assert becomes(lambda: receives(deck))
    control.export("probe")
    deck.items.clear()
    deck.receive(100)
    tables = control.export("probe")
    assert {table.interface for table in tables} == {"wan"}
    assert sum(table.rows["value"][0] for table in tables if table.side == "ingress") == 100

    # Of the name "wan" there is an interface without Ethernet headers first.
    link(deck.right, "del")
    assert becomes(lambda: deck.info().state == "waits for interface wan")
    tun = open_end(deck.right.ns, "wan")
    assert becomes(lambda: bool(deck.said("error", "wan")))
    os.close(tun)
    why = "not attached again: it is of another kind now; remove and add its probes"
    assert deck.said("error", "wan") == [f"xdp: {why}", f"tc egress: {why}"]
    assert deck.info().state == "waits for interface wan"
    rejoin(deck, "wan")
    assert becomes(lambda: deck.info().state == "runs")
    control.remove("probe")


def rejoin(deck: Deck, name: str) -> None:
    """Make both interfaces of the deck again. Nobody speaks on them by himself."""
    for off in "01":
        for end in (deck.left, deck.right):
            netns.write_sysctls(end.ns, {"net/ipv6/conf/all/disable_ipv6": off})
        if off == "0":
            deck.left, deck.right = join(deck.left, replace(deck.right, ifname=name))


def receives(deck: Deck) -> bool:
    return send(deck.left, deck.right, 1) == 1


def test_where_the_kernel_has_no_links_it_is_all_the_same(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S1.28: on TC attached by netlink, read entry by entry."""
    from bpf.maps import map as maps

    monkeypatch.setattr(attachment, "STATE", tmp_path / "state")
    slowest = {name: kind for name, kind in maps._READERS.items() if name == "iterate"}
    monkeypatch.setattr(maps, "_READERS", slowest)
    with (
        silent_pair() as (left, right),
        inside(right.ns),
        closing(Controller(by_link=False)) as old,
    ):
        both = config(UDP, PACKETS, interface="right").model_copy(
            update={"egress": config(TC_COUNTER, PACKETS, interface="right", hook="tc").ingress}
        )
        info = old.add(both)
        assert {program.mode for program in info.programs} == {"native", "clsact"}
        assert send(left, right, 6) == 6
        old.replace(both)
        assert send(left, right, 3) == 3
        counted = [*old.history.snapshots(), *old.remove("probe")]
        assert sum(int(s.rows["value"][0]) for s in counted if s.side == "ingress") >= 9
        assert xdp_id(right.ifindex) == 0
