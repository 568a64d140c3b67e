"""Affine maps of a layer's hidden states, fitted on some tokens and applied to any tokens.

Each follows the definition of a published post-processing: clipping (Luo, Kulmizev & Mao 2021), whitening (Su et al.
2021), standardisation and mean removal (Timkey & van Schijndel 2021), all-but-the-top (Mu & Viswanath 2018). They
change hidden states after the forward pass, never the forward pass. Linear erasure (`Eraser`) is another such map; it
depends on labels and has a low-rank form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from probing.activations.source import FeatureStore
from probing.activations.store import StorePlan
from probing.data.examples import Examples, HiddenStateSource, SentenceVectors, Sides, read, read_share
from probing.data.module import are_columns
from probing.probes.training import LayerFit
from probing.runtime.files import parse_json, regular, write_tensors
from probing.runtime.processes import most_over_ranks, sum_over_ranks
from probing.statistics.moments import (
    ROWS,
    Covariance,
    CovarianceAccumulator,
    Moments,
    Scaling,
    by_mean_profile,
    subtract_,
)
from probing.text.tokens import Tokens

TransformKind = Literal["clip", "whiten", "standardise", "center", "all_but_the_top"]
KINDS: tuple[TransformKind, ...] = ("clip", "whiten", "standardise", "center", "all_but_the_top")
ClipTo = Literal["zero", "mean"]
Whitening = Literal["pca", "zca"]

# Whitening leaves out eigenvalues of the covariance below this share of the largest: dividing by them would amplify
# rounding errors. For example, vectors after a LayerNorm do not vary along one direction.
EIGENVALUE_FLOOR = 1e-6


@dataclass(frozen=True)
class Transform:
    """The map x -> linear(x - shift) + offset.

    Args:
        shift: Subtracted first, shape (d_model,), float64.
        linear: A factor per neuron, shape (d_model,), or a matrix to multiply by from the right, shape (d_model,
            n_out); float64.
        offset: Added last, shape (n_out,), float64; n_out is d_model if `linear` has a factor per neuron.
        rank: Dimension of the space of images.
    """

    kind: str
    shift: Tensor
    linear: Tensor
    offset: Tensor
    rank: int

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """Map hidden states of shape (..., d_model) to images of shape (..., n_out), in float32 or wider."""
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        images = subtract_(hidden_states.to(dtype, copy=True), self.shift)
        linear = self.linear.to(dtype)
        images = images.mul_(linear) if linear.ndim == 1 else images @ linear
        return images.add_(self.offset.to(dtype)) if self.offset.any() else images

    @property
    def n_out(self) -> int:
        """Width of the images."""
        return len(self.offset)

    @property
    def clipped(self) -> list[int]:
        """Neurons whose images are constant, if `linear` has a factor per neuron; empty if it is a matrix."""
        return (self.linear == 0).nonzero().squeeze(1).tolist() if self.linear.ndim == 1 else []

    def moments(self, before: Covariance) -> Covariance:
        """Return the exact moments of the images: the covariance L' C L, and the image of the mean."""
        linear = self.linear.diag() if self.linear.ndim == 1 else self.linear
        return Covariance(before.n_tokens, self(before.mean), linear.T @ before.covariance @ linear)

    def centred_on(self, mean: Tensor) -> Transform:
        """Return the map that takes `mean` to 0 and is otherwise the same."""
        return Transform(self.kind, mean, self.linear, torch.zeros_like(self.offset), self.rank)


def _map(kind: str, shift: Tensor, linear: Tensor, rank: int | None = None) -> Transform:
    """Return a map without offset; by default its rank is the number of nonzero factors."""
    n_out = linear.shape[-1]
    true_rank = int(linear.count_nonzero()) if rank is None else rank
    return Transform(kind, shift, linear, torch.zeros(n_out, dtype=torch.float64), true_rank)


def identity(d_model: int) -> Transform:
    """Return the map that changes nothing."""
    return _map("none", torch.zeros(d_model, dtype=torch.float64), torch.ones(d_model, dtype=torch.float64))


