"""What retryflow does in a second, each figure beside a baseline of the same run: ``python -m benchmarks``."""
