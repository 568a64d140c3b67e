"""scikit-learn's logistic regression, without intercept, trained to convergence on the features of our objective.

    python -m benchmarks.contestants.scikit FOLDER L2

On X / scale with C = 1 / (2 n l2) it minimises the same objective.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

# Tolerance of the gradient: with the default of 1e-4, the objective is still about 1e-3 nats above its minimum.
TOLERANCE, MAX_ITERATIONS = 1e-5, 20_000


def probe(folder: str, l2: str) -> dict[str, Any]:
    """Train on exported examples; write the weights for raw hidden states."""
    x, y, scale, dead = (np.load(Path(folder) / f"{name}.npy") for name in ("X_train", "y_train", "scale", "dead"))
    start = time.perf_counter()
    scaled = np.where(dead, 0, x / scale).astype(np.float32)
    model = LogisticRegression(
        C=1 / (2 * len(x) * float(l2)), fit_intercept=False, tol=TOLERANCE, max_iter=MAX_ITERATIONS
    )
    model.fit(scaled, y)
    seconds = time.perf_counter() - start
    np.savez(Path(folder) / "scikit.npz", weight=np.where(dead, 0, model.coef_ / scale).astype(np.float32))
    return {"seconds": seconds, "iterations": int(model.n_iter_[0])}


if __name__ == "__main__":
    print(json.dumps(probe(*sys.argv[1:])))
