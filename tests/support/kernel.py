"""Features of the running kernel, for tests that hold on older kernels too."""

from __future__ import annotations

import errno
import os

import pytest

from bpf.abi import AttachType
from bpf.attach.attachment import Hook
from bpf.features import load_passing
from bpf.links import link_create
from probes.flow.options import INGRESS

_NO_INTERFACE = (1 << 31) - 1


def _has_tcx() -> bool:
    """Try a TCX link to an interface that does not exist."""
    try:
        program = load_passing(Hook.TC_EGRESS)
        try:
            os.close(link_create(program, _NO_INTERFACE, AttachType.TCX_EGRESS))
        finally:
            os.close(program)
    except OSError as error:
        return error.errno == errno.ENODEV
    return True


TC_MODE = "tcx" if _has_tcx() else "clsact"
"""Mode of an attachment to TC."""
needs_tcx = pytest.mark.skipif(TC_MODE != "tcx", reason="the kernel has no TCX (Linux 6.6)")


def name_of(hook: Hook | None) -> str:
    """Return the value of `--ingress` for a hook of incoming packets."""
    return next(name for name, each in INGRESS.items() if each is hook)
