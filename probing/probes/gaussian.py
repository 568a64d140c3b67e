"""The Gaussian probe (Torroba Hennigen, Williams & Cotterell 2020), and neurons selected by it.

Each class is a Gaussian in the space of the neurons, so that the probe of a subset of neurons follows without training
by leaving out the others. Information is the mutual information H(class) - H(class | neurons) on held-out tokens, in
bits. Its second term is the probe's cross-entropy, so it is a lower bound; it is negative if the probe predicts worse
than the class frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probing.statistics.moments import ClassMoments

# Weights of the shared covariance that are tried, in tokens: from the published prior to almost one common covariance.
SHARED = (0.0, 1e2, 1e3, 1e4, 1e5, 1e6)
# Share of a neuron's variance that is added to each class's variance, so that a neuron that is constant within a class
# has a density.
FLOOR = 1e-6
# Most numbers (tokens x classes x candidates) processed together, so that they stay in the processor's cache.
BLOCK = 2**21


def entropy(labels: Tensor) -> float:
    """Return the entropy of the classes among these labels, in bits."""
    p = labels.bincount().double() / len(labels)
    return float(torch.special.entr(p).sum()) / math.log(2)


def information(log_p: Tensor, labels: Tensor) -> float:
    """Return the mutual information, in bits, given by a probe's log-probabilities of shape (n, n_classes)."""
    return entropy(labels) + float(log_p.gather(1, labels[:, None]).double().mean()) / math.log(2)


