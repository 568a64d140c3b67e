"""Whether `ProbeClassifier` chooses the penalty that a grid search chooses, and its time beside that of scikit-learn.

    OMP_NUM_THREADS=1 python -m benchmarks.estimators

Prints two Markdown tables. In the first, each data set has the penalty of `l2="auto"` and that of a search over the
whole grid on the same split, and by how many nats rows held out are predicted worse with the former. In the second,
both train on the same rows at the equivalent penalty, in processor time; the gap is a bound on the distance to the
optimum, in nats, computed alike for both.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from probing import ProbeClassifier, ProbeRegressor
from probing.probes.solvers import Penalty
from probing.probes.training import STRONGEST_PENALTY as STRONGEST
from probing.probes.training import WEAKEST_PENALTY as WEAKEST
from probing.probes.training import strength

Array = NDArray[Any]
GRID = [strength(index) for index in range(STRONGEST, WEAKEST - 1, -1)]
N_ROWS, WIDTH, N_CLASSES, L2 = 20_000, 384, 17, 1e-4
# Tolerances of scikit-learn, from the first that might do.
TOLERANCES = {np.float32: (1e-5,), np.float64: (1e-5, 1e-6)}


def planted(n: int, width: int, n_classes: int, noise: float, seed: int) -> tuple[Array, Array]:
    """Return rows and the class of each, of which the noise leaves less or more to be read."""
    draw = np.random.default_rng(seed)
    x, weight = draw.standard_normal((n, width)), draw.standard_normal((n_classes, width))
    return x, (x @ weight.T + noise * draw.gumbel(size=(n, n_classes))).argmax(1)


def data_sets() -> Iterator[tuple[str, Array, Array]]:
    """Yield the name of each data set of classes, its rows and their classes."""
    for load in (load_iris, load_wine, load_digits, load_breast_cancer):
        yield load.__name__.removeprefix("load_"), *load(return_X_y=True)
    for n, width, noise in ((600, 20, 3.0), (2000, 64, 5.0)):
        for seed in range(3):
            yield f"planted, {n} x {width}, seed {seed}", *planted(n, width, 5, noise, seed)


def print_choices() -> None:
    """Print the penalties that are chosen, and what is lost by them."""
    print("| data | auto | search | nats lost | least nats |\n|---|---|---|---|---|")
    for name, x, y in data_sets():
        probe = ProbeClassifier().fit(x, y)
        search = GridSearchCV(ProbeClassifier(), {"l2": GRID}, cv=[probe.split_], scoring="neg_log_loss", refit=False)
        nats = -search.fit(x, y).cv_results_["mean_test_score"]
        lost = nats[GRID.index(probe.l2_)] - nats.min()
        print(f"| {name} | {probe.l2_:.3g} | {GRID[nats.argmin()]:.3g} | {lost:.5f} | {nats.min():.4f} |")
    x, y = load_diabetes(return_X_y=True)
    for seed in range(3):
        regressor = ProbeRegressor(random_state=seed).fit(x, y)
        search = GridSearchCV(ProbeRegressor(), {"l2": GRID}, cv=[regressor.split_], scoring="r2").fit(x, y)
        print(f"| diabetes, seed {seed} | {regressor.l2_:.3g} | {search.best_params_['l2']:.3g} | | |")


def correlated() -> tuple[Array, Array]:
    """Return correlated columns whose means are not 0, in float32, and the class of each row."""
    draw = np.random.default_rng(0)
    mixed = draw.standard_normal((WIDTH, WIDTH)) * (np.arange(1, WIDTH + 1) ** -0.5)[:, None]
    x = (draw.standard_normal((N_ROWS, WIDTH)) @ mixed + draw.standard_normal(WIDTH)).astype(np.float32)
    x /= x.std(0)
    logits = x @ draw.standard_normal((N_CLASSES, WIDTH)).T * (2 / WIDTH**0.5)
    return x, (logits + draw.gumbel(size=logits.shape)).argmax(1)


def gap(weight: Array, x: Array, y: Array) -> float:
    """Return the bound on the distance to the optimum of a weight on scaled columns, in nats."""
    wide = x.astype(np.float64)
    p = torch.from_numpy(wide @ weight.T).softmax(1)
    p[torch.arange(len(y)), torch.from_numpy(y)] -= 1
    return Penalty(0.0, L2).optimality_gap(torch.from_numpy(weight), p.T @ torch.from_numpy(wide) / len(y))


def print_times() -> None:
    """Print the time that both take, and how near they come to the optimum."""
    x, y = correlated()
    sd = x.std(0, dtype=np.float64)
    ProbeClassifier(l2=L2).fit(x[:500], y[:500])  # imports what is imported once
    print("\n| trained | seconds | passes | gap |\n|---|---|---|---|")
    begun = time.process_time()
    probe = ProbeClassifier(l2=L2).fit(x, y)
    seconds = time.process_time() - begun
    print(f"| ProbeClassifier | {seconds:.1f} | {probe.n_iter_} | {gap(probe.coef_ * sd, x / sd, y):.1e} |")
    for dtype, tolerances in TOLERANCES.items():
        scaled = (x / sd).astype(dtype)
        for tolerance in tolerances:
            model = LogisticRegression(C=1 / (2 * len(y) * L2), fit_intercept=False, tol=tolerance, max_iter=5000)
            begun = time.process_time()
            model.fit(scaled, y)
            seconds, reached = time.process_time() - begun, gap(model.coef_.astype(np.float64), x / sd, y)
            name = f"LogisticRegression(tol={tolerance:g}), {np.dtype(dtype).name}"
            print(f"| {name} | {seconds:.1f} | {model.n_iter_[0]} | {reached:.1e} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)  # of the weakest penalties of the grid
    print_choices()
    print_times()
