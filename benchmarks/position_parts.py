"""The position part of hidden states in six pretrained models, side by side, and ten of its numbers by plain loops.

    python -m benchmarks.position_parts --reactions reactions.txt     # after `make models`; half an hour of two cores
    python -m benchmarks.position_parts --models minilm

For each model, `fit` of all layers without further evidence, and `position --run` beside its ranking;
of the decoder also without the first token of each sentence. Runs that are finished in the folder are read, so that the
same command goes on after a kill. Writes `position_parts.csv`, a row per model and layer, and a figure.

The check reads the built-in model's cached states again and repeats ten numbers without the code of the package: the
split by backfitting (means of positions and of sentences in turn, until they stay), chance by a loop over sentences,
directions by the eigenvectors of a covariance.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import commands
from benchmarks.corpora import sentences, write_text
from benchmarks.harness import ROOT, BenchmarkError, write_csv
from benchmarks.models import MODELS
from benchmarks.real_models_page import LOOKS
from probing import extract, load_run
from probing.activations.store import ActivationStore
from probing.studies.position import SUFFIX
from probing.tables.figures import PURPLE, error_bars, write_drawings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

# Number of texts, and most characters of a reaction: longer ones have positions that few others have.
N_TEXTS, LONGEST = 800, 160
# A ranking of a probe whose penalty is fixed, since five rankings of each model would take an hour otherwise.
RANKED = (*commands.BARE, "--figure_format", "png")
# What is drawn, with the titles of the panels.
_PANELS = {
    "position": "share of the variance that is position",
    "directions": "number of directions of the position part",
    "half": "neurons with half of it, as a share of directions",
    "half_standardised": "the same, every neuron standardised",
}
# How close the repeated numbers must be.
CLOSE = 1e-5
_LOOKS = {
    **LOOKS, "all-mpnet-base-v2": {"color": PURPLE, "marker": "v"},
    "smollm2-later": {"color": LOOKS["smollm2"]["color"], "marker": "^", "mfc": "white"},
}  # fmt: skip


@dataclass(frozen=True)
class Read:
    """How a model is read.

    Args:
        name: Its short name; that of its folder under `runs/models`, but for the built-in one.
        text: Which text it reads.
        layers: Its layers.
        ranked: The layers whose neurons `fit` ranks.
        without_first: Whether it is also read without the first token of each sentence.
    """

    name: str
    text: str
    layers: str = "all"
    ranked: str = "0,3,6,9,12"
    without_first: bool = False

    @property
    def model(self) -> str:
        """What names the model to the commands."""
        return self.name if self.name == "minilm" else str(MODELS / self.name)


READ = (
    Read("minilm", "english", ranked="all"), Read("all-mpnet-base-v2", "english"),
    Read("smollm2", "english", "0,1,2,3,6,9,12,15,18,21,24,27,30", "0,3,9,15,21,30", without_first=True),
    Read("rxn-bert", "reactions"), Read("rxn-bert-tuned", "reactions"), Read("rxn-albert", "reactions"),
)  # fmt: skip


def make(folder: Path, models: Sequence[Read], reactions: Path | None, threads: int) -> dict[str, Any]:
    """Make the runs that are not there, and return those of `position` by the names of their models.

    Raises:
        BenchmarkError: If a run fails; those that are finished stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"english": sentences(N_TEXTS)}
    if reactions is not None:
        lines = dict.fromkeys(reactions.read_text(encoding="utf-8").splitlines())
        texts["reactions"] = [line for line in lines if 0 < len(line) <= LONGEST][:N_TEXTS]
    for name, lines_of_text in texts.items():
        if not (path := folder / f"{name}.txt").exists():
            write_text(path, lines_of_text)
    found = {}
    for read in models:
        about = ["--model", read.model, "--corpus", str(folder / f"{read.text}.txt"), "--layer"]
        fit = folder / "runs" / f"fit-{read.name}"
        _measure(folder, fit, "fit", [*about, read.ranked, *RANKED], threads)
        how = ["--figure_format", "png"]
        run = folder / "runs" / f"position-{read.name}"
        _measure(folder, run, "position", [*how, "--run", str(fit), "--layer", read.layers], threads)
        found[read.name] = load_run(run)
        if read.without_first:
            later = folder / "runs" / f"position-{read.name}-later"
            _measure(folder, later, "position", [*how, *about, read.layers, "--first_token", "exclude"], threads)
            found[f"{read.name}-later"] = load_run(later)
    return found


def _measure(folder: Path, run: Path, command: str, args: Sequence[str], threads: int) -> None:
    if not (run / "results.json").is_file():
        took, _ = commands.in_folder(folder, run.name, command, args, threads)
        print(f"{run.name}: {took}", flush=True)


