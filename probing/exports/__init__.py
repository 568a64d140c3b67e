"""Runs on the Hugging Face hub: `push` uploads the files of `load_run`, and `pull` downloads and checks them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from probing.data import ADDED_CONTROLS, CONTROLS
from probing.errors import UserError, as_clause, in_python, library_errors, spelled
from probing.models import site_of, what_is_a_neuron
from probing.results import Row, ends
from probing.runs import Result
from probing.runs.loading import load_run
from probing.runs.run import Run
from probing.runtime.files import above_most_text, most_text, regular, replacing_folder, write_tensors
from probing.tables import R2, controls_of, score_of
from probing.tables.probes import layers_table
from probing.tables.schema import FALSE_DISCOVERIES
from probing.text.tasks import task_in_words

# Labels of classes may look like paths.
_KEPT = ("classes", "layers")


def portable(value: Any) -> Any:
    """Return a value in which every absolute path, also after `hf:`, is its last part, in nested mappings and lists.

    A run with such names looks for its model and text next to its folder, or in the current folder.
    """
    if isinstance(value, str):
        return _last_part(value)
    if isinstance(value, Mapping):
        return {name: entry if name in _KEPT else portable(entry) for name, entry in value.items()}
    return [portable(entry) for entry in value] if isinstance(value, list) else value


def portable_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return `results.json` without paths of this machine, also those relative to the run."""
    content: dict[str, Any] = portable(results)
    for noted in content.get("read_from", {}).values():
        noted.pop("from_run", None)
    return content


def _last_part(text: str) -> str:
    before, path = ("hf:", text.removeprefix("hf:")) if text.startswith("hf:") else ("", text)
    path, mark, query = path.partition("?") if before else (path, "", "")
    expanded = os.path.expanduser(path)
    is_path = os.path.isabs(expanded) and len(Path(expanded).parts) > 2 and "\n" not in path
    return f"{before}{Path(expanded).name}{mark}{query}" if is_path else text


LIBRARY = "neuron-probing"

# Neurons that the card lists.
FIRST = 10

# What holds of every run of `fit`, whatever its numbers are.
LIMITS_OF_PROBES = (
    "That a probe reads a label from a layer does not show that the model uses it there.",
    "A high contribution does not show that the model uses the neuron; other neurons may carry the same.",
    f"A neuron that is flagged no-signal is not shown to tell the classes apart (false discovery rate "
    f"{FALSE_DISCOVERIES:g}). A ranking with the flag uninformative is of a probe that is not shown to be better than "
    "a constant answer, and is not to be read.",
)

# What holds of all results.
LIMITS = (
    "Where an interval of a difference holds 0, or there is none, nothing is said of which is larger.",
    "All of this is of one model, one text and one seed.",
)


def card(result: Result) -> str:
    """Return a card of results, YAML for the hub and Markdown; raise UserError if the results are damaged."""
    parts = [_metadata(result), f"# {_title(result)}", _about(result)]
    if isinstance(result, Run):
        tables = layers_table(result.accuracy, result.neurons), *result.study.printed(result)["neurons"]
        parts += ["## Results", *map(_table, tables)]
        parts += ["## What was controlled", _controlled(result)]
    if sentences := result.conclusions():
        parts += ["## What follows", _list(sentences)]
    limits = (*(LIMITS_OF_PROBES if isinstance(result, Run) else ()), *LIMITS)
    parts += ["## What may not be concluded", _list(limits)]
    return "\n\n".join([*parts, "## To reproduce", _reproduced(result)]) + "\n"


def _title(result: Result) -> str:
    of = f" of {_named(result.config['model'])}" if result.config.get("model") else ""
    return f"{result.study.title}{of}: {result.folder.name}"


def _named(path: Any) -> str:
    return str(portable(str(path)))


def _tested_on(run: Run) -> str:
    return _named(run.config.get("test_corpus") or run.config["corpus"])


def _metadata(result: Result) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [EvalResult(**_eval_result(result, row)) for row in result.accuracy] if isinstance(result, Run) else None
    data = ModelCardData(
        library_name=LIBRARY, tags=["probing", "interpretability", result.study.name],
        eval_results=results, model_name=result.folder.name if results else None,
    )  # fmt: skip
    return f"---\n{data.to_yaml()}\n---"


def _eval_result(run: Run, row: Row) -> dict[str, Any]:
    score = score_of(row)
    between = ends(row, score.name)
    text = _tested_on(run) if not run.is_of_arrays else "arrays"
    return {
        "task_type": "token-classification" if not run.results.get("pooling") else "text-classification",
        "task_name": task_in_words(run.config), "dataset_type": text, "dataset_name": text, "dataset_split": "test",
        "metric_type": "r_squared" if score is R2 else "accuracy", "metric_value": row[score.name],
        "metric_name": f"{score.words} of layer {row['layer']}",
        "metric_args": {"layer": int(row["layer"]), **({"interval_95": list(between)} if between else {})},
    }  # fmt: skip


