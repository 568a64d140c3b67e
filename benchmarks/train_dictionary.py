"""Train a small sparse autoencoder on a layer of a model, in minutes on two cores, for `fit --site sae:FOLDER`.

    python -m benchmarks.train_dictionary runs/dictionary --layer 3

A TopK autoencoder (Gao et al. 2024, arXiv 2406.04093): x is read without the mean of the training tokens, the k highest
of `--features` features stay, and the decoder's vectors have length 1. Features that were active on none of the last
tokens are trained to explain what the others leave. It reads the hidden states of all but special tokens from the cache
that `fit` reads. The test sentences that `fit` has with the same corpus and seed are left out; on them it prints the
share of the variance that is explained, the number of active features a token (L0), and how many features are active on
no training token. The folder has the layout of SAELens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from probing.activations.source import ActivationSource
from probing.activations.store import ActivationStore, cache_folder
from probing.errors import UserError
from probing.models import CONFIG, SAELENS_WEIGHTS
from probing.models.sites import Dictionary, highest
from probing.runtime import quiet_libraries, terminal
from probing.text import read_corpora

BATCH, LEARNING_RATE = 1024, 1e-3
# Tokens without which a feature counts as dead, the number of dead ones that explain the rest, and their weight.
DEAD_AFTER, N_DEAD, DEAD_WEIGHT = 20_000, 64, 1 / 32


class Autoencoder(nn.Module):
    """A TopK autoencoder.

    Args:
        centre: Mean of the training tokens, shape (d_in,), with which the decoder's bias begins.
        n_features: Number of features.
        k: Number of features that stay.
        generator: Draws the directions with which features begin.
    """

    def __init__(self, centre: Tensor, n_features: int, k: int, generator: torch.Generator) -> None:
        super().__init__()
        directions = torch.nn.functional.normalize(torch.randn(n_features, len(centre), generator=generator))
        self.decoder, self.encoder = nn.Parameter(directions.clone()), nn.Parameter(directions.T.clone())
        self.bias, self.centre, self.k = nn.Parameter(torch.zeros(n_features)), nn.Parameter(centre.clone()), k

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activations before and after the k highest are taken, each of shape (n, n_features)."""
        before = torch.relu((states - self.centre) @ self.encoder + self.bias)
        return before, highest(before, self.k)

    @torch.no_grad()
    def normalise(self) -> None:
        """Give the decoder's vectors length 1."""
        self.decoder.div_(self.decoder.norm(dim=1, keepdim=True))

    def dictionary(self) -> Dictionary:
        """Return the encoder as `fit` reads it."""
        weight, bias, centre = self.encoder.detach(), self.bias.detach(), self.centre.detach()
        return Dictionary("topk", weight, bias, subtracted=centre, k=self.k)


