"""Tapes that come with probedeck."""
