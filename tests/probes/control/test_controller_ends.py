"""However it ends: interfaces that go away, older kernels, and a process that is killed."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from app.lab.netns import inside
from bpf.attach import netlink
from bpf.compiler import Compiler
from probes.control.controller import Controller
from tests.bpf.tools import ended, python, send, xdp_id
from tests.probes.deck import UDP, Deck, deck, link
from tests.probes.flow.test_windows import silent_pair
from tests.probes.program.tools import COUNTER, PACKETS, TC_COUNTER, config, direction, total
from tests.support.runs import is_loaded
from tests.support.sight import becomes, namespaces, namespaces_of

pytestmark = pytest.mark.timing

__all__ = ["deck"]


def test_a_probe_whose_interface_went_away_ends(deck: Deck) -> None:
    """Noticed without an interval too; the last window is published, and it can be removed."""
    deck.controller.add(deck.config(COUNTER))
    deck.run(6)
    link(deck.right, "del")
    assert becomes(lambda: bool(deck.said("error")), 1.5)
    assert deck.said("error") == ["interface right went away"]
    assert deck.info().failure == "interface right went away"
    assert str(deck.controller.failure()) == "interface right went away"
    assert total(deck.items) == 6
    deck.controller.remove("probe")
    assert deck.controller.failure() is None
    assert not deck.controller.hooks()


def test_a_probe_goes_on_as_long_as_one_of_its_interfaces_is_there(deck: Deck) -> None:
    source = direction(TC_COUNTER, PACKETS)
    deck.controller.add(deck.config(COUNTER, egress=source))
    deck.run(6)
    link(deck.right, "del")
    assert becomes(lambda: bool(deck.said("warning", "right")), 1.5)
    assert deck.said("warning", "right") == ["the interface went away"]
    time.sleep(1.1)
    assert not deck.said("error")
    assert deck.said("warning", "right") == ["the interface went away"]
    assert deck.info().failure == ""
    assert total(deck.controller.export("probe")) == 6


def test_where_the_kernel_has_no_links_it_is_all_the_same(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S1.28: on TC attached by netlink, read entry by entry."""
    from bpf.maps import map as maps

    monkeypatch.setattr(netlink, "STATE", tmp_path / "state")
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


KILLED = """
import sys, time
from app.lab.netns import setns
from tests.support.veth import veth_pair
from probes.control.controller import Controller
from tests.probes.program.tools import COUNTER, PACKETS, TC_COUNTER, config

both = config(COUNTER, PACKETS, interface="right", interval=0.05).model_copy(
    update={"egress": config(TC_COUNTER, PACKETS, interface="right", hook="tc").ingress})
with veth_pair():
    deck = Controller()
    setns(int(sys.argv[1]))
    infos = [deck.add(both)]
    for _ in range(3):
        deck.replace(both)
    infos.append(deck.add(both.model_copy(update={"name": "other"})))
    ids = [p.program_id for info in infos for p in info.programs]
    from bpf.syscall import prog_info
    ids += [prog_info(point.chain.fd).id for point in deck.hooks()]
    print(*ids, flush=True)
    time.sleep(60)
"""


def test_killed_it_leaves_no_program_and_no_namespace() -> None:
    with silent_pair() as (_, right):
        before = namespaces()
        with python(KILLED, str(right.ns), pass_fds=[right.ns]) as process:
            assert process.stdout
            ids = [int(word) for word in process.stdout.readline().split()]
            assert len(ids) == 4 + 2
            with inside(right.ns):
                assert xdp_id(right.ifindex) in ids
            made = namespaces_of([process.pid]) - before
            assert len(made) == 2
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert ended(process.pid, 1)
        assert becomes(lambda: not any(map(is_loaded, ids)))
        with inside(right.ns):
            assert xdp_id(right.ifindex) == 0
        assert becomes(lambda: not made & namespaces())
