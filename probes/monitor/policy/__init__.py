"""Policies of the monitor, as files, REST and the console have them."""

from probes.monitor.policy.file import PolicyFile, load
from probes.monitor.policy.model import BUILT_IN, MAX_SECONDS, Policy
from probes.monitor.policy.names import check_names, resolve, unknown_names
from probes.monitor.policy.short_form import FORM, ShortForm

__all__ = [
    "BUILT_IN",
    "FORM",
    "MAX_SECONDS",
    "Policy",
    "PolicyFile",
    "ShortForm",
    "check_names",
    "load",
    "resolve",
    "unknown_names",
]
