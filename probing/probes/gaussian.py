"""The Gaussian probe (Torroba Hennigen, Williams & Cotterell 2020), and neurons selected by it.

Each class is a Gaussian in the neurons' space, so that a probe of any subset of the neurons comes
free by leaving out the others. Information is the held-out mutual information H(class) -
H(class | neurons) in bits, whose second term is the probe's cross-entropy: a lower bound, and
below 0 where the probe is worse than not looking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probing.statistics.class_moments import ClassMoments

# Worth of the covariance that classes share, in tokens: what is tried, from the published prior to one for all classes.
SHARED = (0.0, 1e2, 1e3, 1e4, 1e5, 1e6)
# Of a neuron's variance: what is added to that of each class, so that one that never varies within it has a density.
FLOOR = 1e-6
# Tokens, classes and candidates that are looked at together: two million numbers stay near the processor.
BLOCK = 2**21


def entropy(labels: Tensor) -> float:
    """Return the entropy of the classes among these labels, in bits."""
    p = labels.bincount().double() / len(labels)
    return float(torch.special.entr(p).sum()) / math.log(2)


def information(log_p: Tensor, labels: Tensor) -> float:
    """Return the mutual information in bits that a probe's log-probabilities, shape (n, n_classes), give."""
    return entropy(labels) + float(log_p.gather(1, labels[:, None]).double().mean()) / math.log(2)


@dataclass(frozen=True)
class GaussianProbe:
    """Class-conditional Gaussians with the covariance of maximum posterior probability.

    The prior of a class's covariance in k neurons is inverse Wishart with k + 2 degrees of freedom
    and for scale the diagonal of the class's own covariance (Torroba Hennigen et al. 2020, after
    Fraley & Raftery 2007), which makes it (diagonal + scatter) / (n + 2 k + 4). Where classes have
    few tokens for their neurons, or tails heavier than a Gaussian's, that is far too sure of itself
    (layer 6 of the built-in model, 65 positions: -1 bit from 10 neurons, -160 from 100). `shared`
    adds to the scale the covariance within classes, pooled over all of them, as if that many more
    tokens had been seen with it.

    k is the number of neurons looked at, so the probe of a subset is the posterior's mode in the
    subset's own space. The published code takes it from all neurons whatever the subset, which
    divides by far more than n and makes small classes too narrow.

    Args:
        classes: Of the training tokens.
        shared: Worth of the shared covariance, in tokens; 0 for the published prior.
    """

    classes: ClassMoments
    shared: float

    @property
    def log_prior(self) -> Tensor:
        """Of each class in the training tokens, shape (n_classes,)."""
        return (self.classes.counts / self.classes.counts.sum()).log()

    def tokens(self, k: int) -> Tensor:
        """Return what the scatter is divided by in a space of k neurons, shape (n_classes,)."""
        return self.classes.counts + (2 * k + 4) + self.shared

    def diagonal(self) -> Tensor:
        """Return the part of the prior's scale that is of the class itself, shape (n_classes, d_model)."""
        own = self.classes.scatter.diagonal(dim1=1, dim2=2) / self.classes.counts.clamp(min=1)[:, None]
        total = (self.classes.within + self.classes.between) / self.classes.counts.sum()
        return own + FLOOR * total

    def scale(self, neurons: Tensor) -> Tensor:
        """Return covariance times `tokens` among these neurons, shape (n_classes, k, k), float64."""
        scatter = self.classes.scatter[:, neurons[:, None], neurons]
        shared = self.shared * self.classes.pooled[neurons[:, None], neurons]
        return scatter + shared + torch.diag_embed(self.diagonal()[:, neurons])

    def log_p(self, hidden_states: Tensor, neurons: Sequence[int]) -> Tensor:
        """Return the log-probability of each class given these neurons alone.

        Args:
            hidden_states: Shape (n, d_model).
            neurons: Which of them are looked at; of none, what is left is the prior.

        Returns:
            Shape (n, n_classes), float64.
        """
        chosen, k = torch.tensor(list(neurons), dtype=torch.int64), len(neurons)
        factor, tokens = torch.linalg.cholesky(self.scale(chosen)), self.tokens(k)
        # What the prior, the determinant and the units make of a class, whatever the token.
        constant = self.log_prior - factor.diagonal(dim1=1, dim2=2).log().sum(1) + k * tokens.log() / 2
        # Tokens are whitened for all classes by one product, in float32, around a centre that all share.
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
    """Return the probe whose prior gives the most information of these tokens from these neurons.

    Args:
        classes: Of the training tokens.
        hidden_states: Of held-out tokens, shape (n, d_model).
        labels: Their classes, shape (n,).
        neurons: As many as are to be looked at, chosen without regard to what they tell.
    """
    probes = [GaussianProbe(classes, shared) for shared in SHARED]
    return max(probes, key=lambda probe: information(probe.log_p(hidden_states, neurons), labels))


