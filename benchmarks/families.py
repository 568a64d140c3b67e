"""What the program reads of every text family of `transformers`, beside the unmodified model.

    python -m benchmarks.families [FAMILY ...] [--page docs/notes/families.md]

Each family gets a tiny random model from its own configuration class and a tokenizer of words. `extract` reads a few
sentences by it, one of them longer than the model takes, and each layer is compared with what the model alone returns
for each sentence. Its attention is compared with what the model returns as attention, and both sites are sought. The
table goes into a CSV file beside the page, and a sentence on it between the page's markers; without `--page` both are
printed. A family that ends in anything else than a row of the table or a refusal makes the exit status 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from probing.activations.store import ActivationStore
from probing.errors import RunError, UserError
from probing.models import SiteName, load_encoder, resolve_model
from probing.models.anatomy import Anatomy, examine
from probing.models.attention_heads import find_heads, read_heads
from probing.models.examination import examination_inputs
from probing.models.residual_stream import UnknownParts, find_norms, find_parameters, find_path, word_table
from probing.studies.fit import extract

SENTENCES = (
    "the old man saw a small boat on the sea",
    "he took it",
    "a bird sang in the tree by the river and the wind was cold",
    "we walk home",
    " ".join(["the sea was cold and the boat was old so he went home"] * 8),
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
N_LAYERS, N_HEADS, D_HEAD, LONGEST, VOCABULARY = 3, 4, 8, 64, 64
D_MODEL, D_MLP, N_EXPERTS = N_HEADS * D_HEAD, 48, 4
# Largest deviation, relative to the largest value of a layer, that still counts as equal.
EQUAL = 1e-5
SITES: tuple[SiteName, ...] = ("mlp", "attention")

# The names that configurations have for sizes, and what a tiny model has.
_NAMES = (
    (D_MODEL, "hidden_size d_model n_embd dim emb_dim embed_dim embedding_size model_dim dim_model"),
    (N_LAYERS, "num_hidden_layers n_layer n_layers num_layers encoder_layers num_encoder_layers"),
    (
        2,
        "decoder_layers num_decoder_layers num_key_value_heads num_experts_per_tok num_experts_per_token moe_k "
        "moe_topk bos_token_id cls_token_id decoder_start_token_id",
    ),
    (
        N_HEADS,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
        "num_encoder_attention_heads num_decoder_attention_heads num_experts num_local_experts n_routed_experts "
        "moe_num_experts mamba_n_groups n_groups mask_token_id",
    ),
    (
        D_HEAD,
        "head_dim d_kv dim_head d_head qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim mamba_n_heads "
        "mamba_d_head",
    ),
    (
        D_MLP,
        "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim dim_ff hidden_dim n_inner d_inner "
        "ffn_hidden_size moe_intermediate_size",
    ),
    (
        LONGEST,
        "max_position_embeddings n_positions n_ctx max_seq_len max_encoder_position_embeddings seq_length "
        "max_decoder_position_embeddings max_target_positions max_source_positions context_length model_max_length "
        "vocab_size src_vocab_size tgt_vocab_size mamba_d_ssm",
    ),
    (16, "q_lora_rank kv_lora_rank sliding_window attention_window"),
    (1, "n_group topk_group"),
    (0, "pad_token_id num_kv_shared_layers"),
    (3, "eos_token_id sep_token_id"),
)
SIZES = {name: size for size, names in _NAMES for name in names.split()}
_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
_WHOLE = {"rope_parameters": {**_SECTIONS["rope_parameters"], "partial_rotary_factor": 1.0}}
_ALL_HEADS, _HEAD = {"num_key_value_heads": N_HEADS}, {"head_dim": D_HEAD}
# What else a family's tiny model needs.
OWN: dict[str, dict[str, Any]] = {
    "cosmos3_edge_text": _SECTIONS, "qwen2_vl_text": _SECTIONS, "qwen2_5_vl_text": _SECTIONS,
    "glm4v_moe_text": _WHOLE, "glm4v_text": _WHOLE, "glm_image_text": _WHOLE, "glm_ocr_text": _WHOLE,
    "hunyuan_v1_dense": _HEAD, "hunyuan_v1_moe": _HEAD, "hunyuan_vl_text": _HEAD, "ministral": _HEAD,
    "nemotron": {"num_key_value_heads": 2, "head_dim": D_HEAD},
    "esmc": _ALL_HEADS, "glm5_next_text": _ALL_HEADS,
    "dots1": {"n_routed_experts": N_EXPERTS, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "funnel": {"block_sizes": [1, 1, 1], "architectures": ["FunnelModel"]},
    "gpt_neo": {"attention_types": [[["global"], N_LAYERS]]},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "lilt": {"hidden_size": 48},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "reformer": {
        "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8], "attn_layers": ["local", "lsh", "local"],
        "attention_head_size": D_HEAD, "feed_forward_size": D_MLP, "num_buckets": 2, "is_decoder": True,
    },
    "led": {"attention_window": [16] * N_LAYERS},
    "seamless_m4t": {"decoder_layers": N_LAYERS}, "seamless_m4t_v2": {"decoder_layers": N_LAYERS},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layers_block_type": ["mamba", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


@dataclass
class Row:
    """What was read of a family.

    Args:
        family: Its `model_type`.
        states: The hidden states: their number and largest deviation, or how the family was refused.
        attention: Likewise for the attention of its blocks.
        sites: Likewise for each site.
        failures: What ended in a traceback, or gave other numbers than the model.
    """

    family: str
    states: str
    attention: str = "–"
    sites: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table after the first."""
        return (self.states, self.attention, *(self.sites.get(site, "–") for site in SITES))


