"""Small models in which something is changed, ablated, an outlier or tuned, and tiny trainings of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

from conftest import make_sentences
from families import untouched
from probing.activations import ActivationStore, Request, activations
from probing.interventions.forward import Readers, Readout, draw_text
from probing.interventions.frozen_probes import ProbeReadout
from probing.interventions.heads import AblationJob, HeadPasses
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.runtime import quiet_libraries
from probing.text import Corpus, from_sentences
from probing.text.tokens import Tokens

# The block whose queries `other_queries` changes, from 1.
CHANGED = 2


def tuned(folder: Path, change: Callable[[Any], None]) -> Path:
    """Save a copy of a checkpoint beside it, after a function has changed its model in place."""
    other = folder.with_name(f"{folder.name}-tuned")
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    model = untouched(folder)
    with torch.no_grad():
        change(model)
    model.save_pretrained(other)
    return other


def other_queries(model: Any) -> None:
    """Draw the query matrix of one block of BERT anew."""
    query = model.encoder.layer[CHANGED - 1].attention.self.query.weight
    query.copy_(torch.randn(query.shape, generator=torch.Generator().manual_seed(0)))


def other_padding(model: Any) -> None:
    """Draw the embedding of BERT's padding token anew, which changes the rows of padding alone."""
    row = model.embeddings.word_embeddings.weight[0]
    row.copy_(torch.randn(row.shape, generator=torch.Generator().manual_seed(0)))


def other_second_sentences(model: Any) -> None:
    """Draw the embedding of BERT's second token type anew, which changes pairs of sentences alone."""
    row = model.embeddings.token_type_embeddings.weight[1]
    row.copy_(torch.randn(row.shape, generator=torch.Generator().manual_seed(0)))


def asked(folder: Path, n: int = 30, longest: int = 8) -> Request:
    """Return what is asked of a checkpoint: all its layers over a few sentences."""
    corpus = from_sentences("made up", make_sentences(n, longest=longest))
    return Request(resolve_model(str(folder)), corpus, (0, 1, 2, 3), batch_tokens=150)


D_MODEL, N_LAYERS, VOCABULARY = 64, 2, 90


