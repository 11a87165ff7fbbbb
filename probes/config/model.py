"""A probe's configuration (S1.2, S1.3): the same model for files, REST and the console's editor."""

from __future__ import annotations

import posixpath
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from bpf.attach.interface import CGROUP_EVENTS
from bpf.compiler.source import INCLUDES, included
from bpf.errors import UsageError, did_you_mean
from bpf.objects.dialect import is_for_libbpf, object_sections
from probes.config.config_errors import FaultSource, Request, errors_of, faults_of, invalid
from probes.config.files import read_bytes, read_document, read_text, why_no_text
from probes.config.formats import FORMAT_NAMES
from probes.config.map_config import Defined, MapOptions, Metric, Model, Name, Text
from probes.config.sources import MAX_HEADERS, NAME, HeaderSearch, NetflowFeatures
from probes.netflow import generator as netflow

Side = Literal["ingress", "egress", "event"]
"""A direction of packets; `event`: a program on a tracepoint or a cgroup."""
SIDES: tuple[Side, ...] = ("ingress", "egress", "event")
_EVENT_HOOKS = ("raw_tp", "cgroup")
MAX_SOURCE = 1 << 20
"""Bytes of one source."""
MAX_OBJECT = 2 << 20
"""Bytes of one object."""
MAX_FILE = 4 << 20
"""Bytes of a configuration, with the sources in it."""


