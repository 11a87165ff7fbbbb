"""Pictures of the screen: SVG by Textual, and PNG by resvg, an optional package."""

from __future__ import annotations

import re
from typing import Any

from textual.app import App

from bpf.errors import ProbedeckError

_FAMILY = "font-family: Fira Code, monospace"
_INSTALLED = "font-family: DejaVu Sans Mono, Menlo, Consolas, monospace"
"""A picture loads no font from the network."""
_WEB_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def svg(app: App[Any]) -> str:
    """Return the screen in front."""
    text = app.export_screenshot(title=f"probedeck: {app.current_mode}")
    text = _WEB_FONT.sub("", text).replace(_FAMILY, _INSTALLED)
    # Viewers without a browser's style sheets would drop leading blanks.
    return text.replace("<text class", '<text xml:space="preserve" class')


def encoded(picture: str, suffix: str) -> bytes:
    """Return an SVG in the format of a suffix, `svg` or `png`. Raises ProbedeckError."""
    if suffix == "svg":
        return picture.encode()
    try:
        import resvg_py
    except ImportError:
        hint = ".venv/bin/pip install 'resvg-py>=0.5,<0.6', or write a .svg"
        raise ProbedeckError("a .png needs the package resvg-py", hint=hint) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=picture))
