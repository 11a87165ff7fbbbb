"""Commands of the console: one registry for keys, palette, prompt, tapes, `--exec` and REST."""

from app.commands.line import Invocation, parse
from app.commands.model import Command, Parameter, ParameterKind
from app.commands.registry import REGISTRY

__all__ = ["REGISTRY", "Command", "Invocation", "Parameter", "ParameterKind", "parse"]
