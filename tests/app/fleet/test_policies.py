"""Policies on the sums of a fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.api.address import Remote
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.fleet import policy_runner
from app.fleet.host_state import HostPhase
from app.fleet.hosts import load
from app.fleet.plane import ChosenHosts
from app.fleet.planes import HostReport
from app.fleet.policies import FleetPolicies, FleetTransition
from app.fleet.policy_runner import FleetRunner
from app.fleet.sums import AlignedSeconds, FleetSecond, distinct
from bpf.arrays import Array
from bpf.errors import ProbedeckError
from probes.monitor.policy import Policy
from probes.monitor.records import METRIC
from probes.monitor.sketch import Sketch
from probes.monitor.state import METRICS_TABLE
from probes.snapshot import Event, Item, Snapshot
from tests.app.api.fake import FakePlane
from tests.app.fleet.fake_hub import FakeHub
from tests.support.monitors import table
from tests.support.sight import becomes

NAMES = ("ams1", "ams2", "fra1")
S = 10**9


def policy(condition: str, **more: Any) -> Policy:
    return Policy.parse(
        {"name": "flood", "condition": condition, "run": ["heavy"], **more}, "a test"
    )


def row(**values: int) -> Array:
    found = np.zeros((), METRIC)
    for name, value in values.items():
        found[name] = value
    return found


def window(end_utc_ns: int, seconds: float = 1.0, **values: int) -> Snapshot:
    made = table(METRICS_TABLE, row(**values).reshape(1))
    return replace(made, start_ns=made.end_ns - round(seconds * S), end_utc_ns=end_utc_ns)


def second(number: int, *packets: int | None, **values: int) -> FleetSecond:
    """A second in which each host has so many packets; None: it is missing."""
    counts = dict(zip(NAMES, packets, strict=True))
    rows = {name: row(packets=n, **values) for name, n in counts.items() if n is not None}
    return FleetSecond(number * S, rows, tuple(name for name in NAMES if name not in rows))


def one(found: Sequence[FleetTransition | Event]) -> FleetTransition:
    (only,) = found
    assert isinstance(only, FleetTransition)
    return only


def test_windows_of_any_phase_and_length_add_up_by_utc_seconds() -> None:
    now, begin = 1000 * S, 990
    seconds = AlignedSeconds(NAMES)
    for k in range(4):
        seconds.add("ams1", window((begin + 1 + k) * S, packets=100), now)
        seconds.add("ams2", window(round((begin + 1.3 + k) * S), packets=10), now)
    for k in range(8):
        seconds.add("fra1", window(round((begin + 0.75 + k / 2) * S), 0.5, packets=1), now)
    found = seconds.closed(NAMES, (begin + 1) * S)
    # The last second is not complete: a window of fra1 is to come.
    assert [each.end_utc_ns // S for each in found] == [991, 992, 993, 994]
    for each in found:
        sums = {name: int(values["packets"]) for name, values in each.rows.items()}
        assert sums == {"ams1": 100, "ams2": 10, "fra1": 2}
        assert not each.missing
    # A host that is there, and sends nothing, is waited for, and is then missing.
    seconds.add("ams1", window((begin + 5) * S, packets=100), now)
    assert not seconds.closed(NAMES, (begin + 5) * S)
    assert seconds.closed(NAMES, (begin + 9) * S)[0].missing == ("ams2", "fra1")
    # A window of a second that is closed is not counted again; a wrong clock counts nowhere.
    seconds.add("fra1", window((begin + 3) * S, packets=7), now)
    seconds.add("fra1", window((begin + 500) * S, packets=7), now)
    assert not seconds.closed(NAMES, (begin + 9) * S)


def test_a_sum_above_the_threshold_concerns_the_hosts_that_contribute() -> None:
    policies = FleetPolicies([policy("packets > 1000", hold=2)])
    assert not policies.judge(second(1, 400, 350, 20), None)
    begun = one(policies.judge(second(2, 600, 550, 20), None))
    # 1/6 of the sum is the least share of three hosts.
    assert (begun.begins, begun.hosts, begun.activated) == (True, ("ams1", "ams2"), "heavy")
    assert begun.event.text == (
        "flood begins: packets 1170 > 1000; ams1 600, ams2 550, fra1 20; heavy on ams1, ams2"
    )
    assert (begun.event.phase, begun.event.subject) == ("begin", "policy flood")
    # At least for `hold`, and then the same hosts, whoever contributes now.
    assert not policies.judge(second(3, 1, 1, 1), None)
    ended = one(policies.judge(second(4, 1, 1, 1), None))
    assert (ended.begins, ended.hosts, ended.event.phase) == (False, ("ams1", "ams2"), "end")


def test_a_missing_host_makes_the_sum_a_lower_bound() -> None:
    policies = FleetPolicies([policy("packets > 1000")])
    begun = one(policies.judge(second(1, 1600, None, None), None))
    assert begun.hosts == ("ams1",)
    assert "a lower bound: ams2, fra1 are not counted" in begun.event.text


def test_a_policy_waits_for_the_missing_hosts_that_began_it() -> None:
    policies = FleetPolicies([policy("packets > 1000")])
    assert one(policies.judge(second(1, 900, 300, 10), None)).hosts == ("ams1", "ams2")
    (notice,) = policies.judge(second(2, None, 300, 10), None)
    assert isinstance(notice, Event)
    assert notice.text == (
        "flood stays active: packets 310 <= 1000, a lower bound: ams1 is missing; it waits 60 s"
    )
    # Hosts that are back with the same numbers: it never ended.
    assert not policies.judge(second(3, 900, 300, 10), None)
    # A missing host that did not begin it holds up no end.
    assert not policies.judge(second(4, 900, 300, None), None)
    ended = one(policies.judge(second(5, 1, 300, None), None))
    assert (ended.begins, ended.hosts) == (False, ("ams1", "ams2"))
    assert ended.event.text.endswith("a lower bound: fra1 is not counted; heavy on ams1, ams2")


def test_the_wait_for_a_missing_host_ends_with_its_return_or_in_time() -> None:
    for back, cause in ((1, "its missing hosts are back"), (None, "ams1 is missing for 60 s")):
        policies = FleetPolicies([policy("packets > 1000")])
        policies.judge(second(1, 900, 300, 10), None)
        assert len(policies.judge(second(2, None, 300, 10), None)) == 1
        assert not policies.judge(second(61, None, 300, 10), None)
        ended = one(policies.judge(second(62, back, 300, 10), None))
        assert (ended.begins, ended.hosts) == (False, ("ams1", "ams2"))
        assert cause in ended.event.text
        assert not policies.end(63 * S)


def test_a_ratio_does_not_divide_and_concerns_all_hosts() -> None:
    policies = FleetPolicies([policy("udp_packets / packets > 50%")])
    begun = one(policies.judge(second(1, 10, 10, 1, udp_packets=10), None))
    assert begun.hosts == NAMES
    assert "the value does not divide by host" in begun.event.text


def test_a_policy_that_is_active_at_the_end_is_ended() -> None:
    policies = FleetPolicies([policy("packets > 1000")])
    assert not policies.end(S)
    policies.judge(second(1, 1600, 1, 1), None)
    assert one(policies.end(2 * S)).hosts == ("ams1",)
    assert not policies.end(3 * S)


def reports(shared: int, **own: int) -> list[HostReport]:
    """Return a report for each host; its sketch has `shared` flows of all hosts, and its own."""
    dice = np.random.default_rng(1)
    common = dice.integers(0, 1 << 64, shared, "u8")
    found = []
    for name, number in own.items():
        flows = np.concatenate((common, dice.integers(0, 1 << 64, number, "u8")))
        seed = "other" if name == "fra1" else "seed"
        found.append(HostReport(name, None, 0.0, Sketch.of(flows, 12, seed)))
    return found


def test_flows_are_distinct_over_the_hosts() -> None:
    policies = FleetPolicies([policy("flows > 2500")])
    assert policies.need_flows
    # Their sum is 3,000 flows; they are 2,000.
    flows = distinct(reports(1000, ams1=500, ams2=500))
    assert not policies.judge(second(1, 1, 1, None), flows)
    # Without registers nothing changes.
    assert not policies.judge(second(2, 1, 1, 1), distinct([]))
    flows = distinct(reports(1000, ams1=2000, ams2=0, fra1=10))
    begun = one(policies.judge(second(3, 1, 1, 1), flows))
    assert begun.hosts == ("ams1", "ams2")
    assert "a lower bound: fra1 is not counted" in begun.event.text


def test_the_file_names_every_mistake_of_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    hosts = '[[hosts]]\nname = "a"\nurl = "unix:/a"\n'
    file.write_text(
        hosts
        + """
        [[fleet.policies]]
        name = "flood"
        condition = "packets > 1M"
        hold = "5s"
        policy = "heavy"
    """
    )
    (found,) = load(str(file)).policies
    assert (found.name, found.condition, found.hold, found.run) == (
        "flood", "packets > 1M", 5.0, ("heavy",),
    )  # fmt: skip
    file.write_text(
        hosts
        + """
        [[fleet.policies]]
        name = "one"
        condition = "packets on udp > 1"
        policy = "heavy"
        [[fleet.policies]]
        name = "two"
        condition = "packets >> 1"
        policy = "heavy"
        [[fleet.policies]]
        name = "three"
        run = "heavy"
    """
    )
    with pytest.raises(ProbedeckError) as caught:
        load(str(file))
    texts = [str(each) for each in caught.value.mistakes]
    assert "policy one: condition: packets on udp: hosts send no such metric" in texts[0]
    assert "policy two" in texts[1]
    assert "policy three: unknown key 'run'" in texts[2]
    assert "policy three: has no condition, policy" in texts[3]
    many = "".join(f'[[hosts]]\nname = "h{n}"\nurl = "unix:/a"\n' for n in range(33))
    rule = '[[fleet.policies]]\nname = "f"\ncondition = "max(flows, 5s) > 9"\npolicy = "heavy"\n'
    file.write_text(many + rule)
    with pytest.raises(ProbedeckError, match="flows of 33 hosts cannot be merged each second"):
        load(str(file))


def serve(folder: Path, name: str, plane: FakePlane) -> ApiListener:
    return ApiListener(plane, Api(version="1", socket=str(folder / name)))


@pytest.fixture
def planes() -> dict[str, FakePlane]:
    return {name: FakePlane() for name in NAMES}


@pytest.fixture
def served(tmp_path: Path, planes: dict[str, FakePlane]) -> Iterator[dict[str, ApiListener]]:
    served = {name: serve(tmp_path, name, plane) for name, plane in planes.items()}
    yield served
    for each in served.values():
        each.close()


@pytest.mark.slow
def test_the_hosts_concerned_activate_their_policy_and_the_end_is_reported(
    tmp_path: Path,
    planes: dict[str, FakePlane],
    served: dict[str, ApiListener],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ams2 has no policy of that name, and fra1 is lost."""
    for name in ("ams1", "fra1"):
        planes[name].set_policy(
            Policy.parse({"name": "heavy", "mode": "operator", "run": ["accounting"]}, "a test")
        )
    hub = FakeHub({name: Remote(f"unix:{tmp_path / name}") for name in NAMES})
    hub.turn("fra1", HostPhase.LOST)
    fleet = replace(hub.fleet, policies=(policy("packets > 1000"),))
    chosen = ChosenHosts(fleet, hub)
    heard: list[str] = []

    def hear(host: str, item: Item) -> None:
        if isinstance(item, Event):
            heard.append(item.text)

    def active(name: str) -> bool:
        info = planes[name].monitor()
        assert info is not None
        return any(each.policy.name == "heavy" and each.state.runs for each in info.policies)

    def publish(number: int, packets: int) -> None:
        for name in NAMES[:2]:
            hub.publish(name, window(begin + number * S, packets=packets))

    chosen.listen(hear)
    monkeypatch.setattr(policy_runner, "_AGAIN_S", 0.0)
    begin = time.time_ns() // S * S
    with FleetRunner(chosen, hub):
        publish(0, 900)
        assert becomes(lambda: active("ams1"))
        assert becomes(lambda: len(heard) == 2)
        assert "a lower bound: fra1 is not counted" in heard[0]
        assert "activate heavy: done on 1 of 2 hosts; ams2: " in heard[1]
        assert [each.host for each in chosen.reports] == ["ams1", "ams2"]
        publish(1, 10)
        assert becomes(lambda: not active("ams1"))
        publish(2, 900)
        assert becomes(lambda: active("ams1"))
        # Its address leads nowhere at the end of the policy: the host keeps its own active.
        served["ams1"].close()
        publish(3, 10)
        assert becomes(lambda: "deactivate heavy: done on 0 of 2 hosts; ams1: " in heard[-1])
        assert active("ams1")
        served["ams1"] = serve(tmp_path, "ams1", planes["ams1"])
        assert becomes(lambda: heard[-1] == "ams1 is back: heavy is deactivated there")
        assert not active("ams1")
        publish(4, 900)
        assert becomes(lambda: active("ams1"))
    # The runner ends, and so does what it activated.
    assert not active("ams1")
    assert not active("fra1")
    chosen.close()
