"""HTTP connections to controllers in the event loop of a hub.

The client of `app.api.client` is for one host. For a thousand hosts, httpx takes three times as
long for a part of a stream as h11 on asyncio's streams.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11

from app.api.address import Access
from app.api.models import no_controller, refusal
from bpf.errors import ProbedeckError, UsageError

_CONNECT_S = 5.0
"""Longest time to connect, with the TLS handshake."""
_ANSWER_S = 10.0
"""Longest time between two parts of an answer."""
_PART = 64 << 10
"""Most bytes of a part. asyncio buffers at most twice as many before it stops reading."""
_MAX_ANSWER = 4 << 20
"""Most bytes of an answer that is no stream."""


class Connection:
    """One connection: requests follow one another. Every method raises ProbedeckError."""

    def __init__(
        self, access: Access, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._access = access
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)

    @classmethod
    @asynccontextmanager
    async def open(cls, access: Access, tls: ssl.SSLContext | None) -> AsyncIterator[Connection]:
        """Connect. Leaving the context closes the connection at once."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                if access.path:
                    opened = await asyncio.open_unix_connection(access.path, limit=_PART)
                else:
                    opened = await asyncio.open_connection(
                        access.host, access.port, limit=_PART, ssl=tls
                    )
        except TimeoutError:
            raise no_controller(access.url, f"no answer within {_CONNECT_S:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise UsageError(f"{access.url} is not trusted: {error.verify_message}") from None
        except OSError as error:
            raise no_controller(access.url, error.strerror or str(error)) from None
        try:
            yield cls(access, *opened)
        finally:
            # Nothing is left to send, and a host that is away must not hold up the end.
            opened[1].transport.abort()

    async def get(self, path: str) -> bytes:
        """Return the answer to `GET /v1/PATH`."""
        await self.request(path)
        body = await self._body()
        self._http.start_next_cycle()
        return body

    async def request(self, path: str) -> str:
        """Send `GET /v1/PATH`, and return the media type of the answer. `parts` is its body."""
        host = self._access.base.partition("://")[2]
        headers = [("host", host), *self._access.headers.items()]
        request = h11.Request(method="GET", target=f"/v1/{path}", headers=headers)
        data = self._http.send(request) or b""
        self._writer.write(data + (self._http.send(h11.EndOfMessage()) or b""))
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        if not isinstance(event, h11.Response):
            raise ProbedeckError(f"{self._access.url} ended the connection")
        if event.status_code // 100 != 2:
            body = await self._body()
            reason = event.reason.decode("latin-1")
            raise refusal(event.status_code, reason, body, self._access.url)
        found = dict(event.headers).get(b"content-type", b"")
        return found.decode("latin-1")

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of a body, until it ends."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)

    async def _body(self) -> bytes:
        body = bytearray()
        async for part in self.parts():
            body += part
            if len(body) > _MAX_ANSWER:
                raise ProbedeckError(f"{self._access.url} sends too much")
        return bytes(body)

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next event of the answer."""
        try:
            while True:
                event = self._http.next_event()
                if not isinstance(event, type) or event is h11.PAUSED:
                    return event
                async with asyncio.timeout(_ANSWER_S):
                    self._http.receive_data(await self._reader.read(_PART))
        except TimeoutError:
            raise ProbedeckError(f"{self._access.url} is silent for {_ANSWER_S:g} s") from None
        except (OSError, h11.ProtocolError) as error:
            raise ProbedeckError(f"{self._access.url}: {error}") from None
