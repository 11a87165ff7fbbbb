"""Events about packets that tables lack: one when a loss begins, one when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bpf.quantities import percent
from probes.snapshot import (
    REMOVED,
    Event,
    Item,
    Loss,
    Losses,
    LossReason,
    Snapshot,
    add_losses,
    loss_subject,
    lost_of,
)

_SHARE = 0.001
"""Share of a window's packets above which a loss is reported."""
_LEAST = 10
"""Lost packets of a window below which no loss is reported: a single broken frame is no event."""
_WHOLE = 3
"""Windows in a row without a reported loss that end it."""


@dataclass(slots=True)
class _Episode:
    """A loss that goes on."""

    first: int
    """Window."""
    last: int
    """Window, the latest one with a reported loss."""
    losses: dict[LossReason, Loss] = field(default_factory=dict)
    """All since then."""


class LossEvents:
    """Follows the losses of every probe. Called with every published item, by any thread."""

    def __init__(self) -> None:
        self._episodes: dict[tuple[str, str], _Episode] = {}
        """By probe and side."""

    def take(self, item: Item) -> Iterator[Event]:
        """Yield the events that an item leads to."""
        if isinstance(item, Snapshot):
            yield from self._window(item)
        elif item.text == REMOVED:
            for key in [key for key in tuple(self._episodes) if key[0] == item.source]:
                text = _summary(self._episodes.pop(key))
                yield Event.now("info", item.source, text, loss_subject(key[1]), "end")

    def _window(self, item: Snapshot) -> Iterator[Event]:
        key = item.probe, item.side
        episode = self._episodes.get(key)
        lost = lost_of(item.losses).packets if item.losses else 0
        if lost >= _LEAST and (share := lost / (lost + _counted(item))) > _SHARE:
            if episode is None:
                episode = self._episodes[key] = _Episode(item.window, item.window)
                text = f"window {item.window} lacks {lost} packets ({percent(share)}): "
                yield Event.now(
                    "warning", item.probe, text + _words(item.losses), loss_subject(item.side),
                    "begin", lost, "packets",
                )  # fmt: skip
            episode.last = item.window
        if episode is None:
            return
        add_losses(episode.losses, item.losses)
        if item.window > episode.last + _WHOLE:
            del self._episodes[key]
            text = f"windows are whole again; {_summary(episode)}"
            yield Event.now("info", item.probe, text, loss_subject(item.side), "end")


def _summary(episode: _Episode) -> str:
    lost = lost_of(episode.losses).packets
    windows = f"window {episode.first} lacks"
    if episode.last > episode.first:
        windows = f"windows {episode.first} to {episode.last} lack"
    return f"{windows} {lost} packets: {_words(episode.losses)}"


def _counted(item: Snapshot) -> int:
    """Packets in the rows; 0 if the table does not count any."""
    names = item.rows.dtype.names or ()
    return int(item.rows["packets"].sum()) if "packets" in names else 0


def _words(losses: Losses) -> str:
    lost = sorted((reason, loss) for reason, loss in losses.items() if reason.is_loss)
    return ", ".join(f"{loss.packets} {reason.label}" for reason, loss in lost)
