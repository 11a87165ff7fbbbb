"""Screen 4: the primitive's policies and applications, and what wakes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from textual import on
from textual.widgets import Input

from app.commands.registry import TRIGGER_COLUMNS
from app.console.commands import bindings
from app.console.mistake import Mistake
from app.console.prompt import PromptInput
from app.console.screens.trigger_view import TriggerView
from app.console.trigger_model import place_of
from app.console.trigger_rows import EXAMPLE
from bpf.errors import DeckError, UsageError, did_you_mean
from probes.plane import PolicyInfo
from widgets.table import VirtualTable

_T = TypeVar("_T")


class TriggersScreen(TriggerView):
    """What an operator can do to policies."""

    BINDINGS = bindings("triggers")

    def __init__(self) -> None:
        super().__init__()
        self._warned = ""
        """The policy that is removed when that is asked for again."""

    # Changes

    def _do(
        self, what: str, ask: Callable[[], _T], done: Callable[[_T], None],
        failed: Callable[[DeckError], None],
    ) -> None:  # fmt: skip
        """Have a change made in a thread, one at a time; then look at what runs."""
        if self._busy:
            self.deck.complain(DeckError(f"{self._busy} is not done yet"))
            return
        self._busy, self._warned = what, ""
        self._show_notes()

        def ended(follow: Callable[[], None]) -> None:
            self._busy = ""
            follow()
            self._show_notes()
            self._look()

        self.in_thread(
            ask,
            lambda answer: ended(partial(done, answer)),
            lambda error: ended(partial(failed, error)),
        )

    def _target(self, name: str = "") -> PolicyInfo:
        """The policy of a name, or the one under the cursor. UsageError where there is none."""
        if not name:
            if (chosen := self._chosen) is None:
                raise UsageError("there is no policy here")
            return chosen.info
        info = self._triggers.info
        infos = {one.policy.name: one for one in info.policies} if info is not None else {}
        if name not in infos:
            raise UsageError(f"there is no policy {name!r}", hint=did_you_mean(name, infos))
        return infos[name]

    def do_trigger_toggle(self, policy: str = "") -> None:
        info = self._target(policy)
        plane, name = self.deck.plane, info.policy.name
        if info.state.runs:
            what, ask = "deactivating", partial(plane.deactivate_policy, name)
        else:
            what, ask = "activating", partial(plane.activate_policy, name)
        self._do(f"{what} {name}", ask, self._is_now, self.deck.complain)

    def _is_now(self, info: PolicyInfo) -> None:
        self.notify(f"{info.policy.name} is {info.state.words}", timeout=2.0, markup=False)

    def do_trigger_remove(self, policy: str = "") -> None:
        info = self._target(policy)
        name = info.policy.name
        # Who says which one means it.
        if not policy and self._warned != name:
            self._warned = name
            self.notify(f"x again removes {name}", severity="warning", markup=False)
            return
        ask = partial(self.deck.plane.remove_policy, name)
        self._do(f"removing {name}", ask, lambda _: self._removed(info), self.deck.complain)

    def _removed(self, info: PolicyInfo) -> None:
        self.notify(f"removed {info.policy.to_short()}", markup=False)

    def do_trigger_add(self, text: str = "") -> None:
        if text:
            self._set(text)
        else:
            self.prompt.ask("trigger.add", "Add", EXAMPLE, "")

    def do_trigger_change(self, policy: str = "") -> None:
        text = self._target(policy).policy.to_short()
        self.prompt.ask("trigger.change", "Change", EXAMPLE, text)

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        if text := event.value.strip():
            self._set(text)

    def _set(self, text: str) -> None:
        plane = self.deck.plane

        def ask() -> PolicyInfo:
            # pydantic, which the first paint does without.
            from probes.primitive.policy import Policy

            return plane.set_policy(Policy.parse_short(text))

        done, failed = partial(self._was_set, text), partial(self._refused, text)
        self._do("setting the policy", ask, done, failed)

    def _asks(self, text: str) -> bool:
        """Whether the prompt is still open with this text."""
        return self.prompt.is_open and self.prompt.query_one(PromptInput).value.strip() == text

    def _was_set(self, text: str, info: PolicyInfo) -> None:
        if self._asks(text):
            self._close_prompt()
        self._is_now(info)

    def _refused(self, text: str, error: DeckError) -> None:
        """Show what is wrong where it is; the text stays to be mended."""
        if not self._asks(text):
            self.deck.complain(error)
            return
        answer, mistake = self.prompt.query_one(PromptInput), self.query_one(Mistake)
        place = place_of(str(error), answer.value)
        if place is not None:
            answer.cursor_position = place
        # Where the character is on the screen is known when the line has scrolled to it.
        self.call_after_refresh(mistake.show, str(error), answer if place is not None else None)

    @on(Input.Changed)
    def _mended(self) -> None:
        self.query_one(Mistake).hide()

    # Moving about

    def do_trigger_detail(self) -> None:
        (self.applications if self.applications.has_focus else self.listing).action_select()

    def do_trigger_leave(self) -> None:
        self._warned = ""
        if self.prompt.is_open:
            self._close_prompt()
        else:
            self._open("")

    def _close_prompt(self) -> None:
        self.query_one(Mistake).hide()
        self.prompt.close()
        self.set_focus(self.listing)

    def do_trigger_next(self) -> None:
        self._step(1)

    def do_trigger_previous(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        self.detail.step(by)
        self._show_detail()

    def do_trigger_sort(self, column: str = "") -> None:
        orders = ("", *TRIGGER_COLUMNS)
        self._sort_by(column or orders[(orders.index(self._sort) + 1) % len(orders)])

    def _sort_by(self, column: str) -> None:
        again = column == self._sort and bool(column)
        self._descending = not self._descending if again else column in ("value", "selected")
        self._sort = column
        self._show_policies()
        if not self.detail.is_open:
            self.listing.unpin()

    @on(VirtualTable.HeaderSelected, "#policies")
    def _header_selected(self, event: VirtualTable.HeaderSelected) -> None:
        if event.column in TRIGGER_COLUMNS:
            self._sort_by(event.column)

    @on(VirtualTable.RowSelected, "#policies")
    def _policy_selected(self) -> None:
        self._open("policy")

    @on(VirtualTable.RowSelected, "#applications")
    def _application_selected(self) -> None:
        self._open("application")
        self._look()

    @on(VirtualTable.RowHighlighted, "#policies, #applications")
    def _highlighted(self) -> None:
        self._warned = ""
        self._show_detail()
