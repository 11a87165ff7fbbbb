"""Questions to a ClickHouse that keeps the flows of many hosts, by its HTTP interface."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from bpf.errors import ProbedeckError, UsageError, did_you_mean

FORMATS = {
    "text": "PrettySpaceMonoBlock",
    "csv": "CSVWithNames",
    "json": "JSON",
    "jsonl": "JSONEachRow",
}
"""ClickHouse's names of the formats of answers."""
_PATIENCE_S = 300.0
_QUERIES = Path(__file__).with_name("queries.sql")


@cache
def queries() -> dict[str, str]:
    """Return the ready queries, by name."""
    parts = re.split(r"^-- name: (\w+)\n", _QUERIES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def ask(url: str, query: str, form: str) -> bytes:
    """Return the answer to a query, or to a ready query by its name, in one of FORMATS.

    The query cannot change anything. Raises UsageError for a query that the store refuses, and
    ProbedeckError without an answer.
    """
    import httpx

    parts = urlsplit(url)
    try:
        ends = parts.hostname and parts.port
    except ValueError:
        ends = None
    if parts.scheme not in ("http", "https") or not ends:
        raise UsageError(f"{url!r} is no store", hint="http://HOST:8123, or https://USER@HOST:8443")
    shown = f"{parts.scheme}://{parts.hostname}:{parts.port}"
    text = queries().get(query.strip(), query).strip().rstrip(";")
    if " " not in text:
        raise UsageError(f"no query {query!r}", hint=did_you_mean(query, queries()))
    try:
        answer = httpx.post(
            f"{shown}/",
            params={"readonly": "1", "default_format": FORMATS[form]},
            content=text.encode(),
            auth=(parts.username, parts.password or "") if parts.username else None,
            timeout=_PATIENCE_S,
        )
    except httpx.HTTPError as error:
        words = str(error) or type(error).__name__
        raise ProbedeckError(f"no answer of {shown}: {words}") from None
    if not answer.is_success:
        words = answer.text.strip().partition("\n")[0] or answer.reason_phrase
        raise UsageError(f"{shown} refuses the query: {words}")
    return answer.content
