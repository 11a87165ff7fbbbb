"""Access checks before a request is read: tokens, rights and the size of bodies."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.models import MAX_BODY, Problem

_TOO_LARGE = f"a request may have {MAX_BODY >> 20} MiB"


@dataclass(frozen=True, slots=True)
class Rights:
    """Tokens of one listener. Without tokens every client may do everything."""

    token: bytes = b""
    read_token: bytes = b""
    """Token of clients that may only read."""
    action_token: bytes = b""
    """Token of clients that may also let policies act on packets."""
    owner_only: bool = False
    """Whether every client has the rights of this process: a Unix socket without a group."""


def refusal(
    status: HTTPStatus, said: Problem, headers: Mapping[str, str] | None = None
) -> Response:
    # In ASCII: quoted parts of a request may be invalid UTF-8.
    return Response(json.dumps(asdict(said)), status, headers, "application/json")


class AuthMiddleware:
    """In front of an application: checks the token, and limits the size of the body."""

    def __init__(self, app: ASGIApp, rights: Rights) -> None:
        self._app = app
        self._rights = rights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (refused := self._judge(scope)) is not None:
            await refused(scope, receive, send)
            return
        await self._app(scope, _counted(receive), send)

    def _judge(self, scope: Scope) -> Response | None:
        """Return a refusal, or None after the rights of this client are in the request's state."""
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            # RFC 9112, 6.1: a proxy in front may take the rest for another request.
            said = Problem("a request has Content-Length or Transfer-Encoding", exit_code=2)
            return refusal(HTTPStatus.BAD_REQUEST, said, {"connection": "close"})
        read_only, may_act = "", True
        if self._rights.token:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            token = given.strip().encode("latin-1")
            may_act = hmac.compare_digest(token, self._rights.action_token)
            may_all = may_act or hmac.compare_digest(token, self._rights.token)
            may_read = hmac.compare_digest(token, self._rights.read_token)
            if scheme.lower() != "bearer" or not token or not (may_all or may_read):
                said = Problem("no valid token", "send it as: Authorization: Bearer TOKEN", 2)
                challenge = {"www-authenticate": "Bearer"}
                return refusal(HTTPStatus.UNAUTHORIZED, said, challenge)
            if not may_all:
                read_only = "this token may only read"
                if scope["method"] != "GET":
                    return refusal(HTTPStatus.FORBIDDEN, Problem(read_only, exit_code=2))
        length = headers.get("content-length", "0")
        if len(length) > len(str(MAX_BODY)) or int(length) > MAX_BODY:
            said = Problem(_TOO_LARGE, exit_code=2)
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, said)
        owner = self._rights.owner_only
        scope["state"] = {"read_only": read_only, "owner": owner, "acts": may_act}
        return None


def _counted(receive: Receive) -> Receive:
    """Wrap `receive` to limit a body that arrives in chunks without an announced length."""
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_LARGE)
        return message

    return counted
