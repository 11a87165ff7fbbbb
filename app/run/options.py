"""Options of a run: what is measured, what is written, and where. The module loads no numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from app.api.sockets import API, Api
from app.config.model import CONSOLE, Ui
from app.exporters.kinds import EXPORTERS, parse
from app.exporters.record_options import RecordSettings, kept
from app.outputs.formats import FORMATS
from app.outputs.networks import Describe, nothing_known
from app.run.monitor import NO_POLICIES, SHIPPED, policies_of
from bpf import quantities
from bpf.attach.group import ANY, EVERYWHERE, is_group
from bpf.errors import ProbedeckError, TextError, UsageError
from probes.config.options import Setting, as_given, part, setting, settings_of
from probes.flow.kinds import INTERFACES, KINDS, PREFIXES, REPEATED, parse_prefixes
from probes.flow.options import GENERAL, PACKETS, FlowOptions
from probes.monitor.options import MONITOR, Input, MonitorOptions, Trust
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE
from probes.path.options import MAX_DESTINATIONS, PATHS, PathOptions
from probes.reports import OutputConfig
from probes.ring.options import RingOptions
from probes.switches import SWITCHES

if TYPE_CHECKING:
    from app.outputs.filtering import Filtering

_FORMATS = [each.name for each in FORMATS.values() if each.appends]
OUTPUT = "Tables"
PLAIN_HELP = "Print changes as lines, for screen readers and TERM=dumb."
USUAL_CPU = "25%"
"""The budget of consoles and services."""
_SHORT_S = 0.5  # Users of shorter windows know that they cost much.
SOCKET_TABLES = ("sockets", "owners", "ownership")
"""Tables of the probe of sockets: a run that names one of them looks for owners."""
VIEWS = (
    "flows", REPEATED, INTERFACES, *KINDS, "hops", "paths", "traces", METRICS_TABLE, TRIGGERS_TABLE,
    POLICIES_TABLE, *SOCKET_TABLES, "windows", "events",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Destination, format and choice of the tables of a run."""

    out: str
    """A directory, or `-` for standard output."""
    format: str | None
    """None: CSV; for a probe's metrics the format of its configuration."""
    views: tuple[str, ...]
    metrics: bool
    """Whether to write the tables of probes' metrics, too."""
    filter: str = ""
    """The filter of rows; empty: all rows."""
    saved: Mapping[str, str] = field(default_factory=dict)
    """Saved filters, which `filter` may name."""
    prefixes: tuple[int, int] = PREFIXES
    """Lengths of networks' prefixes, of IPv4 and IPv6."""
    owners: bool | None = None
    """Whether flows have owners; None: if the filter needs them."""

    @classmethod
    def nothing(cls) -> OutputSpec:
        """Return the output of a run that writes no table."""
        return cls("-", None, (), metrics=False)

    @property
    def needs_owners(self) -> bool:
        """Whether the filter needs owners of flows. Raises UsageError as `filtering` does."""
        return bool(self.filter) and self.filtering().needs_owners

    def filtering(self) -> Filtering:
        """Return the filters of the views. Raises UsageError for a filter that fits no view."""
        from app.outputs.filtering import Filtering  # Imported here: it needs numpy.

        try:
            return Filtering.of(self.filter, self.views, self.saved, self.owners)
        except TextError as error:
            raise error.of("--filter") from None