@dataclass(frozen=True)
class Selection:
    """Neurons in the order in which they were selected.

    Args:
        neurons: The selected ones.
        information: Held-out mutual information of the first 0, 1, 2, ... of them, in bits.
        with_next: The same once a further neuron is added to all of them, for each candidate, shape (n_candidates,);
            not above minus infinity for those that are selected already.
    """

    neurons: list[int]
    information: list[float]
    with_next: Tensor


class _Conditionals:
    """The density of each candidate given the neurons selected so far, for each class, kept up to date.

    One column of a Cholesky factor per class is added for each neuron (Golub & Van Loan 2013,
    section 4.2), of all candidates at once: nothing is refitted.

    Args:
        probe: The probe.
        hidden_states: Shape (n, d_model).
        candidates: Neurons that may be selected, shape (n_candidates,).
        most: Neurons that will be selected at most.
    """

    def __init__(self, probe: GaussianProbe, hidden_states: Tensor, candidates: Tensor, most: int) -> None:
        classes, n_classes = probe.classes, len(probe.classes.counts)
        self.probe, self.candidates, self.selected = probe, candidates, 0
        # A Gaussian does not care about units, but float32 does.
        self.sd = ((classes.within + classes.between) / classes.counts.sum()).sqrt()[candidates]
        centre = classes.counts @ classes.mean[:, candidates] / classes.counts.sum()
        self.states = ((hidden_states[:, candidates].double() - centre) / self.sd).float()
        self.mean = ((classes.mean[:, candidates] - centre) / self.sd).float()
        own = classes.scatter.diagonal(dim1=1, dim2=2) + probe.diagonal() + probe.shared * classes.pooled.diagonal()
        self.variance = own[:, candidates] / self.sd.square()  # conditional, times tokens
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
        column[:, i] = root.square()  # with the diagonal of the prior, which no other entry has
        column /= root[:, None]
        residual = self.states[:, i] - self.mean[:, i, None]
        residual = residual - torch.einsum("cnj,cj->cn", self.whitened[:, :, :j], self.factor[:, :j, i].float())
        self.whitened[:, :, j] = residual / root[:, None].float()
        self.distance += self.whitened[:, :, j].double().square()
        self.log_determinant += 2 * root.log()
        self.factor[:, j] = column
        self.variance = self.variance - column.square()
        self.variance[:, i] = 1.0  # nothing is left of it, and nothing will be asked of it
        self.selected += 1


def select(
    probe: GaussianProbe, hidden_states: Tensor, labels: Tensor, candidates: Sequence[int], n_neurons: int
) -> Selection:
    """Select neurons greedily by the information that each adds (Torroba Hennigen et al. 2020, section 4).

    Args:
        probe: Of the training tokens.
        hidden_states: Of held-out tokens, shape (n, d_model).
        labels: Their classes, shape (n,).
        candidates: Neurons that may be selected; those that never vary may not.
        n_neurons: How many are selected, where there are as many.

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
