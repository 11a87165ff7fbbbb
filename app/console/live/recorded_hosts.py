"""Recordings of several hosts, replayed together: the hosts of a fleet, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from app.api.address import Remote
from app.console.live.day import Day, added
from app.console.live.frames import Frame, Merger
from app.console.live.recorded import Moments, RecordedFrames
from app.console.live.state import LiveState
from app.fleet.host_state import HostPhase, HostState
from app.fleet.hosts import RECORD, Fleet, FleetHost
from app.fleet.plane import MOST_CHOSEN, HostChoice
from app.fleet.planes import ChosenPlane
from app.fleet.tally import Tally
from app.recording.plane import READ_ONLY
from bpf.arrays import Array
from bpf.errors import UsageError
from bpf.quantities import clock, zone
from probes.control_plane import ControlPlane
from probes.monitor.state import PROBE as MONITOR

_SECOND_NS = 10**9
_SILENT_NS = 10 * _SECOND_NS
"""A host is lost if its last window is older, beyond the length of a window."""


def opened(directories: Sequence[str], run: str = "") -> Moments:
    """Open recordings; several of them as a fleet, with all their runs.

    Raises UsageError if one is none.
    """
    if len(directories) == 1:
        return RecordedFrames(directories[0], run)
    frames = [RecordedFrames(directory) for directory in directories]
    return RecordedHosts(fleet_of(directories, [each.host for each in frames]), frames)


def fleet_of(directories: Sequence[str], hosts: Sequence[str]) -> Fleet:
    """Return recordings as a fleet: each has the name of its host, and of further ones of that
    host its number."""
    names: list[str] = []
    for host in hosts:
        same = sum(name.partition("#")[0] == host for name in names)
        names.append(f"{host}#{same + 1}" if same else host)
    pairs = zip(names, directories, strict=True)
    return Fleet(tuple(FleetHost(name, Remote(RECORD + directory)) for name, directory in pairs))


class RecordedHosts(HostChoice, Moments):
    """Builds frames of several recordings, as RecordedFrames does of one; the hosts of the console
    are theirs.

    A moment is the last window of a second of UTC: the windows of hosts end at different times.
    """

    def __init__(self, fleet: Fleet, opened: Sequence[RecordedFrames] = ()) -> None:
        """`opened`: the recordings, if they are open.

        Raises UsageError for a directory without a recording, and for too many of them.
        """
        super().__init__(fleet)
        if len(fleet.hosts) > MOST_CHOSEN:
            text = f"{len(fleet.hosts)} recordings cannot be shown at once"
            raise UsageError(text, hint=f"name {MOST_CHOSEN} at most")
        self.plane = ChosenPlane(self)
        opened = opened or [
            RecordedFrames(host.remote.url.removeprefix(RECORD)) for host in fleet.hosts
        ]
        self._frames = dict(zip((host.name for host in fleet.hosts), opened, strict=True))
        for name, frames in self._frames.items():
            frames.plane.listen(partial(self.publish, name))
        self._states = tuple(
            HostState(host.name, host.labels, host.remote.url) for host in fleet.hosts
        )
        self._merger = Merger()
        self.choose(self.first)

    def close(self) -> None:
        for frames in self._frames.values():
            frames.close()

    def planes_of(self, names: Sequence[str]) -> dict[str, ControlPlane]:
        return {name: self._frames[name].plane for name in names}

    def states(self) -> tuple[HostState, ...]:
        """Return the states of all hosts at the moment of the last frame."""
        return self._states

    def day(self) -> Day:
        return added([self._frames[name].day() for name in self.chosen])

    def times(self) -> tuple[Array, Array]:
        events = [self._frames[name].times()[1] for name in self.chosen]
        return self.moments(), np.unique(np.concatenate(events))

    def moments(self) -> Array:
        every = np.unique(np.concatenate([self._frames[name].moments() for name in self.chosen]))
        # Of equal seconds the last one.
        _, places = np.unique((every[::-1] - 1) // _SECOND_NS, return_index=True)
        last: Array = every[::-1][places]
        return last

    def frame(self, utc_ns: int) -> Frame:
        frames = {
            name: each.at(utc_ns) or LiveState().frame() for name, each in self._frames.items()
        }
        self._states = tuple(
            self._state(host, frames[host.name], utc_ns) for host in self.fleet.hosts
        )
        if len(self.chosen) == 1:
            return frames[self.chosen[0]]
        return self._merger.frame(
            {name: frames[name] for name in self.chosen}, self._states, self.current
        )

    def _state(self, host: FleetHost, frame: Frame, utc_ns: int) -> HostState:
        """Return the state of a host at a moment."""
        of, tally = self._frames[host.name], Tally()
        phase, reason = HostPhase.UP, ""
        if frame.last is None:
            phase = HostPhase.CONNECTING
            reason = f"its recording begins at {clock(of.first_ns)} {zone()}"
        elif utc_ns - frame.utc_ns > _SILENT_NS + round(frame.last.seconds * _SECOND_NS):
            phase = HostPhase.LOST
            reason = f"there is no window since {clock(frame.utc_ns)} {zone()}"
        for probe in ("flow", MONITOR) if phase.counts else ():
            for newest in of.plane.history.newest(probe, 1).values():
                tally.add(newest[0])
        return HostState(
            host.name, host.labels, host.remote.url, phase, 0, reason, of.plane.version,
            ",".join(tally.interfaces), READ_ONLY, tally.packets_s, tally.bits_s, tally.flows,
            of.losses, active=tally.active,
        )  # fmt: skip
