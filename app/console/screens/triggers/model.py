"""The models of screen 4: windows of the monitor by policy, of one host and of each chosen host."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.console.live.frames import MonitorView
from app.console.screens.triggers.activity import Change, advice, band, changes
from app.tape.named_state import StateValues
from bpf.arrays import Array, Row, Rows
from bpf.errors import UsageError, did_you_mean
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.records import METRIC, POLICY
from probes.monitor.state import PolicyState
from probes.snapshot import Snapshot
from widgets.sparkline import bars
from widgets.table.rows import Pieces
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.protocol import Console

BAND_CELLS = 20
CELL = 2.0
"""Least seconds of a cell of the time lines."""
_LATEST = 50
"""Transitions that are searched for a finding."""
_SAME_NS = 1_000_000_000
"""Times closer than this are of the same transition."""
_TOP = 2.0
"""End of the scale of time lines, in thresholds: half a bar is the threshold."""
_MISTAKE = re.compile(r"policy '[^']*': (.*)", re.DOTALL)
_COLUMN = re.compile(r"\(column (\d+)\)")
_QUOTED = re.compile(r"'([^']+)'")


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTimeLine:
    """A policy's time line, (cells,) each, the last one at the right."""

    values: NDArray[np.float64]
    """Highest value of each cell in units of its threshold, or NaN."""
    holds: NDArray[np.bool_]
    active: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class PolicyView:
    """A policy, its row of the last window, and its time line."""

    info: PolicyInfo
    numbers: Row[POLICY]
    """One row of dtype POLICY; all zeros and NaN before its first window."""
    line: PolicyTimeLine
    now_utc_ns: int
    """End of the last window; 0 before the first."""
    activity: Pieces = ()
    """When it was active: `activity.band`."""
    advice: str = ""
    """Remedy for a policy that flaps; otherwise empty."""
    host: str = ""
    """The host of the fleet whose policy it is; empty unless several hosts are shown."""

    @property
    def key(self) -> Hashable:
        """Key of its row."""
        return (self.host, self.name) if self.host else self.name

    @property
    def full_name(self) -> str:
        """`flood`, or `flood on ams1` if several hosts are shown."""
        return f"{self.name} on {self.host}" if self.host else self.name

    @property
    def name(self) -> str:
        return self.info.policy.name

    @property
    def unit(self) -> str:
        """Of the deciding comparison: `bit/s`; empty without one."""
        return str(self.numbers["unit"].decode())

    @property
    def comparison(self) -> str:
        """The deciding comparison; empty without one."""
        return str(self.numbers["comparison"].decode(errors="replace"))

    @property
    def ratio(self) -> float:
        """The value in units of its threshold."""
        return float(relative(np.array([self.numbers], POLICY))[0])

    @property
    def band(self) -> tuple[float, float]:
        """Ends of the error band of the value."""
        return float(self.numbers["low"]), float(self.numbers["high"])

    @property
    def bars(self) -> Pieces:
        tones = np.where(self.line.holds, Tone.WARN, Tone.ACCENT)
        tones = np.where(self.line.active, Tone.ACTIVE, tones)
        return bars(self.line.values, map(Tone, tones.tolist()), _TOP)

    @property
    def exact(self) -> bool:
        """Whether the value has no error band."""
        return not self.numbers["low"] < self.numbers["high"]

    @property
    def sure(self) -> bool:
        """Whether the condition's verdict is the same at both ends of the error band."""
        return bool(self.numbers["certain"]) or math.isnan(self.numbers["value"])


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a policy's state."""

    utc_ns: int
    before: PolicyState
    after: PolicyState
    cause: str
    finding: str
    """Text of the finding; empty if the policy did not begin."""
    filter: str
    """Filter of the culprit's flows; empty without one."""
    metrics: Row[METRIC]
    """One row of dtype METRIC."""


def begin_of(made: Iterable[Transition]) -> Transition | None:
    """Return the first of the transitions (newest first) that says who fired the policy."""
    return next((change for change in made if change.finding), None)