class DirectionConfig(Model):
    """The program of one direction, and its metrics."""

    interface: Text = ""
    """Empty only in a file that is run with `-i`."""
    hook: Literal["xdp", "tc", "monitor", "raw_tp", "cgroup"] | None = None
    """None: TC for egress; for ingress XDP if the source needs it, else the hook that suits the
    interface (S1.4). `monitor`: an application; policies select its packets (S2.16). `raw_tp` and
    `cgroup`: the hooks of events."""
    tracepoint: Text = ""
    """Of `raw_tp`: its name without the subsystem, such as `kfree_skb`."""
    attach: Text = ""
    """Of `cgroup`: the attach type, such as `sock_create`."""
    cgroup: Text = ""
    """Of `cgroup`: the folder whose processes count, absolute or below the mount of cgroup2;
    empty: all processes."""
    source: str = ""
    """eBPF C. A configuration file may name a .c file or an object, .o, relative to itself."""
    object: str = ""
    """A compiled program instead of C: the bytes of its file in base64."""
    dialect: Literal["", "bcc", "libbpf"] = ""
    """Dialect of the C; empty: probedeck looks at the source."""
    headers: dict[Text, str] = Field(default_factory=dict)
    """Texts of headers by name, for `#include "NAME"`. Headers beside the C file of a configuration
    file, or below the configuration's directory, are found without this."""
    prelude: Text = ""
    """Header that stands before the source: the names of a framework."""
    include: tuple[Text, ...] = ()
    """Only in a file: directories of other headers, relative to the configuration."""
    function: Text = ""
    """Name of the program, if the source has several."""
    define: dict[Defined, int] = Field(default_factory=dict)
    """The parameters of the source: macros, and variables for libbpf."""
    metrics: tuple[Metric, ...] = ()
    netflow: NetflowFeatures | None = None
    """Generates the source, and a metric of its flows if no other is given."""
    _search: HeaderSearch | None = PrivateAttr(None)

    @property
    def file(self) -> str:
        """File of the source; empty for an inline source."""
        return str(self._search.file) if self._search else ""

    def with_text(self, source: str, where: str) -> Self:
        """Return the same direction with another source and its new headers, if its file is known.

        Raises UsageError, which begins with `where`, for a header.
        """
        before = f'#include "{self.prelude}"\n' if self.prelude else ""
        found = self._search.read(before + source, where) if self._search else {}
        return self.model_copy(update={"source": source, "headers": {**found, **self.headers}})

    @field_validator("source")
    @classmethod
    def _is_text(cls, source: str) -> str:
        if why := why_no_text(source.encode(errors="surrogatepass"), MAX_SOURCE):
            raise invalid(why)
        return source

    @field_validator("object")
    @classmethod
    def _is_object(cls, text: str) -> str:
        if text:
            try:
                object_sections(b64decode(text, validate=True))
            except ValueError:
                raise invalid("it is not in base64") from None
            except UsageError as error:
                raise invalid(error.message, hint=error.hint) from None
        return text

    @property
    def prelude_text(self) -> str:
        """Text of the prelude, or empty."""
        if self.prelude and self.prelude not in self.headers:
            bundled = INCLUDES / Path(self.prelude).name
            return bundled.read_text(encoding="utf-8") if bundled.exists() else ""
        return self.headers.get(self.prelude, "")

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, text in headers.items():
            if not NAME.fullmatch(name) or posixpath.normpath(name) != name:
                raise invalid(f"{name[:40]!a} is no name of a header", hint="such as net/types.h")
            if why := why_no_text(text.encode(errors="surrogatepass"), MAX_HEADERS):
                raise invalid(f"{name}: {why}")
        return headers

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        given = [self.source.strip(), self.object, self.netflow]
        if not any(given):
            raise invalid("it has no program", hint="give source, a file or C text, or netflow")
        if self.source and self.object:
            raise invalid("there is a source too", at="object", hint="give one of the two")
        if self.netflow and (self.source or self.object):
            raise invalid("there is a source too", at="netflow", hint="give one of the two")
        self._check_event()
        names: set[str] = set()
        of_map: dict[str, Metric] = {}
        for number, metric in enumerate(self.metrics):
            at = f"metrics[{number}]"
            if metric.name in names:
                raise invalid(f"there are two metrics {metric.name!r}", at=f"{at}.name")
            names.add(metric.name)
            _alike(metric, of_map.setdefault(metric.map, metric), at)
            if isinstance(name := metric.expire and metric.expire.seconds, str):
                if name not in self.define:
                    hint = did_you_mean(name, sorted(self.define)) or "give a number of seconds"
                    raise invalid(f"define has no {name}", at=f"{at}.expire.seconds", hint=hint)
                if self.define[name] <= 0:
                    raise invalid("must be more than 0 seconds", at=f"define.{name}")
        return self

    def _check_event(self) -> None:
        """Raise if a key of events is missing, or does not belong to the hook."""
        for key, hook in (("tracepoint", "raw_tp"), ("attach", "cgroup")):
            given = bool(getattr(self, key))
            if given != (self.hook == hook):
                why = f"it is for hook {hook}" if given else f"hook {hook} needs it"
                raise invalid(why, at=key)
        if self.cgroup and self.hook != "cgroup":
            raise invalid("it is for hook cgroup", at="cgroup")
        if self.attach and self.attach not in CGROUP_EVENTS:
            hint = did_you_mean(self.attach, CGROUP_EVENTS)
            raise invalid(f"{self.attach!a} is not one of its values", at="attach", hint=hint)
        if self.hook in _EVENT_HOOKS and self.interface:
            raise invalid("events have none", at="interface", hint="leave it out")

    @property
    def is_for_libbpf(self) -> bool:
        """Whether clang and libbpf make its program, and not bcc."""
        if self.object or self.dialect:
            return bool(self.object) or self.dialect == "libbpf"
        return is_for_libbpf("\n".join((self.source, *self.headers.values())))

    @property
    def data(self) -> bytes:
        """The object; empty for a source."""
        return b64decode(self.object)

    def expiry(self, metric: Metric) -> tuple[str, float] | None:
        """Return the field and the greatest age in seconds; None if entries do not expire."""
        if metric.expire is None:
            return None
        seconds = metric.expire.seconds
        return metric.expire.field, self.define[seconds] if isinstance(seconds, str) else seconds

    def metric_names(self) -> tuple[str, ...]:
        """Return the names of the exported metrics, or of the metric for `netflow`."""
        if self.netflow and not self.metrics:
            return (netflow.MAP,)
        return tuple(metric.name for metric in self.metrics if metric.export)


def _alike(metric: Metric, earlier: Metric, at: str) -> None:
    """Raise if two metrics of one map differ in its use: one read serves both."""
    for key in ("snapshot", "init", "expire"):
        if getattr(metric, key) != (other := getattr(earlier, key)):
            text = f"{earlier.name!r}, of the same map, has {str(other).lower()}"
            raise invalid(text, at=f"{at}.{key}", hint="metrics of one map have it in common")


def _contradiction(metric: Metric, options: MapOptions) -> str:
    """Return why a metric contradicts the options of its map; empty if it does not."""
    if options.private and metric.export:
        return f"it shows the contents of a map, and maps.{metric.map} is private"
    what = "shared" if options.share else "writable"
    if metric.snapshot and (options.share or options.writable):
        return f"each window of a snapshot has a map of its own, and maps.{metric.map} is {what}"
    if metric.init and options.writable:
        return f"init would take out what operators write: maps.{metric.map} is writable"
    return ""


