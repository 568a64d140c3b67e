"""What is measured of every checkpoint: outliers, how well positions are read off, and whether order matters."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probing.cache.source import ActivationSource
from probing.cli.options import ProbeOptions
from probing.corpus import Corpus
from probing.corpus.splits import Split, side_of, split_key
from probing.data.controls import token_identity
from probing.data.labelling import read_sides
from probing.data.module import layer_moments
from probing.models import load_encoder
from probing.probes.training import CONTROL_TOLERANCE, Training, train_controls, train_probes, training_of
from probing.runtime.arithmetic import generator_of
from probing.runtime.processes import is_main_process, sum_over_ranks
from probing.statistics.moments import Profile, ProfileAccumulator, by_mean_profile
from probing.tasks import load_task

# Options of the probes, as in `disable`: at this tolerance accuracy no longer changes, and one penalty for all
# checkpoints makes them comparable.
PROBE = ProbeOptions(l2=1e-4, tolerance=CONTROL_TOLERANCE)
# Rows of held-out text whose tokens are permuted.
PERMUTED_ROWS = 64

Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """What is read by every checkpoint.

    Args:
        corpus: Sentences that were held out of the training.
        splits: For the probes, the side of each sentence.
        rows: Packed rows whose tokens are permuted, shape (n_rows, row_length).
        seed: Seed of the split and of the permutations.
        cache: Folder in which activations are kept while a checkpoint is measured.
        trainer: Arguments of Lightning's Trainer that say where to compute.
    """

    corpus: Corpus
    splits: Sequence[Split]
    rows: Tensor
    seed: int
    cache: Path
    trainer: Mapping[str, Any]

    @classmethod
    def of(
        cls, corpus: Corpus, rows: Tensor, n_sentences: int, seed: int, cache: Path, trainer: Mapping[str, Any]
    ) -> Subject:
        """Return the subject, with at most `n_sentences` of the held-out sentences, evenly spread over the text."""
        step = max(1, -(-len(corpus.sentences) // n_sentences))
        read = corpus.subset(range(0, len(corpus.sentences), step))
        # The hash needs another salt than that of the division of the text, which puts all these sentences on one side.
        splits = [side_of(f"probe {split_key(sentence)}", seed) for sentence in read.sentences]
        own = {name: trainer[name] for name in ("accelerator", "devices", "num_nodes", "strategy") if name in trainer}
        return cls(read, splits, rows[:PERMUTED_ROWS].long(), seed, cache, own)


def measure(checkpoint: Path, subject: Subject, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each layer of a checkpoint.

    Args:
        checkpoint: Folder of the checkpoint.
        subject: What it reads.
        say: Takes messages.
    """
    cache = subject.cache / f"{checkpoint.parent.name}-{checkpoint.name}"
    source = ActivationSource.of(str(checkpoint), None, "all", subject.trainer, cache=cache, say=say)
    try:
        text = [subject.corpus], [subject.splits]
        sides, stores = read_sides(source, *text, load_task("position", {}), PROBE, "sentence")
        encoder, layers, training = load_encoder(source.model), source.layers, _training(subject)
        fits = train_probes(sides, layers, training, moments=layer_moments(sides.train, layers))
        token = train_controls({"token": [token_identity(sides, encoder)]}, layers, training)["token"][0][0]
        differences = equivariance(encoder, subject.rows, subject.seed)
        found = []
        for layer, fit, difference in zip(layers, fits, differences, strict=True):
            found.append(
                {
                    "layer": layer, **outlier_row(_profile(stores[0], layer)),
                    "position_accuracy": fit.metrics["accuracy"], "token_accuracy": token.metrics["accuracy"],
                    "equivariance": difference,
                }
            )  # fmt: skip
        return found
    finally:
        sum_over_ranks(torch.zeros(1))  # every process has read what is removed now
        if is_main_process():
            shutil.rmtree(cache, ignore_errors=True)


def _training(subject: Subject) -> Training:
    assert PROBE.l2 != "auto"
    return training_of(PROBE, PROBE.l2, subject.seed, dict(subject.trainer))


def _profile(store: Any, layer: int) -> Profile:
    """Return the profile of a layer without special tokens."""
    accumulator = ProfileAccumulator(store.plan.d_model)
    for shard in store.plan.shards:
        counts = torch.from_numpy(~store.tokens.special[store.shard_tokens(shard)])
        accumulator.update(store.read(layer, shard.index)[counts].float())
    return accumulator.result()


def outlier_row(profile: Profile) -> Row:
    """Return the columns on the neuron whose mean is farthest from the mean neuron's.

    `outlier_neuron` is None where that neuron is no outlier: it then deviates by 5 sd or less. The shares are those of
    the tokens in which this neuron is the largest, or the smallest.
    """
    (farthest, *_) = by_mean_profile(profile.mean, deviations=-1.0)
    k = farthest.neuron
    named = {"outlier_neuron": k if any(one.neuron == k for one in by_mean_profile(profile.mean)) else None}
    shares = {"argmax_share": float(profile.argmax_share[k]), "argmin_share": float(profile.argmin_share[k])}
    return {**named, "max_mean_sd": abs(farthest.value), **shares}


@torch.no_grad()
def equivariance(encoder: nn.Module, rows: Tensor, seed: int) -> list[float]:
    """Return for each layer how far it is from commuting with permutations of the tokens.

    Every row is read as it is and with all of its tokens in a random order. The value is the largest difference between
    the states of a token in the two orders, divided by the root mean square of the states of the layer. It is
    0 but for rounding where nothing tells the model the positions of tokens.

    Args:
        encoder: The encoder, in evaluation mode.
        rows: Token ids, shape (n_rows, row_length).
        seed: Seed of the permutations.
    """
    noise = torch.rand(rows.shape, generator=generator_of(seed, "permutation"))
    order = noise.argsort(dim=1)
    of_rows, of_permuted = (
        encoder(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True).hidden_states
        for ids in (rows, rows.gather(1, order))
    )
    found = []
    for states, permuted in zip(of_rows, of_permuted, strict=True):
        expected = states.gather(1, order[:, :, None].expand_as(states))
        scale = float(np.sqrt((states.double() ** 2).mean()))
        found.append(float((permuted - expected).abs().max()) / scale if scale > 0 else 0.0)
    return found
