"""One language for what rows are shown, written, counted and selected.

    dport:443 src:10.0.0.0/8 rtt>50ms proto:tcp host:/^www[0-9]*\\./

- `FIELD:VALUE`. After commas come other values, one of which is enough: `port:80,443`.
- `FIELD>VALUE`, and `>=`, `<`, `<=`: numbers with units, `rate>1M`, `bytes>=10MiB`, `idle<5s`,
  `loss>1%`; `FIELD:LOW-HIGH` is a range, ends included. A number without a unit has that of the
  table's column. What is not known is neither more nor less than anything.
- Terms must all hold, also without `and` between them; `or` joins alternatives, and binds less;
  parentheses group; `!` or `not` negates what follows.
- `/PATTERN/` is a regular expression (Python's, whatever the case), anywhere in a text; `"TEXT"` is
  a value with spaces. Addresses match by their text or by their name, as far as that is known.
- A word by itself is a protocol, a port or an address, where rows have these.
- `@NAME` is a filter that was saved.

`syntax` makes a tree of a text, with columns; a `Domain` says which fields a kind of rows has, and
`Filter` is the tree with what its terms ask of these. Where fields are those of a flow's key, it
can be said in C for the kernel, and as entries of match+action tables, too.
"""

from probes.filter.domain import Domain, Filter, check, parse, parts
from probes.filter.table import RowTable

__all__ = ["Domain", "Filter", "RowTable", "check", "parse", "parts"]
