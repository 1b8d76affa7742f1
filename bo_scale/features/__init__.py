"""Feature maps φ with their prior S = R Rᵀ over the weights: f(x) = μ + φ(x)ᵀw, w ~ N(0, S)."""
