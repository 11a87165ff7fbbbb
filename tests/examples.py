"""A plugin of pytest: examples that hypothesis draws are the same in each run.

A busy machine takes long for an example, and to draw one: neither is a failure.
"""

from __future__ import annotations


def pytest_configure() -> None:
    # Imported here: the guest of .ci/kernels takes this plugin off and has no hypothesis.
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
    )
    settings.load_profile("busy")
