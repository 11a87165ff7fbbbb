"""Answers of a controller's API, as a client understands them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from app.api import wire
from app.api.models import Problem, error_of
from bpf.errors import ProbedeckError

_T = TypeVar("_T")
_ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Reads and writes a type as JSON."""


def parsed(kind: type[_T], answer: bytes, url: str) -> _T:
    """Return the object that an answer holds as JSON. Raises ProbedeckError."""
    try:
        found: _T = adapter(kind).validate_json(answer)
    except ValidationError:
        raise ProbedeckError(
            f"{url} answers what this version can't read",
            hint="is it a probedeck of another version?",
        ) from None
    return found


def refusal(status: int, reason: str, body: bytes, url: str) -> ProbedeckError:
    """Return the error that an answer other than 2xx reports."""
    try:
        return error_of(adapter(Problem).validate_json(body))
    except ValidationError:
        return ProbedeckError(f"{url} answers {status} {reason}")


def no_controller(url: str, words: str) -> ProbedeckError:
    """Return the error of a connection that is refused, or not possible."""
    if "Permission denied" in words:
        hint = "it is its owner's, or the group's of --api-group"
        return ProbedeckError(f"{url} is not for this user", hint=hint)
    # httpx shows the error number of the system, too.
    reason = _ERROR_NUMBER.sub("", words)
    return ProbedeckError(f"no controller at {url}: {reason}", hint="start one: probedeck serve")


def check_stream(media_type: str, url: str) -> None:
    """Raise MalformedError if a stream does not have this version's records."""
    if media_type != wire.MEDIA_TYPE:
        raise wire.MalformedError(f"{url} streams {media_type}, which this version can't read")
