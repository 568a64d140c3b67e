"""Runs on the Hugging Face hub: `push` uploads what `load_run` needs, and `pull` downloads and checks it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from probing.errors import UserError, as_clause, library_errors
from probing.exports.card import card
from probing.exports.places import portable, portable_results
from probing.runs.loading import load_run
from probing.runs.study import Result
from probing.runtime.files import above_most_text, most_text, regular, replacing_folder, write_tensors

# Files of a run that are read without running code or unpickling.
READ = re.compile(r"\w[\w .+-]*\.(csv|safetensors|yaml|json)")
CARD = "README.md"
# Most files and folders of a repository that is downloaded.
MOST_FILES = 1000


def push(
    made: Result, repo_id: str, private: bool = True, revision: str | None = None, token: str | None = None,
    endpoint: str | None = None,
) -> str:  # fmt: skip
    """Upload results with their card to a repository of models on the hub, as `Result.push` does."""
    from huggingface_hub import HfApi

    with TemporaryDirectory() as place:
        folder = Path(place) / made.folder.name
        stage(made, folder)
        with _speaking_of(repo_id):
            api = HfApi(endpoint=endpoint, token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            there = set(_names(api.list_repo_files(repo_id, revision=revision), repo_id))
            gone = sorted(there - {path.name for path in folder.iterdir()})
            info = api.upload_folder(
                repo_id=repo_id, folder_path=folder, revision=revision, delete_patterns=gone or None,
                commit_message=f"{made.study.title}: {made.folder.name}",
            )  # fmt: skip
    return str(info.commit_url)


def stage(made: Result, folder: Path) -> None:
    """Copy what `load_run` needs into a new folder, without paths of this machine, and write the card.

    Raises:
        UserError: If the copy cannot be read again.
    """
    folder.mkdir()
    for path in sorted(made.folder.iterdir()):
        if path.is_file() and not path.is_symlink() and READ.fullmatch(path.name):  # a link may lead to a secret
            _copy(regular(path, made.folder), folder / path.name)
    try:
        again = load_run(folder)
    except UserError as error:
        said = str(error).replace(str(folder), str(made.folder))
        raise UserError(f"`push`: `{made.folder}` cannot be read from its tables and tensors alone: {said}") from None
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


def pull(
    repo_id: str, folder: str | Path | None = None, revision: str | None = None, token: str | None = None,
    endpoint: str | None = None,
) -> Any:  # fmt: skip
    """Download results that `push` has uploaded, check them as `load_run` does, and return them.

    Only tables, tensors, `config.yaml` and `results.json` are downloaded; none of them is run or unpickled.

    Args:
        repo_id: The repository as `NAME/REPOSITORY`.
        folder: A new folder; one of the repository's name in `runs` by default.
        revision: A branch, tag or commit.
        token: Access token; the one that is stored on this machine by default.
        endpoint: Address of another hub.

    Raises:
        UserError: If the repository is not there, holds no results or damaged ones, has a file whose name leads out of
            its folder, more than 1,000 files, or more bytes than $PROBING_MAX_GB (2 GB by default); or if the folder is
            there already.
    """
    from huggingface_hub import HfApi

    target = Path("runs") / PurePosixPath(repo_id).name if folder is None else Path(folder)
    if target.exists():
        raise UserError(f"`pull`: `{target}` is there already; name a new folder with `folder`.")
    with _speaking_of(repo_id):
        api = HfApi(endpoint=endpoint, token=token)
        commit = api.repo_info(repo_id, revision=revision).sha
        there = api.list_repo_tree(repo_id, revision=commit, recursive=True)
        sizes = {one.path: getattr(one, "size", 0) for one in islice(there, MOST_FILES + 1)}
        names = _names([*sizes], repo_id)
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
    """Return the files of a repository that are results.

    Raises:
        UserError: If one leads out of the folder.
    """
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            raise UserError(f"`{repo_id}` has a file {name!r:.80}, whose name leads out of its folder; it is not read.")
    return [name for name in names if READ.fullmatch(name)]


def _check(folder: Path, repo_id: str) -> None:
    """Check that downloaded results can be read.

    Raises:
        UserError: If they are damaged.
    """
    try:
        load_run(folder)
    except UserError as error:
        said = str(error).replace(str(folder), repo_id).replace("; repeat the run", "")
        raise UserError(f"`pull`: {said}") from None


@contextmanager
def _speaking_of(repo_id: str) -> Iterator[None]:
    """Turn what the hub refuses or answers in another form, and a hub that cannot be reached, into a sentence."""
    check = "check its name, the connection and the token (`hf auth login`)"
    with library_errors(lambda reason: f"`{repo_id}`: the hub cannot be used for it ({reason}); {check}."):
        try:
            yield
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError) or type(error).__module__ not in ("builtins", "io"):
                raise
            raise UserError(f"`{repo_id}`: its files cannot be written or read ({as_clause(error)}).") from None
