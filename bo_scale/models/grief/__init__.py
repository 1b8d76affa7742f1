"""GP-GRIEF: eigenfunctions, and their weights integrated over."""