Switched = make_dataclass(
    "Switched",
    [
        (each.option, bool, setting(PACKETS, False, each.about))
        for each in SWITCHES.values()
        if each.about
    ],
    frozen=True,
    slots=True,
)
"""The options of `SWITCHES`."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run: probes, duration, tables and API."""

    FIRST: ClassVar = ("interface", "netns", "interval")
    """Settings that help and `config init` show first."""

    interface: str = setting(
        GENERAL,
        "",
        "Interface to monitor, or several: names and patterns such as eth0,wg0 or 'eth*'; any: all "
        "of the host. A packet that passes several counts once.",
        "NAMES",
        usual="any",
        flags=("-i", "--interface"),
    )
    netns: str = setting(
        PACKETS, "", "Network namespace; all: interfaces of all namespaces.", "NAME|PID|all",
        usual="here",
    )  # fmt: skip
    ready_file: str = setting(
        GENERAL, "", "Write this file as soon as every probe measures; removed at the end.", "FILE"
    )
    duration: float | None = setting(
        GENERAL, None, "Stop after this many seconds.", "SECONDS", usual="no limit"
    )
    flow: FlowOptions = part(FlowOptions)
    probe: list[str] = setting(GENERAL, [], "Run the probe of a .toml or .json file.", "FILE")
    force: bool = setting(GENERAL, False, "Start a --probe even if it drops every packet.")
    only: bool = setting(GENERAL, False, "Do not run the flow probe.")
    read_only: bool = setting(GENERAL, False, "Refuse every change of probes and policies.")
    memory: str = setting(
        GENERAL,
        "",
        "Memory for the maps of all probes, such as 64MiB; flow tables take at most 3/4 of it.",
        "SIZE",
        usual="1GiB, at most 1/8 of the RAM",
    )
    cpu: str = setting(
        GENERAL, "", "CPU of one core that the run may take, or off.", "SHARE",
        usual=f"{USUAL_CPU}; off with --headless",
    )  # fmt: skip
    probe_memory: str = setting(GENERAL, "1GiB", "Memory for the maps of one --probe.", "SIZE")
    headless: bool = setting(OUTPUT, False, "Write tables instead of showing a console.")
    plain: bool = setting(GENERAL, False, PLAIN_HELP)
    out: str = setting(
        OUTPUT,
        "-",
        "Append tables to files in DIR, one file a table, or write one table to standard output. "
        "Only one run may use a DIR. Under sudo, the rights of the caller hold.",
        "DIR|-",
        flags=("-o", "--out"),
    )
    format: str | None = setting(
        OUTPUT,
        None,
        "Format of a table.",
        "|".join(_FORMATS),
        usual="csv; of a probe's metrics json, or its own",
    )
    views: str | None = setting(
        OUTPUT,
        None,
        f"Tables to write: {', '.join(VIEWS)}. metrics are the monitor's; into a DIR, each "
        "metric of a probe, too.",
        "NAME,NAME...",
        usual="into a DIR all but groups; flows to standard output",
    )
    network_prefix: str = setting(
        OUTPUT,
        ",".join(map(str, PREFIXES)),
        "Bits of a network's prefix, of IPv4 and IPv6, in the view networks.",
        "V4,V6",
    )
    filter: str = setting(
        OUTPUT,
        "",
        "Write only these rows. Terms: as in --capture, and values, such as 'bytes>1M flags:S' "
        "or 'rtt>50ms'.",
        "FILTER",
        usual="all rows",
    )
    networks: list[str] = setting(
        OUTPUT, [], "Name networks of routers by a database (.mmdb).", "FILE"
    )
    output: list[str] = setting(
        "Outputs",
        [],
        f"Deliver windows and events to another program; kinds: {', '.join(EXPORTERS)}.",
        "URL",
    )
    recording: RecordSettings = part(RecordSettings)
    ring: RingOptions = part(RingOptions)
    no_names: bool = setting(CONSOLE, False, "Show addresses only; send no DNS query.")
    switches: Any = part(Switched)
    owners: bool | None = setting(
        PACKETS,
        None,
        "Name the owners of flows: processes, units, containers, pods.",
        usual="on; without a console, only for the views sockets, owners, ownership, and for a "
        "--filter that needs them",
    )
    monitor: bool = setting(MONITOR, False, "Run the monitor, as other options of this group do.")
    policy: list[str] = setting(
        MONITOR,
        [],
        "Run an application while a condition holds, such as 'flood: flows > 500 -> "
        "heavy_hitters'.",
        "TEXT",
    )
    policies: str = setting(
        MONITOR,
        "",
        "Read policies from .toml or .json.",
        f"FILE|{SHIPPED}|{NO_POLICIES}",
        usual=f"{SHIPPED} in the console and serve",
    )
    trust: Trust = part(Trust)
    bits: int | None = as_given(MonitorOptions, "bits")
    seed_file: str = setting(
        MONITOR,
        "",
        "Key of the sketch's hash; hosts with the same key can merge their registers.",
        "FILE",
    )
    input: Input | None = as_given(MonitorOptions, "input")
    receiver: list[str] = setting(
        MONITOR, [], "UDP datagrams that hold such records.", "SRC:PORT-DST:PORT"
    )
    drop_others: bool = as_given(MonitorOptions, "drop_others")
    allow_actions: bool = as_given(MonitorOptions, "allow_actions")
    offload: bool = as_given(MonitorOptions, "offload")
    trace: list[str] = setting(
        PATHS,
        [],
        f"Trace the path to a host by its own traffic; {MAX_DESTINATIONS} at most.",
        "DEST",
    )
    api: bool = setting(API, False, "Serve the REST API on a Unix socket for its owner.")
    listener: Api = part(Api)

    def check(self, saved: Mapping[str, str] | None = None) -> None:
        """Raise the first of the `problems`."""
        for _, error in self.problems(saved):
            raise error

    def problems(
        self, saved: Mapping[str, str] | None = None
    ) -> Iterator[tuple[str, ProbedeckError]]:
        """Yield the mistakes that show without an interface, each with the name of its field.

        `saved` are the filters that --filter may name. Without them, --filter is not checked.
        """
        if self.format is not None and self.format not in _FORMATS:
            known = f"there are {', '.join(_FORMATS)}"
            yield "format", UsageError(f"no format {self.format!r}", hint=known)
        yield from self.flow.problems()
        if self.duration is not None and not self.duration > 0:
            yield "duration", UsageError(f"--duration {self.duration:g} is not more than 0")
        if self.only and not (self.probe or self.monitors or self.serves):
            remedy = "give --probe FILE, or --api"
            yield "only", UsageError("--only without a probe", hint=remedy)
        yield from _error("probe_memory", lambda: byte_count("--probe-memory", self.probe_memory))
        yield from _error("networks", self.describe)
        yield from _error("cpu", lambda: self.budget)
        if self.memory:
            yield from _error("memory", lambda: byte_count("--memory", self.memory))
        yield from _error("seed_file", self.seed)
        for url in self.output:
            yield from _error("output", partial(parse, OutputConfig(url)))
        yield from _error("ring_memory", self.ring.check)
        yield from _error("keep", lambda: kept(self.recording.keep))
        trusted = MonitorOptions(trusted=tuple(self.trust.trusted))
        yield from _error("trusted", trusted.check)
        if (bits := self.bits) is not None:
            yield from _error("bits", lambda: MonitorOptions(bits=bits).check())
        if saved is not None and (self.has_policies or self.policy):
            for _, error in _error("policies", self._check_policies):
                for each in error.mistakes:
                    of_text = isinstance(each, TextError) and not each.placed
                    yield "policy" if of_text else "policies", each
        wrong = [*_error("network_prefix", lambda: parse_prefixes(self.network_prefix))]
        wrong = wrong or [*_error("views", lambda: self.output_spec({}))]
        yield from wrong
        if saved is None or not self.filter or wrong:
            return
        if not self.headless:
            yield "filter", UsageError("--filter chooses rows of tables", hint="add --headless")
        yield from _error("filter", lambda: self.output_spec(saved).filtering())

    @property
    def watched(self) -> str:
        """The interfaces; empty if all probes name their own."""
        found = self.interface or ("" if self.only else ANY)
        return found + EVERYWHERE if found and self.netns == "all" else found

    @property
    def usual_cpu(self) -> str:
        """The text of --cpu, or the default of consoles and services."""
        return self.cpu or ("off" if self.headless or self.flow.interval < _SHORT_S else USUAL_CPU)

    @property
    def budget(self) -> float:
        """The CPU budget as a share of a core; 0: none. Raises UsageError."""
        try:
            return quantities.core_share(self.cpu or "off")
        except TextError as error:
            raise error.of("--cpu") from None

    @property
    def serves(self) -> bool:
        """Whether the run has an API."""
        return bool(self.api or self.listener.socket or self.listener.listen)

    @property
    def has_policies(self) -> bool:
        """Whether `--policies` names policies."""
        return self.policies not in ("", NO_POLICIES)

    @property
    def watches(self) -> bool:
        """Whether a run that people look at has the shipped policies without being asked."""
        return not (self.only or self.policies or self.monitors)

    @property
    def monitors(self) -> bool:
        """Whether the monitor runs: the options contain one of its options."""
        flags = self.monitor or self.drop_others or self.offload
        lists = self.policy or self.has_policies or self.receiver or self.seed_file
        return bool(flags or lists) or self.bits is not None or self.input is not None

    def describe(self) -> Describe:
        """Return what describes routers. Raises UsageError for a file that is no database."""
        if not self.networks:
            return nothing_known
        # Imported here: few runs have databases.
        from app.outputs.networks import Networks

        return Networks(self.networks).describe

    def output_spec(
        self, saved: Mapping[str, str], every: Sequence[str] = (), usual: str = ""
    ) -> OutputSpec:
        """Return the output of the run. Raises UsageError for an unknown view.

        Without --views, standard output gets the view `usual`, and a directory `every` view; by
        default these follow from the other options. The view `metrics` is the monitor's table, and
        a table for each metric of each probe. Standard output takes one table: the monitor's, if
        the monitor runs.
        """
        traces = self.trace or self.policy or self.has_policies
        left_out = {
            *KINDS,
            *(() if is_group(self.watched) else (REPEATED, INTERFACES)),
            *(("flows",) if self.only else ()),
            *(() if traces else ("hops", "paths", "traces")),
            *(() if self.monitors else (TRIGGERS_TABLE, POLICIES_TABLE)),
            *(() if self.owners else SOCKET_TABLES),
        }
        every = every or [name for name in VIEWS if name not in left_out]
        usual = usual or (METRICS_TABLE if self.only else "flows")
        named = self.named_views()
        names = named or ((usual,) if self.out == "-" else tuple(every))
        # The API may add a policy later, which starts the monitor.
        own = self.monitors or (named and self.out != "-")
        return OutputSpec(
            self.out, self.format, tuple(name for name in names if name != METRICS_TABLE or own),
            METRICS_TABLE in names and not (self.monitors and self.out == "-"),
            self.filter, saved, parse_prefixes(self.network_prefix), self.owners,
        )  # fmt: skip

    def named_views(self) -> tuple[str, ...]:
        """Return the views of --views. Raises UsageError for an unknown one."""
        named = tuple(dict.fromkeys(self.views.split(","))) if self.views else ()
        for name in named:
            if name not in VIEWS:
                raise UsageError(f"no view {name!r}", hint=f"there are {', '.join(VIEWS)}")
        return named

    def _check_policies(self) -> None:
        from probes.config.model import load

        policies_of(self.policies, self.policy, [load(path) for path in self.probe])

    def seed(self) -> str:
        if not self.seed_file:
            return ""
        from app.api.sockets import read_token

        return read_token(self.seed_file, "seed").decode()


SECTIONS: Mapping[str, Mapping[str, Setting]] = {
    "ui": settings_of(Ui),
    "run": {k: v for k, v in settings_of(Options).items() if k not in settings_of(Trust)},
    "monitor": settings_of(Trust), "paths": settings_of(PathOptions),
}  # fmt: skip
"""Sections of `config.toml` whose keys are settings, in the order of display."""


def byte_count(option: str, text: str) -> int:
    try:
        return quantities.byte_count(text)
    except TextError as error:
        raise error.of(option) from None


def _error(name: str, check: Callable[[], object]) -> Iterator[tuple[str, UsageError]]:
    try:
        check()
    except UsageError as error:
        yield name, error
