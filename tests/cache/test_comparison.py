"""What was extracted is compared with the plain model, which also reads sentences with their tokens permuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.testing import assert_close

from conftest import N_LAYERS
from families import CORE, few_quickly, untouched
from probing import activations as cache_module
from probing.activations import ActivationStore, NotWritable, Request, activations, comparison, extraction
from probing.activations import store as cache_store
from probing.activations.comparison import drawn_sentences, typical_change
from probing.activations.extraction import ForwardSpec, extract_shard
from probing.activations.store import StorePlan, divide
from probing.errors import UserError
from probing.models import anatomy, load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.models.examination import largest_change
from probing.models.loading import ModelObject
from probing.statistics.chance import permute_within_sentences
from probing.text import Corpus, from_sentences
from probing.text.tokens import Tokens
from synthetic import make_tokens, sides

pytestmark = pytest.mark.numeric

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.

CPU = {"accelerator": "cpu"}
# Families with products of float32 in the midst of others, which torch refuses.
FLOAT32_ALONE = ("deberta", "xlnet")


@pytest.fixture
def corpus(sentences: list[str]) -> Corpus:
    """30 sentences of 3 to 24 words."""
    return from_sentences("made up", sentences[:30])


class Faulty(nn.Module):
    """A norm whose output is multiplied by what a fault makes of it, about 1."""

    def __init__(self, norm: nn.Module, factor: Callable[[Faulty, Tensor], Any]) -> None:
        super().__init__()
        self.norm, self.factor, self.n_calls = norm, factor, 0

    def forward(self, states: Tensor) -> Any:
        self.n_calls += 1
        states = self.norm(states)
        return states * torch.as_tensor(self.factor(self, states)).to(states)


def keeps_state(self: Faulty, states: Tensor) -> Any:
    return 1 + 0.01 * self.n_calls


def draws_at_random(self: Faulty, states: Tensor) -> Any:
    return 1 + 0.05 * torch.rand(states.shape[1], 1)


def depends_on_the_batch(self: Faulty, states: Tensor) -> Any:
    return 1 + 0.02 * (torch.arange(states.shape[1]) % 2)[:, None] * (states.shape[1] > 30)


def leaks_padding(self: Faulty, states: Tensor) -> Any:
    return 1 + 0.2 * states.mean((1, 2), keepdim=True)


def as_object(model: Any, tokenizer: Any) -> ModelObject:
    """A model as an object whose fingerprint is not computed, because that refuses some of these faults too."""
    return ModelObject(f"object:{type(model).__name__}", Path(), None, model, tokenizer, "made up")


@pytest.fixture
def planted(checkpoints: dict[str, Path], corpus: Corpus) -> Callable[..., Request]:
    """Ask for layers of a tiny BERT with a fault, given as an object."""

    def ask(fault: Callable[[Faulty, Tensor], Any], **options: Any) -> Request:
        model = untouched(checkpoints["bert"])
        model.embeddings.LayerNorm = Faulty(model.embeddings.LayerNorm, fault)
        source = as_object(model, load_tokenizer(resolve_model(str(checkpoints["bert"]))))
        return Request(source, corpus, [0, 2], **{"batch_tokens": 300, **options})

    return ask


@pytest.fixture
def unexamined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model pass the examination before the extraction, as a fault would that it does not see."""
    monkeypatch.setattr(anatomy, "padding_is_neutral", lambda *args: True)
    monkeypatch.setattr(anatomy, "lengths_are_neutral", lambda *args: True)


def nothing_is_kept(cache: Path) -> bool:
    return [path.suffix for path in cache.iterdir()] == [".lock"]


