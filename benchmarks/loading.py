"""Loading: read from disk what each tool stored, as float32, one layer and all layers."""

from __future__ import annotations

from benchmarks import commands
from benchmarks.corpora import sentences, write_text
from benchmarks.harness import BenchmarkError, Check, Comparison, Contestant, Run, Setting, interleave, values_of
from benchmarks.peers import peers_python

N_SENTENCES, LAYER = 1000, "2"
OURS = "probing"
# Largest relative difference of the sum of all values, which is added in different orders in float32.
SUMS_AGREE = 1e-3


def compare(setting: Setting) -> Comparison:
    """Extract once with each tool, then read in turns."""
    python, model = peers_python(setting.say), commands.model_folder(setting.model)
    corpus = write_text(setting.work / "sentences.txt", sentences(min(setting.sentences or N_SENTENCES, N_SENTENCES)))
    cache = setting.work / "cache"
    setting.say("  extracting with each tool, once")
    commands.prepare(setting, commands.extract(setting, corpus, cache))
    own = commands.entry(cache)
    for name in commands.EXTRACTORS:
        commands.prepare(setting, commands.extract_by(name, python, model, corpus, setting.work))

    def reading(name: str, layer: str) -> Contestant:
        shown = f"{name}, {'all layers' if layer == 'all' else 'one layer'}"
        if name == OURS:
            return Contestant(shown, lambda folder: commands.ours("load", own, layer))
        tool, _, file, *_ = commands.EXTRACTORS[name]
        return Contestant(shown, lambda folder: commands.peer(python, tool, "load", setting.work / file, layer))

    contestants = [reading(name, layer) for layer in (LAYER, "all") for name in (OURS, *commands.EXTRACTORS)]
    runs, _ = interleave(contestants, setting)
    checks = [_same(runs, "one layer"), _same(runs, "all layers")]
    if broken := [check.what for check in checks if not check.held]:
        raise BenchmarkError(f"answers differ: {'; '.join(broken)}")
    return Comparison(
        [_shared(run) for run in runs],
        f"{OURS}, all layers",
        checks,
        notes=["The system is asked to drop the files from memory before each reading. NeuroX stores a row per word."],
    )  # fmt: skip


def _same(runs: list[Run], what: str) -> Check:
    """Compare the sums of the tools that keep all tokens."""
    sums = [
        values_of(runs, f"{name}, {what}", "sum")[0] for name in (OURS, *commands.EXTRACTORS) if "NeuroX" not in name
    ]
    apart = max(abs(each - sums[0]) / max(abs(sums[0]), 1) for each in sums)
    return Check(f"sum of what was read, {what}, relative difference", apart, SUMS_AGREE)


def _shared(run: Run) -> Run:
    kept = {name: value for name, value in run.values.items() if name != "sum"}
    return Run(run.contestant, run.round, {**kept, "million_rows_per_s": kept["rows"] / kept["seconds"] / 1e6})
