"""Names of layers and sites, `--layer`, and the alignment of the layers of two models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from probing.errors import UserError
from probing.models.dictionary_folders import PREFIX, folder_of, is_dictionary, layout_at

SiteName = Literal["residual", "mlp", "attention"]

# What a neuron of layer k is, in a few words for a table; activations that are given as arrays have columns.
NEURON: Mapping[str, str] = {
    "residual": "coordinate of the residual stream",
    "mlp": "unit of the MLP inside the block, after its activation function",
    "attention": "coordinate of a head's output inside the block, before the output projection",
    "arrays": "column of the given activations",
}


def site_of(config: Mapping[str, Any]) -> str:
    """Return the site of a run's neurons, or `arrays`; configurations of earlier versions do not name it."""
    return "arrays" if "arrays" in config else str(config.get("site", "residual"))


def is_inside_blocks(site: str) -> bool:
    """Whether the neurons of layer k are inside block k; there are none before block 1, where embeddings are."""
    return site in ("mlp", "attention")


def is_site(site: Any) -> bool:
    """Whether `fit` takes this as a site: one of the model's own, or the folder of a dictionary."""
    return site in get_args(SiteName) or (isinstance(site, str) and is_dictionary(site) and site != PREFIX)


def is_site_of_run(site: Any) -> bool:
    """Whether a run's configuration may have this as its site."""
    return site in NEURON or is_site(site)


def _check_site(site: str) -> None:
    """Refuse what is neither one of the model's own sites nor the folder of a dictionary."""
    if not is_site(site):
        raise UserError(
            f"`--site {site}`: expected {', '.join(get_args(SiteName))}, or {PREFIX}FOLDER with the folder of a sparse "
            "autoencoder."
        )


def neuron_of(site: str) -> str:
    """Return what a neuron of a site is, in a few words."""
    return f"feature of the sparse autoencoder in {folder_of(site)}" if is_dictionary(site) else NEURON[site]


def what_is_a_neuron(site: str) -> str:
    """Return the line of a table's caption that says what a neuron is."""
    return f"neuron: {neuron_of(site)}"


def site_in_names(site: str) -> str:
    """Return what the name of a run says of its site; nothing of the residual stream and of arrays."""
    if is_dictionary(site):
        return f" sae {folder_of(site).name}"
    return f" {site}" if is_inside_blocks(site) else ""


def parse_layers(layer: int | str | Sequence[int], n_layers: int, model: str, site: str = "residual") -> list[int]:
    """Turn `6`, `"0,3,6"`, `[0, 3]`, `-1` or `"all"` into ascending layer numbers; -1 is the last layer.

    Args:
        layer: Layers, as typed.
        n_layers: Number of blocks.
        model: The model's name as the user typed it.
        site: The site; only the residual stream has a layer 0, and a dictionary is of one layer.

    Raises:
        UserError: If there is no such site, or a layer is not a whole number from its first layer to `n_layers`, or not
            the dictionary's.
    """
    _check_site(site)
    layers = layer_numbers(layer)
    if layers is not None:
        layers = from_the_end(layers, range(n_layers + 1))
    if is_dictionary(site):
        found = layout_at(site, layers, model, n_layers).layer
        assert found is not None
        return [found]
    if layers is None:
        return list(range(int(is_inside_blocks(site)), n_layers + 1))
    if is_inside_blocks(site) and (out := [k for k in layers if not 1 <= k <= n_layers]):
        raise UserError(
            f"`--layer {_typed_layers(layer)}`: with `--site {site}`, layer k is inside block k, so {model} has "
            f"layers 1 to {n_layers}, and not {out[0]}."
        )
    if out := [k for k in layers if not 0 <= k <= n_layers]:
        typed = _typed_layers(layer)
        raise UserError(f"`--layer {typed}`: {model} has layers 0 (embeddings) to {n_layers}, so not {out[0]}.")
    return layers


def layer_numbers(layer: int | str | Sequence[int]) -> list[int] | None:
    """Return the requested layers, ascending, or None for all; -1 stays -1, because no model is given here.

    Raises:
        UserError: If a layer is not a whole number.
    """
    typed = _typed_layers(layer) or "[]"
    try:
        return None if typed == "all" else sorted({number for part in typed.split(",") for number in _numbers(part)})
    except ValueError:
        raise UserError(
            f"`--layer {typed}` is not a layer: expected a number, a list such as 0,3,6, a range such as 3-6, -1 for "
            "the last, or all."
        ) from None


def _numbers(part: str) -> Iterable[int]:
    """Return the numbers of a range such as 3-6, both ends included, or a number alone.

    Raises:
        ValueError: If it is neither.
    """
    if not (ends := re.fullmatch(r"(\d{1,4})-(\d{1,4})", part.strip())):
        return [int(part)]
    if not (found := range(int(ends[1]), int(ends[2]) + 1)):
        raise ValueError(part)
    return found


def from_the_end(layers: Sequence[int], there: Sequence[int]) -> list[int]:
    """Return layer numbers, ascending, with each negative number replaced by `there[number]`, counted from the end."""
    return sorted({there[k] if -len(there) <= k < 0 else k for k in layers})


def _typed_layers(layer: int | str | Sequence[int]) -> str:
    return str(layer) if isinstance(layer, int | str) else ",".join(map(str, layer))


def aligned(a: Sequence[int], b: Sequence[int], n_blocks: tuple[int, int]) -> list[tuple[int, int]]:
    """Pair the layers of two runs that are at the same relative depth, the layer's number over the number of blocks.

    Two layers are paired if each is the other's nearest, the lower one of two as near, and they are apart by less than
    half a block of the model with fewer blocks. So layers of two models of one depth are paired if their numbers are
    equal, and no layer has two partners.

    Args:
        a: Layer numbers of one run.
        b: Layer numbers of the other.
        n_blocks: Number of blocks of the model of each.

    Returns:
        Pairs of indices into `a` and `b`.
    """

    def apart(i: int, j: int) -> int:
        return abs(a[i] * n_blocks[1] - b[j] * n_blocks[0])

    of_a = [min((apart(i, j), b[j], j) for j in range(len(b)))[2] for i in range(len(a))]
    of_b = [min((apart(i, j), a[i], i) for i in range(len(a)))[2] for j in range(len(b))]
    return [(i, j) for i, j in enumerate(of_a) if of_b[j] == i and 2 * apart(i, j) < max(*n_blocks, 1)]
