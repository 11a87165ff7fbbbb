"""Snapshots and events as files: one table a view, fixed columns, a schema in every row."""

from app.outputs.sink import FORMATS, Sink
from app.outputs.views import VIEWS, View

__all__ = ["FORMATS", "VIEWS", "Sink", "View"]
