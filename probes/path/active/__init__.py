"""Packets that path tracing sends of itself."""
