"""Finding interfaces."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.lab.netns import fresh, inside, open_host
from bpf.attach import interface
from bpf.errors import UsageError
from tests.bpf.tools import send
from tests.support.veth import End


def set_link(ns: int, index: int, **changes: str) -> None:
    """Change an interface by netlink, as an administrator would."""

    async def change() -> None:
        netlink = await open_host(ns)
        await netlink.link("set", index=index, **changes)
        netlink.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, change()).result()


def test_an_interface_is_found_with_its_index_and_kind(pair: tuple[End, End]) -> None:
    left, _ = pair
    with inside(left.ns):
        found = interface.find("left")
        assert (found.name, found.index, found.ethernet) == ("left", left.ifindex, True)
        assert found.is_up()
        assert interface.find("lo").ethernet


def test_an_interface_is_followed_when_it_goes_down_or_is_renamed(
    pair: tuple[End, End],
) -> None:
    left, _ = pair
    with inside(left.ns):
        found = interface.find("left")
        set_link(left.ns, left.ifindex, state="down")
        assert not found.is_up()
        set_link(left.ns, left.ifindex, ifname="other")
        set_link(left.ns, left.ifindex, state="up")
        assert found.is_up()


def test_packets_are_counted_by_direction_under_whatever_name(pair: tuple[End, End]) -> None:
    left, right = pair
    with inside(left.ns):
        found = interface.find("left")
        before = found.packets()
        set_link(left.ns, left.ifindex, ifname="other")
        assert send(left, right, 300) == 300
        received, sent = (now - then for now, then in zip(found.packets(), before, strict=True))
        # Both ends ask for neighbours, routers and groups too, how often depends on the system.
        assert received < 150
        assert 300 <= sent < 450
    assert interface.Interface("gone", 99999, True).packets() == (0, 0)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("lefd", "did you mean left?"), ("wlan7", "there are lo, left"), ("", "there are lo, left"),
     ("a\0b", "there are lo, left"), ("x" * 40, "there are lo, left")],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_what_there_is(
    pair: tuple[End, End], name: str, hint: str
) -> None:
    with inside(pair[0].ns), pytest.raises(UsageError) as caught:
        interface.find(name)
    assert (repr(name) if name else "missing") in caught.value.message
    assert caught.value.hint == hint


def test_an_interface_that_is_down_is_found() -> None:
    ns = fresh()
    with inside(ns):
        assert not interface.find("lo").is_up()
    os.close(ns)
