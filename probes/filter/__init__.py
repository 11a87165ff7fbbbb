"""One filter language for rows that are shown, written, counted and captured.

    dport:443 src:10.0.0.0/8 rtt>50ms proto:tcp host:/^www[0-9]*\\./

docs/filters.md describes the language. `syntax` parses a text to a tree with columns; a `Domain`
has the fields of one kind of rows; `Filter` is a tree bound to such fields. Filters of flow keys
can also be written as C for the kernel, and as sets for its classifier of packets.
"""

from probes.filter.domain import Domain, Filter, check, parse, parts
from probes.filter.table import RowTable

__all__ = ["Domain", "Filter", "RowTable", "check", "parse", "parts"]
