"""Groups of interfaces: what a text takes, and names of interfaces of all namespaces."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from app.lab.netns import inside
from bpf.attach.group import InterfaceGroup, find, is_group
from bpf.errors import UsageError
from tests.probes.flow.pod_host import PodHost, pod_host


@pytest.fixture(scope="module")
def pods() -> Iterator[PodHost]:
    with pod_host(2) as found:
        yield found


def members(name: str) -> set[str]:
    return {member.interface.name for member in InterfaceGroup.of(name).members.values()}


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("any", {"lo", "eth0", "veth1", "veth2"}),
        ("any,br0", {"lo", "eth0", "veth1", "veth2", "br0"}),
        ("veth*", {"veth1", "veth2"}),
        ("*0", {"eth0"}),
        ("eth0,vx0", {"eth0", "vx0"}),
        ("none*", set()),
    ],
)
def test_a_pattern_leaves_out_interfaces_above_others(
    pods: PodHost, text: str, taken: set[str]
) -> None:
    with inside(pods.host):
        assert members(text) >= taken
        # The kernel puts its own tunnels into each namespace.
        assert not {"br0", "vx0"} & (members(text) - taken)


def test_a_name_must_exist(pods: PodHost) -> None:
    with inside(pods.host), pytest.raises(UsageError, match="no interface 'eth7'"):
        find("eth0,eth7")


def test_one_name_is_no_group() -> None:
    assert [is_group(text) for text in ("eth0", "any", "eth0,lo", "e?", "eth0@all")] == [
        False, True, True, True, True,
    ]  # fmt: skip


def test_each_run_has_a_bit_of_its_own(pods: PodHost) -> None:
    with inside(pods.host):
        groups = [InterfaceGroup.of("any") for _ in range(9)]
        for group in groups[:8]:
            group.claim()
        assert {group.bit for group in groups[:8]} == set(range(8, 16))
        with pytest.raises(UsageError, match="8 runs on several interfaces"):
            groups[8].claim()


def test_interfaces_of_all_namespaces_have_different_names(pods: PodHost) -> None:
    with ExitStack() as stack:
        for space in pods.containers:
            with inside(space):
                sleeper = subprocess.Popen(["sleep", "60"])
            stack.callback(sleeper.wait)
            stack.callback(sleeper.kill)
        with inside(pods.host):
            names = members("any@all")
    mine = [name for name in names if name.startswith("eth0@sleep")]
    assert len(mine) == 2, names
    assert {"eth0", "veth1", "veth2"} <= names
