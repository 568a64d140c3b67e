"""What is surveyed, and what a part of a survey is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from probing.cache import ActivationStore, Request, load, tokens_of
from probing.cache.source import ActivationSource
from probing.cache.tokens import Tokens
from probing.corpus.splits import Split
from probing.errors import UserError
from probing.heads.accumulation import AttentionReader
from probing.heads.attended import types_of
from probing.heads.change.checkpoints import Checkpoint
from probing.heads.position.position_run import PositionRun
from probing.heads.reading import Measure
from probing.heads.roles.role_files import RoleLinks, treebank_links
from probing.heads.roles.scores import Pairs, pairs_of
from probing.heads.rows import Rows, Sentences
from probing.heads.sums import SumsStore
from probing.models import load_tokenizer
from probing.models.anatomy import examine
from probing.models.attention_heads import Heads
from probing.models.query_key import QueryKey, find_query_keys

# Names of further readings: the name of the test corpus, and a prefix for readings by a randomly initialised model.
TEST, UNTRAINED = "test", "untrained "
# The name under which the hidden states of a reading stand among its sums.
STATES = "states"


@dataclass(frozen=True)
class Asked:
    """What is asked beside the survey of a corpus.

    Args:
        test: The corpus that is tested on, with the model; None to test on a part of the corpus itself.
        splits: The side of each sentence of the corpus, then of the test corpus, if there is one.
        roles: Role links in sentences of their own; None to take those of the corpus.
        against: Another checkpoint of the model, on the same corpus, if there is one.
        as_published: Whether padded maps are compared with it, too.
        run: A run of `fit` on position, of the same model.
        source: The model and the cache of its hidden states, for parts that read them.
        without_first: Whether the first token of each sentence is left out of what is measured.
    """

    test: Request | None = None
    splits: Sequence[Sequence[Split]] = ()
    roles: RoleLinks | None = None
    against: Checkpoint | None = None
    as_published: bool = False
    run: PositionRun | None = None
    source: ActivationSource | None = None
    without_first: bool = False


@dataclass(frozen=True)
class Subject:
    """A model and the corpus that it reads.

    Args:
        request: Model and corpus.
        heads: The heads of the model.
        tokens: The corpus's table of tokens.
        special_tokens: The tokenizer's special tokens, id to text.
        layers: The layers to report.
        seed: Seed of the bootstrap, and of the randomly initialised model.
        asked: What is asked beside the survey of the corpus.
    """

    request: Request
    heads: Heads
    tokens: Tokens
    special_tokens: Mapping[int, str]
    layers: Sequence[int]
    seed: int
    asked: Asked = Asked()

    @classmethod
    def of(cls, request: Request, layers: Sequence[int], seed: int, asked: Asked = Asked()) -> Subject:
        """Load the model, find its heads, and tokenise the corpus.

        Raises:
            UserError: If the model cannot be loaded or has no attention weights.
        """
        tokenizer = load_tokenizer(request.source)
        encoder, pad_token_id = load(request)
        heads = AttentionReader.of(encoder, pad_token_id, request.source.name).heads
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        return cls(request, heads, tokens_of(request, tokenizer), special, layers, seed, asked)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The model, to be compared with another checkpoint."""
        return Checkpoint(self.request)

    @cached_property
    def types(self) -> dict[str, NDArray[np.bool_]]:
        """Which tokens are of each type that occurs, each of shape (n_tokens,)."""
        found = types_of(self.tokens, self.request.corpus, self.special_tokens)
        found = {name: members & self.measured for name, members in found.items()}
        return {name: members for name, members in found.items() if members.any()}

    @cached_property
    def measured(self) -> NDArray[np.bool_]:
        """Which tokens are measured, shape (n_tokens,)."""
        return (self.tokens.positions > 0) | (not self.asked.without_first)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each sentence that are measured, shape (n_sentences,)."""
        lengths = self.tokens.lengths
        return lengths - (lengths > 0) if self.asked.without_first else lengths

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """Which tokens count as special, shape (n_tokens,): in causal models, the first one too, if it is measured."""
        special = self.tokens.special
        return (special | (self.tokens.positions == 0) if self.heads.is_causal else special) & self.measured

    @cached_property
    def sentences(self) -> Sentences:
        """The draws of the sentences for all intervals."""
        return Sentences(self.tokens.n_sentences, self.seed)

    @cached_property
    def roles(self) -> tuple[Request, Pairs]:
        """Model and sentences with role links, of the file or else of the treebank; and the pairs that are compared.

        Raises:
            UserError: If the corpus has no link that can be measured.
        """
        links = self.asked.roles or treebank_links(self.request.corpus)
        request = replace(self.request, corpus=links.corpus)
        return request, pairs_of(links, tokens_of(request, load_tokenizer(request.source)), self.seed)

    @cached_property
    def query_keys(self) -> list[QueryKey]:
        """The queries and keys of the heads of each block.

        Raises:
            UserError: If the model has no table of positions, or its attention is not that of queries and keys alone.
        """
        encoder, pad_token_id = load(self.request)
        anatomy = examine(encoder, pad_token_id, self.request.source.name)
        if anatomy.position_table is None:
            raise UserError(
                f"`--model {self.request.source.name}` has relative or rotary positions, or none, which are not in the "
                "input of its attention"
            )
        request = self.tested[0]
        tested = tokens_of(request, load_tokenizer(request.source))
        longest = max(int(tokens.lengths.max(initial=1)) for tokens in (self.tokens, tested))
        return find_query_keys(encoder, anatomy, self.heads, pad_token_id, longest)

    @property
    def source(self) -> ActivationSource:
        """The model and the cache of its hidden states, of the layers that are reported."""
        assert self.asked.source is not None
        return replace(self.asked.source, layers=list(self.layers))

    @property
    def requests(self) -> list[Request]:
        """Model and corpus, and model and test corpus, if there is one."""
        return [self.request] if self.asked.test is None else [self.request, self.asked.test]

    @cached_property
    def hidden_states(self) -> list[ActivationStore]:
        """The hidden states of each corpus, extracted where they are not cached."""
        return self.source.read([request.corpus for request in self.requests])

    def entry(self, stores: Mapping[str, SumsStore]) -> ActivationStore:
        """Return an entry of the cache that was read, which tells what it was made of.

        Args:
            stores: The sums of each measure; there are none if hidden states alone were read.
        """
        return next(iter(stores.values()), None) or self.hidden_states[0]

    @property
    def is_train(self) -> NDArray[np.bool_]:
        """Which sentences of the corpus heads are chosen on: all but those of the test part, shape (n_sentences,)."""
        return ~_is_test(self.asked.splits[0])

    @property
    def tested(self) -> tuple[Request, NDArray[np.bool_], str]:
        """Model and corpus that heads are reported on, which of its sentences are, and the option that names it."""
        if self.asked.test is None:
            return self.request, _is_test(self.asked.splits[0]), "--corpus"
        return self.asked.test, _is_test(self.asked.splits[1]), "--test_corpus"

    @property
    def readings(self) -> dict[str, Request]:
        """What comparing parts also read: the test corpus, and both corpora with a randomly initialised model.

        A model that is randomly initialised itself is not compared with another one.
        """
        found = {} if self.asked.test is None else {TEST: self.asked.test}
        if self.request.random_weights_seed is None:
            trained = {"": self.request, **found}
            found |= {UNTRAINED + name: replace(one, random_weights_seed=self.seed) for name, one in trained.items()}
        return found


def _is_test(splits: Sequence[Split]) -> NDArray[np.bool_]:
    return np.array([side == "test" for side in splits], dtype=bool)


@dataclass(frozen=True)
class Reading:
    """What a part reads beside the corpus.

    Args:
        name: The name by which its sums are found.
        request: Model and corpus.
        measures: The measures to be summed.
        states: Whether the hidden states that enter the blocks are read too.
    """

    name: str
    request: Request
    measures: Sequence[Measure]
    states: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a survey.

    Args:
        name: Its name, as `--parts` takes it.
        needs: Returns what the part needs and the corpus lacks, as the end of a sentence; None if nothing is lacking.
        measures: Returns the measures to be summed over the corpus.
        rows: Returns rows by the name of their table, from the sums of each measure by its name; those of
            another reading are found by its name and the measure's, with a slash between them.
        beside: Returns what is read beside the corpus.
        by_name_only: Whether the part is left out by default, because it takes long or because it needs a further
            option, which may then add it; see `probing.heads.parts`.
        trains: Whether rows come from probes that all ranks train together.
    """

    name: str
    needs: Callable[[Subject], str | None]
    measures: Callable[[Subject], Sequence[Measure]]
    rows: Callable[[Subject, Mapping[str, SumsStore]], Mapping[str, Rows]]
    beside: Callable[[Subject], Sequence[Reading]] = lambda subject: ()
    by_name_only: bool = False
    trains: bool = False


def nothing(subject: Subject) -> None:
    """Return None: the part needs nothing that the corpus could lack."""
    return
