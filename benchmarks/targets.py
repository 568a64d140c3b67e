"""The project's performance targets, for two processor cores with the built-in model and corpus."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """What is measured, the value it must reach, and the value aimed for."""

    what: str
    must: str
    aim: str = ""


TARGETS = {
    "extraction_float32": Target("extraction, float32, all layers, against its matrix products' rate", "75%", "85%"),
    "extraction_equal": Target("its hidden states against the plain forward pass", "within 1e-4"),
    "extraction_bfloat16": Target("extraction, bfloat16, against its own rate", "50%", "70%"),
    "accuracy_bfloat16": Target("accuracies with bfloat16 against float32", "within .005"),
    "layer_steps": Target("`--layer k` of n blocks", "constant plus k equal steps (within 10%)"),
    "probe": Target(
        "all layers, every `optimality_gap` at most .001 nats, against NeuroX's trainer on one layer with its defaults",
        "at most 2 times its one layer",
    ),
    "probe_replicates": Target("the same with 5 replicates", "", "within its one layer"),
    "whole_job": Target(
        "whole job, text to ranked tables of all layers, cold, against NeuroX's", "5 times faster", "10 times"
    ),
    "memory": Target("peak anonymous memory when the sentences are doubled", "changes by less than 10%"),
    "memory_of_commands": Target("peak anonymous memory of any command, also on a base-size model", "under 1500 MiB"),
    "slope": Target("cost against tokens, log-log slope", "1.0 ± 0.1"),
    "cache_bytes": Target("cache on disk against d_model x dtype size per token and layer", "at most 2% more"),
    "help": Target("`python -m probing --help`", "under 1 second"),
    "import": Target("`import probing`", "under .2 seconds"),
}  # fmt: skip
