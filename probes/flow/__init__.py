"""noobflow: every packet of an interface, counted in its flow (S4)."""

from probes.flow.filter import FlowFilter
from probes.flow.generation import SIDES
from probes.flow.probe import FlowProbe
from probes.flow.records import FLOW, Direction

__all__ = ["FLOW", "SIDES", "Direction", "FlowFilter", "FlowProbe"]