# --- tiny models ---


def families() -> Iterator[str]:
    """Yield the families whose models are given token ids and nothing else by name, in alphabetical order."""
    from transformers import CONFIG_MAPPING, MODEL_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for name in sorted(MODEL_MAPPING_NAMES):
        with suppress(Exception):  # families that need packages which are not installed
            model: Any = MODEL_MAPPING[CONFIG_MAPPING[name]]
            model = model[0] if isinstance(model, tuple) else model
            config = CONFIG_MAPPING[name]()
            sizes = all(hasattr(config, size) for size in ("num_hidden_layers", "hidden_size", "vocab_size"))
            if model.main_input_name == "input_ids" and sizes:
                yield name


def tiny_config(family: str) -> Any:
    """Return a family's configuration with tiny sizes."""
    from transformers import CONFIG_MAPPING

    make: Any = CONFIG_MAPPING[family]
    default, own = make(), OWN.get(family, {})
    known, sizes = default.to_dict(), {}
    for name in (name for name in SIZES if name in known and name not in own):
        with suppress(AttributeError):  # some sizes differ from block to block
            if getattr(default, name) is not None or name.endswith("_id") or name == "vocab_size":
                sizes[name] = SIZES[name]
    if "kv_lora_rank" in sizes:
        sizes |= _ALL_HEADS
    return make(**sizes, **own)


def word_tokenizer() -> Any:
    """Return a fast tokenizer of the sentences' words, with [CLS] and [SEP] around a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    ids = {word: i for i, word in enumerate((*SPECIAL, *words))}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    around = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", bos_token="[CLS]", eos_token="[SEP]",
    )  # fmt: skip


def save_tiny(family: str, folder: Path) -> None:
    """Save a family's tiny randomly initialised model, and the tokenizer."""
    from transformers import AutoModel

    torch.manual_seed(0)
    model = AutoModel.from_config(tiny_config(family))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (one for one in model.parameters() if one.ndim > 1):
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)


