"""The applications that come with the monitor, and helpers for all applications."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bpf.compiler import Compiled
from probes.config.model import ProbeConfig, load
from probes.monitor.applications.top_table import Macros
from probes.program.metrics import open_map

_HERE = Path(__file__).parent
_FLAGS_SYN = 2
_SYN_BYTES = 60
_HEADERS_AT = 14, 34
"""Offsets of the headers of IPv4 and TCP."""


def built_in(name: str, interface: str) -> ProbeConfig:
    """The application of this name, one of BUILT_IN, on an interface."""
    return load(_HERE / f"{name}.toml").on(interface)


def defines(config: ProbeConfig) -> Macros:
    return config.ingress.define if config.ingress else {}


def summary(config: ProbeConfig) -> str:
    """Summary of an application: the help of its first metric."""
    metrics = config.ingress.metrics if config.ingress else ()
    return next((metric.help for metric in metrics if metric.help), "")


def seed_trial_packet(compiled: Compiled) -> None:
    """Give a compiled application's trial a TCP SYN, as if a policy had selected it."""
    declared = compiled.maps["selections"]
    with open_map(declared, declared.fd) as selections:
        values = selections.read().values
        values["count"] = 1
        first = values["packets"][..., 0]
        first["applications"] = 1
        first["packets"], first["bytes"] = 1, _SYN_BYTES
        packet = first["packet"]
        packet["tcp_flags"] = _FLAGS_SYN
        packet["network_at"], packet["transport_at"] = _HEADERS_AT
        packet["key"]["source"][..., 0] = 0x010200C0
        packet["key"]["destination"][..., 0] = 0x016433C6
        packet["key"]["transport"] = 0x0406_5000_409C
        selections.update(np.zeros(1, "u4"), values)
