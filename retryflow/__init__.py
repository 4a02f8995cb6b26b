"""Retries, recovery and graceful shutdown for Oslo-style task services."""

__version__ = "1.0.0"
