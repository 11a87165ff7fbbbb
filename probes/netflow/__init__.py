"""NetFlow v9's features 1 to 15, any of them, as the source of a probe (S1.30, S1.31)."""

from probes.netflow.features import FEATURES, Feature, Method
from probes.netflow.generator import MAP, describe, field_types, source

__all__ = ["FEATURES", "MAP", "Feature", "Method", "describe", "field_types", "source"]
