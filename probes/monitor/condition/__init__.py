"""The conditions of policies: logical expressions over the metrics of windows (S2.11, S2.23).

    flows > 10000 and udp_packets / packets > 80%
    flows > 5 * baseline(60s) or max(rate(bytes), 10s) >= 100Mbit/s

docs/monitor.md describes the language. `tokens` reads words and numbers, `syntax` makes a tree of
`logic` over `terms`, `units` keeps unlike quantities apart, and `Condition` evaluates the tree over
a `WindowSeries`. A result is unknown if unseen windows could change it.
"""

from probes.monitor.condition.condition import Condition
from probes.monitor.condition.logic import ComparisonResult, ConditionOutcome

__all__ = ["ComparisonResult", "Condition", "ConditionOutcome"]
