"""Many at a time: changes, exports, slow readers and live frames, and every packet counted once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.lab.netns import inside
from bpf.compiler import Compiler
from bpf.errors import UsageError
from bpf.syscall import prog_test_run
from probes.control.builtin_probes import FLOW_PROBE
from probes.flow.options import FlowOptions
from probes.snapshot import Item, Snapshot
from tests.probes.deck import DEAD, UDP, Deck, deck
from tests.probes.flow.test_windows import counting
from tests.probes.program.tools import COUNTER, Traffic, snapshots, total
from tests.support.generator import Generator
from tests.support.veth import End

__all__ = ["deck"]


def test_changes_by_many_threads_lose_and_double_nothing(deck: Deck) -> None:
    """S1.23: polls, exports, replacements, roll-backs; and the end of it all by a removal."""
    first, other = (
        deck.config(COUNTER, interval=0.01),
        deck.config(COUNTER.replace("u64, 1)", "u64, 9)"), interval=0.02),
    )
    deck.controller.add(first)
    deck.controller.replace(other)
    failures: list[BaseException] = []
    removed: list[Snapshot] = []

    over = threading.Event()

    def repeat(change: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                change()
        except UsageError as error:
            if "no probe" not in str(error) and "meanwhile" not in str(error):
                failures.append(error)
        except BaseException as error:
            failures.append(error)

    def remove() -> None:
        time.sleep(0.8)
        traffic.stop()
        removed.extend(deck.controller.remove("probe"))
        over.set()

    changes: list[Callable[[], object]] = [
        lambda: deck.controller.export("probe"),
        lambda: deck.controller.replace(first),
        lambda: deck.controller.replace(other),
        lambda: deck.controller.roll_back("probe"),
        lambda: deck.controller.check(other),
        lambda: deck.controller.probes(),
    ]
    with Traffic(deck.fd()) as traffic:
        threads = [
            *(threading.Thread(target=repeat, args=(change,)) for change in changes),
            threading.Thread(target=remove),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    published = [s for s in snapshots(deck.items) if s.metric == "packets"]
    assert total(published) == traffic.sent > 0
    windows = [s.window for s in published]
    assert windows == list(range(1, len(windows) + 1)), "each once, and in order"
    assert len(windows) > 30
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(published))
    assert published[-1] in removed
    assert not deck.controller.hooks()


def test_who_comes_too_late_for_a_probe_that_is_removed_is_told(deck: Deck) -> None:
    """S1.23, S1.25: its last window stays its last."""
    deck.controller.add(deck.config())
    late = deck.controller._running.find("probe")
    deck.controller.remove("probe")
    windows = len(snapshots(deck.items))
    with pytest.raises(UsageError, match="probe probe was removed meanwhile"):
        late.export()
    assert len(snapshots(deck.items)) == windows == 1


def test_a_slow_reader_slows_no_packet_and_nobody_who_looks(deck: Deck) -> None:
    """S1.27: packets are counted on while it is at it, each in its window."""
    deck.controller.add(deck.config(COUNTER))
    blocked, go_on = threading.Event(), threading.Event()

    def slow(item: Item) -> None:
        if isinstance(item, Snapshot) and item.window == 1:
            blocked.set()
            assert go_on.wait(10)

    deck.controller.listen(slow)
    deck.run(1000)
    alone = fastest(deck)
    with ThreadPoolExecutor(2) as threads:
        exporting = threads.submit(deck.controller.export, "probe")
        assert blocked.wait(5)
        replacing = threads.submit(deck.controller.replace, deck.config(COUNTER, interval=300))
        beside = fastest(deck)
        assert deck.info().window == 1
        assert deck.controller.hook_status()
        assert not exporting.done()
        assert not replacing.done()
        go_on.set()
        assert total(exporting.result()) == 1000 + 5 * 200_000
        replacing.result()
    assert beside < 3 * alone
    assert total(deck.items) == 1000 + 10 * 200_000


def test_windows_are_published_in_order_whoever_ends_them(deck: Deck) -> None:
    """S1.23: one that is slow to be published is not overtaken."""
    order: list[int] = []

    def slow(item: Item) -> None:
        if isinstance(item, Snapshot) and item.window % 2:
            time.sleep(0.02)

    deck.controller.listen(slow)
    deck.controller.listen(lambda i: order.append(i.window) if isinstance(i, Snapshot) else None)
    deck.controller.add(deck.config(interval=0.01))
    deck.controller.replace(deck.config(DEAD, interval=0.01))
    for change in (deck.controller.export, deck.controller.roll_back) * 10:
        change("probe")
        time.sleep(0.005)
    deck.controller.remove("probe")
    assert order == list(range(1, len(order) + 1))
    assert len(order) > 30


def fastest(deck: Deck) -> int:
    """Nanoseconds a packet, the best of five."""
    return min(prog_test_run(deck.fd(), bytes(64), repeat=200_000).duration_ns for _ in range(5))


def test_a_listener_may_ask_whatever_is_going_on(deck: Deck) -> None:
    asked: list[object] = []

    def ask(item: Item) -> None:
        asked.append(
            (deck.controller.probes(), deck.controller.hook_status(), deck.controller.failure())
        )

    deck.controller.listen(ask)

    def change() -> None:
        deck.controller.add(deck.config(interval=0.01))
        for source in (DEAD, UDP, DEAD):
            deck.controller.replace(deck.config(source, interval=0.01))
        deck.controller.roll_back("probe")
        deck.controller.remove("probe")

    with ThreadPoolExecutor(1) as thread:
        thread.submit(in_ns, deck.right, change).result(20)
    assert len(asked) == len(deck.items)


def in_ns(end: End, change: Callable[[], None]) -> None:
    with inside(end.ns):
        change()


@pytest.mark.slow
def test_frames_of_a_real_interface_are_counted_once_whatever_is_done_to_the_chain(
    deck: Deck, compiler: Compiler
) -> None:
    """S1.26: exports and replacements of one probe, others coming and going, beside the flows."""
    source = COUNTER.replace("u64, 1)", "u64, 64)")
    other = deck.config(source, interval=0.05)
    with counting() as seen, Generator(compiler, deck.left, flows=500) as generator:
        flow = deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=0.1))
        deck.controller.add(deck.config(COUNTER, interval=0.02))
        deck.controller.replace(other)
        sender = threading.Thread(target=generator.send, args=(1_500_000,))
        sender.start()
        changes = 0
        while sender.is_alive():
            deck.controller.roll_back("probe")
            changes += 1
            if changes % 20 == 0:
                deck.controller.add(deck.config(COUNTER, name="guest"))
                deck.controller.replace(other)
                deck.controller.remove("guest")
        sender.join()
        expected = seen(deck.controller)
        deck.controller.remove("probe")
        flow_window = deck.controller.remove("flow")
    assert flow.name == "flow"
    assert flow_window
    assert changes >= 50
    mine = [s for s in snapshots(deck.items) if s.probe == "probe"]
    assert total(mine) == expected > 500_000
    flows = [s for s in snapshots(deck.items) if s.probe == "flow"]
    lost = sum(loss.packets for s in flows for loss in s.losses.values())
    assert sum(int(s.rows["packets"].sum()) for s in flows) + lost == expected
    guests = sum(int(s.rows["value"].sum()) for s in snapshots(deck.items) if s.probe == "guest")
    assert guests <= expected
