"""The measurements of `cloze` at masks: pairs of words, facts, and the loss in changed text; and their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probing.activations import Request, batch_tokens_of, tokens_of
from probing.errors import UserError
from probing.interventions.model_output import choose_masked, draw_sentences
from probing.runs.call import Measurements
from probing.runtime.progress import stage
from probing.studies.cloze.facts import ask_facts
from probing.studies.cloze.predictor import Masked, Predictor, Row, change_rows, fingerprint_of
from probing.text import Corpus

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class ClozeConfig:
    """Settings of a survey.

    Args:
        items: What is predicted at masks, by its noun: pairs of words, and facts; each may be empty.
        flag_texts: The options that name them, as the user typed them.
        corpus: The text to change; None for none.
        tokens: Maximum number of its tokens.
        max_length: Number of tokens at which sentences are truncated; None for the model's limit.
        batch_tokens: Maximum number of tokens in a batch, padding included; None chooses by the machine.
    """

    items: Mapping[str, Sequence[Any]]
    flag_texts: Mapping[str, str]
    corpus: Corpus | None
    tokens: int
    max_length: int | None
    batch_tokens: int | None
    seed: int


def masked_sample(predictor: Predictor, config: ClozeConfig) -> tuple[Corpus, Masked]:
    """Draw sentences, and mask 15% of each sentence's tokens, not counting special tokens.

    Raises:
        UserError: If no sentence has a word.
    """
    request = _request(predictor, config)
    tokens = tokens_of(request, predictor.tokenizer)
    if tokens.special.all():
        raise UserError("`--corpus`: no sentence is longer than one token, and special tokens do not count.")
    drawn, sentences = draw_sentences(tokens, config.tokens, config.seed)
    return request.corpus.subset(sentences), Masked(drawn, choose_masked(drawn, config.seed))


def survey(predictor: Predictor, config: ClozeConfig, say: Callable[[str], None]) -> Measurements:
    """Test a model on pairs and facts, and measure its loss in changed text.

    Raises:
        UserError: If no pair, no fact, or no sentence, remains.
    """
    # What can be refused is refused before the model reads anything.
    by_noun = {
        noun: predictor.prompts(items, config.flag_texts[noun], noun) for noun, items in config.items.items() if items
    }
    sample = None if config.corpus is None else masked_sample(predictor, config)
    size = batch_tokens_of(_request(predictor, config))
    tables: dict[str, list[Row]] = {}
    for noun, prompts in by_noun.items():
        for reason, n in prompts.dropped.items():
            say(f"{n} of {len(config.items[noun])} {noun}s are left out: {reason}")
    if "pair" in by_noun:
        with stage("words at a mask"):
            tables |= predictor.ask(by_noun["pair"], size)
    if "fact" in by_noun:
        with stage("facts at a mask"):
            tables |= ask_facts(predictor, by_noun["fact"], config.items["fact"], size)
    if sample:
        with stage("loss in changed text"):
            tables["changes"] = change_rows(predictor, *sample, size, config.seed, say)
    source = predictor.source
    results = {
        "model": {"name": source.name, "fingerprint": source.fingerprint()},
        **{f"{noun}s": {"fingerprint": fingerprint_of(config.items[noun])} for noun in by_noun},
        **({"corpus": {"fingerprint": config.corpus.fingerprint}} if config.corpus else {}),
        "left_out": dict(sum((Counter(prompts.dropped) for prompts in by_noun.values()), Counter())),
        "n_tokens": sample[1].tokens.n_tokens if sample else 0,
    }
    return Measurements(tables, results)


def _request(predictor: Predictor, config: ClozeConfig) -> Request:
    corpus = config.corpus or Corpus("none", ())
    return Request(predictor.source, corpus, [], max_length=config.max_length, batch_tokens=config.batch_tokens)