def clip(moments: Covariance, neurons: Sequence[int], to: ClipTo = "zero") -> Transform:
    """Clip outlier dimensions: set neurons to 0 (Luo, Kulmizev & Mao 2021, section 5), or to their mean as a control.

    Only the hidden states after the forward pass are changed. Zeroing the LayerNorm parameters of neurons (Kovaleva et
    al. 2021) is another experiment, with the opposite result. Clipping to the mean leaves the common direction of all
    vectors, and therefore their cosines, nearly unchanged; clipping to zero does not. Detect the neurons on other text
    than the evaluation text. `zero` does not use the moments.
    """
    d_model = len(moments.mean)
    keep = torch.ones(d_model, dtype=torch.float64)
    keep[list(neurons)] = 0
    offset = (1 - keep) * (moments.mean if to == "mean" else 0)
    return Transform("clip", torch.zeros_like(keep), keep, offset, int(keep.count_nonzero()))


def random_neurons(d_model: int, n_neurons: int, excluded: Sequence[int], generator: np.random.Generator) -> list[int]:
    """Draw neurons other than the excluded neurons, as a control for clipping; ascending.

    Raises:
        ValueError: If there are fewer other neurons.
    """
    others = np.setdiff1d(np.arange(d_model), np.asarray(excluded, dtype=np.int64))
    if n_neurons > len(others):
        raise ValueError(f"{n_neurons} neurons cannot be drawn from the {len(others)} that are left")
    return sorted(generator.choice(others, n_neurons, replace=False).tolist())


def center(moments: Covariance) -> Transform:
    """Subtract the mean; dead neurons give 0, because only rounding errors would remain of them."""
    return _map("center", moments.mean, (~moments.dead).double())


def standardise(moments: Covariance) -> Transform:
    """Subtract each neuron's mean and divide by its sd (Timkey & van Schijndel 2021, section 5).

    Dead neurons are mapped to 0, because only rounding errors would remain of them.
    """
    return _map("standardise", moments.mean, torch.where(moments.dead, 0.0, 1 / moments.sd))


def whiten(
    moments: Covariance,
    method: Whitening = "pca",
    n_components: int | None = None,
    shrinkage: float = 0.0,
    floor: float = EIGENVALUE_FLOOR,
) -> Transform:
    """Make the covariance the identity on the retained subspace (Su et al. 2021, arXiv 2103.15316).

    With Sigma = U diag(lambda) U', `pca` maps x to (x - mean) U diag(lambda)^(-1/2), the published form, and `zca`
    rotates the result back: (x - mean) U diag(lambda)^(-1/2) U', the whitened vectors nearest to the original vectors.
    Both have the same inner products and cosines, with or without omitted components, because U' U is the identity on
    the retained components.

    The rank is below d_model if a LayerNorm comes last: sum_k (h_k - beta_k) / gamma_k is 0 for all vectors. On the
    tokens it was fitted on, whitening maximises an isotropy score by construction, so a mean cosine near 0 is not a
    finding. Fit it on other text than the evaluation text.

    Args:
        moments: Moments of the tokens that the map is fitted on; without shrinkage, many more tokens than d_model.
        n_components: Number of directions to retain, by variance; None retains all.
        shrinkage: Weight, 0 to 1, of the isotropic part: (1 - shrinkage) Sigma + shrinkage tr(Sigma) / d_model I.
        floor: Share of the largest eigenvalue below which a direction is omitted.

    Raises:
        ValueError: If no neuron varies, or `n_components` or `shrinkage` are out of range.
    """
    d_model = len(moments.mean)
    if not (n_components is None or 1 <= n_components <= d_model):
        raise ValueError(f"n_components must be 1 to {d_model}, not {n_components}")
    if not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must be 0 to 1, not {shrinkage}")
    if not moments.varies:
        raise ValueError("no neuron varies: there is nothing to whiten")
    isotropic = moments.covariance.trace() / d_model * torch.eye(d_model, dtype=torch.float64)
    values, vectors = torch.linalg.eigh((1 - shrinkage) * moments.covariance + shrinkage * isotropic)
    values, vectors = values.flip(0), vectors.flip(1)
    retained = (values > floor * values[0]).nonzero().squeeze(1)[:n_components]
    matrix = vectors[:, retained] / values[retained].sqrt()
    matrix = matrix @ vectors[:, retained].T if method == "zca" else matrix
    return _map("whiten", moments.mean, matrix, len(retained))