# --- what is right is kept ---


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", few_quickly(CORE))
def test_long_and_short_sentences_have_the_states_that_the_plain_model_gives_each_alone(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, family: str, dtype: str
) -> None:
    source, layers = resolve_model(str(checkpoints[family])), list(range(N_LAYERS[family] + 1))
    ordered = sorted(sentences, key=len)
    texts = [*ordered[:3], *ordered[-3:], *ordered[::40]]
    # The longest sentences share one batch, the shortest another one, and the third one is of all lengths.
    request = Request(source, from_sentences("made up", texts), layers, dtype, batch_tokens=400)
    if dtype == "bfloat16" and family in FLOAT32_ALONE:
        with pytest.raises(UserError, match=r"does not run in bfloat16 on the processor .*; use `--dtype float32`"):
            activations(request, tmp_path, CPU)
        assert nothing_is_kept(tmp_path)
        return
    store = activations(request, tmp_path, CPU)
    model, tokenizer = untouched(source.folder, dtype=getattr(torch, dtype)), load_tokenizer(source)
    for sentence, text in enumerate(request.corpus.sentences):
        with torch.inference_mode():
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            alone = model(input_ids=ids, output_hidden_states=True).hidden_states
        for layer in layers:
            found = store.read(layer, 0)[store.tokens.of_sentences(sentence, 1)]
            if dtype == "float32":
                assert largest_change(found, alone[layer][0]) < 1e-5
            else:  # see `_ALLOWED`: 0.013 was the largest
                assert typical_change(found, alone[layer][0]) < 0.03


def test_sentences_of_all_lengths_are_compared_the_same_ones_each_time(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path
) -> None:
    request = Request(resolve_model(str(checkpoints["bert"])), corpus, [0], batch_tokens=300)
    store = activations(request, tmp_path, CPU)
    lengths, chosen = store.tokens.lengths, drawn_sentences(store)
    assert {lengths.min(), lengths.max()} < {int(lengths[sentence]) for sentence in chosen}
    assert 4 <= len(chosen) <= 6
    assert drawn_sentences(ActivationStore(store.folder)) == chosen
    assert not store.uncompared.exists()


# --- planted faults ---


@pytest.mark.slow
@pytest.mark.usefixtures("unexamined")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (keeps_state, r"from one call of the model to the next, because it keeps state between calls or draws"),
        (draws_at_random, r"from one call of the model to the next, because it keeps state between calls or draws"),
        (depends_on_the_batch, r"as extracted, differs by \d\.\d% from what the model gives for this sentence alone"),
        (leaks_padding, r"as extracted, differs by \d\.\d% from what the model gives for this sentence alone"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"site": "mlp", "layers": [1, 2]}], ids=str)
def test_states_that_are_not_the_models_are_refused_and_nothing_is_kept(
    planted: Callable[..., Request], tmp_path: Path, fault: Any, words: str, options: dict[str, Any]
) -> None:
    request = replace(planted(fault), **options)
    with pytest.raises(UserError, match=rf"`--model object:.*layer \d of sentence \d+ of the corpus .*{words}"):
        activations(request, tmp_path, CPU)
    assert nothing_is_kept(tmp_path)


