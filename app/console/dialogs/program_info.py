"""`i`: the loaded programs, their time per packet, their memory, and the reading of tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rich.text import Text
from textual import work
from textual.binding import Binding

from app.console.dialogs.boxes import HelpBox
from app.console.live.overview_feed import Pulse, Pulses
from bpf.errors import ProbedeckError, printable
from bpf.quantities import REPLACED, byte_size, duration, percent, si
from bpf.syscall import enable_run_time_stats
from probes.hooks.interface_hook import InterfaceHook
from probes.reports import BudgetUse, Cost, MemoryUse

if TYPE_CHECKING:
    from probes.config.model import Side

_PERIOD = 1.0
_EXPLANATION = """\
ns/packet is of all probes of the hook together, and includes what
measuring costs, 40 to 70 ns. Closing this ends the measurement.
ns/SYN is of one probe's programs, run on a TCP SYN; core is their
share of a core at the present rate, if each packet takes as long."""


@runtime_checkable
class LocalHooks(Protocol):
    """A control plane on this host, which has access to the hooks."""

    def hooks(self) -> Sequence[InterfaceHook]: ...


class ProgramInfoScreen(HelpBox):
    """Turns the kernel's run-time statistics on (70 ns a packet) and off again when it closes."""

    BINDINGS = [Binding("i", "dismiss", show=False)]
    title_text = "Programs and their cost"

    def __init__(
        self, hooks: Sequence[InterfaceHook], memory: MemoryUse,
        pulses: Callable[[], Pulses], budget: Callable[[], BudgetUse],
        cost: Callable[[str], Sequence[Cost]],
    ) -> None:  # fmt: skip
        """`pulses` returns the state of each probe at its last window. `cost` may take a while."""
        super().__init__()
        self._hooks = hooks
        self._pulses = pulses
        self._memory = memory
        self._budget = budget
        self._cost = cost
        self._costs: dict[str, Mapping[Side, float]] = {}
        """Nanoseconds of a SYN in each direction, by probe."""
        self._shown = Text()
        self._stats_fd = -1
        self._before: dict[int, tuple[int, int]] = {}

    def text(self) -> Iterator[Text]:
        yield self._shown

    def on_mount(self) -> None:
        try:
            self._stats_fd = enable_run_time_stats()
        except OSError as error:
            self.notify(f"no run-time statistics: {error.strerror}", severity="error", markup=False)
        self._measure()
        self._show()
        self.set_interval(_PERIOD, self._show)

    @work(thread=True)
    def _measure(self) -> None:
        for name in tuple(self._pulses().probes):
            with suppress(ProbedeckError):
                self._costs[name] = {each.side: each.ns for each in self._cost(name)}

    def on_unmount(self) -> None:
        if self._stats_fd >= 0:
            os.close(self._stats_fd)

    def _show(self) -> None:
        text = Text()
        titles = f"{'Hook':<12}{'Mode':<16}{'Program':>8}{'ns/packet':>12}{'packets/s':>12}\n"
        text.append(titles, "bold")
        for point in self._hooks:
            info = point.info()
            time_before, runs_before = self._before.get(info.id, (info.run_time_ns, info.run_count))
            runs = info.run_count - runs_before
            spent = info.run_time_ns - time_before
            self._before[info.id] = (info.run_time_ns, info.run_count)
            each, rate = (f"{spent / runs:.0f}", si(runs / _PERIOD)) if runs else ("-", "-")
            text.append(f"{point.hook.value:<12}{point.mode:<16}{info.id:>8}{each:>12}{rate:>12}\n")
            status = point.status
            if status.reason:
                text.append(f"  {status.reason}\n", "dim")
            for program in status.before:
                text.append(f"  behind {program}\n", "bold")
        titles = f"\n{'Probe':<19}{'Gen':>4}{'Read in':>10}{'Each':>9}{'Full':>8}"
        text.append(f"{titles}{'ns/SYN':>10}{'core':>9}\n", "bold")
        pulses = self._pulses()
        for one in pulses.probes.values():
            took, each = duration(one.poll), duration(one.interval)
            text.append(f"{printable(one.name, REPLACED):<18.18} {one.generation:>4}{took:>10}")
            text.append(f"{each:>9}{percent(one.occupancy):>8}{self._cost_text(one, pulses)}\n")
        used, limit = byte_size(self._memory.used), byte_size(self._memory.limit)
        text.append(f"\nMaps take {used} of kernel memory; the limit is {limit} (--memory).\n")
        text.append(f"{_budget_text(self._budget())}\n\n")
        text.append(_EXPLANATION, "dim")
        self._shown = text
        self.renew()

    def _cost_text(self, one: Pulse, pulses: Pulses) -> str:
        """Return the time of a SYN in all directions, and the share of a core at this rate."""
        ns = self._costs.get(one.name)
        if not ns or not len(pulses.traffic):
            return ""
        last = pulses.traffic[-1]
        rates = {
            side: float(last[f"{way}_packets"] / max(last["seconds"], 1e-3))
            for side, way in (("ingress", "in"), ("egress", "out"))
        }
        share = sum(each * rates.get(side, 0.0) for side, each in ns.items()) / 1e9
        each = "+".join(f"{time:.0f}" for time in ns.values())
        return f"{each:>10}{percent(share):>9}"


def _budget_text(use: BudgetUse) -> str:
    if not use.share:
        return "There is no budget of CPU (--cpu)."
    kernel = "" if use.kernel is None else f", programs in the kernel {percent(use.kernel)}"
    text = (
        f"User space takes {percent(use.used)} of a core{kernel}, of {percent(use.share)} (--cpu)."
    )
    return f"{text}\nThe budget cuts {', '.join(use.steps)}." if use.steps else text
