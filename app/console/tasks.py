"""What takes its time: the status strip says what and how long it is, and it can be cancelled."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from textual.app import App

from bpf.cancel import Cancel
from bpf.errors import UsageError
from widgets.format import age, percent
from widgets.status import StatusItem
from widgets.tones import Tone

SAID_AFTER = 0.3
"""Seconds that work may take before it is said that it goes on."""


@dataclass(slots=True, eq=False)
class Task:
    """Something that a thread does; only its `share` is changed by that."""

    title: str
    """What it does, `checking flow`."""
    asked: bool = True
    """Whether the operator asked for it; what is done by itself is not told of."""
    cancel: Cancel = field(default_factory=Cancel)
    share: float = math.nan
    """How much of it is done, 0 to 1, where that is known."""
    started: float = field(default_factory=time.monotonic)
    _said: tuple[int, str] = (-1, "")

    def progress(self, share: float) -> None:
        """So much of it is done."""
        self.share = share

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
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
    """Run something in a thread that the end of the process does not wait for.

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


class TasksApp(App[int]):
    """An app that tells of the work of its threads."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: list[Task] = []
        self.starting = Cancel()
        """Ends the start of the probes."""

    def exit(self, *arguments: Any, **options: Any) -> None:
        """End the console, and all work that can be cancelled."""
        for cancel in (self.starting, *(task.cancel for task in self._tasks)):
            cancel.ask()
        super().exit(*arguments, **options)

    def show_tasks(self) -> None:
        """Tell of the work that goes on now, and of none that is over."""
        raise NotImplementedError

    def begin_task(self, task: Task) -> None:
        """Tell of it until `end_task`, if it takes long."""
        self._tasks.append(task)
        if task.title:
            self.set_timer(SAID_AFTER, self.show_tasks)

    def end_task(self, task: Task) -> None:
        """It is over."""
        self._tasks.remove(task)
        if task.title:
            self.show_tasks()

    def _told_of(self) -> list[Task]:
        """What was asked for and takes long, in the order in which it was."""
        return [task for task in self._tasks if task.asked and task.seconds >= SAID_AFTER]

    def task_items(self) -> list[StatusItem]:
        """The last of it, and how much there is besides."""
        works = self._told_of()
        if not works:
            return []
        others = f" (+{len(works) - 1})" if len(works) > 1 else ""
        return [StatusItem(works[-1].words + others, Tone.ACCENT, priority=1)]

    @property
    def can_cancel(self) -> bool:
        """Whether the strip tells of work that can be cancelled."""
        return bool(self._cancellable())

    def cancel_task(self) -> bool:
        """Cancel the last work that the strip says can be cancelled; whether there is any."""
        works = self._cancellable()
        return bool(works) and works[-1].cancel.ask()

    def _cancellable(self) -> list[Task]:
        return [
            task for task in self._told_of() if task.cancel.cancellable and not task.cancel.asked
        ]

    def do_work_cancel(self) -> None:
        asked = [task for task in self._tasks if task.asked]
        if not asked:
            raise UsageError("nothing is being done that could be cancelled")
        if not asked[-1].cancel.ask():
            raise UsageError(f"{asked[-1].title} cannot be cancelled now")