@dataclass(slots=True)
class Triggers:
    """A view and the running monitor, arranged by policy."""

    view: MonitorView = field(default_factory=MonitorView)
    info: MonitorInfo | None = None
    """None if no monitor runs."""
    host: str = ""
    """Name of its host, if several hosts are shown."""

    @property
    def per_cell(self) -> int:
        """Windows of a cell."""
        return max(1, round(CELL / self.info.interval)) if self.info else 1

    def span(self, cells: int) -> float:
        """Seconds of a time line."""
        return cells * self.per_cell * (self.info.interval if self.info else 0)

    def statuses(self, cells: int) -> list[PolicyView]:
        """Return every policy, with a time line of `cells` cells."""
        if self.info is None:
            return []
        lines = self._lines(cells)
        is_known = self.view.policies and not self.info.held
        newest = self.view.policies[-1].rows if is_known else np.empty(0, POLICY)
        rows = {row["policy"].decode(): row for row in newest}
        made = changes(self.view)
        return [
            PolicyView(
                info,
                rows.get(info.policy.name, _NOTHING),
                lines.get(info.policy.name) or _no_line(cells),
                self.view.now_utc_ns,
                band(self.view, info, made.get(info.policy.name, ()), BAND_CELLS),
                self._advice(info, made.get(info.policy.name, ())),
                self.host,
            )
            for info in self.info.policies
        ]

    def _advice(self, info: PolicyInfo, made: Sequence[Change]) -> str:
        if len(made) < 2 or info.policy.mode != "triggered":
            return ""
        rows = self.history(info.policy.name, 60)[1]
        return advice(info.policy, made, self.view.policies[-1].end_ns, rows)

    def flows(self, cells: int) -> NDArray[np.float64]:
        """Return the highest estimate of distinct flows of each cell; NaN without a window."""
        values = np.full(cells, np.nan)
        tail, at = self._tail(self.view.metrics, cells)
        for snapshot, place in zip(tail, at.tolist(), strict=True):
            values[place] = np.fmax(values[place], snapshot.rows["flows"][0])
        return values

    def _tail(
        self, table: Sequence[Snapshot], cells: int
    ) -> tuple[list[Snapshot], NDArray[np.int64]]:
        if not table:
            return [], np.empty(0, np.int64)
        # Cells begin at round numbers of windows, so that all move together.
        first = table[-1].window // self.per_cell - cells + 1
        tail = [s for s in table[-cells * self.per_cell :] if s.window // self.per_cell >= first]
        at = np.array([s.window for s in tail], np.int64) // self.per_cell - first
        return tail, at

    def _lines(self, cells: int) -> dict[str, PolicyTimeLine]:
        tail, at = self._tail(self.view.policies, cells)
        if not tail:
            return {}
        rows = np.concatenate([snapshot.rows for snapshot in tail])
        at = np.repeat(at, [len(snapshot.rows) for snapshot in tail])
        values = relative(rows)
        found = {}
        for name in np.unique(rows["policy"]):
            line = found[name.decode()] = _no_line(cells)
            mine = rows["policy"] == name
            runs = np.isin(rows["state"][mine], [state for state in PolicyState if state.runs])
            np.fmax.at(line.values, at[mine], values[mine])
            np.logical_or.at(line.holds, at[mine], rows["holds"][mine] != 0)
            np.logical_or.at(line.active, at[mine], runs)
        return found

    def history(self, name: str, seconds: float) -> tuple[NDArray[np.float64], Array]:
        """Return the ends of the last windows in seconds (n,), and a policy's rows (n,)."""
        table = self.view.policies
        end = table[-1].end_ns if table else 0
        encoded = name.encode()
        times, rows = [], []
        for snapshot in reversed(table):
            if end - snapshot.end_ns > seconds * 1e9:
                break
            mine = snapshot.rows[snapshot.rows["policy"] == encoded]
            if len(mine):
                times.append(snapshot.end_ns / 1e9)
                rows.append(mine[:1])
        if not rows:
            return np.empty(0), np.empty(0, POLICY)
        return np.array(times[::-1]), np.concatenate(rows[::-1])

    def transitions(self, name: str, most: int) -> list[Transition]:
        """Return the last transitions of a policy, newest first."""
        encoded = name.encode()
        found = [
            Transition(
                snapshot.utc_ns(int(row["at_ns"])),
                PolicyState(row["before"]), PolicyState(row["after"]),
                _text(row["cause"]), _text(row["finding"]), _text(row["filter"]), row["metrics"],
            )
            for snapshot in reversed(self.view.triggers)
            for row in snapshot.rows[snapshot.rows["policy"] == encoded][::-1]
        ]  # fmt: skip
        return found[:most]

    def culprit(self, one: PolicyView | None) -> str:
        """Return the filter of a policy's last finding; empty without one."""
        found = begin_of(self.transitions(one.name, _LATEST)) if one is not None else None
        return found.filter if found is not None else ""

    def runs(self, application: str) -> list[str]:
        """Return the policies that run an application, directly or in a profile."""
        if self.info is None:
            return []
        profiles = self.info.profiles
        return [
            one.policy.name
            for one in self.info.policies
            if any(application in profiles.get(name, (name,)) for name in one.policy.run)
        ]

    @property
    def outdated(self) -> bool:
        """Whether the last window has another state of a policy than `info`."""
        if self.info is None or not self.view.policies:
            return False
        rows = self.view.policies[-1].rows
        states = dict(zip(rows["policy"].tolist(), rows["state"].tolist(), strict=True))
        return any(
            states.get(one.policy.name.encode(), one.state) != one.state
            for one in self.info.policies
        )


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def as_of(info: MonitorInfo, view: MonitorView) -> MonitorInfo:
    """Return the monitor with the policies' states at the moment of `view`."""
    if not view.policies:
        return info
    window = view.policies[-1]
    rows = {row["policy"].decode(): row for row in window.rows}

    def then(one: PolicyInfo) -> PolicyInfo:
        row = rows.get(one.policy.name)
        if row is None:
            return one
        state, since = PolicyState(row["state"]), window.utc_ns(int(row["since_ns"]))
        if state == one.state and abs(since - one.since_utc_ns) < _SAME_NS:
            return one
        return replace(one, state=state, since_utc_ns=since, until_utc_ns=0, forced=False, cause="")

    return replace(info, policies=tuple(map(then, info.policies)), held=False)


def _nothing() -> Any:
    row = np.zeros(1, POLICY)
    row["since_ns"] = -1
    for name in ("value", "low", "high", "threshold"):
        row[name] = np.nan
    return row[0]


_NOTHING = _nothing()


def _no_line(cells: int) -> PolicyTimeLine:
    return PolicyTimeLine(np.full(cells, np.nan), np.zeros(cells, bool), np.zeros(cells, bool))


def relative(rows: Rows[POLICY]) -> NDArray[np.float64]:
    """Return the values of POLICY `rows` (n,) in units of their thresholds.

    For a threshold of zero or less: infinite if the value is above it, otherwise 0.
    """
    value, threshold = rows["value"], rows["threshold"]
    above = np.where(np.isnan(value), np.nan, np.where(value > threshold, np.inf, 0.0))
    np.divide(value, threshold, out=above, where=threshold > 0)
    return above


def place_of(mistake: str, text: str) -> int | None:
    """Return the character of a policy's short form that an error is about, from 0, or None.

    The error has a column, or quotes the words.
    """
    if (about := _MISTAKE.match(mistake)) is None:
        return None
    if (found := _COLUMN.search(about[1])) is not None:
        return min(int(found[1]) - 1, len(text))
    quoted = _QUOTED.search(about[1])
    place = text.rfind(quoted[1]) if quoted else -1
    return place if place >= 0 else None


Infos = Mapping[str, MonitorInfo | None]
"""Monitors by host; the only host of a console has an empty name."""


@dataclass(slots=True)
class MonitorHosts:
    """The policies of every chosen host, and the control plane of each."""

    models: dict[str, Triggers] = field(default_factory=lambda: {"": Triggers()})
    """By host, in the order of the fleet."""
    infos: Infos = field(default_factory=dict)
    """The monitors now; a paused screen may show an earlier state."""

    def take(self, console: Console) -> None:
        """Arrange the shown frame by host and policy."""
        views = {part.host: part.frame.monitor for part in console.time.frame.hosts}
        self.models = {host: self.models.get(host) or Triggers(host=host) for host in views}
        for host, view in views.items():
            model, info = self.models[host], self.infos.get(host)
            model.view = view
            model.info = as_of(info, view) if info and console.time.paused else info

    @property
    def policies(self) -> list[PolicyInfo]:
        """The shown policies of all hosts."""
        infos = [model.info for model in self.models.values()]
        return [one for info in infos if info is not None for one in info.policies]

    def statuses(self, cells: int) -> list[PolicyView]:
        """Return every policy of every host, with a time line of `cells` cells."""
        return [one for model in self.models.values() for one in model.statuses(cells)]

    def model(self, host: str) -> Triggers:
        """Return the model of a host; of an unknown one, of the first that has a monitor."""
        if (found := self.models.get(host)) is not None:
            return found
        models = self.models.values()
        return next((one for one in models if one.info), next(iter(models), Triggers()))

    def find(self, name: str, host: str) -> tuple[str, PolicyInfo]:
        """Return the host and the present state of a policy: on `host`, or else on the only one.

        Raises UsageError if no host has the policy, or if several others have it.
        """
        every = {
            (of, one.policy.name): one
            for of, info in self.infos.items()
            for one in (info.policies if info is not None else ())
        }
        if (host, name) in every:
            return host, every[host, name]
        having = [of for of, known in every if known == name]
        if not having:
            hint = did_you_mean(name, {known for _, known in every})
            raise UsageError(f"there is no policy {name!r}", hint=hint)
        if len(having) > 1:
            text = f"{', '.join(having)} have a policy {name!r}"
            raise UsageError(text, hint="put the cursor on a row of the host")
        return having[0], every[having[0], name]


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    views = [part.frame.monitor for part in console.time.frame.hosts]
    policies = [row for view in views for row in (view.policies[-1].rows if view.policies else ())]
    values: StateValues = {"trigger.count": len(policies)}
    for row in policies:
        name, stage = row["policy"].decode(), PolicyState(row["state"])
        values[f"trigger.state.{name}"] = stage.name.lower()
        values[f"trigger.value.{name}"] = None if math.isnan(row["value"]) else float(row["value"])
    values["trigger.active"] = sum(PolicyState(row["state"]).runs for row in policies)
    if (view := console.time.frame.monitor).metrics:
        values["trigger.flows"] = float(view.metrics[-1].rows["flows"][0])
    return values