def all_but_the_top(moments: Covariance, n_components: int | None = None) -> Transform:
    """Subtract the mean and the projection on the first principal components (Mu & Viswanath 2018, algorithm 1).

    x -> (I - U_D U_D') (x - mean), where U_D are the D directions that vary most. By default D (`n_components`) is
    d_model / 100 rounded down, but at least 1, as the authors advise.

    Raises:
        ValueError: If D is not below d_model.
    """
    d_model = len(moments.mean)
    n = max(1, d_model // 100) if n_components is None else n_components
    if not 0 <= n < d_model:
        raise ValueError(f"n_components must be 0 to {d_model - 1}, not {n}")
    _, vectors = torch.linalg.eigh(moments.covariance)
    top = vectors[:, d_model - n :]
    matrix = torch.eye(d_model, dtype=torch.float64) - top @ top.T
    return _map("all_but_the_top", moments.mean, matrix, d_model - n)


@dataclass(frozen=True)
class Fitting:
    """Parameters of `clip` (`clip_to`), `whiten`, and `all_but_the_top` (`n_top`)."""

    clip_to: ClipTo = "zero"
    whitening: Whitening = "pca"
    n_components: int | None = None
    shrinkage: float = 0.0
    n_top: int | None = None


def fit_transform(
    kind: TransformKind, moments: Covariance, outliers: Sequence[int], how: Fitting = Fitting()
) -> Transform:
    """Fit a transform; `outliers` are the neurons that `clip` sets, and other kinds ignore them."""
    if kind == "clip":
        return clip(moments, outliers, how.clip_to)
    if kind == "whiten":
        return whiten(moments, how.whitening, how.n_components, how.shrinkage)
    if kind == "all_but_the_top":
        return all_but_the_top(moments, how.n_top)
    return center(moments) if kind == "center" else standardise(moments)


def save(path: Path, transforms: Mapping[int, Transform]) -> None:
    """Write the transforms of some layers, of the same kind, as safetensors.

    For layer 6, for example, the file contains `06.shift`, `06.linear` and `06.offset` in float64; its metadata
    contains the kind and the rank of each layer.
    """
    tensors = {
        f"{layer:02d}.{name}": getattr(transform, name).contiguous().clone()
        for layer, transform in transforms.items()
        for name in ("shift", "linear", "offset")
    }
    (kind,) = {transform.kind for transform in transforms.values()}
    ranks = {layer: transform.rank for layer, transform in transforms.items()}
    write_tensors(path, tensors, {"kind": kind, "ranks": json.dumps(ranks)})


def load(path: Path) -> dict[int, Transform]:
    """Read the transforms that `save` wrote, by layer."""
    from safetensors import safe_open

    with safe_open(regular(path, path.parent), framework="pt") as file:

        def read(layer: int, rank: int) -> Transform:
            shift, linear, offset = (file.get_tensor(f"{layer:02d}.{name}") for name in ("shift", "linear", "offset"))
            return Transform(file.metadata()["kind"], shift, linear, offset, rank)

        return {int(layer): read(int(layer), rank) for layer, rank in parse_json(file.metadata()["ranks"]).items()}


# --------------------------------------------------------------------------------------------------------------------
# Linear erasure (LEACE), and examples whose activations are transformed, erased or restricted to some neurons.
# --------------------------------------------------------------------------------------------------------------------

# Eigenvalues of the neurons' correlation matrix below this share of the largest are rounding errors. The relative
# rounding error of float32 states is 6e-8, so that a direction without variance, which every LayerNorm leaves, has an
# eigenvalue of about 1e-14.
EIGENVALUE_CUT = 1e-10
# A neuron's standard deviation below this share of its mean is a rounding error too.
VARIES = 6e-8
# Canonical correlations between states and classes below this are rounding errors of the float64 sums.
CORRELATION_CUT = 1e-10


@dataclass(frozen=True)
class Eraser:
    """The map r(x) = x - W^+ P W (x - mean), with W^+ P W = left @ right of rank at most n_classes - 1 (LEACE).

    `mean`, of the tokens it was fitted on, is preserved. `left` has shape (d_model, rank), `right` (rank, d_model), all
    float64; right @ left is the identity.
    """

    mean: Tensor
    left: Tensor
    right: Tensor

    @property
    def rank(self) -> int:
        """Number of directions that are removed."""
        return self.left.shape[1]

    def apply(self, hidden_states: Tensor) -> Tensor:
        """Return the states, of the same shape (..., d_model) and dtype, without linear information about the class."""
        centred = hidden_states.double() - self.mean
        return (hidden_states.double() - (centred @ self.right.T) @ self.left.T).to(hidden_states.dtype)


class ErasureAccumulator:
    """Accumulates batches of a layer in float64 and returns their eraser."""

    def __init__(self, d_model: int, n_classes: int) -> None:
        self.moments = CovarianceAccumulator(d_model)
        self.counts = torch.zeros(n_classes, dtype=torch.float64)
        # Origin of the class sums: the mean of the first batch, which keeps the sums precise enough to tell classes
        # apart.
        self.origin: Tensor | None = None
        self.class_sums = torch.zeros(n_classes, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens and their labels, shapes (n, d_model) and (n,); n may be 0, and the label -1 is ignored."""
        labelled = labels >= 0
        states, classes = hidden_states[labelled], labels[labelled]
        if not len(states):
            return
        if self.origin is None:
            self.origin = states.mean(0, dtype=torch.float64)
        self.moments.update(states)
        self.counts += classes.bincount(minlength=len(self.counts))
        for rows, part_labels in zip(states.split(ROWS), classes.split(ROWS), strict=True):
            self.class_sums.index_add_(0, part_labels, rows.double() - self.origin)

    def result(self) -> Eraser:
        """Return the eraser fitted on all tokens added, at least one.

        Neurons are divided by their standard deviations before the eigenvectors are computed. This changes only the
        scale of the threshold for small eigenvalues. Directions below the threshold, and neurons that do not vary, stay
        unchanged.
        """
        moments = self.moments.result()
        mean, n_tokens, sd = moments.mean, moments.n_tokens, moments.sd
        inverse_sd = torch.where(sd > VARIES * mean.abs(), 1 / sd, 0.0)
        values, vectors = torch.linalg.eigh(inverse_sd[:, None] * moments.covariance * inverse_sd)
        retained = values > EIGENVALUE_CUT * values[-1]
        values, vectors = values[retained], vectors[:, retained]
        whiten = (vectors / values.sqrt()).T * inverse_sd
        # Class indicators divided by their standard deviations, so that singular values are canonical correlations.
        seen = self.counts > 0
        counts = self.counts[seen]
        centred = self.class_sums[seen] - counts[:, None] * (self.class_sums.sum(0) / n_tokens)
        cross = centred / (n_tokens * counts).sqrt()[:, None]
        directions, correlations, _ = torch.linalg.svd(whiten @ cross.T, full_matrices=False)
        directions = directions[:, correlations > CORRELATION_CUT][:, : len(counts) - 1]
        unwhiten = sd[:, None] * vectors * values.sqrt()
        return Eraser(mean, unwhiten @ directions, directions.T @ whiten)


def fit_erasers(train: Examples, layers: Sequence[int], n_classes: int) -> dict[int, Eraser]:
    """Return an eraser for each layer, fitted in one streamed pass."""
    accumulators = {layer: ErasureAccumulator(train.store.plan.d_model, n_classes) for layer in layers}
    for batch in read(train, layers):
        for accumulator, states in zip(accumulators.values(), batch.hidden_states, strict=True):
            accumulator.update(states, batch.labels)
    return {layer: accumulator.result() for layer, accumulator in accumulators.items()}


class TransformedStore:
    """A store that maps the hidden states of each layer by a function, (n, d_model of the store) to (n, d_model).

    If the task averages the pieces of a word, it does so after the map; for affine maps the order makes no difference.
    """

    n_constants = 0

    def __init__(
        self, store: HiddenStateSource, changes: Mapping[int, Callable[[Tensor], Tensor]], d_model: int | None = None
    ) -> None:
        self.store, self.changes = store, changes
        self.tokens: Tokens = store.tokens
        self.plan: StorePlan = replace(store.plan, d_model=d_model or store.plan.d_model)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the mapped hidden states of a shard, shape (n, d_model), in float32 or wider."""
        return self.changes[layer](self.store.read(layer, shard).float())


def without(sides: Sides, erasers: Mapping[int, Eraser]) -> Sides:
    """Return the sides with activations mapped by each layer's eraser."""
    return transformed(sides, {layer: eraser.apply for layer, eraser in erasers.items()})


def with_neurons(sides: Sides, neurons: Mapping[int, Sequence[int]]) -> Sides:
    """Return the sides with the activations of some neurons only, equally many in each layer.

    Raises:
        ValueError: If the numbers of neurons differ between layers.
    """
    d_model, *others = {len(selected) for selected in neurons.values()}
    if others:
        raise ValueError(f"all layers must have the same number of neurons, not {d_model} and {others[0]}")

    def pick(selected: Sequence[int]) -> Callable[[Tensor], Tensor]:
        columns = torch.as_tensor(selected)
        return lambda hidden_states: hidden_states[:, columns]

    changes = {layer: pick(selected) for layer, selected in neurons.items()}
    return sides.each(lambda examples: replace(examples, store=TransformedStore(examples.store, changes, d_model)))


# With zca, every layer keeps its width, and each whitened coordinate still belongs to a neuron.
HOW = Fitting(whitening="zca")


def moments_of(train: Examples, layers: Sequence[int]) -> dict[int, Covariance]:
    """Return mean and covariance of each layer's examples, in one streamed pass divided among ranks."""
    width, columns = train.store.plan.d_model, are_columns(train.store)
    accumulators = {layer: CovarianceAccumulator(width, columns) for layer in layers}
    for batch in read_share(train, layers):
        for accumulator, states in zip(accumulators.values(), batch.hidden_states, strict=True):
            accumulator.update(states)
    for accumulator in accumulators.values():
        accumulator.all_reduce(sum_over_ranks)
        accumulator.mean.limits = most_over_ranks(accumulator.mean.limits)
    return {layer: accumulator.result() for layer, accumulator in accumulators.items()}


def fit_each(kind: TransformKind, moments: Mapping[int, Covariance]) -> dict[int, Transform]:
    """Fit a transform for each layer; `clip` sets the outliers of the mean, if there are any."""
    return {
        layer: fit_transform(kind, of_layer, [o.neuron for o in by_mean_profile(of_layer.mean.numpy())], HOW)
        for layer, of_layer in moments.items()
    }


def clip_others(
    moments: Mapping[int, Covariance], transforms: Mapping[int, Transform], seed: int
) -> dict[int, Transform]:
    """Return for each layer a clip of as many other random neurons as possible, independent between layers."""
    clips = {}
    for layer, transform in transforms.items():
        outliers = transform.clipped
        n, generator = min(len(outliers), transform.n_out - len(outliers)), np.random.default_rng([seed, layer])
        clips[layer] = clip(moments[layer], random_neurons(transform.n_out, n, outliers, generator))
    return clips


def transformed(sides: Sides, transforms: Mapping[int, Callable[[Tensor], Tensor]]) -> Sides:
    """Return the sides with activations mapped by each layer's transform."""
    return sides.each(lambda examples: replace(examples, store=TransformedStore(examples.store, transforms)))


def transform_all(
    kind: TransformKind, sides: Sides, controls: Mapping[str, Sequence[Sides]], layers: Sequence[int], seed: int
) -> tuple[Sides, dict[str, list[Sides]], dict[int, Transform]]:
    """Return sides and controls transformed, and the transforms of the sides.

    Two controls are added: the untransformed sides, and for `clip` the same number of other neurons clipped. Controls
    with other activations have transforms fitted on their training examples. The control `token` is not transformed.
    """
    moments = moments_of(sides.train, layers)
    fitted = fit_each(kind, moments)

    def change(name: str, other: Sides) -> Sides:
        if name == "token":
            return other
        is_same = other.train.store is sides.train.store
        return transformed(other, fitted if is_same else fit_each(kind, moments_of(other.train, layers)))

    changed = {name: [change(name, draw) for draw in draws] for name, draws in controls.items()}
    changed["untransformed"] = [sides]
    if kind == "clip":
        changed["others_clipped"] = [transformed(sides, clip_others(moments, fitted, seed))]
    return transformed(sides, fitted), changed, fitted


# --------------------------------------------------------------------------------------------------------------------
# Probes with an intercept: they read centred neurons and a constant, whose weights are the intercept.
# --------------------------------------------------------------------------------------------------------------------

# The constant feature. Its weights are penalised like all others, so that the bound on the distance to the optimum
# holds; at this size the intercept is penalised by only a 10,000th of that and is nearly free.
CONSTANT = 100.0


class WithConstant(TransformedStore):
    """A store that maps hidden states by a centring transform without offset, and appends the constant."""

    n_constants = 1

    def __init__(self, store: HiddenStateSource, transforms: Mapping[int, Transform]) -> None:
        width = store.plan.d_model + 1
        super().__init__(store, {layer: _and_constant(transform) for layer, transform in transforms.items()}, width)


def _and_constant(transform: Transform) -> Callable[[Tensor], Tensor]:
    """Return a function from hidden states of shape (n, d_model) to images and the constant, (n, n_out + 1)."""

    def change(hidden_states: Tensor) -> Tensor:
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        changed = hidden_states.new_full((len(hidden_states), transform.n_out + 1), CONSTANT, dtype=dtype)
        images = changed[:, :-1]
        if transform.linear.ndim == 1:  # in place, because new pages of memory take longer than the arithmetic
            subtract_(images.copy_(hidden_states), transform.shift).mul_(transform.linear.to(changed))
        else:
            images.copy_(transform(hidden_states))
        return changed

    return change


def centred(
    sides: Sides, controls: Mapping[str, Sequence[Sides]], layers: Sequence[int]
) -> tuple[Sides, dict[str, list[Sides]], dict[int, Transform]]:
    """Return sides and controls whose neurons have mean 0 on training examples, and the transforms of the sides.

    Transformed activations are centred by a single transform of the original ones. Controls with other activations have
    separate means. The control `token` has only the first layer.
    """
    fitted: dict[int, dict[int, Transform]] = {}
    stores = ChangedOnce()

    def centre(uncentred: Sides, of_layers: Sequence[int]) -> Sides:
        key = id(uncentred.train.store)
        if key not in fitted:
            fitted[key] = _centring(uncentred.train, of_layers)
        return stores.change(uncentred, lambda store: TransformedStore(_original(store), fitted[key]))

    changed = centre(sides, layers)
    others = {
        name: [centre(draw, layers[:1] if name == "token" else layers) for draw in draws]
        for name, draws in controls.items()
    }
    return changed, others, fitted[id(sides.train.store)]


def with_constant(sides: Sides, controls: Mapping[str, Sequence[Sides]]) -> tuple[Sides, dict[str, list[Sides]]]:
    """Return sides and controls from `centred`, with the constant appended to their neurons."""
    stores = ChangedOnce()

    def add(centred_sides: Sides) -> Sides:
        return stores.change(centred_sides, lambda store: WithConstant(_original(store), _transforms(store)))

    return add(sides), {name: [add(draw) for draw in draws] for name, draws in controls.items()}


class ChangedOnce:
    """A change of activations, by which sides that share activations still share them; it must not outlive them."""

    def __init__(self) -> None:
        # With the store before the change, so that no other store gets its id.
        self._changed: dict[int, tuple[HiddenStateSource, HiddenStateSource]] = {}

    def change(self, sides: Sides, change: Callable[[HiddenStateSource], HiddenStateSource]) -> Sides:
        """Return the sides with each store changed, by `change` unless it has been changed before."""

        def of(examples: Examples) -> Examples:
            store = examples.store
            if id(store) not in self._changed:
                self._changed[id(store)] = store, change(store)
            return replace(examples, store=self._changed[id(store)][1])

        return sides.each(of)


def _centring(train: Examples, layers: Sequence[int]) -> dict[int, Transform]:
    """Return for each layer the transform of the original activations that centres them, also if it does more."""
    moments, before = moments_of(replace(train, store=_original(train.store)), layers), _transforms(train.store)
    return {
        layer: before[layer].centred_on(layer_moments.mean) if layer in before else center(layer_moments)
        for layer, layer_moments in moments.items()
    }


def _transforms(store: HiddenStateSource) -> dict[int, Transform]:
    """Return the transform of each layer; empty if the activations are not transformed."""
    changes = store.changes if isinstance(store, TransformedStore) else {}
    return {layer: change for layer, change in changes.items() if isinstance(change, Transform)}


def _original(store: HiddenStateSource) -> HiddenStateSource:
    """Return the activations before they were transformed."""
    return store.store if isinstance(store, TransformedStore) and _transforms(store) else store


def moments_with_constant(moments: Moments, scaling: Scaling | None = None) -> Moments:
    """Return the moments of centred (and scaled) neurons and the constant, whose sd is set to 1 to count as live."""
    covariance, sd = moments.covariance, moments.sd
    if scaling is not None:
        covariance, sd = scaling.products(covariance), scaling.features(sd)
    mean = torch.cat([torch.zeros_like(moments.mean), torch.tensor([CONSTANT], dtype=torch.float64)])
    sd = torch.cat([sd, torch.ones(1, dtype=torch.float64)])
    constant = moments.constant
    if constant is not None:
        constant = torch.cat([constant, torch.zeros(1, dtype=torch.bool)])
    # The constant has covariance 0.
    return Moments(moments.n_tokens, mean, sd, torch.nn.functional.pad(covariance, (0, 1, 0, 1)), constant)


def scaled_transform(scaling: Scaling) -> Transform:
    """Return the map that centres neurons and scales them."""
    mean, inverse = scaling.moments.mean, scaling.inverse
    return Transform("standardise", mean, inverse, torch.zeros_like(mean), int(inverse.count_nonzero()))


def of_neurons(fit: LayerFit) -> LayerFit:
    """Return a probe of neurons and the constant, (n_classes, d_model + 1), as a probe of neurons and intercept."""
    moments = fit.moments
    return replace(
        fit,
        weight=fit.weight[:, :-1].clone(),
        moments=Moments(
            moments.n_tokens,
            moments.mean[:-1],
            moments.sd[:-1],
            moments.covariance[:-1, :-1],
            None if moments.constant is None else moments.constant[:-1],
        ),
        intercept=CONSTANT * fit.weight[:, -1],
    )


def feature_store(store: HiddenStateSource) -> FeatureStore | None:
    """Return the store of features behind `store`; None if there is none."""
    while isinstance(store, TransformedStore | SentenceVectors):
        store = store.store if isinstance(store, TransformedStore) else store.base
    return store if isinstance(store, FeatureStore) else None
