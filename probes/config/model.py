"""A probe's configuration (S1.2, S1.3): the same model for files, REST and the console's editor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from bpf.attach.attachment import Hook
from bpf.compiler.source import INCLUDES, fits_every_hook, included
from bpf.errors import UsageError, did_you_mean
from probes import netflow
from probes.config.c_headers import MAX_HEADERS, NAME, headers_beside
from probes.config.config_errors import config_error, invalid
from probes.config.files import read_data, read_text, why_no_text
from probes.config.formats import FORMAT_NAMES
from probes.config.map_config import Expire, Macro, MapOptions, Metric, Model, Name, Text
from probes.netflow import FEATURES, Method

__all__ = [
    "MAX_FILE",
    "MAX_SOURCE",
    "SIDES",
    "DirectionConfig",
    "Expire",
    "Health",
    "MapOptions",
    "Metric",
    "Name",
    "NetflowFeatures",
    "ProbeConfig",
    "Side",
    "Text",
    "dump",
    "hook_of",
    "load",
    "parse",
]


Side = Literal["ingress", "egress"]
SIDES: tuple[Side, Side] = ("ingress", "egress")
MAX_SOURCE = 1 << 20
"""Bytes of one source."""
MAX_FILE = 4 << 20
"""Bytes of a configuration, with the sources in it."""


def _listed(features: Any) -> Any:
    """A number stands for so many features, the first ones."""
    if features == [] or features == ():
        raise invalid("must not be empty")
    if not isinstance(features, int) or isinstance(features, bool):
        return features
    if not 1 <= features <= len(FEATURES):
        raise invalid(f"must be a list of names, or 1 to {len(FEATURES)}, not {features}")
    return FEATURES[:features]


class NetflowFeatures(Model):
    """NetFlow v9 features 1 to 15, in place of a source (S1.30)."""

    features: Annotated[
        tuple[netflow.Feature, ...],
        BeforeValidator(_listed, json_schema_input_type=int | tuple[netflow.Feature, ...]),
    ] = FEATURES
    """Their names in any order, or how many of the first ones."""
    method: Method = Method.FULLY_ADAPTIVE
    """See `probes.netflow.Method`."""

    @model_validator(mode="after")
    def _chooses(self) -> Self:
        if self.method is Method.NON_ADAPTIVE and set(self.features) != set(FEATURES):
            hint = "leave features out, or take another method"
            raise invalid("the non-adaptive method always has all", at="features", hint=hint)
        return self


class DirectionConfig(Model):
    """The program of one direction, and what leaves it."""

    interface: Text = ""
    """Empty only in a file that is run with `-i`."""
    hook: Literal["xdp", "tc", "monitor"] | None = None
    """None: TC for egress; for ingress where packets are seen best, or XDP if the source is written
    for nothing else (S1.4). With `monitor` it is an application of the
    monitor: it gets the packets that policies select (S2.16)."""
    source: str = ""
    """eBPF C; in a file also the name of a file, relative to the configuration, that ends in .c."""
    headers: dict[Text, str] = Field(default_factory=dict)
    """Texts of the headers that the source includes by `#include "NAME"`, by name. A configuration
    file needs none for headers beside the C file, or below its directory."""
    function: Text = ""
    """The program, where the source has more than one."""
    define: dict[Macro, int] = Field(default_factory=dict)
    """Macros that the source is compiled with: what of it is meant to be chosen."""
    metrics: tuple[Metric, ...] = ()
    netflow: NetflowFeatures | None = None
    """To have the source made, and a metric of its flows where no others are given."""
    _file: str = PrivateAttr("")

    @property
    def file(self) -> str:
        """The file that the source was read from; empty where it was given inline."""
        return self._file

    @field_validator("source")
    @classmethod
    def _is_text(cls, source: str) -> str:
        if why := why_no_text(source.encode(errors="surrogatepass"), MAX_SOURCE):
            raise invalid(why)
        return source

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, text in headers.items():
            if not NAME.fullmatch(name) or ".." in name.split("/"):
                raise invalid(f"{name[:40]!a} is no name of a header", hint="such as net/types.h")
            if why := why_no_text(text.encode(errors="surrogatepass"), MAX_HEADERS):
                raise invalid(f"{name}: {why}")
        return headers

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.source.strip() and self.netflow is None:
            raise invalid("it has no program", hint="give source, a file or C text, or netflow")
        if self.source and self.netflow:
            raise invalid("there is a source too", at="netflow", hint="give one of the two")
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

    def expiry(self, metric: Metric) -> tuple[str, float] | None:
        """By which field, and after how many seconds, entries of its map are swept."""
        if metric.expire is None:
            return None
        seconds = metric.expire.seconds
        return metric.expire.field, self.define[seconds] if isinstance(seconds, str) else seconds

    def metric_names(self) -> tuple[str, ...]:
        """Of its metrics that are exported, and of the one that netflow brings."""
        if self.netflow and not self.metrics:
            return (netflow.MAP,)
        return tuple(metric.name for metric in self.metrics if metric.export)


def _alike(metric: Metric, earlier: Metric, at: str) -> None:
    """A map is read once, for all metrics that show it."""
    for key in ("snapshot", "init", "expire"):
        if getattr(metric, key) != (other := getattr(earlier, key)):
            text = f"{earlier.name!r}, of the same map, has {str(other).lower()}"
            raise invalid(text, at=f"{at}.{key}", hint="metrics of one map have it in common")


def _contradiction(metric: Metric, maps: Mapping[str, MapOptions]) -> str:
    """Return why a metric contradicts the options of its map; empty if it does not."""
    if (options := maps.get(metric.map)) is None:
        return ""
    what = "shared" if options.share else "writable"
    if metric.snapshot:
        return f"each window of a snapshot has a map of its own, and maps.{metric.map} is {what}"
    if metric.init and options.writable:
        return f"init would take out what operators write: maps.{metric.map} is writable"
    return ""


class Health(Model):
    """What a new generation must show after a replacement, or the last good one comes back."""

    seconds: float = Field(5.0, ge=0.1, le=300)
    """How long it is looked at."""
    metrics: tuple[Text, ...] = ()
    """Metrics that must move while packets arrive, by name, `ingress.` or `egress.` before it where
    both have it; empty: one of all."""


def _list_formats(schema: dict[str, Any]) -> None:
    if FORMAT_NAMES:
        schema["enum"] = list(FORMAT_NAMES)


class ProbeConfig(Model):
    """A probe: what the operator gives, and all that he gives (S1.5)."""

    name: Name
    format: Annotated[str, Field(json_schema_extra=_list_formats)] = "json"
    interval: float = 1.0
    """Seconds between exports, 0.01 to 300; 0: only when asked for. In a file that is run by
    `run --probe` what `--interval` says, if it is left out."""
    ingress: DirectionConfig | None = None
    egress: DirectionConfig | None = None
    health: Health | None = None
    maps: dict[Text, MapOptions] = Field(default_factory=dict)
    """Options of maps that C cannot express, by name: shared, or written by operators."""
    _origin: str = PrivateAttr("")

    @property
    def origin(self) -> str:
        """Where it came from, for what is said about it: a file's name, or `request`."""
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
            raise invalid("it has no direction", hint="give ingress, egress, or both")
        if self.egress and self.egress.hook == "xdp":
            raise invalid("XDP sees no egress", at="egress.hook", hint="leave it out, or say tc")
        if self.egress and self.egress.hook == "monitor":
            raise invalid(
                "the monitor sees incoming packets", at="egress.hook", hint="give ingress"
            )
        for side, direction in self.directions():
            for number, metric in enumerate(direction.metrics):
                if why := _contradiction(metric, self.maps):
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
        """Whether it gets its packets from a monitor."""
        return self.ingress is not None and self.ingress.hook == "monitor"

    def directions(self) -> Iterator[tuple[Side, DirectionConfig]]:
        """Those that have a program."""
        for side in SIDES:
            if (direction := getattr(self, side)) is not None:
                yield side, direction

    def on(self, interface: str) -> ProbeConfig:
        """The same probe, where a direction that names no interface is on this one.

        Raises UsageError where there is none to name.
        """
        placed = self
        for side, direction in self.directions():
            if not direction.interface:
                if not interface:
                    where = f"{self.origin}: {side}.interface"
                    raise UsageError(f"{where}: it is missing", hint="give -i NAME")
                there = direction.model_copy(update={"interface": interface})
                placed = placed.model_copy(update={side: there})
        return placed

    @property
    def has_interval(self) -> bool:
        """Whether the configuration says how long a window lasts."""
        return "interval" in self.model_fields_set

    def every(self, interval: float) -> ProbeConfig:
        """Return the same probe with windows of so many seconds."""
        return self.model_copy(update={"interval": interval})

    def with_source(self, side: Side, source: str) -> ProbeConfig:
        """The same probe with another source in one direction.

        Headers that it includes now and did not before are read if its file is known.
        """
        edited: DirectionConfig = getattr(self, side).model_copy(update={"source": source})
        if edited.file and set(included(source)) - set(edited.headers):
            # If a header cannot be read, the compiler complains, with file and line.
            with suppress(UsageError):
                found = headers_beside(source, Path(edited.file), side)
                edited = edited.model_copy(update={"headers": {**found, **edited.headers}})
        return self.model_copy(update={side: edited})

    def files(self) -> dict[str, str]:
        """The files behind the names in diagnostics, as far as this process knows them."""
        known: dict[str, str] = {}
        for side, direction in self.directions():
            if direction.file:
                folder = Path(direction.file).parent
                # The verifier's log has the last part of a name only.
                parts = [Path(name).name for name in direction.headers]
                for name, part in zip(direction.headers, parts, strict=True):
                    known[name] = str(folder / name)
                    if parts.count(part) == 1 and not (INCLUDES / part).exists():
                        known[part] = known[name]
                known[f"{self.name}.{side}.c"] = direction.file
        return known


