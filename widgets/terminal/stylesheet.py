"""Parsed style sheets are kept: a new screen, or another app, parses only its own.

Textual parses the sheets of all widgets again when a screen is shown for the first time, and when a
theme changes the variables.
"""

from __future__ import annotations

from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation

_parsed: LRUCache[tuple[object, ...], list[RuleSet]] = LRUCache(512)
"""Rules by everything that decides them. Textual changes no rule once it is parsed."""

# The same identity, without a call of Python: each style of a widget looks up some hundred rules.
RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]


class KeptStylesheet(Stylesheet):
    """A style sheet that parses the same text with the same variables only once a process."""

    def _parse_rules(
        self, css: str, read_from: CSSLocation, is_default_rules: bool = False,
        tie_breaker: int = 0, scope: str = "",
    ) -> list[RuleSet]:  # fmt: skip
        variables = tuple(self._variables.items())
        key = variables, css, read_from, is_default_rules, tie_breaker, scope
        if (rules := _parsed.get(key)) is None:
            rules = super()._parse_rules(css, read_from, is_default_rules, tie_breaker, scope)
            _parsed[key] = rules
        return rules

    def reparse(self) -> None:
        """Apply new variables. Textual does so in a sheet that keeps nothing."""
        self.parse()
