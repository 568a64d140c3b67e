"""Options as other tools call them, and what they are here."""

from __future__ import annotations

from collections.abc import Iterable

from probing.errors import did_you_mean

# What other tools call an option, and what it is here; several after commas.
ELSEWHERE = {
    "device": "trainer.accelerator", "gpu": "trainer.accelerator", "gpus": "trainer.devices",
    "epochs": "trainer.max_epochs", "num_train_epochs": "trainer.max_epochs",
    "lr": "probe.learning_rate", "weight_decay": "probe.l2", "regularization": "probe.l2",
    "batch_size": "batch_tokens,probe.batch_size", "per_device_train_batch_size": "batch_tokens,probe.batch_size",
    "max_seq_length": "max_length", "truncation": "max_length", "fp16": "dtype", "bf16": "dtype", "precision": "dtype",
    "output_dir": "runs", "output": "runs", "out": "runs", "run_name": "name", "cache_dir": "cache",
    "model_name_or_path": "model", "model_name": "model", "pretrained": "model", "checkpoint": "model",
    "dataset": "corpus", "data": "corpus", "text": "corpus", "train_file": "corpus", "input": "corpus",
    "test_file": "test_corpus", "validation_file": "test_corpus", "labels": "task", "random_seed": "seed",
    "n_bootstrap": "replicates", "verbosity": "verbose", "silent": "quiet", "report_to": "wandb.mode",
}  # fmt: skip
OF_TRAINER = ("trainer.accelerator", "trainer.devices", "trainer.max_epochs", "trainer.num_nodes", "trainer.strategy")


def meant(name: str, options: Iterable[str], before: str = "") -> str:
    """Return a suggestion for an option that is not there, in parentheses: by its letters, or what it is elsewhere.

    An option of a group, such as `wandb.project`, is also found by its last word.
    """
    known = [*options]
    known += OF_TRAINER if "trainer" in known else ()
    last = {option.rpartition(".")[2]: option for option in known if "." in option}
    return did_you_mean(name, known, before, last | ELSEWHERE)
