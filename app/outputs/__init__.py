"""Snapshots and events as files: one table a view or metric, a schema in every row."""

from app.outputs.document import document
from app.outputs.encoders import FORMATS
from app.outputs.sink import Sink
from app.outputs.view import OutputView, is_table
from app.outputs.views import VIEWS, counted

__all__ = ["FORMATS", "VIEWS", "OutputView", "Sink", "counted", "document", "is_table"]
