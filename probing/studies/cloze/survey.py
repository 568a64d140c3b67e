"""The measurements of `cloze` at masks: pairs of words, facts (Petroni et al. 2019), and the loss in changed text.

A fact is the rank of the object of a relation, with and without the subject. Without its subject, a sentence has a
single mask token in the place of each occurrence of the subject, as in Cao et al. (2021): what the template alone
gives. Of several objects that the file has for a sentence, the others are not ranked.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from probing.activations import Request, batch_tokens_of, tokens_of
from probing.errors import UserError
from probing.interventions.model_output import Prompt, choose_masked, draw_sentences, tokens_of_prompts
from probing.results import Table, estimate_cells
from probing.runs.call import Measurements
from probing.runtime.progress import stage
from probing.statistics import binomial_interval, difference_interval, ratio_estimate
from probing.studies.cloze import EVERY, ClozeOptions
from probing.studies.cloze.predictor import (
    Masked,
    Predictor,
    Prompts,
    Row,
    by_group,
    change_rows,
    check_mask,
    distinct,
    fields_of,
    fingerprint_of,
    lines_of,
)
from probing.text import MASK, Corpus

READABLE = (
    "a file of LAMA's JSON objects with `masked_sentences`, `sub_label` and `obj_label`, and if there are several "
    "relations `predicate_id`"
)

UNNAMED = "facts"


@dataclass(frozen=True)
class Fact:
    """A text with `[MASK]` in the place of the object, the subject as it is written in the text, and the relation."""

    line: int
    text: str
    subject: str
    object: str
    relation: str

    @property
    def words(self) -> tuple[str, ...]:
        """The words at the mask."""
        return (self.object,)


def read_facts(file: str, flag_text: str) -> tuple[list[Fact], int]:
    """Return the distinct facts of a file, and the number of repeated facts.

    Raises:
        UserError: If the file cannot be read, or a line is no fact with one mask.
    """
    return distinct(lines_of(file, flag_text, READABLE), _fact_of, flag_text, READABLE, "fact")


def _fact_of(number: int, line: str, where: str) -> Fact:
    fields = fields_of(line, where, READABLE)
    parts, relation = fields.get("masked_sentences"), fields.get("predicate_id") or fields.get("pred") or UNNAMED
    texts = [" ".join(parts) if isinstance(parts, list) and all(isinstance(part, str) for part in parts) else parts]
    texts += [fields.get("sub_label"), fields.get("obj_label"), relation]
    text, *names = (" ".join(text.split()) if isinstance(text, str) else "" for text in texts)
    if not (text and all(names)):
        raise UserError(
            f"{where}: expected texts `masked_sentences`, `sub_label` and `obj_label`, not empty; give {READABLE}."
        )
    check_mask(text, where)
    return Fact(number, text, *names)


def without_subject(tokenizer: Any, fact: Fact, prompt: Prompt) -> Prompt | None:
    """Return the prompt with one mask token for each occurrence of the subject; None if it does not occur.

    Occurrences are whole words, written as in `sub_label`.
    """
    place, shift = fact.text.index(MASK), len(fact.object) - len(MASK)
    subjects = re.finditer(rf"(?<!\w){re.escape(fact.subject)}(?!\w)", fact.text)
    spans = [tuple(end + shift * (match.start() > place) for end in match.span()) for match in subjects]
    offsets = tokenizer(fact.text.replace(MASK, fact.object)).encodings[0].offsets
    hidden = [any(first < end and start < last for start, end in spans) for first, last in offsets]
    if not any(hidden) or hidden[prompt.mask]:
        return None
    rows = [i for i in range(len(hidden)) if not (hidden[i] and i and hidden[i - 1])]
    ids = [tokenizer.mask_token_id if hidden[i] else prompt.input_ids[i] for i in rows]
    return Prompt(ids, [prompt.words[i] for i in rows], rows.index(prompt.mask), prompt.answers)


def ranks_of(
    predictor: Predictor, prompts: Sequence[Prompt], others: Sequence[Sequence[int]], batch_tokens: int
) -> list[tuple[float, int, int]]:
    """Return the log probability and rank of each prompt's word, and the most probable token.

    The rank is among the vocabulary without `others`; equally probable tokens rank above the word.
    """
    ranks = [(0.0, 0, 0)] * len(prompts)
    if prompts:
        tokens, masks = tokens_of_prompts(prompts), np.array([prompt.mask for prompt in prompts])
        for sentences, log_p in predictor.at_masks(tokens, masks, batch_tokens):
            for i, row in zip(sentences.tolist(), log_p.numpy(), strict=True):
                own = row[prompts[i].answers[0]]
                ranks[i] = float(own), int((np.delete(row, others[i]) >= own).sum()), int(row.argmax())
    return ranks


def ask_facts(predictor: Predictor, prompts: Prompts, facts: Sequence[Fact], batch_tokens: int) -> dict[str, list[Row]]:
    """Return the rows of `facts.csv` and `fact_relations.csv`; `facts` are all, with those that are left out."""
    used: Sequence[Fact] = prompts.pairs
    objects: defaultdict[str, set[int]] = defaultdict(set)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for fact, prompt in zip(used, prompts.prompts, strict=True):
        objects[fact.text].update(prompt.answers)
        counts[fact.relation][fact.object] += 1
    others = [
        sorted(objects[fact.text].difference(of.answers)) for fact, of in zip(used, prompts.prompts, strict=True)
    ]  # fmt: skip
    ranks = ranks_of(predictor, prompts.prompts, others, batch_tokens)
    rows: list[Row] = [
        {
            "line": fact.line, "relation": fact.relation, "text": fact.text, "subject": fact.subject,
            "object": fact.object, "log_probability": log_p, "rank": rank,
            "predicted_piece": predictor.tokenizer.convert_ids_to_tokens(best),
            "most_frequent_object": counts[fact.relation].most_common(1)[0][0],
        }
        for fact, (log_p, rank, best) in zip(used, ranks, strict=True)
    ]  # fmt: skip
    prompts_alone = map(partial(without_subject, predictor.tokenizer), used, prompts.prompts)
    alone = {i: prompt for i, prompt in enumerate(prompts_alone) if prompt}
    ranks = ranks_of(predictor, [*alone.values()], [others[i] for i in alone], batch_tokens)
    for i, (_, rank, _) in zip(alone, ranks, strict=True):
        rows[i]["rank_without_subject"] = rank
    n_facts = Counter(fact.relation for fact in facts) + Counter({EVERY: len(facts)})
    return {"facts": rows, "fact_relations": by_group(rows, "relation", partial(_counted, n_facts))}


def _counted(n_facts: Mapping[str, int], relation: str, rows: Table) -> Row:
    n = len(rows)
    ranks = np.array(rows.column("rank"))
    first = ranks == 1
    row: Row = {"relation": relation, "n": n, "n_left_out": n_facts[relation] - n}
    for most in (1, 10):
        n_right = int((ranks <= most).sum())
        row |= estimate_cells(f"precision_at_{most}", n_right / n, binomial_interval(n_right, n))
    row |= estimate_cells("reciprocal_rank", *ratio_estimate(1 / ranks))
    alone = np.array([row.get("rank_without_subject", 0) for row in rows])
    has_alone, frequent = alone > 0, np.array([row["object"] == row["most_frequent_object"] for row in rows])
    row["n_without_subject"] = int(has_alone.sum())
    for name, baseline, counted in (("without_subject", alone == 1, has_alone), ("most_frequent", frequent, ranks > 0)):
        if counted.any():
            gain = np.where(counted, first - baseline.astype(np.float64), 0)
            row[name] = float(baseline[counted].mean())
            row |= estimate_cells(f"above_{name}", *ratio_estimate(gain, counted.astype(np.int64), difference_interval))
    return row


def masked_sample(predictor: Predictor, request: Request, options: ClozeOptions) -> tuple[Corpus, Masked]:
    """Draw sentences, and mask 15% of each sentence's tokens, not counting special tokens.

    Raises:
        UserError: If no sentence has a word.
    """
    tokens = tokens_of(request, predictor.tokenizer)
    if tokens.special.all():
        raise UserError("`--corpus`: no sentence is longer than one token, and special tokens do not count.")
    drawn, sentences = draw_sentences(tokens, options.tokens, options.seed)
    return request.corpus.subset(sentences), Masked(drawn, choose_masked(drawn, options.seed))


def survey(
    predictor: Predictor, items: Mapping[str, Sequence[Any]], flag_texts: Mapping[str, str], corpus: Corpus | None,
    options: ClozeOptions, say: Callable[[str], None],
) -> Measurements:  # fmt: skip
    """Test a model on pairs and facts, and measure its loss in changed text.

    Args:
        predictor: The model.
        items: What is predicted at masks, by its noun: pairs of words, and facts; each may be empty.
        flag_texts: The options that name them, as the user typed them.
        corpus: The text to change; None for none.
        options: The options of the command.
        say: Called with one-line messages.

    Raises:
        UserError: If no pair, no fact, or no sentence, remains.
    """
    # What can be refused is refused before the model reads anything.
    by_noun = {noun: predictor.prompts(some, flag_texts[noun], noun) for noun, some in items.items() if some}
    request = Request(
        predictor.source, corpus or Corpus("none", ()), [], max_length=options.max_length,
        batch_tokens=options.batch_tokens,
    )  # fmt: skip
    sample = None if corpus is None else masked_sample(predictor, request, options)
    size = batch_tokens_of(request)
    tables: dict[str, list[Row]] = {}
    for noun, prompts in by_noun.items():
        for reason, n in prompts.dropped.items():
            say(f"{n} of {len(items[noun])} {noun}s are left out: {reason}")
    if "pair" in by_noun:
        with stage("words at a mask"):
            tables |= predictor.ask(by_noun["pair"], size)
    if "fact" in by_noun:
        with stage("facts at a mask"):
            tables |= ask_facts(predictor, by_noun["fact"], items["fact"], size)
    if sample:
        with stage("loss in changed text"):
            tables["changes"] = change_rows(predictor, *sample, size, options.seed, say)
    source = predictor.source
    results = {
        "model": {"name": source.name, "fingerprint": source.fingerprint()},
        **{f"{noun}s": {"fingerprint": fingerprint_of(items[noun])} for noun in by_noun},
        **({"corpus": {"fingerprint": corpus.fingerprint}} if corpus else {}),
        "left_out": dict(sum((Counter(prompts.dropped) for prompts in by_noun.values()), Counter())),
        "n_tokens": sample[1].tokens.n_tokens if sample else 0,
    }
    return Measurements(tables, results)
