"""The first family: f(x) = μ + φ(x)ᵀw; data enter through additive statistics."""
