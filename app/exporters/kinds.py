"""Kinds of outputs.

`EXPORTERS` is the only list of kinds: the option, the settings, help, REST and the console derive
from it. The module loads no exporter and no numpy, so help is fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from app.exporters.alerts.options import (
    CommandOptions,
    JournalOptions,
    SyslogHostOptions,
    SyslogOptions,
    WebhookOptions,
)
from app.exporters.files.options import FileOptions
from app.exporters.ipfix.options import CollectorOptions, IpfixOptions
from app.exporters.openmetrics.options import OpenMetricsOptions
from app.exporters.options import ExporterOptions, OptionError, names_files, read_options, secrets
from app.exporters.otlp.options import OtlpOptions
from app.exporters.record_options import RecordOptions
from bpf.errors import UsageError, did_you_mean
from probes.reports import OutputConfig

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class UrlPlace(Enum):
    """The part of a URL that tells where records go."""

    HOST = auto()
    """`scheme://host:port`."""
    PATH = auto()
    """`scheme:PATH`."""
    NONE = auto()
    """`scheme:`."""


@dataclass(frozen=True, slots=True)
class ExporterKind:
    """A kind of outputs."""

    scheme: str
    about: str
    """Its deliveries, in a sentence."""
    example: str
    options: type[ExporterOptions]
    """Its fields are the options."""
    load: str
    """`module:function`; the function makes an Exporter of an ExportHost."""
    place: UrlPlace = UrlPlace.HOST
    port: int = 0
    """The usual port; 0: a URL must have one."""
    local: bool = False
    """Whether it reaches programs or files of this host: REST adds it only for its own user."""
    transport: str = "tcp"
    """`tcp`, `udp`, or `listen` for a server; an option `transport` goes first."""
    hides_path: bool = False
    """Whether the path of the URL may be a secret."""


@dataclass(frozen=True, slots=True)
class ExporterConfig:
    """A checked OutputConfig."""

    kind: ExporterKind
    name: str
    """Empty: the run chooses one."""
    host: str
    port: int
    path: str
    """Without escapes."""
    options: ExporterOptions
    shown: str
    """The URL without credentials."""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it reaches programs or files of the host, by its kind or by an option."""
        return self.kind.local or names_files(self.options)


EXPORTERS: dict[str, ExporterKind] = {}


def register(kind: ExporterKind) -> None:
    """Add a kind to the list."""
    EXPORTERS[kind.scheme] = kind


def parse(config: OutputConfig) -> ExporterConfig:
    """Check an output. Raises OptionError, which names the mistake, but no credentials."""
    scheme, colon, rest = config.url.partition(":")
    kind = EXPORTERS.get(scheme)
    if kind is None:
        # The text may begin with a password.
        known = did_you_mean(scheme, EXPORTERS) if _SCHEME.fullmatch(scheme) else _known()
        is_scheme = colon and _SCHEME.fullmatch(scheme)
        what = f"there is no kind of output {scheme!r}" if is_scheme else "an output has no URL"
        raise OptionError("url", what, hint=known)
    rest, _, query = rest.partition("?")
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        hint = "write KEY=VALUE&KEY=VALUE behind ?"
        raise OptionError("url", f"{scheme}: the options are not readable", hint=hint) from None
    return _config(kind, rest, {**given, **config.options}, config.name)


def _config(kind: ExporterKind, rest: str, given: dict[str, str], name: str) -> ExporterConfig:
    where = f"{kind.scheme} output"
    name = name or given.get("name", "")
    if name and not _NAME.fullmatch(name):
        hint = "use letters, digits, ., _ and -; at most 64"
        raise OptionError("name", f"{where}: the name {name!r} does not do", hint=hint)
    given = {key: text for key, text in given.items() if key != "name"}
    try:
        options = read_options(kind.options, given)
    except UsageError as error:
        key = error.key if isinstance(error, OptionError) else "url"
        raise OptionError(key, f"{where}: {error.message}", hint=error.hint) from None
    hidden = secrets(kind.options)
    shown = {key: text for key, text in given.items() if key not in hidden}
    query = f"?{urlencode(shown, safe='/,:')}" if shown else ""
    if kind.place is not UrlPlace.HOST:
        path = unquote(rest)
        if bool(path) is not (kind.place is UrlPlace.PATH):
            raise OptionError("url", f"{where}: the URL is no {kind.example}")
        return ExporterConfig(kind, name, "", 0, path, options, f"{kind.scheme}:{rest}{query}")
    try:
        parts = urlsplit(f"//{rest.removeprefix('//')}", allow_fragments=False)
        host, port = parts.hostname or "", parts.port or kind.port
    except ValueError:
        host, port = "", 0
    if not (rest.startswith("//") and host and port):
        raise OptionError(
            "url",
            f"{where}: the URL needs a host and a port, 1 to 65535",
            hint=f"write {kind.example}",
        )
    path = ("/..." if parts.path.strip("/") else "") if kind.hides_path else parts.path
    at = f"[{host}]" if ":" in host else host
    return ExporterConfig(
        kind, name, host, port, unquote(parts.path), options,
        f"{kind.scheme}://{at}:{port}{quote(path, safe='/.%')}{query}",
        unquote(parts.username or ""), unquote(parts.password or ""),
    )  # fmt: skip


