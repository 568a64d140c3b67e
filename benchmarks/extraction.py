"""Extraction: write the hidden states of all layers to disk, compared with NeuroX and loops over `transformers`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks import commands, floor
from benchmarks.corpora import sentences, write_text
from benchmarks.harness import Check, Comparison, Contestant, Met, Run, Setting, interleave, median_of, values_of
from benchmarks.peers import peers_python
from probing.activations import BATCH_TOKENS_CPU

OURS, HALF = "probing, float32", "probing, bfloat16"
# The slow tools read only the first sentences; targets concern the whole corpus.
OURS_ALL, HALF_ALL = (f"{name}, whole corpus" for name in (OURS, HALF))
_DTYPES = {OURS: "float32", HALF: "bfloat16", OURS_ALL: "float32", HALF_ALL: "bfloat16"}
FLOOR = "what the machine can do"
# Number of sentences that the slow tools can read in reasonable time.
N_SENTENCES = 1000
AGREE, HALF_AGREES = 1e-4, 0.005
_FLOOR = (sys.executable, "-m", "benchmarks.floor")


def compare(setting: Setting) -> Comparison:
    """Extract with each tool in turn, and measure the machine's own rates in every round."""
    python, model = peers_python(setting.say), commands.model_folder(setting.model)
    corpus = write_text(setting.work / "sentences.txt", sentences(min(setting.sentences or N_SENTENCES, N_SENTENCES)))
    whole = write_text(setting.work / "corpus.txt", sentences(setting.sentences))
    contestants = [
        Contestant(FLOOR, lambda folder: [*_FLOOR, setting.model, str(BATCH_TOKENS_CPU), str(folder)]),
        Contestant(OURS, lambda folder: commands.extract(setting, corpus, folder)),
        Contestant(HALF, lambda folder: commands.extract(setting, corpus, folder, "--dtype", "bfloat16")),
        Contestant(OURS_ALL, lambda folder: commands.extract(setting, whole, folder)),
        Contestant(HALF_ALL, lambda folder: commands.extract(setting, whole, folder, "--dtype", "bfloat16")),
        *(
            Contestant(name, lambda folder, name=name: commands.extract_by(name, python, model, corpus, folder))  # type: ignore[misc]
            for name in commands.EXTRACTORS
        ),
    ]  # fmt: skip

    half: list[float] = []

    def check(answers: Mapping[str, Path]) -> list[Check]:
        paths = [answers[name] / file for name, (_, _, file, *_) in commands.EXTRACTORS.items()]
        half.append(_half(setting, corpus, answers))
        own = commands.entry(answers[OURS])
        found = commands.prepare(setting, commands.peer(python, "answers", "states", model, corpus, own, *paths))
        return [
            Check(f"hidden states, {name}, largest difference to ours", found[path.stem], AGREE)
            for name, path in zip(commands.EXTRACTORS, paths, strict=True)
        ]

    runs, checks = interleave(contestants, setting, check)
    runs = [_with_rates(run, runs, setting) for run in runs]
    return Comparison(runs, OURS, checks, _met(runs, checks, half[0]), [_notes(runs)])


def _half(setting: Setting, corpus: Path, answers: Mapping[str, Path]) -> float:
    """Return the largest difference of any layer's accuracy between bfloat16 and float32."""
    found = []
    for dtype, name in (("float32", OURS), ("bfloat16", HALF)):
        runs = setting.work / f"runs-{dtype}"
        options = (*commands.BARE, *commands.TO_A_THOUSANDTH, "--dtype", dtype)
        commands.prepare(setting, commands.fit(setting, corpus, answers[name], runs, *options))
        found.append(commands.accuracies(runs))
    return max(abs(found[0][layer] - found[1][layer]) for layer in found[0])


def _with_rates(run: Run, runs: list[Run], setting: Setting) -> Run:
    """Add tokens per second to a run and, for our own, the share of the rate of its matrix products."""
    if run.contestant == FLOOR:
        return run
    own = next(each for each in runs if each.contestant == OURS)
    more = {"tokens_per_s": run.values.get("n_tokens", own.values["n_tokens"]) / run.values["seconds"]}
    if dtype := _DTYPES.get(run.contestant):
        rates = next(each.values for each in runs if each.contestant == FLOOR and each.round == run.round)
        least = floor.seconds(setting.model, run.values["n_tokens"], run.values["token_pairs"], rates, dtype)
        bytes_ = run.values["bytes"]
        values = run.values["n_tokens"] * run.values["n_layers_cached"] * run.values["d_model"]
        more |= {
            "floor_seconds": least,
            "share_of_floor": least / run.values["seconds"],
            "share_of_disk_rate": bytes_ / 1e9 / rates["disk_gb_s"] / run.values["seconds"],
            "bytes_over_values": bytes_ / (values * (4 if dtype == "float32" else 2)),
        }
    return Run(run.contestant, run.round, {**run.values, **more})


def _met(runs: list[Run], checks: list[Check], half: float) -> list[Met]:
    met = []
    for key, name, must in (("extraction_float32", OURS_ALL, 0.75), ("extraction_bfloat16", HALF_ALL, 0.5)):
        share = statistics.median(values_of(runs, name, "share_of_floor").values())
        met.append(Met(key, f"{share:.0%} (the whole command, its model loaded and its shards synced)", share >= must))
    worst = max(check.difference for check in checks)
    met.append(Met("extraction_equal", f"at most {worst:.1e} apart", worst <= AGREE))
    met.append(Met("accuracy_bfloat16", f"at most {half:.4f} apart", half <= HALF_AGREES))
    over = max(median_of(runs, name, "bytes_over_values") for name in _DTYPES)
    return [*met, Met("cache_bytes", f"{over - 1:.2%} more", over <= 1.02)]


def _notes(runs: list[Run]) -> str:
    return (
        f"{median_of(runs, OURS, 'n_tokens'):.0f} tokens, special ones included, all layers "
        f"({median_of(runs, OURS_ALL, 'n_tokens'):.0f} in the whole corpus); the seconds count "
        "from the end of the imports to the last byte. NeuroX keeps one vector a word, its last piece's, the "
        "others one a token."
    )
