"""What an operator can have done, by name: the one registry that keys, palette, prompt, tapes,
`--exec` and the REST API go through. Knows no screen."""

from app.commands.line import Invocation, parse
from app.commands.model import Command, Parameter, ParameterKind
from app.commands.registry import REGISTRY

__all__ = ["REGISTRY", "Command", "Invocation", "Parameter", "ParameterKind", "parse"]