def _about(result: Result) -> str:
    config, sentences = result.config, [f"Results of `{result.study.name}` of `{LIBRARY}`."]
    if isinstance(result, Run) and result.is_of_arrays:
        sentences.append(f"Linear probes of {task_in_words(config)}, of arrays, whose rows are called tokens below.")
    elif isinstance(result, Run):
        what, text, tested = what_is_a_neuron(site_of(config)), _named(config["corpus"]), _tested_on(result)
        texts = f"`{text}`" if text == tested else f"`{text}` and tested on `{tested}`"
        sentences.append(
            f"Linear probes of {task_in_words(config)} on `{_named(config['model'])}`, trained "
            f"{'and tested ' if text == tested else ''}on {texts}. {what[:1].upper()}{what[1:]}."
        )
    elif config.get("model"):
        sentences.append(f"The model is `{_named(config['model'])}`.")
        if isinstance(config.get("corpus"), str):
            sentences.append(f"The text is `{_named(config['corpus'])}`.")
    return " ".join(sentences)


def _table(table: Any) -> str:
    """Return a rich table with its title and its notes."""
    columns = [[column.header, "---", *column.cells] for column in table.columns]
    rows = zip(*columns, strict=True)
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n\n".join([f"{table.title}:", "\n".join(lines), *str(table.caption or "").splitlines()])


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _controlled(run: Run) -> str:
    known = {**CONTROLS, **ADDED_CONTROLS}
    controls = controls_of(run.accuracy)
    lines = [f"{words}: {known[name].meaning}" for name, words in controls.items() if name in known]
    if "majority" in controls:  # which numbers do not have
        lines.insert(0, "majority: accuracy of always predicting the most frequent class of the training examples.")
    over = run.results.get("intervals_over", {})
    if over and any(ends(row, score_of(row).name) for row in run.accuracy):
        lines.append(f"Intervals are over {over['n']} test {over['unit']}s, none of which was trained on.")
    return _list(lines)


def _reproduced(result: Result) -> str:
    config = portable(result.config)
    if isinstance(result, Run) and result.is_of_arrays:
        return "This run was made from arrays by `probing.probe`, which are not kept."
    command = result.study.command_line(config)
    versions = ", ".join(f"{name} {version}" for name, version in result.results.get("versions", {}).items())
    after = f"\n\nVersions: {versions}." if versions else ""
    read = '```python\nimport probing\n\nrun = probing.pull("REPOSITORY")\n```'
    names = [name for name in ("model", "corpus", "test_corpus") if Path(str(result.config.get(name))).is_absolute()]
    moved = f"\n\nNames of {' and '.join(names)} stand for local paths." if names else ""
    return f"```sh\n{command}\n```{moved}{after}\n\nThe tables and probes are read by\n\n{read}"


# Files of a run that are read without running code or unpickling.
READ = re.compile(r"\w[\w .+-]*\.(csv|safetensors|yaml|json)")

CARD = "README.md"

# Most files and folders of a repository that is downloaded.
MOST_FILES = 1000