class Health(Model):
    """Conditions for a new generation; the controller rolls back one that fails them."""

    seconds: float = Field(5.0, ge=0.1, le=300)
    """Length of the health window."""
    metrics: tuple[Text, ...] = ()
    """Metrics that must move while packets arrive, with `ingress.` or `egress.` if both directions
    have the name; empty: any metric."""


def _list_formats(schema: dict[str, Any]) -> None:
    if FORMAT_NAMES:
        schema["enum"] = list(FORMAT_NAMES)


class ProbeConfig(Model):
    """A probe as the operator configures it (S1.5)."""

    name: Name
    format: Annotated[str, Field(json_schema_extra=_list_formats)] = "json"
    interval: float = 1.0
    """Seconds between exports, 0.01 to 300; 0: exports only by command. Default in files for
    `run --probe`: the value of `--interval`."""
    ingress: DirectionConfig | None = None
    egress: DirectionConfig | None = None
    event: DirectionConfig | None = None
    """A program on a tracepoint or a cgroup."""
    health: Health | None = None
    maps: dict[Text, MapOptions] = Field(default_factory=dict)
    """Options of maps by name, for sharing and for writes by operators."""
    _origin: str = PrivateAttr("")

    @property
    def origin(self) -> str:
        """Origin for messages: the name of a file, or `request`."""
        return self._origin or self.name

    @field_validator("format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        if FORMAT_NAMES and name not in FORMAT_NAMES:
            hint = did_you_mean(name, sorted(FORMAT_NAMES))
            raise invalid(f"{name!a} is not one of its values", hint=hint)
        return name

    @field_validator("interval")
    @classmethod
    def _in_range(cls, interval: float) -> float:
        if interval and not 0.01 <= interval <= 300:
            raise invalid(f"must be 0, or 0.01 to 300 seconds, not {interval:g}")
        return interval

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not any(self.directions()):
            raise invalid("it has no direction", hint="give ingress, egress, or event")
        if self.egress and self.egress.hook == "xdp":
            raise invalid("XDP sees no egress", at="egress.hook", hint="leave it out, or say tc")
        if self.egress and self.egress.hook == "monitor":
            raise invalid(
                "the monitor sees incoming packets", at="egress.hook", hint="give ingress"
            )
        for side, direction in self.directions():
            if (side == "event") != (direction.hook in _EVENT_HOOKS):
                at, known = f"{side}.hook", "xdp, tc or monitor" if side != "event" else ""
                raise invalid("must be " + (known or " or ".join(_EVENT_HOOKS)), at=at)
            for number, metric in enumerate(direction.metrics):
                options = self.maps.get(metric.map)
                if options and (why := _contradiction(metric, options)):
                    raise invalid(why, at=f"{side}.metrics[{number}]", hint="leave it out")
        names = {
            name
            for side, direction in self.directions()
            for metric in direction.metric_names()
            for name in (metric, f"{side}.{metric}")
        }
        for number, name in enumerate(self.health.metrics if self.health else ()):
            if name not in names:
                text, hint = f"no exported metric {name!r}", did_you_mean(name, sorted(names))
                raise invalid(text, at=f"health.metrics[{number}]", hint=hint)
        return self

    @property
    def is_application(self) -> bool:
        """Whether a monitor passes it its packets."""
        return self.ingress is not None and self.ingress.hook == "monitor"

    def directions(self) -> Iterator[tuple[Side, DirectionConfig]]:
        """Yield the directions that have a program."""
        for side in SIDES:
            if (direction := getattr(self, side)) is not None:
                yield side, direction

    def on(self, interface: str) -> ProbeConfig:
        """Return the same probe with `interface` for directions that do not name one.

        Raises UsageError if a direction needs it and `interface` is empty.
        """
        placed = self
        for side, direction in self.directions():
            if not direction.interface and side != "event":
                if not interface:
                    where = f"{self.origin}: {side}.interface"
                    raise UsageError(f"{where}: it is missing", hint="give -i NAME")
                there = direction.model_copy(update={"interface": interface})
                placed = placed.model_copy(update={side: there})
        return placed

    @property
    def has_interval(self) -> bool:
        return "interval" in self.model_fields_set

    def every(self, interval: float) -> ProbeConfig:
        return self.model_copy(update={"interval": interval})

    def with_source(self, side: Side, source: str) -> ProbeConfig:
        """Return the same probe with another source in one direction.

        If the file of the source is known, its new headers are read. A source takes the place of an
        object, and its file is not the object's.
        """
        direction: DirectionConfig = getattr(self, side)
        if direction.object and source.strip():
            direction = direction.model_copy(update={"object": ""})
            direction._search = None
        edited = direction.model_copy(update={"source": source})
        if set(included(source)) - set(direction.headers):
            # The compiler reports unreadable headers, with file and line.
            with suppress(UsageError):
                edited = direction.with_text(source, side)
        return self.model_copy(update={side: edited})

    def files(self) -> dict[str, str]:
        """Return the known files by their names in diagnostics."""
        known: dict[str, str] = {}
        for side, direction in self.directions():
            if search := direction._search:
                # The verifier's log has only the last part of a name.
                parts = [Path(name).name for name in direction.headers]
                for name, part in zip(direction.headers, parts, strict=True):
                    known[name] = str(search.path(name))
                    if parts.count(part) == 1 and not (INCLUDES / part).exists():
                        known[part] = known[name]
                known[f"{self.name}.{side}.{'o' if direction.object else 'c'}"] = direction.file
        return known


def load(path: str | Path) -> ProbeConfig:
    """Return the configuration in a JSON or TOML file.

    Raises UsageError, which names file, line and key.
    """
    path = Path(path)
    document = read_document(path, MAX_FILE, "a configuration's name")
    return parse(document.data, str(path), path.parent, document)


def parse(
    data: object, where: str, directory: Path | None = None, source: FaultSource | None = None
) -> ProbeConfig:
    """Return the configuration in a value from JSON; `where` is its name in errors, `source` its
    text.

    With a directory, a source of one line that ends in .c or .o names a file there. Sources for
    netflow are generated. Raises UsageError, which names the key.
    """
    try:
        config = ProbeConfig.model_validate(data)
    except ValidationError as error:
        raise errors_of(faults_of(error, ProbeConfig), source or Request(where)) from None
    complete: dict[str, DirectionConfig] = {
        side: _completed(direction, f"{where}: {side}.source", directory)
        for side, direction in config.directions()
    }
    config = config.model_copy(update=complete)
    config._origin = where
    return config


def dump(config: ProbeConfig) -> dict[str, Any]:
    """Return the inverse of `parse`: a value for JSON, without defaults."""
    return config.model_dump(mode="json", exclude_defaults=True)


def _completed(direction: DirectionConfig, where: str, directory: Path | None) -> DirectionConfig:
    """Return a direction with its source, from a file or from netflow."""
    if chosen := direction.netflow:
        metric = Metric(
            name=netflow.MAP,
            map=netflow.MAP,
            help=netflow.describe(chosen.features, chosen.method),
            snapshot=True,
            types=netflow.field_types(chosen.features, chosen.method),
        )
        made = {
            "source": netflow.source(chosen.features, chosen.method),
            "metrics": direction.metrics or (metric,),
            "netflow": None,
        }
        return direction.model_copy(update=made)
    name = direction.source.strip()
    if directory is None or "\n" in name or not name.endswith((".c", ".o")):
        if direction.include:
            at = where.replace("source", "include")
            raise UsageError(f"{at}: the source is no file", hint="give the texts in headers")
        return direction
    path = directory / name
    if name.endswith(".o"):
        data = read_bytes(path, MAX_OBJECT, f"{where}: {path}")
        try:
            object_sections(data)
        except UsageError as error:
            raise error.of(f"{where}: {path}") from None
        direction = direction.model_copy(update={"source": "", "object": b64encode(data).decode()})
        direction._search = HeaderSearch(path, path.parent)
        return direction
    text = read_text(path, MAX_SOURCE, f"{where}: {path}")
    if not text.strip():
        raise UsageError(f"{where}: {path}: it is empty")
    root = directory if path.resolve().is_relative_to(directory.resolve()) else path.parent
    include = tuple(directory / each for each in direction.include)
    for each in include:
        if not each.is_dir():
            at = where.replace("source", "include")
            raise UsageError(f"{at}: {each} is no directory")
    direction = direction.model_copy(update={"include": ()})
    direction._search = HeaderSearch(path, root, include)
    return direction.with_text(text, where)