@pytest.mark.parametrize("fault", [keeps_state, draws_at_random])
def test_a_model_that_does_not_repeat_itself_is_refused_before_the_extraction(
    planted: Callable[..., Request], tmp_path: Path, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ActivationStore, "write", None)
    with pytest.raises(UserError, match=r"depend on what it read before, or on chance .*choose another model"):
        activations(planted(fault), tmp_path, CPU)
    assert nothing_is_kept(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", [depends_on_the_batch, leaks_padding])
def test_sentences_that_others_change_are_read_with_those_of_their_length(
    planted: Callable[..., Request], tmp_path: Path, fault: Any, dtype: str
) -> None:
    assert activations(planted(fault, dtype=dtype), tmp_path, CPU).layers() == [0, 2]


@pytest.mark.parametrize(("family", "end", "n_types"), [("bert", "[SEP]", 2), ("xlnet", "</s>", 3)])
def test_token_types_that_a_tokenizer_gives_are_passed_and_missed_where_they_are_not(
    checkpoints: dict[str, Path],
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    end: str,
    n_types: int,
) -> None:
    from tokenizers import processors

    tokenizer = load_tokenizer(resolve_model(str(checkpoints[family])))
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    # As XLNet's own tokenizer, which gives its last token a type of its own.
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}:{n_types - 1}", special_tokens=[(end, tokenizer.convert_tokens_to_ids(end))]
    )
    request = Request(as_object(untouched(checkpoints[family]), tokenizer), corpus, [0, 1])
    store = activations(request, tmp_path / "passed", CPU)
    assert store.tokens.token_types is not None
    assert store.tokens.token_types[: store.tokens.offsets[1]].tolist()[-2:] == [0, n_types - 1]
    with torch.inference_mode():
        given = tokenizer(corpus.sentences[0], return_tensors="pt")
        alone = untouched(checkpoints[family])(**given, output_hidden_states=True).hidden_states
    assert largest_change(store.read(1, 0)[store.tokens.of_sentences(0, 1)], alone[1][0]) < 1e-5
    monkeypatch.setattr(extraction, "n_token_types", lambda *args: 0)
    with pytest.raises(UserError, match=r"layer \d of sentence .* as extracted, differs by"):
        activations(request, tmp_path / "not", CPU)
    assert nothing_is_kept(tmp_path / "not")


def test_a_pair_is_compared_with_the_segments_that_tell_its_sentences_apart(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = Corpus("pairs", ("A probe. Reads a layer.", "One word. Another word of it."), seconds=(9, 10))
    request = Request(resolve_model(str(checkpoints["bert"])), pairs, [0, 1])
    store = activations(request, tmp_path / "passed", CPU)
    tokenizer = load_tokenizer(request.source)
    given = tokenizer("A probe.", "Reads a layer.", return_tensors="pt", return_token_type_ids=True)
    with torch.inference_mode():
        alone = untouched(checkpoints["bert"])(**given, output_hidden_states=True).hidden_states
    assert largest_change(store.read(1, 0)[store.tokens.of_sentences(0, 1)], alone[1][0]) < 1e-5
    monkeypatch.setattr(extraction, "n_token_types", lambda *args: 0)
    with pytest.raises(UserError, match=r"layer 0 of sentence .* as extracted, differs by"):
        activations(request, tmp_path / "not", CPU)


# --- limits of length ---


def tiny(checkpoints: dict[str, Path], family: str, tokenizer_of: str, **config: Any) -> Any:
    """A tiny model of a family that is not in the table, as an object, and its tokenizer."""
    from transformers import CONFIG_MAPPING, AutoModel

    tokenizer = load_tokenizer(resolve_model(str(checkpoints[tokenizer_of])))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    make: Any = CONFIG_MAPPING[family]
    torch.manual_seed(0)
    model = AutoModel.from_config(make(vocab_size=len(tokenizer), **{**sizes, **config})).eval()
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape)
    return as_object(model, tokenizer)


def test_frequencies_that_the_longest_sentence_of_a_batch_chooses_are_those_of_each_sentence(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path
) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [9.0] * 4, "original_max_position_embeddings": 30}
    rope = {"rope_type": "longrope", "type": "longrope", "rope_theta": 10000.0, "factor": 4.0, **factors}
    # Versions of transformers before 5 call it `rope_scaling`.
    source = tiny(checkpoints, "llama", "bert", rope_parameters=rope, max_position_embeddings=120)
    store = activations(Request(source, corpus, [0, 2], batch_tokens=300), tmp_path, CPU)
    assert store.tokens.lengths.min() < 30 < store.tokens.lengths.max()
    model = source.copied()
    for sentence in range(10):
        rows = store.tokens.of_sentences(sentence, 1)
        with torch.inference_mode():
            ids = torch.from_numpy(store.tokens.input_ids[rows])[None].long()
            alone = model(input_ids=ids).last_hidden_state[0]
        assert largest_change(store.read(2, 0)[rows], alone) < 1e-4


