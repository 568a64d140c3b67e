"""Which file of a run of `disable` is of what, so that a run that was killed goes on with the next unit."""

from __future__ import annotations

from typing import Any

import numpy as np

# Index of the file of the probes; that of the i-th pass is one higher than i.
PROBES = 0


def fingerprint_of(*arrays: Any) -> str:
    """Return a fingerprint of arrays, SHA-256 in hex."""
    from hashlib import sha256

    digest = sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
