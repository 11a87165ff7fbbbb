"""View of traffic accounting (S2.17): the keys with the most bytes."""

from __future__ import annotations

from probes.monitor.applications import keys
from probes.monitor.applications.top_table import (
    ApplicationView,
    Macros,
    TopTable,
    Window,
    largest,
    metric,
)


def _tables(define: Macros, snapshots: Window, most: int) -> tuple[TopTable, ...]:
    window = metric(snapshots, "traffic")
    if window is None:
        return ()
    packets, size = window.rows["value"]["packets"], window.rows["value"]["bytes"]
    total = int(size.sum()) + window.lost.bytes
    top = largest(size, most)
    columns = (
        *keys.columns(define, window.rows["key"][top]),
        (packets[top] / window.seconds).tolist(),
        (size[top] * 8 / window.seconds).tolist(),
        (size[top] * 100 / max(total, 1)).tolist(),
    )
    names = keys.parts(define)
    return (
        TopTable(
            f"traffic by {', '.join(names)}",
            (*names, "packets/s", "bit/s", "% of bytes"),
            tuple(zip(*columns, strict=True)),
        ),
    )


VIEW = ApplicationView(_tables, lambda define, snapshots, most: ())