def test_attention_that_changes_for_good_at_a_length_is_refused_unless_all_sentences_are_on_one_side(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path
) -> None:
    source = tiny(checkpoints, "big_bird", "bert", block_size=4, num_random_blocks=1, max_position_embeddings=120)
    request = Request(source, corpus, [0, 2], batch_tokens=300)  # up to 28 tokens, each attends to all
    with pytest.raises(UserError, match=r"\(big_bird\) gives a sentence of \d+ tokens .*`--max_length`.*names 4, "):
        activations(request, tmp_path, CPU)
    assert activations(replace(request, max_length=28), tmp_path, CPU).layers() == [0, 2]


@pytest.mark.parametrize("family", ["mamba", "falcon_mamba", "rwkv"])
def test_a_model_whose_first_entry_is_a_blocks_output_is_refused(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path, family: str
) -> None:
    config = {"state_size": 4, "time_step_rank": 4} if "mamba" in family else {"attention_hidden_size": 16}
    source = tiny(checkpoints, family, "bert", **config)
    with pytest.raises(UserError, match=rf"\({family}\): the hidden states .* are not what its blocks receive"):
        activations(Request(source, corpus, [0]), tmp_path, CPU)
    assert nothing_is_kept(tmp_path)


@pytest.mark.parametrize("family", ["longformer", "squeezebert"])
def test_states_that_enter_blocks_padded_or_turned_are_taken_as_handed_out(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path, family: str
) -> None:
    config = {"attention_window": 8} if family == "longformer" else {"embedding_size": 16}
    source = tiny(checkpoints, family, "bert", max_position_embeddings=120, **config)
    # What Longformer appends to a sentence is cut, so that its blocks receive what it hands out.
    assert (anatomy.examine(source.copied()).blocks is None) is (family == "squeezebert")
    assert activations(Request(source, corpus, [0, 2], batch_tokens=300), tmp_path, CPU).layers() == [0, 2]


@pytest.mark.parametrize("family", ["longformer", "led"])
def test_units_of_a_model_that_pads_inside_are_those_of_the_plain_model(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path, family: str
) -> None:
    sizes = {"encoder_layers": 2, "encoder_ffn_dim": 24, "encoder_attention_heads": 2, "decoder_layers": 1}
    config = {"max_position_embeddings": 120} if family == "longformer" else {"d_model": 16, **sizes}
    source = tiny(checkpoints, family, "bert", attention_window=8, **config)
    assert activations(Request(source, corpus, [1, 2], batch_tokens=300, site="mlp"), tmp_path, CPU).layers() == [1, 2]


# --- when it is compared ---


def test_what_was_not_compared_because_of_an_interruption_is_compared_by_the_next_command(
    checkpoints: dict[str, Path], corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(resolve_model(str(checkpoints["bert"])), corpus, [1])
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "compare_with_plain_model", interrupted)
        with pytest.raises(KeyboardInterrupt):
            activations(request, tmp_path, CPU)
    (folder,) = tmp_path.glob("*/")
    assert ActivationStore(folder).layers() == [1]
    assert ActivationStore(folder).uncompared.exists()
    compared: list[list[int]] = []
    monkeypatch.setattr(comparison, "compare_with_plain_model", lambda store, layers, *rest: compared.append(layers))
    activations(replace(request, layers=[2]), tmp_path, CPU)
    activations(replace(request, layers=[1, 2]), tmp_path, CPU)  # nothing is left to compare
    activations(replace(request, layers=[3]), tmp_path, CPU)
    assert compared == [[1, 2], [3]]
    assert not ActivationStore(folder).uncompared.exists()


