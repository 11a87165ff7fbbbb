"""One filter language for rows that are shown, written, counted and captured.

    dport:443 src:10.0.0.0/8 rtt>50ms proto:tcp host:/^www[0-9]*\\./

- `FIELD:VALUE`. Commas separate alternatives: `port:80,443`.
- `FIELD>VALUE`, and `>=`, `<`, `<=`: numbers with units, `rate>1M`, `bytes>=10MiB`, `idle<5s`,
  `loss>1%`; `FIELD:LOW-HIGH` is a range, ends included. A number without a unit has the unit of the
  table's column. An unknown value is neither above nor below a number.
- Terms must all hold, also without `and` between them; `or` joins alternatives, and binds less;
  parentheses group; `!` or `not` negates the next term.
- `/PATTERN/` is a regular expression (Python's, ignoring case), anywhere in a text; `"TEXT"` is a
  value with spaces. Addresses match by their text or by their name, if it is known.
- A bare word is a protocol, a port or an address, if the rows have these.
- `@NAME` is a saved filter.

`syntax` parses a text to a tree with columns. A `Domain` has the fields of one kind of rows.
`Filter` is a tree bound to such fields. Filters of flow keys can also be written as C for the
kernel, and as entries of match+action tables.
"""

from probes.filter.domain import Domain, Filter, check, parse, parts
from probes.filter.table import RowTable

__all__ = ["Domain", "Filter", "RowTable", "check", "parse", "parts"]
