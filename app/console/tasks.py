"""Tasks in threads: the status strip shows long ones with their time, and Escape cancels them."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from textual.app import App
from textual.dom import DOMNode

from bpf.errors import Cancel, CancelError, ProbedeckError, UsageError, cancelled_by
from bpf.quantities import age, percent
from widgets.status import StatusItem
from widgets.tones import Tone

_T = TypeVar("_T")
SAID_AFTER = 0.3
"""Seconds after which the status strip shows a task."""
PRESSING = "keys"
"""The group of workers that press keys."""


@dataclass(slots=True, eq=False)
class Task:
    """A call in a thread; the thread changes nothing but `share`."""

    title: str
    """`checking flow`, for the status strip."""
    asked: bool = True
    """Whether the user asked for it; the status strip shows no others."""
    cancel: Cancel = field(default_factory=Cancel)
    share: float = math.nan
    """The share that is done, 0 to 1; NaN if that is unknown."""
    started: float = field(default_factory=time.monotonic)
    _said: tuple[int, str] = (-1, "")

    def progress(self, share: float) -> None:
        self.share = share

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def words(self) -> str:
        """`checking flow 2 s; esc cancels`; changes at most once a second, and when it ends."""
        second = int(self.seconds)
        if second != self._said[0]:
            lasts = f" {age(second)}" if second else ""
            done = f", {percent(self.share)}" if math.isfinite(self.share) else ""
            self._said = second, f"{self.title}{lasts}{done}"
        return self._said[1] + ("; esc cancels" if self.cancel.cancellable else "")


async def run_aside(run: Callable[[], None]) -> None:
    """Run a function in a thread that the end of the process does not wait for.

    asyncio.to_thread() has few threads, and the end of the event loop waits for all of them.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def thread() -> None:
        try:
            run()
        finally:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=copy_context().run, args=(thread,), daemon=True).start()
    await done.wait()


class Tasks:
    """The tasks that run now."""

    def __init__(self, app: App[Any], changed: Callable[[], None]) -> None:
        """`changed` brings the status strip up to date."""
        self._app, self._changed = app, changed
        self._tasks: list[Task] = []
        self._pending = 0
        """Tasks of commands; tapes wait until they are done."""
        self.starting = Cancel()
        """Ends the start of the probes."""

    @property
    def busy(self) -> bool:
        """Whether a command is not done yet, or keys are being pressed."""
        pressing = (worker for worker in self._app.workers if worker.group == PRESSING)
        return self._pending > 0 or any(worker.is_running for worker in pressing)

    def run(
        self, node: DOMNode, task: Task, ask: Callable[[], _T], done: Callable[[_T], None],
        failed: Callable[[ProbedeckError], None], *, of_command: bool,
    ) -> None:  # fmt: skip
        """Call `ask` in a thread, then `done` or `failed` by the message loop of `node`.

        A cancelled task fails with CancelError. A command is pending until its tasks are done.
        """

        def run() -> None:
            follow: Callable[[], None]
            try:
                with cancelled_by(task.cancel):
                    follow = partial(done, ask())
            except CancelError:
                follow = partial(failed, CancelError(f"{task.title} is cancelled"))
            except Exception as error:
                if not isinstance(error, ProbedeckError):
                    # Show a fault of the program, too, and let the user go on.
                    error = ProbedeckError(f"this failed: {type(error).__name__}: {error}")
                follow = partial(failed, error)
            node.call_later(self.follow_up, node, task, follow, of_command=of_command)

        self._pending += of_command
        self._tasks.append(task)
        if task.title:
            self._app.set_timer(SAID_AFTER, self._changed)
        node.run_worker(run_aside(run), exit_on_error=False)

    def follow_up(
        self, node: DOMNode, task: Task, follow: Callable[[], None], *, of_command: bool
    ) -> None:
        """Call `follow`, unless the console ends and can show nothing more; the task is over."""
        try:
            if node.is_attached:
                follow()
        finally:
            self._pending -= of_command
            self._tasks.remove(task)
            if task.title:
                self._changed()

    def cancel_all(self) -> None:
        """Cancel the start of the probes and all tasks that can be cancelled."""
        for cancel in (self.starting, *(task.cancel for task in self._tasks)):
            cancel.ask()

    def status_items(self) -> list[StatusItem]:
        """The newest long task, and the number of others."""
        tasks = self._shown()
        if not tasks:
            return []
        others = f" (+{len(tasks) - 1})" if len(tasks) > 1 else ""
        return [StatusItem(tasks[-1].words + others, Tone.ACCENT, priority=1)]

    @property
    def cancellable(self) -> list[Task]:
        """Tasks on the status strip that can be cancelled, oldest first."""
        return [task for task in self._shown() if task.cancel.cancellable and not task.cancel.asked]

    def cancel(self) -> bool:
        """Cancel the newest task that the strip shows as cancellable; False without one."""
        tasks = self.cancellable
        return bool(tasks) and tasks[-1].cancel.ask()

    def do_work_cancel(self) -> None:
        asked = [task for task in self._tasks if task.asked]
        if not asked:
            raise UsageError("nothing is being done that could be cancelled")
        if not asked[-1].cancel.ask():
            raise UsageError(f"{asked[-1].title} cannot be cancelled now")

    def _shown(self) -> list[Task]:
        """Long tasks that the user asked for, oldest first."""
        return [task for task in self._tasks if task.asked and task.seconds >= SAID_AFTER]
