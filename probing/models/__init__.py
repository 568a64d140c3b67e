"""Models and their layers: names, files, configuration, tokenizer and weights."""

from probing.models.examination import max_length_of
from probing.models.layers import (
    SiteName,
    from_the_end,
    is_inside_blocks,
    layer_numbers,
    neuron_of,
    parse_layers,
    site_in_names,
    site_of,
    what_is_a_neuron,
)
from probing.models.loading import (
    check_ids,
    find_model,
    length_limits,
    load_config,
    load_encoder,
    load_masked_lm,
    load_tokenizer,
    word_folding,
)
from probing.models.source import ALIASES, BUILTIN_PACKAGE, ModelSource, check_revision, resolve_model

__all__ = [
    "ALIASES",
    "BUILTIN_PACKAGE",
    "ModelSource",
    "SiteName",
    "check_ids",
    "check_revision",
    "find_model",
    "from_the_end",
    "is_inside_blocks",
    "layer_numbers",
    "length_limits",
    "load_config",
    "load_encoder",
    "load_masked_lm",
    "load_tokenizer",
    "max_length_of",
    "neuron_of",
    "parse_layers",
    "resolve_model",
    "site_in_names",
    "site_of",
    "what_is_a_neuron",
    "word_folding",
]
