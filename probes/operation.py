"""An operation of the control plane: what requests, fleets, commands and subcommands know of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_type_hints, overload

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ConsoleCommand:
    """An operation as a command of the console, for keys, tapes and REST, too."""

    name: str
    """`program.rollback`."""
    title: str
    """Its effect, in a few words."""
    key: str = ""
    screen: str = ""
    footer: str = ""
    """Its word in the footer of the screen."""
    help: str = ""
    task: str = ""
    """Its running work, if the console makes the call at once; else a method of the screen asks or
    warns first."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """An operation on the command line: values without a default are arguments, others options."""

    name: str
    """`probe set`."""
    help: str = ""
    """Empty: the first paragraph of the method's docstring."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Help of each value but the name of the probe or policy."""


class Operation(Generic[P, R]):
    """A method of the control plane that others call by REST, or on all hosts of a fleet.

    A request has arguments in its route, a configuration or policy as its body, and the others in
    its query. If no class of endpoints serves the route, the server makes an endpoint of the
    method: the first paragraph of its docstring describes the request.
    """

    def __init__(
        self, method: Callable[Concatenate[Any, P], R], verb: str, route: str, *,
        everywhere: bool = False, body: Callable[P, object] | None = None,
        query: Callable[P, Mapping[str, object]] | None = None,
        command: ConsoleCommand | None = None, subcommand: Subcommand | None = None,
    ) -> None:  # fmt: skip
        """`everywhere`: the change means the same on every host of a fleet. `body` and `query` make
        the parts of a request from arguments that are no JSON."""
        self.command, self.subcommand = command, subcommand
        self.part = ""
        """Attribute of the control plane that has the method; empty: the control plane itself."""
        self.method, self.name, self.verb, self.route = method, method.__name__, verb, route
        self.everywhere, self.body, self.query = everywhere, body, query

    def __set_name__(self, owner: type, name: str) -> None:
        self.part = getattr(owner, "PART", "")

    @property
    def is_named(self) -> bool:
        """Whether it is about one probe or policy, by name."""
        return "{name}" in self.route

    @cached_property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """The arguments of the method; annotations are texts."""
        return tuple(inspect.signature(self.method).parameters.values())[1:]

    @property
    def about(self) -> str:
        """The first paragraph of the method's docstring."""
        return (inspect.getdoc(self.method) or "").partition("\n\n")[0]

    @property
    def needed(self) -> int:
        """The number of arguments that a caller must give."""
        return sum(
            each.default is each.empty and each.kind is not each.KEYWORD_ONLY
            for each in self.parameters
        )

    @cached_property
    def answer(self) -> Any:
        """Type of the method's answer."""
        return get_type_hints(self.method)["return"]

    @property
    def writes(self) -> bool:
        """Whether readers, and clients of a read-only controller, are refused."""
        return self.verb != "GET"

    @overload
    def __get__(self, caller: None, owner: object) -> Self: ...

    @overload
    def __get__(self, caller: Caller, owner: object) -> Callable[P, R]: ...

    def __get__(self, caller: Caller | None, owner: object) -> Self | Callable[P, R]:
        if caller is None:
            return self

        def call(*values: P.args, **named: P.kwargs) -> R:
            answer: R = caller._call(self, values, named)
            return answer

        return call


class Caller:
    """An object with operations; `_call` makes the calls."""

    def _call(self, operation: Operation[..., Any], values: Any, named: Mapping[str, Any]) -> Any:
        raise NotImplementedError
