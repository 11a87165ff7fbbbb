"""The footer on short lines: whole entries with words, or none."""

from __future__ import annotations

import pytest

from widgets.terminal.keybar import FooterEntry, Weight, shortened

KEYS = [
    FooterEntry("enter", "⏎", "Open", "own"),
    FooterEntry("s", "s", "Sort", "own"),
    *(FooterEntry(str(n), str(n), f"Screen{n}", "screen") for n in range(2, 5)),
    FooterEntry("space", "space", "Pause", "usual"),
    FooterEntry("ctrl+p", "^p", "Commands", "spare"),
    FooterEntry("q", "q", "Quit", "kept"),
]


def line(width: int, keys: list[FooterEntry] = KEYS) -> str:
    shown = shortened(keys, lambda action: Weight[action.upper()], width)
    return " ".join(f"{key.name} {key.words}" for key in shown)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (74, "⏎ Open s Sort 2 Screen2 3 Screen3 4 Screen4 space Pause ^p Commands q Quit"),
        (73, "⏎ Open s Sort 2 Screen2 3 Screen3 4 Screen4 space Pause q Quit"),
        (61, "⏎ Open s Sort 2-4 Screens space Pause ^p Commands q Quit"),
        (55, "⏎ Open s Sort 2-4 Screens space Pause q Quit"),
        (43, "⏎ Open s Sort 2-4 Screens q Quit"),
        (31, "⏎ Open s Sort q Quit"),
        (19, "⏎ Open q Quit"),
        (12, "q Quit"),
        (3, "q Quit"),
    ],
)
def test_the_least_important_entries_go_first(width: int, shown: str) -> None:
    assert line(width) == shown


def test_keys_of_screens_that_are_no_digits_go_one_by_one() -> None:
    keys = [key._replace(name="f" + key.name) if key.action == "screen" else key for key in KEYS]
    assert line(50, keys) == "⏎ Open s Sort f2 Screen2 f3 Screen3 q Quit"