def plain(folder: Path, **options: Any) -> Any:
    """Load the model by transformers alone; of an encoder-decoder, the encoder."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, **options).eval()
    model.config.use_cache = False
    return model.get_encoder() if model.config.is_encoder_decoder else model


# --- what is read of them ---


def deviation(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def states_deviation(store: ActivationStore, folder: Path) -> list[float]:
    """Return for each layer how far what is stored is from what the model alone returns for each sentence by itself."""
    model, ids = plain(folder), torch.from_numpy(store.tokens.input_ids).long()
    expected: list[list[Tensor]] = [[] for _ in range(store.plan.n_layers + 1)]
    with torch.inference_mode():
        for sentence in ids.split(store.tokens.lengths.tolist()):
            inputs = {"input_ids": sentence[None], "attention_mask": torch.ones_like(sentence[None])}
            output = model(**inputs, output_hidden_states=True, return_dict=True)
            for states, layer in zip(expected, output.hidden_states, strict=True):
                # Pegasus-X returns pairs of states and pads them.
                states.append((layer[0] if isinstance(layer, tuple) else layer)[0, : len(sentence)])
    shards = range(len(store.plan.shards))
    return [
        deviation(torch.cat([store.read(layer, shard) for shard in shards]), torch.cat(states))
        for layer, states in enumerate(expected)
    ]


def attention_deviation(encoder: Any, anatomy: Anatomy, folder: Path, family: str) -> str:
    """Return how far the attention that is read is from what the model returns, as a cell."""
    heads, seen = find_heads(encoder, anatomy, 0, family), list[Tensor]()
    inputs = examination_inputs(encoder, 0)
    with torch.inference_mode():
        read_heads(encoder, heads, lambda block, probabilities, values: seen.append(probabilities[0].clone()), inputs)
        returned = plain(folder, attn_implementation="eager")(
            **inputs, output_attentions=True, return_dict=True
        ).attentions
    returned = [one[0] for one in returned or ()]
    if len(returned) != len(seen) or any(one.shape != ours.shape for one, ours in zip(returned, seen, strict=True)):
        return f"{heads.n_layers} blocks; the model returns none"
    # ProphetNet and SqueezeBERT return the scores, before the softmax.
    scores = [one if bool((one.sum(-1) - 1).abs().max() < 1e-3) else one.softmax(-1) for one in returned]
    worst = max(deviation(ours, one) for ours, one in zip(seen, scores, strict=True))
    if worst > EQUAL:
        raise AssertionError(f"attention deviates by {worst:.1e}")
    return f"{heads.n_layers} blocks, {worst:.0e}"


def examine_family(family: str, folder: Path) -> Row:
    """Return what the program reads of a family, with a folder for its files."""
    try:
        save_tiny(family, folder / family)
    except Exception as error:
        return Row(family, f"no tiny model ({type(error).__name__})")
    row, model = Row(family, ""), folder / family
    text = folder / "text.txt"
    text.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")

    def attempt(what: str, function: Callable[[], str]) -> str:
        try:
            return function()
        except (UserError, RunError, UnknownParts) as error:
            return f"refused: {error}".replace(str(model), family)
        except Exception as error:
            row.failures.append(f"{what}: {type(error).__name__}: {error}")
            return "**failed**"

    def extracted(site: SiteName = "residual") -> ActivationStore:
        return ActivationStore(extract(str(model), site=site, corpus=str(text), cache=str(folder / "c"), quiet=True))

    def states() -> str:
        deviations = states_deviation(extracted(), model)
        if max(deviations) > EQUAL:
            raise AssertionError(f"hidden states deviate by {max(deviations):.1e}")
        return f"{len(deviations)} layers, {max(deviations):.0e}"

    def described(what: Callable[..., Any], *of: Any) -> str:
        return str(what(*of))

    def site_of(site: SiteName) -> str:
        return f"{extracted(site).plan.d_model} neurons"

    row.states = attempt("hidden states", states)
    if row.states.startswith(("refused", "**")):
        return row
    encoder = load_encoder(resolve_model(str(model)))
    anatomy = examine(encoder, 0, family)
    row.attention = attempt("attention", lambda: attention_deviation(encoder, anatomy, model, family))
    row.sites = {site: attempt(f"--site {site}", partial(site_of, site)) for site in SITES}
    for what in (find_norms, find_path, find_parameters):
        attempt(what.__name__, partial(described, what, encoder, anatomy))
    attempt("word_table", partial(described, word_table, encoder))
    return row


# --- the table ---


def shown(cell: str) -> str:
    """Return a cell of the table; of a refusal the reason, without the family's name and with N for numbers."""
    if not cell.startswith("refused: "):
        return cell
    reason = re.sub(
        r"^.*?\)(: it| has| does| returns|: )", lambda match: match[1].lstrip(": "), cell.removeprefix("refused: ")
    )
    return "refused: " + re.sub(r"\d+", "N", re.sub(r"; (choose|use) .*$|\.$", "", reason))


def summary(rows: Sequence[Row]) -> str:
    """Return how many families were read, in a sentence."""
    counts = [sum(row.cells[i][:1].isdigit() for row in rows) for i in range(4)]
    n_failures, day = sum(len(row.failures) for row in rows), f"{date.today():%d %B %Y}"
    return (
        f"{len(rows)} families on {day}, with transformers {_version()}: hidden states of {counts[0]} equal those of "
        f"the unmodified model, attention is read in {counts[1]}, units of the MLP in {counts[2]}, outputs of heads in "
        f"{counts[3]}; {n_failures or 'none'} ended in a traceback or gave other numbers."
    )


def write_table(rows: Sequence[Row], file: TextIO) -> None:
    """Write what was read of each family as CSV."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("family", "hidden_states", "attention", "mlp", "attention_site"))
    writer.writerows((row.family, *map(shown, row.cells)) for row in rows)


def _version() -> str:
    import transformers

    return transformers.__version__


def main(args: Sequence[str] | None = None) -> int:
    """Examine the families and print the table, or write it beside the page; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--rows", type=Path, help="file that keeps finished rows, so that a killed run goes on")
    options = parser.parse_args(args)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # tiny products are faster so
    kept = options.rows.read_text(encoding="utf-8").splitlines() if options.rows and options.rows.exists() else []
    rows = [Row(**json.loads(line)) for line in kept]
    for family in sorted({*(options.families or families())} - {row.family for row in rows}):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(examine_family(family, Path(folder)))
        print(family, *rows[-1].cells, *rows[-1].failures, sep=" | ", file=sys.stderr, flush=True)
        if options.rows:
            with options.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(rows[-1])) + "\n")
    rows.sort(key=lambda row: row.family)
    if options.page:
        before, rest = options.page.read_text(encoding="utf-8").split("<!-- summary -->")
        after = rest.split("<!-- end of summary -->")[1]
        text = f"{before}<!-- summary -->\n{summary(rows)}\n<!-- end of summary -->{after}"
        options.page.write_text(text, encoding="utf-8")
        with options.page.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
            write_table(rows, file)
    else:
        print(summary(rows))
        write_table(rows, sys.stdout)
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
