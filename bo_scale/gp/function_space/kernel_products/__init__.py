"""Products with kernel matrices that are never held whole."""