def trained(states: Tensor, n_features: int, k: int, epochs: int, seed: int) -> Autoencoder:
    """Train an autoencoder on hidden states, shape (n, d_in), by Adam; the rate falls to 0 over the last fifth."""
    generator = torch.Generator().manual_seed(seed)
    made = Autoencoder(states.mean(0), n_features, k, generator)
    # States are divided by one number, so that the rate suits any model; the weights are scaled back below.
    scale = float((states - states.mean(0)).square().mean().sqrt())
    states = states / scale
    made.centre.data /= scale
    optimiser = torch.optim.Adam(made.parameters(), LEARNING_RATE)
    n_steps, step, idle = epochs * (len(states) // BATCH or 1), 0, torch.zeros(n_features)
    for _ in range(epochs):
        for rows in torch.randperm(len(states), generator=generator).split(BATCH)[: len(states) // BATCH or 1]:
            x = states[rows]
            before, active = made(x)
            error = x - made.centre - active @ made.decoder
            loss = error.square().sum(1).mean()
            idle = torch.where((active > 0).any(0), 0.0, idle + len(rows))
            if bool((dead := idle > DEAD_AFTER).any()):
                rest = highest(before * dead, N_DEAD) @ made.decoder
                loss = loss + DEAD_WEIGHT * (error.detach() - rest).square().sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, 5 * (1 - step / n_steps))
            optimiser.step()
            made.normalise()
            step += 1
    # relu(s a) = s relu(a), so that biases and the centre alone carry the scale.
    made.bias.data *= scale
    made.centre.data *= scale
    return made


def figures(made: Autoencoder, train: Tensor, test: Tensor) -> dict[str, float]:
    """Return the explained share of the variance and L0 on test tokens, and the number of dead features of training."""
    with torch.no_grad():
        rest = squares = n_active = 0.0
        for x in test.split(BATCH):
            active = made(x)[1]
            rest += float((x - made.centre - active @ made.decoder).double().square().sum())
            squares += float((x - test.mean(0)).double().square().sum())
            n_active += int((active > 0).sum())
        seen = torch.stack([(made(x)[1] > 0).any(0) for x in train.split(BATCH)]).any(0)
    return {"explained_variance": 1 - rest / squares, "l0": n_active / len(test), "n_dead": int((~seen).sum())}


def write(made: Autoencoder, folder: Path, model: str, layer: int, n_layers: int) -> None:
    """Write the autoencoder in the layout of SAELens."""
    folder.mkdir(parents=True)
    tensors = {"W_enc": made.encoder, "W_dec": made.decoder, "b_enc": made.bias, "b_dec": made.centre}
    save_file({name: one.detach().contiguous() for name, one in tensors.items()}, folder / SAELENS_WEIGHTS)
    # What enters block k is layer k in every model; after the last block there may be a norm, and the hook has no name.
    hook = f"blocks.{layer}.hook_resid_pre" if layer < n_layers else None
    d_in, d_sae = made.encoder.shape
    config = {
        "architecture": "topk", "d_in": d_in, "d_sae": d_sae, "k": made.k, "dtype": "float32", "device": "cpu",
        "apply_b_dec_to_input": True, "normalize_activations": "none", "reshape_activations": "none",
        "rescale_acts_by_decoder_norm": False,
        "metadata": {
            "model_name": model, "hook_name": hook, "sae_lens_version": "6.0.0",
            "model_from_pretrained_kwargs": {"center_writing_weights": False},
        },
    }  # fmt: skip
    (folder / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")


def states_of(store: ActivationStore, layer: int, sentences: Sequence[int]) -> Tensor:
    """Return the hidden states of the tokens of some sentences that are not special, shape (n, d_model), float32."""
    taken = np.isin(store.tokens.sentences, np.asarray(sentences)) & ~store.tokens.special
    parts = [
        store.read(layer, shard.index)[torch.from_numpy(taken[shard.rows(store.tokens)])].float()
        for shard in store.plan.shards
    ]
    return torch.cat(parts)


def main(typed: Sequence[str] | None = None) -> dict[str, float]:
    """Read hidden states, train, write, and print what the autoencoder explains; return these numbers."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="where to write it; a new folder")
    options.add_argument("--model", default="minilm")
    options.add_argument("--layer", type=int, default=3)
    options.add_argument("--corpus", default="builtin")
    options.add_argument("--features", type=int, default=1536)
    options.add_argument("--k", type=int, default=32, help="number of features that are active on a token")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--seed", type=int, default=0, help="also of the split of the corpus, as in `fit`")
    options.add_argument("--cache", default=None, help="as of `fit`")
    given = options.parse_args(typed)
    if given.folder.exists():
        raise UserError(f"`{given.folder}` exists; name a new folder.")
    if not 1 <= given.k <= given.features:
        raise UserError(f"`--k {given.k}`: expected 1 to {given.features}, the number of features.")
    start = time.perf_counter()
    corpora, splits = read_corpora(given.corpus, None, given.seed, terminal.say, "auto")
    with quiet_libraries():
        source = ActivationSource.of(given.model, None, given.layer, None, cache=cache_folder(given.cache))
        (store,) = source.read(corpora)
    (layer,) = source.layers
    own = {
        part: [i for i, side in enumerate(splits[0]) if (side == "test") == (part == "test")]
        for part in ("train", "test")
    }
    train, test = (states_of(store, layer, own[part]) for part in ("train", "test"))
    made = trained(train, given.features, given.k, given.epochs, given.seed)
    found = figures(made, train, test)
    write(made, given.folder, given.model, layer, source.config.num_hidden_layers)
    print(
        f"{given.folder}: {given.features:,} features of layer {layer} of {given.model}, from {len(train):,} tokens in "
        f"{time.perf_counter() - start:.0f} s; on {len(test):,} test tokens {found['explained_variance']:.1%} of the "
        f"variance is explained by {found['l0']:.1f} active features; {found['n_dead']:,.0f} are active on no training "
        "token"
    )
    return found


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
