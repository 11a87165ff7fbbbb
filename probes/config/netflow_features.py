"""Keys of a configuration about generated sources for NetFlow."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, model_validator

from probes.config.config_errors import invalid
from probes.config.map_config import Model
from probes.netflow import generator as netflow
from probes.netflow.generator import FEATURES, Method


def _listed(features: Any) -> Any:
    """Expand a number n to the first n features."""
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
    """See `probes.netflow.generator.Method`."""

    @model_validator(mode="after")
    def _chooses(self) -> Self:
        if self.method is Method.NON_ADAPTIVE and set(self.features) != set(FEATURES):
            hint = "leave features out, or take another method"
            raise invalid("the non-adaptive method always has all", at="features", hint=hint)
        return self
