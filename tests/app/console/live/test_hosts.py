"""The list of shown hosts, with one entry."""

from __future__ import annotations

import time
from typing import cast

import pytest

from app.console.host_names import Names
from app.console.live.state import ShownHosts
from app.fleet.planes import ChosenPlane, Planes
from probes.control_plane import ControlPlane
from probes.snapshot import Event
from tests.app.console.fake_plane import FakePlane
from tests.support.console.feed import Flows, window


@pytest.mark.parametrize("name", ["", "ams1"])
def test_one_host_is_a_list_of_one_and_its_flows_are_copied_into_no_frame(name: str) -> None:
    fake = FakePlane()
    plane = cast(ControlPlane, fake)
    planes = Planes({name: plane}) if name else None
    hosts = ShownHosts(ChosenPlane(planes) if planes is not None else plane)
    shown: list[float] = []
    hosts.listen(Names(lambda: None), shown.append)
    fake.publish(window(Flows(25_000).next(time.monotonic_ns())))
    frame = hosts.frame()
    assert len(frame.flows.rows) > 10_000
    assert frame.flows is hosts.frame().flows is hosts._states[name].frame().flows
    assert [part.host for part in frame.hosts] == [""]
    assert (frame.parts, frame.missing, hosts.several, hosts.current) == ((), (), False, "")
    assert hosts.ask(lambda one: one.interval, {}) == {"": fake.interval}
    # An event about the fleet stands among those of its only host.
    events = [Event.now("info", "flow", "of the host"), Event.now("info", "fleet", "of all")]
    fake.publish(events[0])
    hosts.planes.publish("", events[1])
    assert hosts.frame().events == (events[1], events[0])
    assert shown == [0.0] * 3