def _known() -> str:
    return f"there are {', '.join(f'{scheme}:' for scheme in EXPORTERS)}"


def from_table(table: Mapping[str, str]) -> OutputConfig:
    """Return the output of a table of texts: `url`, `name`, and the options."""
    rest = {key: text for key, text in table.items() if key not in ("url", "name")}
    return OutputConfig(table.get("url", ""), table.get("name", ""), rest)


register(
    ExporterKind(
        "openmetrics", "Listens for Prometheus: metrics at /metrics, without a token.",
        "openmetrics://127.0.0.1:9464", OpenMetricsOptions,
        "app.exporters.openmetrics.exporter:OpenMetricsExporter", port=9464, transport="listen",
    )
)  # fmt: skip
register(
    ExporterKind(
        "ipfix", "Flows as IPFIX (RFC 7011), over UDP, TCP or TLS.",
        "ipfix://collector:4739?transport=tcp&owners=on", IpfixOptions,
        "app.exporters.ipfix.exporter:ipfix", port=4739,
    )
)  # fmt: skip
register(
    ExporterKind(
        "netflow9", "Flows as NetFlow v9 (RFC 3954), over UDP.", "netflow9://collector:2055",
        CollectorOptions, "app.exporters.ipfix.exporter:netflow9", port=2055, transport="udp",
    )
)  # fmt: skip
register(
    ExporterKind(
        "parquet", "Tables as Parquet files, for DuckDB, ClickHouse and others; needs DuckDB.",
        "parquet:DIR?every=hour&tables=flows,windows", FileOptions,
        "app.exporters.files.exporter:parquet", place=UrlPlace.PATH, local=True,
    )
)  # fmt: skip
register(
    ExporterKind(
        "jsonl", "Tables as files of JSON lines.", "jsonl:DIR?every=day", FileOptions,
        "app.exporters.files.exporter:json_lines", place=UrlPlace.PATH, local=True,
    )
)  # fmt: skip
register(
    ExporterKind(
        "record", "Everything, for replay: windows, events, owners, paths and policies.",
        "record:DIR?keep=24h,5GB", RecordOptions, "app.recording.recorder:recorder",
        place=UrlPlace.PATH, local=True,
    )
)  # fmt: skip
for _scheme in ("otlp+http", "otlp+https"):
    register(
        ExporterKind(
            _scheme, f"Metrics and logs for OpenTelemetry: OTLP over {_scheme[5:].upper()}.",
            f"{_scheme}://collector:4318", OtlpOptions, "app.exporters.otlp.exporter:OtlpExporter",
            port=4318,
        )
    )  # fmt: skip
_ALERTS = "app.exporters.alerts"
_WEBHOOK = f"{_ALERTS}.webhook:webhook"
for _kind in (
    ExporterKind(
        "http", "Alerts as JSON, an HTTP request each.", "http://127.0.0.1:8080/alerts",
        WebhookOptions, _WEBHOOK, port=80, hides_path=True,
    ),
    ExporterKind(
        "https", "Alerts as JSON, an HTTPS request each.", "https://hooks.example.org/alerts",
        WebhookOptions, _WEBHOOK, port=443, hides_path=True,
    ),
    ExporterKind(
        "command", "Alerts to a program, which gets each as JSON.", "command:/usr/local/bin/page",
        CommandOptions, f"{_ALERTS}.webhook:command", UrlPlace.PATH, local=True,
    ),
    ExporterKind(
        "journald", "Alerts to the journal of systemd.", "journald:", JournalOptions,
        f"{_ALERTS}.log_sockets:journal", UrlPlace.NONE, local=True,
    ),
    ExporterKind(
        "syslog", "Alerts as syslog (RFC 5424), over UDP or TCP.",
        "syslog://loghost:514?transport=tcp", SyslogHostOptions,
        f"{_ALERTS}.log_sockets:syslog", port=514,
    ),
    ExporterKind(
        "syslog+unix", "Alerts as syslog, to a socket of this host.", "syslog+unix:/dev/log",
        SyslogOptions, f"{_ALERTS}.log_sockets:local_syslog", UrlPlace.PATH, local=True,
    ),
):  # fmt: skip
    register(_kind)
