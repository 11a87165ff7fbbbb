"""Recordings of several hosts are a fleet, with the frames that a live one had shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from app.console.app import ConsoleApp
from app.console.host_names import Names
from app.console.live.day import MINUTE, Day, added
from app.console.live.frames import Frame
from app.console.live.recorded_hosts import RecordedHosts, opened
from app.console.live.state import ShownHosts
from app.fleet.host_state import HostPhase, HostState
from app.fleet.hosts import load
from app.fleet.planes import ChosenPlane, Planes
from bpf.errors import ProbedeckError, UsageError
from probes.snapshot import Item, Snapshot
from tests.app.console.fake import Desk, becomes
from tests.app.console.fake_plane import FakePlane
from tests.app.console.live.test_recorded import check_same, run_of
from tests.app.recording.made import BEGIN_NS, record, windows
from tests.support.runs import deck_here

_SECOND_NS = 10**9


def _time(item: Item) -> int:
    return item.end_utc_ns if isinstance(item, Snapshot) else item.utc_ns


def _later(items: Sequence[Item], ns: int) -> list[Item]:
    return [
        replace(item, end_utc_ns=item.end_utc_ns + ns) if isinstance(item, Snapshot)
        else replace(item, utc_ns=item.utc_ns + ns)
        for item in items
    ]  # fmt: skip


def _recorded(
    monkeypatch: pytest.MonkeyPatch, place: Path, hosts: Mapping[str, Sequence[Item]]
) -> list[str]:
    """Record the items of each host; return the directories."""
    for number, (host, items) in enumerate(hosts.items()):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        record(place / f"{number}", items)
    return [str(place / f"{number}") for number in range(len(hosts))]


def _opened(directories: Sequence[str]) -> RecordedHosts:
    frames = opened(directories)
    assert isinstance(frames, RecordedHosts)
    return frames


def _live(hosts: Mapping[str, Sequence[Item]], until_ns: int) -> Frame:
    """The frame of a live console of these hosts at a moment."""
    planes = Planes({name: cast(Any, FakePlane()) for name in hosts})
    states = tuple(HostState(name, {}, "", HostPhase.UP) for name in hosts)
    planes.states = lambda: states  # type: ignore[method-assign]
    shown = ShownHosts(ChosenPlane(planes))
    shown.listen(Names(lambda: None), lambda seconds: None)
    every = [(_time(item), name, item) for name, items in hosts.items() for item in items]
    for at_ns, name, item in sorted(every, key=lambda each: each[0]):
        if at_ns <= until_ns:
            planes.publish(name, item)
    return shown.frame()


@pytest.mark.slow
def test_frames_are_those_of_a_live_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"web1": run_of(30), "web2": _later(run_of(30, 20), 4 * 10**8)}
    frames = _opened(_recorded(monkeypatch, tmp_path, hosts))
    moments = frames.moments().tolist()
    # A second ends with the window of web1; web2 ends 0.6 s before it.
    assert moments[:2] == [BEGIN_NS + _SECOND_NS, BEGIN_NS + _SECOND_NS * 2]
    for place in (29, 3, 4, 17, 1, 2, 12, 30, 22):
        found = frames.at(moments[place])
        assert found is not None
        check_same(found, _live(hosts, moments[place]))
        assert found.missing == ()
        assert [part.host for part in found.parts] == ["web1", "web2"]
    frames.close()


def test_a_host_without_windows_is_missing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = {"a": windows(40), "b": windows(10), "c": windows(5, first=30)}
    frames = _opened(_recorded(monkeypatch, tmp_path, hosts))
    frame = frames.at(BEGIN_NS + 15 * _SECOND_NS)
    assert frame is not None
    assert frame.missing == ("c",), "b is silent for 5 s only"
    assert [one.state for one in frames.states()] == ["up", "up", "connecting"]
    assert frames.states()[0].flows == 100
    assert frames.states()[0].packets_s == hosts["a"][14].rows["packets"].sum()
    assert frames.states()[2].reason.startswith("its recording begins at 00:00:30")
    frame = frames.at(BEGIN_NS + 22 * _SECOND_NS)
    assert frame is not None
    assert frame.missing == ("b", "c")
    assert frames.states()[1].reason.startswith("there is no window since 00:00:10")
    frame = frames.at(BEGIN_NS + 32 * _SECOND_NS)
    assert frame is not None
    assert frame.missing == ("b",)
    frames.choose(["b"])
    assert (frames.last_ns - BEGIN_NS) // _SECOND_NS == 10
    with pytest.raises(UsageError, match="no host 'd'"):
        frames.choose(["d"])
    frames.close()


def test_hosts_of_one_name_have_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in (("1", "web"), ("2", "web"), ("3", "db"), ("4", "web")):
        monkeypatch.setattr("socket.gethostname", lambda name=name: name)
        record(tmp_path / place, windows(1))
    frames = _opened([str(tmp_path / place) for place in "1234"])
    assert [host.name for host in frames.fleet.hosts] == ["web", "web#2", "db", "web#3"]
    with pytest.raises(UsageError, match="33 recordings cannot be shown at once"):
        _opened([str(tmp_path / "1")] * 33)


def test_minutes_of_hosts_add_up() -> None:
    minute = 60 * _SECOND_NS

    def day(*rates: float, shift: int) -> Day:
        rows = np.zeros(len(rates), MINUTE)
        rows["end_ns"] = (np.arange(len(rates)) + 100) * minute - shift
        rows["bit_rate"] = rates
        return Day(int(rows["end_ns"][-1]), rows, np.array([99 * minute + shift]))

    found = added([day(1, 2, 3, shift=5), day(10, 20, shift=0)])
    assert found.end_ns == 102 * minute - 5
    assert found.minutes["bit_rate"].tolist() == [11, 22, 3]
    assert found.minutes["end_ns"].tolist() == [100 * minute, 101 * minute, 102 * minute]
    assert found.events_ns.tolist() == [99 * minute, 99 * minute + 5]


def test_a_file_may_name_recordings(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    text = '[[hosts]]\nname = "a"\nurl = "record:one"\nlabels = { site = "ams" }\n'
    file.write_text(text)
    fleet = load(str(file))
    assert fleet.is_recorded
    assert fleet.hosts[0].remote.url == f"record:{tmp_path / 'one'}"
    file.write_text(f'{text}[[hosts]]\nname = "b"\nurl = "https://b:1"\n')
    with pytest.raises(ProbedeckError, match="host b is no recording"):
        load(str(file))
    policy = '[[fleet.policies]]\nname = "x"\ncondition = "packets > 5"\npolicy = "y"\n'
    file.write_text(f"{text}{policy}")
    with pytest.raises(ProbedeckError, match="policies need running hosts"):
        load(str(file))
    assert deck_here("fleet", str(file), "--headless", "--exec", "view.flows")[0] == 2


@pytest.mark.slow
async def test_every_screen_shows_the_hosts_of_several_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = {"web1": run_of(30), "web2": _later(run_of(18, 20), 4 * 10**8)}
    frames = _opened(_recorded(monkeypatch, tmp_path, hosts))
    app = ConsoleApp(
        lambda: cast(Any, frames.plane), lambda: None, "2 recordings", first="hosts", names=False,
        fleet=True, recording=lambda: frames, replays=True,
    )  # fmt: skip
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await app.ready.wait()
        console = Desk(app, cast(Any, frames.plane), pilot)

        async def run(lines: str) -> str:
            await app.action_command(lines)
            await console.still()
            return console.text

        await run("time.go 00:00:20")
        await becomes(console, lambda: "REPLAY 00:00:20" in console.strip)
        assert "2 hosts" in console.strip
        assert "2 up" in console.text
        for screen in ("overview", "paths", "flows", "triggers", "programs", "events", "hosts"):
            await run(f"view.{screen}")
            assert "REPLAY 00:00:20" in console.strip, screen
        assert "web2" in await run("view.flows")
        assert "web1" not in await run("flow.filter node:web2")
        await console.press("right_square_bracket")
        assert "REPLAY 00:00:21" in console.strip
        await console.press("left_parenthesis")
        events = await run("view.events")
        assert "event 15" in events
        assert "web2" in events
        assert "┃" in events
        await console.type("b00:00:30")
        await console.press("enter")
        assert "REPLAY 00:00:30" in console.strip
        assert "1 lost" in await run("view.hosts")
        assert "there is no window since 00:00:18" in await run("view.overview")
        await run("host.choose host:web1")
        await becomes(console, lambda: "web1" in console.strip)
        await console.still()
        assert "REPLAY 00:00:30" in console.strip, "the moment stays"
        assert "no flow passes the filter" in await run("view.flows"), "it is about web2"
        await run("host.mark web2")
        await becomes(console, lambda: "2 hosts" in console.strip)
        assert "REPLAY 00:00:30" in console.strip
    frames.close()
