"""Reads rows that are longer than those of the training, after the last step, by every arm that can."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from probing.corpus import from_sentences
from probing.errors import UserError, as_clause
from probing.models.source import ModelSource
from probing.results.schema import count
from probing.runtime.files import parse_json, read_text, replacing
from probing.runtime.processes import sum_over_ranks
from probing.runtime.progress import stage
from probing.runtime.terminal import silence
from probing.runtime.trainer import Places, Row
from probing.studies.pretrain.arms import (
    LEARNED_TABLES,
    checkpoint_folder,
    class_of,
    fill_table,
    position_table,
    save_checkpoint,
)
from probing.studies.pretrain.batches import PackedRows, PackedText, packed
from probing.studies.pretrain.checkpoint_measures import Subject, measure
from probing.studies.pretrain.experiment import Asked
from probing.studies.pretrain.module import LanguageModel
from probing.studies.pretrain.options import CAUSAL_LM
from probing.studies.pretrain.training import Job

# What is taken over of the measures of a checkpoint.
_MEASURES = ("layer", "outlier_neuron", "max_mean_sd", "position_accuracy", "token_accuracy")


def stretched(arm: str, model: Any, n_more: int, initial_sd: float) -> Any:
    """Return a copy of a model that reads rows of more tokens than those of its training.

    Only what follows a rule becomes longer: tables of zeros, of equal rows and of sines, and rotations. Biases and
    embeddings of distances are the trained ones.

    Args:
        arm: Name of its arm, which has no learned table of positions.
        model: The model after its training.
        n_more: How many tokens more.
        initial_sd: Standard deviation of the initial token embeddings.
    """
    config = deepcopy(model.config)
    config.max_position_embeddings += n_more
    longer = type(model)(config).eval()
    values = model.state_dict()
    with torch.no_grad():
        for name, value in longer.state_dict().items():
            if value.shape == values[name].shape:
                value.copy_(values[name])
        if arm not in ("rotary", "disentangled"):  # of the first, sines are not trained; the second has no table
            table = position_table(longer)
            table[:1] = position_table(model)[:1]
            fill_table(arm, table, initial_sd)
    return longer


def passages(sentences: Sequence[str], tokenizer: Any, length: int) -> Iterator[str]:
    """Yield consecutive sentences as one text of at least so many tokens; the last ones do not fill one."""
    text: list[str] = []
    n_tokens = tokenizer.num_special_tokens_to_add()
    for sentence in sentences:
        text.append(sentence)
        n_tokens += len(tokenizer.tokenize(sentence))
        if n_tokens >= length:
            yield " ".join(text)
            text, n_tokens = [], tokenizer.num_special_tokens_to_add()


def measure_lengths(
    text: PackedText, asked: Asked, multiples: Sequence[int], places: Places, cache: Path,
) -> list[Row]:  # fmt: skip
    """Measure each arm and seed after the last step on rows of several lengths; return the rows of `lengths.csv`.

    Args:
        text: The packed text.
        asked: What is asked.
        multiples: The lengths, in lengths of the rows of the training.
        places: Where to write.
        cache: Folder of cached activations, which are kept while a model is measured.
    """
    due = [(multiple, job) for multiple in multiples for job in asked.jobs]
    rows: list[Row] = []
    with stage(f"rows of {count(len(multiples), 'length')}", len(due)) as advance:
        for multiple in multiples:
            reader = _Reader(text, asked, multiple, places, cache / places.folder.name)
            for job in asked.jobs:
                kept = places.folder / "state" / f"{job.name}-x{multiple}.json"
                if kept.is_file():
                    found = parse_json(read_text(kept, places.folder))
                else:
                    found = reader.read(job)
                    if places.writes:
                        with replacing(kept) as partial:
                            partial.write_text(json.dumps(found), encoding="utf-8")
                own = {"arm": job.arm, "seed": job.seed, "step": asked.recipe.steps, "length": reader.length}
                rows += [{**own, **row} for row in found]
                advance(1)
    order = [(job.arm, job.seed) for job in asked.jobs]
    return sorted(rows, key=lambda row: order.index((row["arm"], row["seed"])))


class _Reader:
    """Reads held-out text in rows of one length.

    Args:
        text: The packed text.
        asked: What is asked.
        multiple: The length, in lengths of the rows of the training.
        places: Where to write.
        cache: Folder of cached activations.
    """

    def __init__(self, text: PackedText, asked: Asked, multiple: int, places: Places, cache: Path) -> None:
        trained = asked.shape.row_length
        self.asked, self.places, self.length, self.n_more = asked, places, multiple * trained, (multiple - 1) * trained
        sentences, self.tokenizer = text.held_out_corpus.sentences, deepcopy(text.tokenizer)
        self.tokenizer.model_max_length = self.length
        # As much text as in rows of the training.
        n_rows = -(-len(text.held_out) // multiple)
        self.text = replace(text, held_out=packed(sentences, text.tokenizer, self.length)[:n_rows])
        read = list(dict.fromkeys(passages(sentences, text.tokenizer, self.length)))
        self.subject: Subject | None = None
        if read and len(self.text.held_out):
            self.subject = Subject.of(
                from_sentences("held-out text", read), self.text.held_out, asked.n_sentences, asked.seed, cache,
                asked.trainer,
            )  # fmt: skip

    def read(self, job: Job) -> list[Row]:
        """Return a row for each layer, or a row with the reason why there is none."""
        if self.n_more and job.arm in LEARNED_TABLES:
            trained = self.asked.shape.row_length
            return [{"reason": f"the table has {trained} positions, and none was learned for later tokens"}]
        if self.subject is None:
            return [{"reason": f"the held-out text does not fill a row of {self.length} tokens"}]
        steps = self.asked.recipe.steps
        checkpoint = checkpoint_folder(self.places.checkpoints, job.arm, job.seed, steps, steps)
        model = (
            class_of(job.arm)
            .from_pretrained(ModelSource(job.arm, checkpoint).checked(), trust_remote_code=False)
            .eval()
        )
        if self.n_more:
            model = stretched(job.arm, model, self.n_more, self.asked.shape.initial_sd)
        rows = PackedRows(self.text, 1, None if job.arm == CAUSAL_LM else self.asked.recipe.masked, job.seed)
        module = LanguageModel(model, job.arm, self.asked.recipe, job.seed)
        losses = {"loss": module.held_out_loss(rows.held_out()), "unigram_loss": rows.unigram_loss()}
        folder = self.places.folder / "state" / f"{job.name}-x{self.length}" / "longer"
        if self.places.writes:
            folder.parent.mkdir(parents=True, exist_ok=True)
            save_checkpoint(folder, job.arm, model, self.tokenizer)
        sum_over_ranks(torch.zeros(1))  # all processes read it
        try:
            found = measure(folder, self.subject, silence)
        except UserError as error:  # too few texts of this length for probes
            return [{**losses, "reason": f"positions and outliers are not measured: {as_clause(error)}"}]
        finally:
            if self.places.writes:
                shutil.rmtree(folder.parent, ignore_errors=True)
        return [{**losses, **{name: row[name] for name in _MEASURES}} for row in found]
