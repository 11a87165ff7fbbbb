"""HTTP connections with deadlines, and a limit on their number."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from app.api.sockets import Limits

_UNSENT_BYTES = 8 << 10


class _Connection(H11Protocol):
    """uvicorn's connection with a deadline for each direction."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, limits: Limits,
        leave: Callable[[_Connection], None],
    ) -> None:  # fmt: skip
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._limits = limits
        self._leave = leave
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self.greeting: asyncio.Task[None] | None = None
        """The TLS handshake; None afterwards."""

    @property
    def waits(self) -> bool:
        return self._deadline is not None or self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Any unsent byte may be a stall: a small unread answer would otherwise stay for good.
        # Not 0: TLS would pause with an empty buffer.
        transport.set_write_buffer_limits(high=1, low=0)
        # A slow link gets the newest window next: none waits in a long buffer of the kernel.
        with contextlib.suppress(OSError):  # a Unix socket
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES
            )
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._got_request()
        self._unset_keepalive_if_required()
        self._clear_stall()
        super().connection_lost(exc)
        self._leave(self)

    def data_received(self, data: bytes) -> None:
        self._expect_request()
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._clear_stall()
        super().resume_writing()

    def _look(self) -> None:
        unread, _ = self.conn.trailing_data
        if self.conn.their_state is h11.SEND_BODY or (self.conn.their_state is h11.IDLE and unread):
            self._expect_request()
        else:
            self._got_request()

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.request, self.abort)

    def _got_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _watch(self, left: int) -> None:
        self._clear_stall()
        self._stalled = self.loop.call_later(self._limits.stall, self._check_progress, left)

    def _check_progress(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.abort()
        else:
            self._watch(left)

    def _clear_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class ConnectionLimiter:
    """Accepts connections of one listening socket, up to a limit.

    At the limit, a new client displaces the client that has been silent longest. Clients whose
    request is being answered stay.
    """

    def __init__(
        self, listening: socket.socket, config: uvicorn.Config, tls: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:  # fmt: skip
        self._listening = listening
        self._config = config
        self._tls = tls
        self._limits = limits
        self._state = ServerState()
        # Oldest first.
        self._connections: dict[_Connection, None] = {}

    async def accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._listening)
            except OSError:
                # The client has left, or no descriptor is free.
                await asyncio.sleep(0.05)
                continue
            if not self._make_room():
                client.close()
                continue
            connection = _Connection(self._config, self._state, self._limits, self._leave)
            self._connections[connection] = None
            connection.greeting = loop.create_task(self._greet(connection, client))

    async def close(self, patience: float) -> None:
        """End every connection; running requests get `patience` seconds."""
        for connection in tuple(self._connections):
            if connection.waits:
                connection.abort()
            else:
                connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=patience)
        for task in tuple(self._state.tasks):
            task.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    async def _greet(self, connection: _Connection, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.request if self._tls else None,
            )
        except OSError:
            # A failed or slow handshake: ssl.SSLError and TimeoutError are OSErrors.
            self._leave(connection)
            client.close()
        except asyncio.CancelledError:
            self._leave(connection)
            client.close()
            raise
        finally:
            connection.greeting = None

    def _make_room(self) -> bool:
        if len(self._connections) < self._limits.connections:
            return True
        slowest = next((c for c in self._connections if c.waits), None)
        if slowest is None:
            return False
        self._leave(slowest)
        slowest.abort()
        return True

    def _leave(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
