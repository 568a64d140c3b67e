"""A tiny model whose units are disabled: its text, random probes, and what the whole model makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probing.cache import ActivationStore, Request, activations
from probing.corpus import Corpus
from probing.disabling.probed_task import Job, Passes
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.readouts.forward import Readers, Readout, draw_text
from probing.readouts.frozen_probes import ProbeReadout, Probes

N_CLASSES = 9


def weights_of(encoder: nn.Module, part: str, block: int) -> Any:
    """Return one of the linear maps of a block of BERT."""
    module: Any = encoder
    layer = module.encoder.layer[block - 1].attention
    return layer.output.dense if part == "output" else getattr(layer.self, part)


class Case:
    """A tiny model, the cached states of some sentences, and probes with random weights.

    Args:
        folder: The model's folder.
        cache: The folder of the cache.
        sentences: The sentences, the first 20 of which are read; the others are those that replace them.
        change: Changes the weights first.
    """

    def __init__(
        self, folder: Path, cache: Path, sentences: list[str], change: Callable[[nn.Module], None] | None = None
    ) -> None:
        source = resolve_model(str(folder))
        self.encoder, self.pad = load_encoder(source), load_tokenizer(source).pad_token_id or 0
        if change is not None:
            with torch.no_grad():
                change(self.encoder)
            self.encoder.save_pretrained(folder)  # type: ignore[operator]
            source = resolve_model(str(folder))
        config: Any = self.encoder.config
        n_layers = config.num_hidden_layers
        corpus = Corpus("test", tuple(sentences[:40]))
        self.store: ActivationStore = activations(
            Request(source, corpus, range(n_layers + 1)), cache, {"accelerator": "cpu"}
        )
        first = np.arange(40) < 20
        self.text, self.train = (draw_text(self.store, which, 10_000, 0) for which in (first, ~first))
        d_model = self.store.plan.d_model
        generator = torch.Generator().manual_seed(1)
        weight = {k: torch.randn(N_CLASSES, d_model, generator=generator) for k in range(1, n_layers + 1)}
        labels = torch.randint(-1, N_CLASSES, (self.text.tokens.n_tokens,), generator=generator)
        self.probes = Probes(weight, labels)

    def passes(self, batch_tokens: int = 256) -> Reading:
        readers = Readers.of(self.encoder, self.pad, "tiny")
        passes = Passes(readers, self.text, self.train, batch_tokens, seed=0)
        return Reading(passes, ProbeReadout(self.text, self.probes, readers.device))


class Reading:
    """Passes, all of which are read out by the same readout."""

    def __init__(self, passes: Passes, readout: Readout) -> None:
        self.passes, self.readout = passes, readout
        self.model, self.replacements = passes.model, passes.replacements

    def run(self, job: Job) -> Tensor:
        return self.passes.run(job, self.readout)


def of_whole_model(case: Case, layer: int) -> Tensor:
    """Return how many examples of each sentence a probe gets right, each sentence read alone by the whole model."""
    tokens, right = case.text.tokens, []
    for i in range(tokens.n_sentences):
        rows = tokens.of_sentences(i, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
        states = hidden_states(
            case.encoder, examine(case.encoder, case.pad), [layer], input_ids=ids, attention_mask=torch.ones_like(ids)
        )[layer][0]
        labels = case.probes.labels[rows]
        right.append(((states @ case.probes.weight[layer].T).argmax(1) == labels)[labels >= 0].sum())
    return torch.stack(right).float()