def rows_of(runs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row per model and layer."""
    for name, run in runs.items():
        split = {(row["layer"], row["scale"], row["part"]): row for row in run.position_split}
        shape = {(row["layer"], row["measure"]): row for row in run.position_shape}
        basis = {(row["layer"], row["scale"]): row for row in run.position_basis}
        held = {(row["layer"], row["scale"], row["order"], row["k"]): row["value"] for row in run.position_held}
        for layer in sorted({layer for layer, _, _ in split}):
            position = split[layer, "raw", "position"]
            row = {
                "model": name, "layer": layer, "position": position["value"], "low": position["low"],
                "high": position["high"], "chance": position["chance"],
                "standardised": split[layer, "standardised", "position"]["value"],
                "context": split[layer, "raw", "context"]["value"],
            }  # fmt: skip
            for measure in (
                "directions", "low_frequencies", "context_overlap", "below_overlap", "halves_overlap", "read_accuracy",
                "read_longer_accuracy",
            ):  # fmt: skip
                here = shape.get((layer, measure), {})
                row |= {measure: here.get("value"), f"{measure}_chance": here.get("chance")}
            for scale, suffix in SUFFIX.items():
                here = basis.get((layer, scale), {})
                row |= {f"{name}{suffix}": here.get(name)
                        for name in ("half", "half_directions", "half_lowest", "half_highest", "half_p")}  # fmt: skip
            for order in ("fit", "eta_squared", "part", "random", "rotated"):
                row[f"held_by_10_{order}"] = held.get((layer, "raw", order, 10))
            yield row


def draw(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw share, number of directions and of neurons of all models by relative depth."""
    figure.set_size_inches(8.6, 7.2)
    panels = dict(zip(_PANELS, figure.subplots(2, 2).ravel(), strict=True))
    for name in dict.fromkeys(row["model"] for row in rows):
        here = [row for row in rows if row["model"] == name]
        depth = np.array([row["layer"] for row in here]) / max(row["layer"] for row in here)
        look = {"ms": 4, "lw": 1, **_LOOKS[name], "label": name.replace("-later", ", without the first token")}
        for measure, axes in panels.items():
            values = np.array([np.nan if row[measure] is None else row[measure] for row in here])
            if measure.startswith("half"):
                rotated = [row[measure.replace("half", "half_directions")] for row in here]
                values = values / [np.nan if number is None else number for number in rotated]
            reach = error_bars(here, values) if measure == "position" else None
            axes.errorbar(depth, values, yerr=reach, capsize=2, **look)
    for measure, axes in panels.items():
        axes.set_title(_PANELS[measure], fontsize=9)
        axes.set_xlabel("depth (0: embeddings, 1: last layer)")
    panels["position"].set_yscale("log")
    for suffix in SUFFIX.values():
        panels[f"half{suffix}"].set_ylim(0, 1.3)
        panels[f"half{suffix}"].axhline(1, color="black", lw=0.6)
    figure.legend(*panels["position"].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def repeated(run: Any, store: ActivationStore, layer: int) -> list[tuple[str, float, float]]:
    """Return ten numbers of a layer, each as the run has it and as plain loops have it.

    Args:
        run: The run of `position`.
        store: The states that it read.
        layer: The layer.
    """
    kept = ~store.tokens.special
    states = np.concatenate([store.read(layer, shard.index).double().numpy() for shard in store.plan.shards])[kept]
    sentence = np.unique(store.tokens.sentences[kept], return_inverse=True)[1].reshape(-1)
    position = store.tokens.positions[kept]
    position = np.unique(position, return_inverse=True)[1].reshape(-1)
    states -= states.mean(0)
    n, m = np.bincount(position), np.bincount(sentence)

    def means(of: Array, by: NDArray[np.int64], sizes: NDArray[np.int64]) -> Array:
        sums = np.zeros((len(sizes), of.shape[1]))
        np.add.at(sums, by, of)
        return sums / np.maximum(sizes, 1)[:, None]

    def squares(of: Array) -> float:
        return float(np.square(of).sum())

    def backfitted(tokens: NDArray[np.bool_]) -> tuple[Array, NDArray[np.int64]]:
        """Return the position part of some tokens, and the number of them at each position."""
        x, t, c = states[tokens], position[tokens], sentence[tokens]
        at, of = np.bincount(t, minlength=len(n)), np.bincount(c, minlength=len(m))
        p = np.zeros((len(n), states.shape[1]))
        for _ in range(500):
            before = p
            p = means(x - means(x - p[t], c, of)[c], t, at)
            if np.abs(p - before).max() < 1e-9 * np.abs(p).max():
                break
        return p - (at @ p) / at.sum(), at

    p, _ = backfitted(np.ones(len(states), dtype=bool))
    total, rest = squares(states), squares(states - p[position] - means(states - p[position], sentence, m)[sentence])
    of_sentences, of_positions = means(states, sentence, m), means(states, position, n)
    within = squares(states - of_sentences[sentence])
    found = {
        "position": (within - rest) / total,
        "context": (squares(states - of_positions[position]) - rest) / total,
        "rest": rest / total,
        "position_alone": squares(of_positions[position]) / total,
        "context_alone": squares(of_sentences[sentence]) / total,
    }
    found["shared"] = 1 - found["position"] - found["context"] - found["rest"]
    # Chance: of every sentence the trace of A^+ with its own centred positions, times the variance within it.
    gram, marks = np.zeros((len(n), len(n))), []
    for c in range(len(m)):
        here = np.zeros(len(n))
        here[position[sentence == c]] = 1
        marks.append(np.diag(here) - np.outer(here, here) / m[c])
        gram += marks[-1]
    inverse = np.linalg.pinv(gram, hermitian=True, rcond=1e-9)
    chance = 0.0
    for c in range(len(m)):
        own = states[sentence == c] - of_sentences[c]
        chance += float((inverse * marks[c]).sum()) * squares(own) / max(m[c] - 1, 1)
    split = {row["part"]: row for row in run.position_split if (row["layer"], row["scale"]) == (layer, "raw")}
    compared = [(part, split[part]["share"], value) for part, value in found.items()]
    compared.append(("chance", split["position"]["chance"], chance / total))
    eigenvalues, vectors = np.linalg.eigh((p * n[:, None]).T @ p)
    first = next(row["share"] for row in run.position_spectrum
                 if (row["layer"], row["scale"], row["component"]) == (layer, "raw", 1))  # fmt: skip
    compared.append(("first direction", first, float(eigenvalues[-1] / eigenvalues.sum())))
    k = int(next(row["value"] for row in run.position_shape if (row["layer"], row["measure"]) == (layer, "directions")))
    by_neuron = np.square(vectors[:, -k:]) @ eigenvalues[-k:] / eigenvalues[-k:].sum()
    half = np.random.default_rng([run.config["seed"], 11]).permutation(np.arange(len(m)) % 20) % 2
    of_halves = []
    for which in (0, 1):
        part, at = backfitted(half[sentence] == which)
        lengths, axes = np.linalg.eigh((part * at[:, None]).T @ part)
        of_halves.append(np.square(axes[:, -k:]) @ lengths[-k:] / lengths[-k:].sum())
    first, second = of_halves
    crossed = (second[np.argsort(first)[-10:]].sum() + first[np.argsort(second)[-10:]].sum()) / 2
    ten = next(row["value"] for row in run.position_held
               if (row["layer"], row["scale"], row["order"], row["k"]) == (layer, "raw", "part", 10))  # fmt: skip
    compared.append(("held by 10 neurons", ten, float(crossed)))
    neuron = int(by_neuron.argmax())
    eta = next(row["eta_squared"] for row in run.position_by_neuron
               if (row["layer"], row["neuron"]) == (layer, neuron))  # fmt: skip
    of_neuron = squares(of_positions[position][:, [neuron]]) / squares(states[:, [neuron]])
    compared.append((f"eta squared of neuron {neuron}", eta, of_neuron))
    return compared


def check(run: Any, layer: int) -> bool:
    """Print numbers of a run beside those of plain loops; return whether all are close."""
    read = {name: run.config[name] for name in ("model", "corpus", "cache")}
    store = ActivationStore(extract(**read, quiet=True))
    compared = repeated(run, store, layer)
    for name, ours, plain in compared:
        print(f"layer {layer}, {name}: {ours:.8f}, by plain loops {plain:.8f}, apart {abs(ours - plain):.1e}")
    return all(abs(ours - plain) < CLOSE for _, ours, plain in compared)


def main(args: Sequence[str] | None = None) -> int:
    """Run what is asked for, write the table and the figure, repeat ten numbers; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "position-parts")
    parser.add_argument("--reactions", type=Path, help="file of reactions (SMILES), a line each")
    parser.add_argument("--models", default=",".join(read.name for read in READ), help="models to read; all by default")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args(args)
    models = [read for read in READ if read.name in given.models.split(",")]
    if given.reactions is None and any(read.text == "reactions" for read in models):
        parser.error("models of reactions read a file: name it with --reactions, or choose other --models")
    try:
        runs = make(given.folder, models, given.reactions, given.threads)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    rows = list(rows_of(runs))
    write_csv(given.folder / "position_parts.csv", list(rows[0]), rows)
    (given.folder / "figures").mkdir(exist_ok=True)
    write_drawings(given.folder / "figures", {"position_parts": partial(draw, rows=rows)}, ("png",))
    return 0 if "minilm" not in runs or check(runs["minilm"], 1) else 1


if __name__ == "__main__":
    sys.exit(main())
