"""Policies over captures: how fast."""
