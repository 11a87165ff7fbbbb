"""The join of flows and conversations with sockets: both directions, both ends, all protocols."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.flow.grouping import group
from probes.flow.records import FLOW, FlowDirection
from probes.sockets.limits import FIN, PSH, SYN
from probes.sockets.owners.rows import questions_of
from probes.sockets.records import OWNER, SOCKET, ends_of, owners_of, sockets_of
from tests.probes.flow.test_grouping import HERE, HERE6, THERE, THERE6, both

ENDS = ("near", "far", "near_port", "far_port", "protocol", "version")


def sockets(rows: Array) -> Array:
    """A socket for each conversation of flows."""
    conversations = group(rows, "conversations").rows
    made = np.zeros(len(conversations), SOCKET)
    for name in ENDS:
        made[name] = conversations[name]
    return made


@pytest.mark.parametrize("protocol", [6, 17, 132])
@pytest.mark.parametrize(("here", "there"), [(HERE, THERE), (HERE6, THERE6)])
def test_both_directions_find_the_socket(here: str, there: str, protocol: int) -> None:
    rows = both(here, there, 40001, 443, protocol)
    assert sockets_of(rows, sockets(rows)).tolist() == [0, 0]


@pytest.mark.parametrize(("protocol", "request_type", "answer"), [(1, 8, 0), (58, 128, 129)])
def test_an_echo_and_its_answer_find_the_socket(
    protocol: int, request_type: int, answer: int
) -> None:
    rows = both(HERE, THERE, 77, request_type << 8, protocol)
    rows["source_port"], rows["destination_port"] = 77, (request_type << 8, answer << 8)
    made = sockets(rows)
    assert len(made) == 1
    assert sockets_of(rows, made).tolist() == [0, 0]


def test_a_forwarded_flow_finds_the_socket_of_its_other_end() -> None:
    rows = both(HERE, THERE, 40001, 443)
    turned = sockets(rows)
    for one, other in (("near", "far"), ("near_port", "far_port")):
        turned[one], turned[other] = turned[other].copy(), turned[one].copy()
    assert sockets_of(rows, turned).tolist() == [0, 0]


def test_on_loopback_each_end_finds_its_own_socket() -> None:
    rows = np.concatenate([both(HERE, HERE, 40001, 443), both(HERE, HERE, 443, 40001)])
    made = sockets(rows)
    found = made["near_port"][sockets_of(rows, made)]
    assert found.tolist() == [40001, 40001, 443, 443]


def test_conversations_are_joined_as_their_flows() -> None:
    count = 500
    rows = np.concatenate([both(HERE, THERE, 40000 + port, 443) for port in range(count)])
    made = sockets(rows)[::2]
    groups = group(rows, "conversations")
    found = sockets_of(rows, made)
    assert (sockets_of(groups.rows, made)[groups.of] == found).all()
    assert (found >= 0).sum() == count
    assert (ends_of(made)[found[found >= 0]] == ends_of(rows[found >= 0])).all()


def test_without_rows_nothing_is_found() -> None:
    rows = both(HERE, THERE, 1, 2)
    assert sockets_of(rows, np.zeros(0, SOCKET)).tolist() == [-1, -1]
    assert sockets_of(np.zeros(0, FLOW), sockets(rows)).tolist() == []
    assert owners_of(sockets(rows), np.zeros(0, OWNER)).tolist() == [-1]


def test_owners_by_number() -> None:
    made, owners = np.zeros(4, SOCKET), np.zeros(3, OWNER)
    made["owner"], owners["number"] = (7, 0, 9, 2), (2, 7, 8)
    assert owners_of(made, owners).tolist() == [1, -1, -1, 0]


def test_two_containers_answer_each_other_though_all_their_packets_leave() -> None:
    rows = both(HERE, THERE, 40001, 443)
    rows["direction"], rows["tcp_flags"] = FlowDirection.EGRESS, (SYN | PSH, SYN | FIN)
    asked = questions_of(rows)
    assert len(asked) == 2
    assert sorted(asked.flags_in.tolist()) == sorted([SYN | PSH, SYN | FIN])
    assert asked.flags.tolist() == [SYN | PSH | FIN] * 2
    assert questions_of(rows[:1]).flags_in.tolist() == [0]
