"""Digests of plain content: tensors, numbers, texts, and what is made of them."""

import hashlib
from typing import Any

from torch import Tensor


def digest_of(content: Any) -> str:
    """Return the SHA-256 of content: values of tensors, wherever they are, with dtype and shape; the text of the rest.

    Args:
        content: Tensors, numbers, texts, None, and dictionaries, lists and tuples of these.
    """
    found = hashlib.sha256()
    _add(content, found)
    return found.hexdigest()


def _add(content: Any, found: Any) -> None:
    if isinstance(content, dict):
        content = tuple(content.items())
    if isinstance(content, list | tuple):
        found.update(f"({len(content)}".encode())
        for part in content:
            _add(part, found)
    elif isinstance(content, Tensor):
        found.update(repr((content.dtype, tuple(content.shape))).encode())
        found.update(content.detach().cpu().contiguous().numpy().tobytes())
    else:
        found.update(repr(content).encode())
