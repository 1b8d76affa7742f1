"""Thompson sampling of batches: the public name of `bo_scale.decisions.thompson`."""

from bo_scale.decisions.thompson import thompson_batch

__all__ = ["thompson_batch"]
