"""The conditions of policies: logical expressions over the metrics of windows (S2.11, S2.23).

    flows > 10000 and udp_packets / packets > 80%
    flows > 5 * baseline(60s) or max(rate(bytes), 10s) >= 100Mbit/s
    not (avg(rate(tcp_packets - other_packets), 1m) < 10k/s)

`or`, `and` and `not` join comparisons (> >= < <= == !=) of sums, differences, products and
quotients. A bare metric (`series.METRIC_NAMES`) is its count in the window that just ended;
`rate(x)` is the count per second.

`avg(x, 60s)` (weighted by length), `min`, `max` and `sum` are over the windows of a time of at most
1h, including the last one. `sum` of flows counts a flow once in each of its windows. `baseline(x,
60s)` is the median over at least three windows before the last one, except windows in which the
policy was active. `baseline(60s)` stands for the whole other side of its comparison.

Numbers may have a unit: k M G T; B kB MB GB TB, KiB MiB GiB TiB; bit kbit Mbit Gbit Tbit; each of
them `/s`; %. Without one they fit everything. Packets, bytes, flows, ratios, and each of these per
second are never added to or compared with each other; packets over flows, or flows over packets, is
a ratio.

A comparison holds, does not hold, or is unknown. A baseline is unknown with less than three windows
or less than a quarter of its time. `min`, `max` and `sum` are unknown if unseen windows of their
time could change the result: `sum(packets, 60s) > 1M` may hold in the first window, `max(packets,
60s) < 10` not in the first minute. `avg` covers only the seen windows. 0 / 0 is no number, and no
comparison with it holds; any other number over 0 is infinite.
"""

from probes.monitor.condition.condition import Condition
from probes.monitor.condition.error import ConditionError
from probes.monitor.condition.logic import Comparison, ConditionOutcome

__all__ = ["Comparison", "Condition", "ConditionError", "ConditionOutcome"]
