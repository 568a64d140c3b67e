"""How likely a model finds the two words of each pair, and how often it finds the good one likelier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.diagnostics.cloze.minimal_pairs import Prompts
from probing.readouts.text import padded_batches
from probing.statistics.intervals import binomial_interval, mean_interval
from probing.tables.cloze import EVERY

# By how much the probability of the good word has to be above that of the bad one to be called clear (Ettinger 2020).
MARGIN = 0.01


@torch.inference_mode()
def log_probabilities(
    model: nn.Module, prompts: Prompts, pad_token_id: int, batch_tokens: int, with_padding: bool
) -> NDArray[np.float64]:
    """Return the log probability of the good and of the bad word at the mask, shape (n_pairs, 2).

    The softmax over the vocabulary is in float64.

    Args:
        model: The model with its head, in evaluation mode.
        prompts: The pairs.
        pad_token_id: Id of the padding token.
        batch_tokens: Most tokens in a batch, padding included.
        with_padding: Whether texts of different lengths may share a batch.
    """
    device = next(model.parameters()).device
    masks, words = torch.from_numpy(prompts.masks), torch.from_numpy(prompts.words)
    found = torch.empty(len(words), 2, dtype=torch.float64)
    for batch in padded_batches(prompts.tokens, batch_tokens, pad_token_id, with_padding, device):
        here = batch.sentences.cpu()
        logits: Tensor = model(**batch.inputs).logits[torch.arange(len(here)), masks[here].to(device)]
        found[here] = logits.cpu().double().log_softmax(1).gather(1, words[here])
    return found.numpy()


def pair_rows(prompts: Prompts, found: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the rows of `cloze.csv`, one for each pair.

    Args:
        prompts: The pairs.
        found: Log probabilities of both words, shape (n_pairs, 2).
    """
    return [
        {
            "line": pair.line, "group": pair.group, "text": pair.text, "good": pair.good, "bad": pair.bad,
            "good_log_probability": float(good), "bad_log_probability": float(bad), "difference": float(good - bad),
        }
        for pair, (good, bad) in zip(prompts.pairs, found, strict=True)
    ]  # fmt: skip


def group_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `groups.csv`: all pairs, and then each group in the order of the file.

    Args:
        rows: Rows of `cloze.csv`.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    found = {EVERY: list(rows)} | {group: [row for row in rows if row["group"] == group] for group in groups}
    return [_counted(name, own) for name, own in found.items()]


def _counted(group: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    differences = np.array([row["difference"] for row in rows])
    good, bad = (np.exp([row[f"{which}_log_probability"] for row in rows]) for which in ("good", "bad"))
    likelier, clearly = int((differences > 0).sum()), int((good - bad > MARGIN).sum())
    (low, high), (clear_low, clear_high) = (binomial_interval(n, len(rows)) for n in (likelier, clearly))
    least, most = mean_interval(differences, np.ones(len(rows), dtype=np.int64))
    return {
        "group": group, "n": len(rows), "n_right": likelier, "share": likelier / len(rows), "low": low, "high": high,
        "clear_share": clearly / len(rows), "clear_share_low": clear_low, "clear_share_high": clear_high,
        "difference": float(differences.mean()), "difference_low": least, "difference_high": most,
    }  # fmt: skip
