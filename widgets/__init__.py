"""Widgets; they know no probe and no kernel."""
