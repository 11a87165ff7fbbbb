"""Analysis of round-trip times per hop: queues, route changes, balancing, loss (S3.20)."""

from probes.path.analysis.distributions import (
    DistributionTest,
    MeasuredPath,
    kolmogorov_smirnov,
    paths_of,
)
from probes.path.analysis.watch import Analysis
from probes.path.analysis.words import describe, tell

__all__ = [
    "Analysis",
    "DistributionTest",
    "MeasuredPath",
    "describe",
    "kolmogorov_smirnov",
    "paths_of",
    "tell",
]