def interrupted(*args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("unexamined")
def test_a_cache_that_cannot_be_written_gives_nothing_that_was_not_compared(
    planted: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = planted(leaks_padding)
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "compare_with_plain_model", interrupted)
        with pytest.raises(KeyboardInterrupt):
            activations(request, tmp_path, CPU)
    monkeypatch.setattr(cache_module, "job_lock", denied)
    with pytest.raises(UserError, match="cannot be written"):
        activations(request, tmp_path, CPU)


def denied(cache: Path, *args: Any) -> None:
    raise NotWritable(cache, PermissionError("Permission denied"))


def test_layers_in_many_shards_are_compared(
    planted: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_store, "SHARD_BYTES", 0)
    monkeypatch.setattr(cache_store, "MIN_SHARD_TOKENS", 200)
    request = planted(depends_on_the_batch, permuted_tokens_seed=3)
    assert len(activations(request, tmp_path, CPU).plan.shards) > 2


SEED = 4


@pytest.fixture
def request_for(checkpoints: dict[str, Path], sentences: list[str]) -> Callable[..., Request]:
    """Ask for some sentences, several of which are cut, with their tokens permuted."""

    def make(family: str, texts: list[str] = sentences[:20], **options: Any) -> Request:
        source, layers = resolve_model(str(checkpoints[family])), range(N_LAYERS[family] + 1)
        options = {"max_length": 40, "permuted_tokens_seed": SEED, **options}
        return Request(source, from_sentences("some", texts), layers, **options)

    return make


def places(tokens: Tokens) -> NDArray[np.int64]:
    """Return where in its sentence each token is moved to, shape (n_tokens,)."""
    labels = np.where(tokens.special, -1, tokens.positions).astype(np.int64)
    (drawn,) = permute_within_sentences(labels, tokens.sentences, tokens.input_ids, 1, SEED)
    return np.where(tokens.special, tokens.positions, drawn)


# --- what the model reads, and where its states go ---


@pytest.mark.parametrize("family", few_quickly(CORE))
@torch.inference_mode()
def test_the_model_reads_the_moved_tokens_and_each_state_is_kept_at_its_tokens_own_row(
    family: str, request_for: Callable[..., Request], tmp_path: Path
) -> None:
    request = request_for(family)
    stored, model = activations(request, tmp_path, {}), untouched(request.source.folder)
    tokens, moved = stored.tokens, places(stored.tokens)
    assert tokens.n_truncated > 2
    for sentence in range(tokens.n_sentences):
        here = tokens.of_sentences(sentence, 1)
        read = torch.zeros(1, here.stop - here.start, dtype=torch.int64)
        for token, place in zip(tokens.input_ids[here], moved[here], strict=True):
            read[0, place] = int(token)
        states = model(input_ids=read, attention_mask=torch.ones_like(read), output_hidden_states=True).hidden_states
        for layer in request.layers:
            expected = torch.stack([states[layer][0, place] for place in moved[here]])
            # Alone or padded in a batch, the same sums in another order: 1e-4 is hundreds of roundings.
            assert_close(stored.read(layer, 0)[here], expected, rtol=1e-4, atol=1e-4)
    assert (moved != tokens.positions)[~tokens.special].mean() > 0.5


# Models that know order by a table of absolute positions alone, and the row of position 0 in it: RoBERTa counts from
# behind the padding token.
FIRST_ROW = {"bert": 0, "roberta": 2, "albert": 0, "electra": 0, "xlm-roberta": 2}


@pytest.mark.parametrize("family", FIRST_ROW)
@torch.inference_mode()
def test_where_order_is_in_position_ids_alone_moved_tokens_are_tokens_told_other_positions(
    family: str, request_for: Callable[..., Request], tmp_path: Path
) -> None:
    request = request_for(family)
    stored, model = activations(request, tmp_path, {}), untouched(request.source.folder).double()
    moved = torch.from_numpy(places(stored.tokens))
    for sentence in range(stored.tokens.n_sentences):
        here = stored.tokens.of_sentences(sentence, 1)
        read = torch.from_numpy(stored.tokens.input_ids[here].astype(np.int64))[None]
        told = moved[here][None] + FIRST_ROW[family]
        states = model(input_ids=read, position_ids=told, output_hidden_states=True).hidden_states
        for layer in request.layers:
            assert_close(stored.read(layer, 0)[here].double(), states[layer][0], rtol=1e-5, atol=1e-5)


def test_a_token_is_moved_alike_in_every_batch_and_wherever_its_sentence_stands_in_the_corpus(
    request_for: Callable[..., Request], sentences: list[str], tmp_path: Path
) -> None:
    alone = activations(request_for("gpt2", batch_tokens=1), tmp_path / "alone", {})
    backward = activations(request_for("gpt2", sentences[19::-1]), tmp_path / "backward", {})
    for sentence in range(20):
        here, there = (s.tokens.of_sentences(i, 1) for s, i in ((alone, sentence), (backward, 19 - sentence)))
        assert_close(alone.read(3, 0)[here], backward.read(3, 0)[there], rtol=1e-4, atol=1e-4)


def test_the_draw_is_the_same_on_every_machine_and_in_every_process() -> None:
    tokens = make_tokens([10])
    assert places(tokens).tolist() == [0, 8, 1, 7, 2, 3, 4, 6, 5, 9]


def test_an_entry_of_the_former_control_is_not_taken_for_one_of_moved_tokens(
    request_for: Callable[..., Request],
) -> None:
    # That entry, of a model told other positions, had the same draw under this key.
    key = replace(request_for("gpt2"), permuted_tokens_seed=None).key()
    assert "permuted_positions_seed" not in request_for("gpt2").key()
    assert request_for("gpt2").key() not in (key, {**key, "permuted_positions_seed": SEED})
    assert request_for("gpt2").key() != request_for("gpt2", permuted_tokens_seed=SEED + 1).key()


# --- what is left of position ---

N_SENTENCES, N_WORDS = 1600, 8


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "t5", "gpt2", "llama", "convbert", "deberta"])
def test_nothing_but_chance_is_left_of_position_in_any_layer_however_the_model_is_told_of_order(
    family: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    # Words are drawn independently and sentences are of one length, so that the tokens alone tell nothing of position.
    # Then each sentence's positions are a uniform permutation given all that the model reads: whatever a probe says of
    # its N words, it is right 1 time in the mean, with a variance of at most 1 (Hoeffding 1951).
    n_test = N_SENTENCES // 2
    limit = (1 + 4 / n_test**0.5) / N_WORDS
    encoder: Any = load_encoder(resolve_model(str(checkpoints[family])))
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "rel" in name:  # a relative bias as plain as a trained model's
                parameter.mul_(30)
    tokens = make_tokens([N_WORDS + 2] * N_SENTENCES)
    input_ids = np.where(tokens.special, 2, tokens.input_ids % (encoder.config.vocab_size - 5) + 5).astype(np.int32)
    tokens = replace(tokens, input_ids=input_ids)

    def accuracies(name: str, key: dict[str, int]) -> list[float]:
        n_layers = N_LAYERS[family]
        plan = StorePlan(key, n_layers, 16, "float32", 4096, divide(tokens.lengths, tokens.n_tokens))
        store = ActivationStore.create(tmp_path / name, plan, tokens, {})
        pad_token_id = encoder.config.pad_token_id or 0
        anatomy = examine(encoder, pad_token_id)
        readers, reading = [(encoder, anatomy)], ForwardSpec(anatomy, pad_token_id, 0)
        for layer, states in extract_shard(readers, store, 0, range(n_layers + 1), reading).items():
            store.write(layer, 0, states)
        fits = sides(store, splits=["train", "test"] * n_test).fit(range(n_layers + 1), tolerance=1e-4)
        return [fit.metrics["accuracy"] for fit in fits]

    assert limit < 1 / N_WORDS + 0.02
    assert max(accuracies("plain", {})) > limit + 0.02
    assert max(accuracies("permuted", {"permuted_tokens_seed": SEED})) < limit