@dataclass(frozen=True)
class GaussianProbe:
    """Class-conditional Gaussians, with the covariance at the mode of the posterior.

    The prior of a class's covariance in k neurons is inverse Wishart with k + 2 degrees of freedom. Its scale is the
    diagonal of the class's own covariance (Torroba Hennigen et al. 2020, after Fraley & Raftery 2007). The mode is then
    (diagonal + scatter) / (n + 2 k + 4). If classes have few tokens for the number of neurons, or tails heavier than a
    Gaussian's, the probe is far too confident (layer 6 of the built-in model, 65 positions: -1 bit from 10 neurons,
    -160 from 100). `shared` adds the pooled covariance within classes to the scale, as if that many more tokens with
    this covariance had been seen.

    k is the number of neurons in use, so that the probe of a subset is the mode in the subset's own space. The
    published code always sets k to the number of all neurons, which divides by far more than n and makes small classes
    too narrow.

    Args:
        classes: Moments of the classes over the training tokens.
        shared: Weight of the shared covariance, in tokens; 0 for the published prior.
    """

    classes: ClassMoments
    shared: float

    @property
    def log_prior(self) -> Tensor:
        """Log of each class's share of the training tokens, shape (n_classes,)."""
        return (self.classes.counts / self.classes.counts.sum()).log()

    def tokens(self, k: int) -> Tensor:
        """Return the divisor of the scatter for k neurons, shape (n_classes,)."""
        return self.classes.counts + (2 * k + 4) + self.shared

    def diagonal(self) -> Tensor:
        """Return each class's own part of the prior's scale, shape (n_classes, d_model)."""
        own = self.classes.scatter.diagonal(dim1=1, dim2=2) / self.classes.counts.clamp(min=1)[:, None]
        total = (self.classes.within + self.classes.between) / self.classes.counts.sum()
        return own + FLOOR * total

    def scale(self, neurons: Tensor) -> Tensor:
        """Return the covariance of these neurons times `tokens`, shape (n_classes, k, k), float64."""
        scatter = self.classes.scatter[:, neurons[:, None], neurons]
        shared = self.shared * self.classes.pooled[neurons[:, None], neurons]
        return scatter + shared + torch.diag_embed(self.diagonal()[:, neurons])

    def log_p(self, hidden_states: Tensor, neurons: Sequence[int]) -> Tensor:
        """Return the log-probability of each class given only these neurons.

        Args:
            hidden_states: Hidden states of the tokens, shape (n, d_model).
            neurons: The neurons in use; an empty list gives the prior.

        Returns:
            Shape (n, n_classes), float64.
        """
        chosen, k = torch.tensor(list(neurons), dtype=torch.int64), len(neurons)
        factor, tokens = torch.linalg.cholesky(self.scale(chosen)), self.tokens(k)
        # The part of a class's log-probability that does not depend on the token: prior, determinant and units.
        constant = self.log_prior - factor.diagonal(dim1=1, dim2=2).log().sum(1) + k * tokens.log() / 2
        # Tokens are whitened for all classes by one float32 product, around a common centre.
        eye = torch.eye(k, dtype=torch.float64).expand_as(factor)
        whitening = torch.linalg.solve_triangular(factor, eye, upper=False) * tokens.sqrt()[:, None, None]
        centre = self.log_prior.exp() @ self.classes.mean[:, chosen]
        offset = (whitening @ (self.classes.mean[:, chosen] - centre)[:, :, None]).float()
        flat, parts = whitening.flatten(0, 1).float(), []
        for states in hidden_states[:, chosen].split(max(1, BLOCK // max(1, len(flat)))):
            whitened = (flat @ (states.double() - centre).float().T).view(len(tokens), k, len(states)) - offset
            parts.append((constant[:, None] - whitened.square().sum(1).double() / 2).log_softmax(0).T)
        return torch.cat(parts)


def choose_shared(
    classes: ClassMoments, hidden_states: Tensor, labels: Tensor, neurons: Sequence[int]
) -> GaussianProbe:
    """Return the probe whose weight of the shared covariance gives the most information on held-out tokens.

    Args:
        classes: Moments of the classes over the training tokens.
        hidden_states: Hidden states of held-out tokens, shape (n, d_model).
        labels: Classes of the held-out tokens, shape (n,).
        neurons: As many neurons as will be used, chosen independently of their information.
    """
    probes = [GaussianProbe(classes, shared) for shared in SHARED]
    return max(probes, key=lambda probe: information(probe.log_p(hidden_states, neurons), labels))


@dataclass(frozen=True)
class Selection:
    """Neurons in the order in which they were selected.

    Args:
        neurons: The selected ones.
        information: Held-out mutual information of the first 0, 1, 2, ... of them, in bits.
        with_next: Held-out mutual information of all of them and one more neuron, for each candidate, shape
            (n_candidates,); minus infinity for candidates that are already selected.
    """

    neurons: list[int]
    information: list[float]
    with_next: Tensor


class _Conditionals:
    """The density of each candidate given the neurons selected so far, for each class, updated incrementally.

    Each selected neuron adds one column to a Cholesky factor per class (Golub & Van Loan 2013, section 4.2), for all
    candidates at once. Nothing is refitted.

    Args:
        probe: The probe.
        hidden_states: Hidden states of held-out tokens, shape (n, d_model).
        candidates: Neurons that may be selected, shape (n_candidates,).
        most: Largest number of neurons to select.
    """

    def __init__(self, probe: GaussianProbe, hidden_states: Tensor, candidates: Tensor, most: int) -> None:
        classes, n_classes = probe.classes, len(probe.classes.counts)
        self.probe, self.candidates, self.selected = probe, candidates, 0
        # Standardise for the precision of float32; the Gaussian probe is invariant to units.
        self.sd = ((classes.within + classes.between) / classes.counts.sum()).sqrt()[candidates]
        centre = classes.counts @ classes.mean[:, candidates] / classes.counts.sum()
        self.states = ((hidden_states[:, candidates].double() - centre) / self.sd).float()
        self.mean = ((classes.mean[:, candidates] - centre) / self.sd).float()
        own = classes.scatter.diagonal(dim1=1, dim2=2) + probe.diagonal() + probe.shared * classes.pooled.diagonal()
        self.variance = own[:, candidates] / self.sd.square()  # conditional variance times `tokens`
        self.factor = torch.zeros(n_classes, most, len(candidates), dtype=torch.float64)
        self.whitened = torch.zeros(n_classes, len(hidden_states), most)
        self.distance = torch.zeros(n_classes, len(hidden_states), dtype=torch.float64)
        self.log_determinant = torch.zeros(n_classes, dtype=torch.float64)

    def information(self, labels: Tensor) -> Tensor:
        """Return the information with each candidate added, in bits, shape (n_candidates,)."""
        j, (n, d) = self.selected, self.states.shape
        tokens = self.probe.tokens(j + 1)
        so_far = tokens[:, None] * self.distance + (self.log_determinant - (j + 1) * tokens.log())[:, None]
        so_far = (self.probe.log_prior[:, None] - so_far / 2).float()
        constant, slope = (-self.variance.log() / 2).float(), (-tokens[:, None] / (2 * self.variance)).float()
        total, factor = torch.zeros(d, dtype=torch.float64), self.factor[:, :j].float()
        size = max(1, BLOCK // (len(tokens) * max(1, d)))
        for rows in (slice(start, start + size) for start in range(0, n, size)):
            residual = self.states[rows] - self.mean[:, None]
            residual.baddbmm_(self.whitened[:, rows, :j], factor, alpha=-1)
            log_joint = residual.square_().mul_(slope[:, None]).add_(constant[:, None]).add_(so_far[:, rows, None])
            true = log_joint[labels[rows], torch.arange(log_joint.shape[1])]
            total += (true - log_joint.logsumexp(0)).sum(0, dtype=torch.float64)
        return entropy(labels) + total / n / math.log(2)

    def add(self, i: int) -> None:
        """Select the i-th candidate."""
        j, classes, neuron = self.selected, self.probe.classes, self.candidates[i]
        root = self.variance[:, i].sqrt()
        shared = self.probe.shared * classes.pooled[neuron, self.candidates]
        column = (classes.scatter[:, neuron, self.candidates] + shared) / (self.sd * self.sd[i])
        column -= torch.einsum("cjd,cj->cd", self.factor[:, :j], self.factor[:, :j, i])
        column[:, i] = root.square()  # includes the diagonal of the prior, unlike the other entries
        column /= root[:, None]
        residual = self.states[:, i] - self.mean[:, i, None]
        residual = residual - torch.einsum("cnj,cj->cn", self.whitened[:, :, :j], self.factor[:, :j, i].float())
        self.whitened[:, :, j] = residual / root[:, None].float()
        self.distance += self.whitened[:, :, j].double().square()
        self.log_determinant += 2 * root.log()
        self.factor[:, j] = column
        self.variance = self.variance - column.square()
        self.variance[:, i] = 1.0  # its conditional variance is 0 and is not used again
        self.selected += 1


def select(
    probe: GaussianProbe, hidden_states: Tensor, labels: Tensor, candidates: Sequence[int], n_neurons: int
) -> Selection:
    """Select neurons greedily by the information that each adds (Torroba Hennigen et al. 2020, section 4).

    Args:
        probe: The probe, fitted on the training tokens.
        hidden_states: Hidden states of held-out tokens, shape (n, d_model).
        labels: Classes of the held-out tokens, shape (n,).
        candidates: Neurons that may be selected; neurons that never vary must not be among them.
        n_neurons: Number of neurons to select, at most the number of candidates.

    Returns:
        The selection; of two candidates with equal information the lower index is taken.
    """
    most = min(n_neurons, len(candidates))
    state = _Conditionals(probe, hidden_states, torch.tensor(list(candidates), dtype=torch.int64), most)
    chosen: list[int] = []
    found = [information(probe.log_p(hidden_states, []), labels)]
    while True:
        with_next = state.information(labels)
        with_next[chosen] = -math.inf
        if len(chosen) == most:
            return Selection([candidates[i] for i in chosen], found, with_next)
        best = int(with_next.argmax())
        chosen.append(best)
        found.append(float(with_next[best]))
        state.add(best)