def hook_of(side: Side, direction: DirectionConfig) -> Hook | None:
    """Where a direction's program has to be attached; None: wherever the interface suggests."""
    if side == "egress":
        return Hook.TC_EGRESS
    if direction.hook == "tc":
        return Hook.TC_INGRESS
    text = "\n".join((direction.source, *direction.headers.values()))
    if direction.hook == "xdp" or not fits_every_hook(text):
        return Hook.XDP
    return None


def load(path: str | Path) -> ProbeConfig:
    """The configuration in a file, JSON or TOML by its name.

    Raises UsageError, naming file and key, for anything that is invalid.
    """
    path = Path(path)
    return parse(read_data(path, MAX_FILE, "a configuration's name"), str(path), path.parent)


def parse(data: object, where: str, directory: Path | None = None) -> ProbeConfig:
    """A configuration as Python has it after JSON; `where` is what errors call it.

    With a directory, a source that is a line ending in .c is a file there. Sources for netflow are
    made. Raises UsageError, naming the key.
    """
    try:
        config = ProbeConfig.model_validate(data)
    except ValidationError as error:
        raise config_error(error, ProbeConfig, where) from None
    complete: dict[str, DirectionConfig] = {
        side: _completed(direction, f"{where}: {side}.source", directory)
        for side, direction in config.directions()
    }
    config = config.model_copy(update=complete)
    config._origin = where
    return config


def dump(config: ProbeConfig) -> dict[str, Any]:
    """What `parse` makes the same configuration of: JSON's types, without defaults."""
    return config.model_dump(mode="json", exclude_defaults=True)


def _completed(direction: DirectionConfig, where: str, directory: Path | None) -> DirectionConfig:
    """With its source in it."""
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
    if directory is None or "\n" in name or not name.endswith(".c"):
        return direction
    path = directory / name
    text = read_text(path, MAX_SOURCE, f"{where}: {path}")
    if not text.strip():
        raise UsageError(f"{where}: {path}: it is empty")
    headers = {**headers_beside(text, path, where), **direction.headers}
    direction = direction.model_copy(update={"source": text, "headers": headers})
    direction._file = str(path)
    return direction
