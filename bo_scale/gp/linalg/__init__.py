"""Linear algebra: dense, Kronecker, banded."""
