"""Claims of speed, each measured with its rival in the same run."""
