"""Weight-space models, f(x) = μ + φ(x)ᵀw: data enter through additive statistics."""
