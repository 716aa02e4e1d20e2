"""Digests of source code: what was computed by other code is not taken for new."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1]


@cache
def package_digest() -> str:
    """Return a digest of all of replan's own sources, as they were when first asked for."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Sources(NamedTuple):
    """A digest of source code, and the names of what it could not see."""

    digest: str
    unseen: list[str]


def reachable_sources(thing: Any) -> Sources:
    """Return a digest."""
    import sys

    return Sources(
        hashlib.sha256(Path(sys.modules[thing.__name__].__file__).read_bytes()).hexdigest()[:16], []
    )
