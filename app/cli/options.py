"""The options that `run` and `lab` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.outputs.formats import FORMATS
from app.run.monitor import Policies, policies_of, receiver_of
from app.run.output_spec import VIEWS, Target
from app.run.spec import Watch, probes_of
from bpf.attach.attachment import Hook
from bpf.errors import TextError, UsageError
from probes import memory_limit as memory
from probes.monitor.options import Input, MonitorOptions
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig

_FORMATS = [each.name for each in FORMATS.values() if each.appends]
INGRESS: dict[str, Hook | None] = {"auto": None, "xdp": Hook.XDP, "tc": Hook.TC_INGRESS}


@dataclass(frozen=True, slots=True)
class Options:
    """What is watched, for how long, and where it goes."""

    headless: Annotated[
        bool,
        typer.Option(
            "--headless/--no-headless",
            show_default=False,
            help="Write tables instead of showing a console.",
        ),
    ] = False
    format: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(_FORMATS),
            help="What tables are written as.",
            show_default="csv; a probe's own",
        ),
    ] = None
    out: Annotated[
        str,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR|-",
            help="Where tables go: a file each in DIR, appended to, or standard output. Two runs "
            "do not share a DIR. Under sudo DIR is written with the rights of the caller.",
        ),
    ] = "-"
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a window lasts, 0.01 to 300.")
    ] = 1.0
    duration: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="When it ends by itself.", show_default="when told to"
        ),
    ] = None
    ingress: Annotated[
        str,
        typer.Option(
            metavar="|".join(INGRESS),
            help="Where incoming packets are counted. auto: native XDP on a network card whose "
            "driver has it and keeps its offloads, else TC. xdp: XDP in any case, generic too.",
        ),
    ] = "auto"
    capture: Annotated[
        str,
        typer.Option(
            metavar="FILTER",
            help="Which flows are counted: proto:, port:, sport:, dport:, net:, src:, dst:, ip:4 "
            "or ip:6; ! negates a term.",
            show_default="all",
        ),
    ] = ""
    filter: Annotated[
        str,
        typer.Option(
            metavar="FILTER",
            help="Which rows are written, of all that is counted: what --capture takes, and more, "
            "such as 'bytes>1M flags:S' or 'rtt>50ms'.",
            show_default="all",
        ),
    ] = ""
    views: Annotated[
        str | None,
        typer.Option(
            metavar=",".join(VIEWS),
            help="Which tables are written; metrics are the monitor's, and into a directory also a "
            "table for each metric of the probes.",
            show_default="all that can have rows; flows on standard output",
        ),
    ] = None
    probe: Annotated[
        list[str],
        typer.Option(
            metavar="FILE", help="A probe's configuration, .toml or .json; may be repeated."
        ),
    ] = field(default_factory=list)
    force: Annotated[
        bool,
        typer.Option(
            "--force/--no-force",
            show_default=False,
            help="Also start a --probe that lets no packet of its interface pass.",
        ),
    ] = False
    trace: Annotated[
        list[str],
        typer.Option(
            metavar="DEST",
            help="Trace the path to this host, with its own traffic's packets; may be repeated.",
        ),
    ] = field(default_factory=list)
    monitor: Annotated[
        bool,
        typer.Option(
            "--monitor/--no-monitor",
            show_default=False,
            help="Run the monitor: counters and a sketch of all incoming packets. Each of the next "
            "six options runs it too.",
        ),
    ] = False
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="What the monitor wakes, and when, such as 'flood: flows > 500 -> "
            "heavy_hitters'; may be repeated.",
        ),
    ] = field(default_factory=list)
    policies: Annotated[
        str, typer.Option(metavar="FILE", help="Policies, and what they need: .toml or .json.")
    ] = ""
    bits: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The sketch has 2^N registers, 4 to 14: more are more exact.",
            show_default="12",
        ),
    ] = None
    input: Annotated[
        Input | None,
        typer.Option(
            help="What incoming packets are: the host's own, copies of others', or datagrams with "
            "records of switches.",
            show_default="regular",
        ),
    ] = None
    receiver: Annotated[
        list[str],
        typer.Option(
            metavar="SRC:PORT-DST:PORT",
            help="Which UDP datagrams have such records; may be repeated.",
        ),
    ] = field(default_factory=list)
    drop_others: Annotated[
        bool,
        typer.Option(
            "--drop-others/--no-drop-others",
            show_default=False,
            help="Drop all that is no telemetry, too.",
        ),
    ] = False
    offload: Annotated[
        bool,
        typer.Option(
            "--offload/--no-offload",
            show_default=False,
            help="Ask the driver to run the monitor on the NIC.",
        ),
    ] = False
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Kernel memory that the maps of all probes may take together, such as 64M; flow "
            "tables take at most three quarters of it.",
            show_default="1G, or an eighth of the RAM if that is less",
        ),
    ] = ""
    no_names: Annotated[
        bool,
        typer.Option(
            "--no-names/--names",
            show_default=False,
            help="Show addresses only: ask no name server.",
        ),
    ] = False
    only: Annotated[
        bool,
        typer.Option(
            "--only/--no-only",
            show_default=False,
            help="Run what else is asked for, and not the flow probe.",
        ),
    ] = False
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only/--no-read-only",
            show_default=False,
            help="Refuse every change to what runs.",
        ),
    ] = False
    probe_memory: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Memory that the maps of one of your probes may take."),
    ] = "1G"
    api: Annotated[
        bool,
        typer.Option(
            "--api/--no-api",
            show_default=False,
            help="Offer the REST API on a Unix socket, for its owner only.",
        ),
    ] = False
    api_socket: Annotated[
        str,
        typer.Option(metavar="PATH", help="That socket.", show_default="/run/probedeck/api.sock"),
    ] = ""
    api_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Offer the API by TCP too; needs a token.")
    ] = ""
    api_token: Annotated[
        str, typer.Option(metavar="FILE", help="Holds the token of those who may change things.")
    ] = ""
    api_read_token: Annotated[
        str, typer.Option(metavar="FILE", help="Holds the token of those who may only read.")
    ] = ""
    api_cert: Annotated[
        str, typer.Option(metavar="FILE", help="Certificate, PEM; needed off loopback.")
    ] = ""
    api_key: Annotated[str, typer.Option(metavar="FILE", help="The certificate's key, PEM.")] = ""

    def check(self, saved: Mapping[str, str] | None = None) -> None:
        """Raises UsageError for what can be told without an interface.

        `saved` are the filters that --filter may name; it is not looked at without.
        """
        if self.format is not None and self.format not in _FORMATS:
            raise UsageError(f"no format {self.format!r}", hint=f"there are {', '.join(_FORMATS)}")
        if self.ingress not in INGRESS:
            raise UsageError(f"--ingress {self.ingress!r} is not {', '.join(INGRESS)}")
        # Packet counts of a window are 32 bits wide: at 10 Mpps that is seven minutes.
        if not 0.01 <= self.interval <= 300:
            raise UsageError(f"--interval {self.interval:g} is not between 0.01 and 300 seconds")
        if self.duration is not None and not self.duration > 0:
            raise UsageError(f"--duration {self.duration:g} is not more than 0")
        others = self.probe or self.monitors or self.api or self.api_socket or self.api_listen
        if self.only and not others:
            raise UsageError("--only without a probe", hint="give --probe FILE, or --api")
        self._capture()
        self._probe_memory()
        self._memory()
        if self.bits is not None:
            MonitorOptions(bits=self.bits).check()
        target = self.target(saved or {})
        if saved is not None:
            if self.filter and not self.headless:
                raise UsageError("--filter is for what is written", hint="add --headless")
            if self.filter:
                target.filtering()

    @property
    def monitors(self) -> bool:
        """Whether the monitor runs: any option of it has been given."""
        flags = self.monitor or self.drop_others or self.offload
        lists = self.policy or self.policies or self.receiver
        return bool(flags or lists) or self.bits is not None or self.input is not None

    def target(self, saved: Mapping[str, str]) -> Target:
        """Where tables go. Raises UsageError for a view that there isn't."""
        left_out = {
            *(("flows",) if self.only else ()),
            *(() if self.trace or self.policy or self.policies else ("hops", "paths")),
            *(() if self.monitors else (TRIGGERS_TABLE, POLICIES_TABLE)),
        }
        every = [name for name in VIEWS if name not in left_out]
        usual = METRICS_TABLE if self.only else "flows"
        monitor = self.monitors
        return Target.of(
            self.out, self.format, self.views or "", every, usual,
            monitor=monitor, filter_text=self.filter, saved=saved,
        )  # fmt: skip

    def watch(self, interface: str, version: str) -> Watch:
        """What is to be watched on `interface`. Raises UsageError."""
        if not self.only and not interface:
            raise UsageError("nothing to watch", hint="give -i NAME, or --only with --probe FILE")
        probes = probes_of(self.probe, interface, self.interval)
        monitor, policies = self._monitor(interface, probes)
        watch = Watch(
            interface=interface,
            interval=self.interval,
            ingress=INGRESS[self.ingress],
            capture=self._capture(),
            duration=self.duration,
            probes=tuple(probe for probe in probes if probe not in policies.applications),
            force=self.force,
            flows=not self.only,
            read_only="started with --read-only" if self.read_only else "",
            probe_memory=self._probe_memory(),
            api=self._api(version),
            trace=self._addresses(),
            names=not self.no_names,
            memory=self._memory(),
            monitor=monitor,
            policies=policies,
        )
        watch.check()
        return watch

    def _probe_memory(self) -> int:
        try:
            return memory.parse(self.probe_memory)
        except UsageError as error:
            raise UsageError(f"--probe-memory: {error.message}", hint=error.hint) from None

    def _capture(self) -> str:
        if self.capture:
            from probes.flow.filter import FlowFilter

            try:
                FlowFilter.parse(self.capture).to_c()
            except TextError as error:
                raise error.of("--capture") from None
        return self.capture

    def _memory(self) -> int:
        """Bytes; 0 for the default. Raises UsageError."""
        if not self.memory:
            return 0
        try:
            return memory.parse(self.memory)
        except UsageError as error:
            raise UsageError(f"--memory: {error.message}", hint=error.hint) from None

    def _addresses(self) -> tuple[str, ...]:
        if not self.trace:
            return ()
        from app.resolve import addresses

        return tuple(address for name in self.trace for address in addresses(name))

    def _monitor(
        self, interface: str, probes: Sequence[ProbeConfig]
    ) -> tuple[MonitorOptions | None, Policies]:
        """The monitor's options, the command line's put over the file's, and what it is to do;
        applications among `probes` are its own."""
        if not self.monitors:
            return None, Policies()
        if not interface:
            raise UsageError("nothing for the monitor to watch", hint="give -i NAME")
        policies, said = policies_of(self.policies, self.policy, probes)
        applications = tuple(each.on(interface) for each in policies.applications)
        given = {
            "bits": self.bits,
            "input": self.input,
            "receivers": tuple(map(receiver_of, self.receiver)) or None,
            "drop_others": self.drop_others or None,
            "offload": self.offload or None,
            "ingress": INGRESS[self.ingress],
        }
        over = {name: value for name, value in given.items() if value is not None}
        options = MonitorOptions(**{"interval": self.interval, **said, **over})
        options.check()
        return options, replace(policies, applications=applications)

    def _api(self, version: str) -> Any:
        """The API's options; None where it is not asked for."""
        if not (self.api or self.api_socket or self.api_listen):
            return None
        from app.api.server.listener import Api
        from app.api.sockets import DEFAULT_SOCKET

        return Api(
            version,
            self.api_socket or (DEFAULT_SOCKET if self.api or not self.api_listen else ""),
            self.api_listen,
            self.api_token,
            self.api_read_token,
            self.api_cert,
            self.api_key,
        )