def make_wide(family: str, **own: Any) -> Any:
    """Return a random encoder in evaluation mode; its norms are near the identity, and no neuron stands out."""
    from transformers import CONFIG_MAPPING, AutoModel

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": D_MODEL, "num_hidden_layers": N_LAYERS, "num_attention_heads": 4,
        "intermediate_size": 96, "max_position_embeddings": 40, "pad_token_id": 0,
    }  # fmt: skip
    names = {"distilbert": {"dim": D_MODEL, "n_layers": N_LAYERS, "n_heads": 4, "hidden_dim": 96}}
    make_config: Any = CONFIG_MAPPING[family]
    model: Any = AutoModel.from_config(make_config(**{**sizes, **names.get(family, {}), **own})).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = 1.0 if parameter.ndim == 1 and ("norm" in name.lower() or "ln_" in name) else 0.0
            gain = 0.0 if name.endswith("bias") else gain
            parameter.copy_(gain + 0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def make_wide_tokens(n_sentences: int = 14) -> Tokens:
    """Return sentences of 5 to 18 tokens, the first and the last one special, the first one always the same."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 19, n_sentences).astype(np.int32)
    ids, words = [], []
    for n in lengths:
        ids += [5, *generator.integers(7, VOCABULARY, n - 2), 6]
        words += [-1, *range(n - 2), -1]
    return Tokens(lengths, np.array(ids, dtype=np.int32), np.array(words, dtype=np.int16))


def each_alone(tokens: Tokens) -> list[tuple[slice, torch.Tensor]]:
    """Return the rows and the ids of each sentence, to be run by itself."""
    rows = [tokens.of_sentences(i, 1) for i in range(tokens.n_sentences)]
    return [(here, torch.from_numpy(tokens.input_ids[here].astype(np.int64))[None]) for here in rows]


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
        self.weight, self.labels = weight, labels

    def passes(self, batch_tokens: int = 256) -> Reading:
        readers = Readers.of(self.encoder, self.pad, "tiny")
        passes = HeadPasses(readers, self.text, self.train, batch_tokens, seed=0)
        return Reading(passes, ProbeReadout(self.text, self.weight, self.labels, readers.device))


class Reading:
    """Passes, all of which are read out by the same readout."""

    def __init__(self, passes: HeadPasses, readout: Readout) -> None:
        self.passes, self.readout = passes, readout
        self.model, self.replacements = passes.model, passes.replacements

    def run(self, job: AblationJob) -> Tensor:
        return self.passes.read(job, self.readout)


def of_whole_model(case: Case, layer: int) -> Tensor:
    """Return how many examples of each sentence a probe gets right, each sentence read alone by the whole model."""
    tokens, right = case.text.tokens, []
    for i in range(tokens.n_sentences):
        rows = tokens.of_sentences(i, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
        states = hidden_states(
            case.encoder, examine(case.encoder, case.pad), [layer], input_ids=ids, attention_mask=torch.ones_like(ids)
        )[layer][0]
        labels = case.labels[rows]
        right.append(((states @ case.weight[layer].T).argmax(1) == labels)[labels >= 0].sum())
    return torch.stack(right).float()


SENTENCES = make_sentences(110, seed=5, longest=16)
# What a probe of a model of 16 neurons needs to be trained in few passes.
OPTIONS: dict[str, Any] = {"layer": [1, 3], "probe": {"l2": 0.1}}
WARNINGS = (
    "ignore:.*(does not have many workers|number of training batches|in eval mode at the start):UserWarning",
    "ignore:.*tensorboardX:UserWarning",
    "ignore:.*pin_memory:UserWarning",
)


class Lengths(pl.LightningModule):
    """Learns how long a sentence is: an encoder with dropout, frozen embeddings in evaluation mode, a batch norm."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        with quiet_libraries():
            self.encoder = AutoModel.from_pretrained(folder).train()
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.encoder.embeddings.requires_grad_(False)
        self.encoder.embeddings.eval()
        self.modes: list[list[bool]] = []

    def loss(self, batch: Sequence[str]) -> Tensor:
        read = self.tokenizer(list(batch), return_tensors="pt", padding=True)
        states = self.encoder(**read).last_hidden_state.mean(1)
        wanted = torch.tensor([[float(len(one.split()))] for one in batch])
        return nn.functional.mse_loss(self.head(self.norm(states)) * 10, wanted)

    def training_step(self, batch: Sequence[str], index: int) -> Tensor:
        """Note the modes of all modules, and learn."""
        self.modes.append([part.training for part in self.modules()])
        return self.loss(batch)

    def validation_step(self, batch: Sequence[str], index: int) -> None:
        self.log("val_loss", self.loss(batch), batch_size=len(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], 1e-2)


def loaders() -> tuple[DataLoader[str], DataLoader[str]]:
    """Return shuffled training batches, and validation batches."""
    train: Any = SENTENCES[:48]
    validation: Any = SENTENCES[48:56]
    return DataLoader(train, 8, shuffle=True), DataLoader(validation, 8)


def train(module: pl.LightningModule, callbacks: Sequence[pl.Callback] = (), **options: Any) -> pl.Trainer:
    """Train a module for two epochs, from the same seed in each call."""
    torch.manual_seed(3)
    usual: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False}
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = pl.Trainer(**{**usual, **quiet, **options}, callbacks=list(callbacks))
    trainer.fit(module, *loaders())
    return trainer


def make(folder: Path, place: Path, sets: Any = None, **options: Any) -> Trainer:
    """Return a Trainer of a tiny classifier with dropout, whose batches are shuffled."""
    torch.manual_seed(1)
    with quiet_libraries():
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    read = [{**tokenizer(one), "labels": len(one) % 2} for one in SENTENCES[:48]]
    usual: dict[str, Any] = {
        "num_train_epochs": 2, "per_device_train_batch_size": 8, "eval_strategy": "epoch", "report_to": "none",
        "use_cpu": True, "disable_tqdm": True, "seed": 3, "save_strategy": "no", "learning_rate": 1e-2,
    }  # fmt: skip
    arguments = TrainingArguments(str(place), **{**usual, **options})
    return Trainer(
        model=model, args=arguments, train_dataset=read, processing_class=tokenizer,
        eval_dataset=dict.fromkeys(sets, read[:8]) if sets else read[:8],
    )  # fmt: skip


def trained(trainer: Trainer) -> nn.Module:
    """Return the model of a Trainer."""
    assert isinstance(trainer.model, nn.Module)
    return trainer.model


class Calls(pl.Callback):
    """Calls a function at the end of each validation but that of the sanity check."""

    def __init__(self, function: Callable[[pl.Trainer, Any], None]) -> None:
        self.function = function

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.function(trainer, pl_module)


def in_bytes(state: Any) -> Any:
    """Return nested states with the bytes of each tensor in its place."""
    if isinstance(state, Tensor):
        return state.dtype, state.shape, state.detach().contiguous().view(-1).view(torch.uint8).tolist()
    if isinstance(state, dict):
        return {name: in_bytes(value) for name, value in state.items()}
    return [in_bytes(value) for value in state] if isinstance(state, list | tuple) else state
