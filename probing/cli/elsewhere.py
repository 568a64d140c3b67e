"""Options and commands as other tools call them, and what they are here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from probing.errors import did_you_mean

# What other tools call an option, and the options that it may be here, whole or by their last word.
ELSEWHERE = {
    "device": "accelerator", "gpu": "accelerator", "gpus": "devices,accelerator", "n_gpus": "devices,accelerator",
    "epochs": "max_epochs", "n_epochs": "epochs,max_epochs", "num_epochs": "epochs,max_epochs",
    "num_train_epochs": "epochs,max_epochs", "max_steps": "steps", "n_steps": "steps",
    "lr": "learning_rate", "weight_decay": "l2", "regularization": "l2", "warmup": "warm_up", "warmup_ratio": "warm_up",
    "max_grad_norm": "clip,gradient_clip_val", "gradient_accumulation_steps": "accumulate_grad_batches",
    "batch_size": "batch_tokens", "per_device_train_batch_size": "batch_size,batch_tokens",
    "max_seq_length": "max_length", "truncation": "max_length", "fp16": "dtype,precision", "bf16": "dtype,precision",
    "precision": "dtype", "output_dir": "runs", "output": "runs", "out": "runs", "run_name": "name",
    "cache_dir": "cache", "run": "from_run,folder,folders", "head": "units,site,n_heads", "heads": "units,site,n_heads",
    "model_name_or_path": "model", "model_name": "model", "pretrained": "model", "checkpoint": "model,checkpoints",
    "dataset": "corpus", "data": "corpus", "text": "corpus", "train_file": "corpus", "input": "corpus",
    "test_file": "test_corpus", "validation_file": "test_corpus", "labels": "task", "random_seed": "seed",
    "n_bootstrap": "replicates", "verbosity": "verbose", "silent": "quiet", "report_to": "wandb.mode",
}  # fmt: skip
# What these are for one command.
ELSEWHERE_OF = {"attention": {"head": "layer", "heads": "layer"}}
# What other tools call a command.
COMMANDS_ELSEWHERE = {
    "train": "fit,pretrain,finetune", "probe": "fit", "tune": "finetune", "fine-tune": "finetune",
    "ablate": "disable", "prune": "disable", "ranking": "rank", "embed": "extract", "plot": "report", "show": "report",
    "ls": "cache ls", "clean": "cache prune", "checkpoints": "series",
}  # fmt: skip

# Arguments of the Trainer, by command, that may be meant; a command that runs in one process takes the first alone.
_PROCESSES = ("accelerator", "devices", "num_nodes", "strategy")
_TRAINING = (*_PROCESSES, "precision", "accumulate_grad_batches", "gradient_clip_val")
_OF_TRAINER: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("fit", "hierarchy"), (*_PROCESSES, "max_epochs")),
    **dict.fromkeys(("geometry", "attention", "disable", "wic", "sts", "embeddings", "extract"), _PROCESSES),
    **dict.fromkeys(("pretrain", "finetune"), _TRAINING),
}


def meant(name: str, options: Iterable[str], owner: str, before: str = "") -> str:
    """Return a suggestion for an option that is not there, in parentheses: what it is elsewhere, or by its letters.

    Only options that the command takes are suggested. An option of a group, such as `wandb.project`, is also found by
    its last word.

    Args:
        name: The option that is not there.
        options: The options that are.
        owner: The command.
        before: Text before an option.
    """
    known = [*options]
    known += [f"trainer.{one}" for one in _OF_TRAINER.get(owner, _PROCESSES[:1])] if "trainer" in known else []
    words = ELSEWHERE_OF.get(owner, {}).get(name) or f"{name},{ELSEWHERE.get(name, '')}"
    found = [option for word in words.split(",") for option in known if word in (option, option.rpartition(".")[2])]
    return did_you_mean(name, known, before, {name: ",".join(dict.fromkeys(found))})