def push(
    result: Result, repo_id: str, private: bool = True, revision: str | None = None, token: str | None = None,
    endpoint: str | None = None,
) -> str:  # fmt: skip
    """Upload results with their card to a repository of models on the hub, as `Result.push` does."""
    from huggingface_hub import HfApi

    with TemporaryDirectory() as place:
        folder = Path(place) / result.folder.name
        stage(result, folder)
        with _speaking_of(repo_id):
            api = HfApi(endpoint=endpoint, token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            remote_files = set(_names(api.list_repo_files(repo_id, revision=revision), repo_id))
            gone = sorted(remote_files - {path.name for path in folder.iterdir()})
            info = api.upload_folder(
                repo_id=repo_id, folder_path=folder, revision=revision, delete_patterns=gone or None,
                commit_message=f"{result.study.title}: {result.folder.name}",
            )  # fmt: skip
    return str(info.commit_url)


def stage(result: Result, folder: Path) -> None:
    """Copy the files of `load_run` into a new folder, without paths of this machine, and write the card.

    Raises:
        UserError: If the copy cannot be read.
    """
    folder.mkdir()
    for path in sorted(result.folder.iterdir()):
        if path.is_file() and not path.is_symlink() and READ.fullmatch(path.name):  # a link may lead to a secret
            _copy(regular(path, result.folder), folder / path.name)
    try:
        again = load_run(folder)
    except UserError as error:
        message = str(error).replace(str(folder), str(result.folder))
        raise UserError(
            f"`push`: `{result.folder}` cannot be read from its tables and tensors alone: {message}"
        ) from None
    (folder / CARD).write_text(card(again), encoding="utf-8")


def _copy(path: Path, to: Path) -> None:
    if path.name == "config.yaml":
        import yaml

        from probing.runs.folder import read_yaml

        to.write_text(yaml.safe_dump(portable(read_yaml(path)), sort_keys=False), encoding="utf-8")
    elif path.name == "results.json":
        from probing.runs.folder import read_json

        to.write_text(json.dumps(portable_results(read_json(path)), indent=2), encoding="utf-8")
    elif path.suffix == ".safetensors":
        _copy_tensors(path, to)
    else:
        shutil.copyfile(regular(path), to)


def _copy_tensors(path: Path, to: Path) -> None:
    """Copy a file of tensors; its metadata may name the model's folder."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(regular(path), framework="pt") as file:
        metadata = file.metadata() or {}
    if portable(metadata) == metadata:
        shutil.copyfile(regular(path), to)
    else:
        write_tensors(to, load_file(regular(path)), portable(metadata))


@spelled(in_python)
def pull(
    repo_id: str, folder: str | Path | None = None, revision: str | None = None, token: str | None = None,
    endpoint: str | None = None,
) -> Any:  # fmt: skip
    """Download results that `push` has uploaded, check them as `load_run` does, and return them.

    Only tables, tensors, `config.yaml` and `results.json` are downloaded; none of them is run or unpickled.

    Args:
        repo_id: The repository as `NAME/REPOSITORY`.
        folder: A new folder; by default named like the repository, in `runs`.
        revision: A branch, tag or commit.
        token: Access token; by default the token stored on this machine.
        endpoint: Address of another hub.

    Raises:
        UserError: If the repository does not exist, has no valid results, has a file whose name leads out of its
            folder, more than 1,000 files, or more bytes than $PROBING_MAX_GB (2 GB by default); or if the folder
            exists.
    """
    from huggingface_hub import HfApi

    target = Path("runs") / PurePosixPath(repo_id).name if folder is None else Path(folder)
    if target.exists():
        raise UserError(f"`pull`: `{target}` is there already; name a new folder with `folder`.")
    with _speaking_of(repo_id):
        api = HfApi(endpoint=endpoint, token=token)
        commit = api.repo_info(repo_id, revision=revision).sha
        tree = api.list_repo_tree(repo_id, revision=commit, recursive=True)
        sizes = {file.path: getattr(file, "size", 0) for file in islice(tree, MOST_FILES + 1)}
        names = _names([*sizes], repo_id)
    if any(type(size) is not int or size < 0 for size in sizes.values()):
        raise UserError(f"`pull`: `{repo_id}` has a file whose size is no whole number; it is not read.")
    if len(sizes) > MOST_FILES:
        raise UserError(f"`pull`: `{repo_id}` has more than {MOST_FILES:,} files, and results have some dozens.")
    if sum(sizes[name] for name in names) > (most := most_text()):
        raise UserError(f"`pull`: `{repo_id}` cannot be downloaded ({above_most_text(most)}).")
    if not {"config.yaml", "results.json"} <= set(names):
        raise UserError(f"`pull`: `{repo_id}` holds no results that `push` has uploaded.")
    try:
        with replacing_folder(target) as partial:
            with _speaking_of(repo_id):
                api.snapshot_download(repo_id, revision=commit, allow_patterns=names, local_dir=partial)
            shutil.rmtree(partial / ".cache", ignore_errors=True)
            _check(partial, repo_id)
    except OSError as error:
        raise UserError(f"`pull`: `{target}` cannot be written ({as_clause(error)}); name a writable folder.") from None
    return load_run(target)


def _names(names: Sequence[str], repo_id: str) -> list[str]:
    """Return the files of a repository that are results; refuse names that lead out of the folder."""
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            raise UserError(f"`{repo_id}` has a file {name!r:.80}, whose name leads out of its folder; it is not read.")
    return [name for name in names if READ.fullmatch(name)]


def _check(folder: Path, repo_id: str) -> None:
    try:
        load_run(folder)
    except UserError as error:
        message = str(error).replace(str(folder), repo_id).replace("; repeat the run", "")
        raise UserError(f"`pull`: {message}") from None


@contextmanager
def _speaking_of(repo_id: str) -> Iterator[None]:
    """Turn refusals and unknown answers of the hub, and an unreachable hub, into a sentence."""
    check = "check its name, the connection and the token (`hf auth login`)"
    with library_errors(lambda reason: f"`{repo_id}`: the hub cannot be used for it ({reason}); {check}."):
        try:
            yield
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError) or type(error).__module__ not in ("builtins", "io"):
                raise
            raise UserError(f"`{repo_id}`: its files cannot be written or read ({as_clause(error)}).") from None
