"""Packets that this host's kernel drops, with its reasons."""
