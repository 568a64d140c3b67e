"""A word-level tokenizer of reactions in SMILES, as models of reactions are trained with (Schwaller et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Atoms in brackets, elements (those of two letters first), bonds, branches, ring numbers (%12 and %(123) for those of
# more digits), `.` between molecules and `>>` before the products (Schwaller et al. 2019, ACS Central Science 5,
# 1572-1583).
TOKENS = (
    r"%\([0-9]{3}\)|\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$"
    r"|%[0-9]{2}|[0-9]"
)
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def smiles_tokenizer(vocabulary: Sequence[str]) -> Tokenizer:
    """Return a tokenizer that puts `[CLS]` before a text and `[SEP]` behind it.

    What no token of SMILES matches becomes `[UNK]`, a run of such characters being one token; blanks are left out.

    Args:
        vocabulary: The tokens in the order of their ids, the five of `SPECIAL` among them.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(TOKENS), "isolated")]
    )
    first, last = SPECIAL["cls_token"], SPECIAL["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, ids[token]) for token in (first, last)],
    )
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    return tokenizer


def smiles_tokenizer_config(longest: int) -> dict[str, Any]:
    """Return what tokenizer_config.json says of it, for a model of at most `longest` tokens."""
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest, **SPECIAL}
