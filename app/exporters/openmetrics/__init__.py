"""OpenMetrics: bounded series for Prometheus and other scrapers."""
