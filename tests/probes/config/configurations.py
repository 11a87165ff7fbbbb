"""A small configuration, and how one is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpf.errors import UsageError
from probes.config.model import (
    load,
    parse,
)

SOURCE = "int count(struct xdp_md *ctx) { return XDP_PASS; }\n"


def small(**more: Any) -> dict[str, Any]:
    """A configuration that is right, with one metric."""
    ingress = {"source": SOURCE, "metrics": [{"name": "packets", "map": "counts"}]}
    return {"name": "web", "ingress": ingress, **more}


def refused(data: object, where: str = "web.toml") -> str:
    with pytest.raises(UsageError) as refusal:
        parse(data, where)
    return str(refusal.value)


def refused_file(path: Path) -> str:
    with pytest.raises(UsageError) as refusal:
        load(path)
    return str(refusal.value).replace(f"{path.parent}/", "")


def ingress(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["ingress"].update(keys)
