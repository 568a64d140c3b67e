"""The inverse Hessian of L-BFGS, from the last pairs of a step and a change of the gradient, applied in a few products.

The two-loop recursion (Nocedal & Wright 2006, algorithm 7.4) reads one pair after the other, with several small
operations for each. Its two loops solve two triangular systems whose entries are products of steps and changes (Byrd,
Nocedal & Schnabel 1994, theorem 2.2). If these products are stored, four products with all pairs at once give the same
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probing.runtime.arithmetic import to_float64

LONGEST = 20  # pairs; 10 cost up to 15% more passes on the built-in model, 30 saved none


class _Visit(NamedTuple):
    """A point, the gradient there, and the gradient preconditioned, if the preconditioner is the same everywhere."""

    point: Tensor
    gradient: Tensor
    preconditioned: Tensor | None


class _Pairs(NamedTuple):
    """Steps s, changes y of the gradient along them, and their products.

    Args:
        steps: Shape (n, n_weights), in any order.
        changes: Shape (n, n_weights).
        products: s_i'y_j, shape (n, n), float64, on the processor.
    """

    steps: Tensor
    changes: Tensor
    products: Tensor


class History:
    """The last pairs of a step and the change of the gradient along it, and the inverse Hessian that they give.

    A preconditioner that is the same at every point is linear and fixed, so it is applied only once to each gradient,
    and the results are stored. The preconditioned difference of a gradient and some changes is then the difference of
    stored results.
    """

    def __init__(self) -> None:
        # Rows of the pairs in what follows, the oldest first; a new pair takes the row of the oldest.
        self.rows: list[int] = []
        self.steps = self.changes = self.preconditioned = torch.empty(0)
        self.products = torch.zeros(LONGEST, LONGEST, dtype=torch.float64)
        self.last: _Visit | None = None

    def visit(self, point: Tensor, gradient: Tensor, preconditioned: Tensor | None) -> None:
        """Add the pair of the last point and this one, unless rounding left no curvature between them.

        Args:
            point: The point, shape (n_classes, d_model).
            gradient: Gradient of the smooth part of the objective there.
            preconditioned: What the preconditioner makes of it, if it is the same at every point; else None.
        """
        last, self.last = self.last, _Visit(point, gradient, preconditioned)
        if last is None:
            return
        step, change = (point - last.point).flatten(), (gradient - last.gradient).flatten()
        if not self.steps.numel():
            self.steps, self.changes, self.preconditioned = (step.new_empty(LONGEST, step.numel()) for _ in range(3))
        if (curvature := float(step @ change)) <= 0:
            return
        row = self.rows.pop(0) if len(self.rows) == LONGEST else len(self.rows)
        self.steps[row], self.changes[row] = step, change
        if preconditioned is not None and last.preconditioned is not None:
            self.preconditioned[row] = (preconditioned - last.preconditioned).flatten()
        self.rows.append(row)
        n = len(self.rows)
        self.products[row, :n] = to_float64(self.changes[:n] @ step).cpu()
        self.products[:n, row] = to_float64(self.steps[:n] @ change).cpu()
        self.products[row, row] = curvature

    def precondition(self, precondition: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None) -> None:
        """Exchange the preconditioner for one that is the same at every point; None if it is not to be remembered.

        Args:
            precondition: Applies it to several gradients at once, so that large blocks are read from memory once.
        """
        if self.last is None:
            return
        if precondition is None:
            self.last = self.last._replace(preconditioned=None)
            return
        changes = [self.changes[row].view_as(self.last.point) for row in self.rows]
        made, *others = precondition([self.last.gradient, *changes])
        for row, other in zip(self.rows, others, strict=True):
            self.preconditioned[row] = other.flatten()
        self.last = self.last._replace(preconditioned=made)

    def inverse_hessian(
        self, gradient: Tensor, initial: Callable[[Tensor], Tensor], free: Tensor | None = None
    ) -> Tensor:
        """Apply the inverse Hessian given by the pairs and the preconditioner, within the subspace of some weights.

        Args:
            gradient: The objective's subgradient at the last point, shape (n_classes, d_model).
            initial: Applies the preconditioner.
            free: 1 for the weights of the subspace and 0 for others, shape (n_classes, d_model); all weights if None.
        """
        made = None if self.last is None or free is not None else self.last.preconditioned
        rows, pairs = self._curved(free)
        if not rows:
            return initial(gradient) if made is None else made.clone()
        upper, curvatures = pairs.products.triu(), pairs.products.diagonal()
        along = to_float64(pairs.steps @ gradient.flatten()).cpu()[rows]
        weights = torch.linalg.solve_triangular(upper, along[:, None], upper=True).squeeze(1)
        last = pairs.changes[rows[-1]]
        if made is None:
            rest = gradient - _sum(weights, rows, pairs.changes).view_as(gradient)
            result, changed = initial(rest).flatten(), initial(last.view_as(gradient)).flatten()
        else:
            result = made.flatten() - _sum(weights, rows, self.preconditioned[: len(pairs.changes)])
            changed = self.preconditioned[rows[-1]]
        # The products of small changes, as of classes that are told apart perfectly, are 0 in float32.
        if length := float(last @ changed) or float(to_float64(last) @ to_float64(changed)):
            result *= float(curvatures[-1]) / length
        missing = curvatures * weights - to_float64(pairs.changes @ result).cpu()[rows]
        weights = torch.linalg.solve_triangular(upper.T, missing[:, None], upper=False).squeeze(1)
        return (result + _sum(weights, rows, pairs.steps)).view_as(gradient)

    def _curved(self, free: Tensor | None) -> tuple[list[int], _Pairs]:
        """Return the rows of the pairs, the oldest first, and the pairs; their products are in the order of the rows.

        Args:
            free: As of `inverse_hessian`; pairs without curvature in that subspace are left out.
        """
        n, rows = len(self.rows), self.rows
        steps, changes, products = self.steps[:n], self.changes[:n], self.products
        if rows and free is not None:
            steps, changes = steps * free.flatten(), changes * free.flatten()
            products = to_float64(steps @ changes.T).cpu()
            rows = [row for row in rows if products[row, row] > 0]
        return rows, _Pairs(steps, changes, products[rows][:, rows])


def _sum(weights: Tensor, rows: list[int], vectors: Tensor) -> Tensor:
    """Return the sum of weighted vectors.

    Args:
        weights: Weight of some vectors, shape (n_rows,), float64.
        rows: Their rows.
        vectors: Shape (n, n_weights).
    """
    of_all = torch.zeros(len(vectors), dtype=torch.float64)
    of_all[rows] = weights
    return of_all.to(vectors.dtype).to(vectors.device) @ vectors
