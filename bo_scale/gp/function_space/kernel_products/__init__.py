"""Products with kernel matrices that are never held in memory whole."""
