"""When a policy becomes active: a logical expression over the metrics of windows (S2.11, S2.23).

    flows > 10000 and udp_packets / packets > 80%
    flows > 5 * baseline(60s) or max(rate(bytes), 10s) >= 100Mbit/s
    not (avg(rate(tcp_packets - other_packets), 1m) < 10k/s)

`or`, `and` and `not` join comparisons (> >= < <= == !=) of sums, differences, products and
quotients. A metric alone (`series.METRIC_NAMES`) is its count in the window that just ended;
`rate(x)` is that per second.

Of the windows of a time, this one included and 1h at most, are `avg(x, 60s)`, where each counts by
its length, `min`, `max` and `sum` (of flows: a flow counts in each window in which it was).
`baseline(x, 60s)` is what is usual: the median over the windows before this one, at least three,
without those in which the policy was active. `baseline(60s)` is that of the whole other side of its
comparison.

Numbers may have a unit: k M G T; B kB MB GB TB, KiB MiB GiB TiB; bit kbit Mbit Gbit Tbit; each of
them `/s`; %. Without one they fit everything. Packets, bytes, flows, ratios, and each of these per
second are never added to or compared with each other; packets over flows, or the other way round,
is a ratio.

A comparison holds, does not, or is not known. Not known is a baseline of less than three windows or
less than a quarter of its time; and `min`, `max` and `sum` as far as the part of their time that
was not seen could change them: `sum(packets, 60s) > 1M` may hold in the first window,
`max(packets, 60s) < 10` not in the first minute. `avg` is of what there is. 0 / 0 is no number, and
no comparison with it holds; anything else over 0 is infinite.
"""

from probes.monitor.condition.condition import Condition
from probes.monitor.condition.error import ConditionError
from probes.monitor.condition.logic import Comparison, ConditionOutcome

__all__ = ["Comparison", "Condition", "ConditionError", "ConditionOutcome"]
