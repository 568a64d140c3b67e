"""A paper's claims as data: one YAML file a paper under `conf/claims/`, checked on reading."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from probing.errors import UserError, did_you_mean, refuse
from probing.models import load_config, load_encoder, load_masked_lm, load_tokenizer
from probing.models.examination import run, unpadded_inputs
from probing.models.source import ModelSource

Verdict = Literal["confirmed", "not confirmed", "unclear", "not testable here"]

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"

_FORMS = re.compile(rf"(?P<sign><=|>=|<|>|=) (?P<end>{_NUMBER})|(?P<low>{_NUMBER}) to (?P<high>{_NUMBER})")


@dataclass(frozen=True)
class NumberRange:
    """A range of numbers, infinite where it has no end; `strict` excludes the ends."""

    low: float
    high: float
    strict: bool = False

    @classmethod
    def parse(cls, text: str) -> NumberRange:
        """Parse a range such as `> 0.5`, `>= 0.5`, `< 0.5`, `<= 0.5`, `= 2` or `0.3 to 0.5`.

        Raises:
            ValueError: If it is none of these forms, or its ends are the wrong way round.
        """
        match = _FORMS.fullmatch(text)
        if not match:
            raise ValueError(
                f"`{text}` is no range: expected one such as > 0.5, >= 0.5, < 0.5, <= 0.5, = 2, 0.3 to 0.5"
            )
        if match["low"]:
            low, high = float(match["low"]), float(match["high"])
            if low > high:
                raise ValueError(f"`{text}` is no range: its lower end comes first")
            return cls(low, high)
        end, sign = float(match["end"]), match["sign"]
        return cls(
            -math.inf if sign.startswith("<") else end, math.inf if sign.startswith(">") else end, sign in ("<", ">")
        )

    def holds(self, low: float, high: float) -> bool:
        """Check that an interval is within the range."""
        return self.low < low and high < self.high if self.strict else self.low <= low and high <= self.high

    def excludes(self, low: float, high: float) -> bool:
        """Check that an interval has no point in common with the range."""
        return high <= self.low or self.high <= low if self.strict else high < self.low or self.high < low

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.low == self.high:
            return f"= {self.low:g}"
        if math.isinf(self.high):
            return f">{'' if self.strict else '='} {self.low:g}"
        if math.isinf(self.low):
            return f"<{'' if self.strict else '='} {self.high:g}"
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class ClaimEstimate:
    """A value that a measure returns from finished runs, with its 95% interval, and the neurons that it is about.

    The interval is the value itself where it is exact, such as a count of parameters. `control` is None without a
    control.
    """

    value: float
    low: float
    high: float
    control: float | None = None
    neurons: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.value, self.low, self.high))) or not self.low <= self.high:
            raise ValueError(f"no interval of finite numbers: {self.low} to {self.high} around {self.value}")

    def __sub__(self, other: ClaimEstimate) -> ClaimEstimate:
        """Return the difference with the widest interval that both intervals allow; their covariance is not known."""
        return ClaimEstimate(self.value - other.value, self.low - other.high, self.high - other.low)

    def __neg__(self) -> ClaimEstimate:
        return ClaimEstimate(-self.value, -self.high, -self.low)

    def __abs__(self) -> ClaimEstimate:
        """Return the magnitude; its interval begins at 0 where the interval of the value includes 0."""
        nearest = 0.0 if self.low <= 0 <= self.high else min(abs(self.low), abs(self.high))
        return ClaimEstimate(abs(self.value), nearest, max(abs(self.low), abs(self.high)), self.control, self.neurons)

    def beside(self, control: float | None) -> ClaimEstimate:
        """Return the same value with a control."""
        return replace(self, control=control)

    @classmethod
    def exact(cls, value: float, control: float | None = None, neurons: tuple[int, ...] = ()) -> ClaimEstimate:
        """Return a value without an interval."""
        return cls(value, value, value, control, neurons)


def judge(estimate: ClaimEstimate | None, criterion: NumberRange, control: NumberRange | None = None) -> Verdict:
    """Return the verdict on a claim: whether the value and the control are in their ranges.

    It is `not confirmed` if the whole interval is outside the criterion; `confirmed` if the whole interval is within it
    and the control is within its range; `unclear` if the interval has points on both sides, or if the control alone
    fails; `not testable here` without a value.
    """
    if estimate is None:
        return "not testable here"
    if criterion.excludes(estimate.low, estimate.high):
        return "not confirmed"
    control_value = estimate.control
    passed = control is None or (control_value is not None and control.holds(control_value, control_value))
    return "confirmed" if passed and criterion.holds(estimate.low, estimate.high) else "unclear"


# At the beginning of a value or behind the name of a readout, as in tuned=@tuned; a folder in that folder may follow.
_OTHER_RUN = re.compile(r"(?:(?<=^)|(?<==))@(?P<name>\w+)")


def runs_named(described: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of other runs in the options of a run."""
    match = (match["name"] for value in values_of(described) for match in _OTHER_RUN.finditer(value))
    return tuple(dict.fromkeys(match))


def values_of(described: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of the options of a run, also in groups and in alternatives to other options."""
    for value in described.values():
        yield from values_of(value) if isinstance(value, Mapping) else (str(value),)


def with_folders(value: Any, folders: Mapping[str, Path]) -> Any:
    """Replace the names of runs in an option's value by their folders."""
    return _OTHER_RUN.sub(lambda match: str(folders[match["name"]]), value) if isinstance(value, str) else value


# Blocks from which a model is called large: those of BERT-large and RoBERTa-large.
LARGE = 24

# Largest change of a token's last hidden state, relative to its norm, that counts as rounding in float32.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Kind:
    """A kind of model, with `words` that describe it as the object of a sentence.

    `has` checks for it, and may load the model; None where the files are not informative. Then the user declares the
    kind by the data named `datum`.
    """

    words: str
    has: Callable[[ModelSource], bool] | None = None
    datum: str = ""


def is_decoder(source: ModelSource) -> bool:
    """Check that no token attends to a later one: with another last token, all states before it are the same."""
    import torch

    encoder, tokenizer = load_encoder(source), load_tokenizer(source)
    inputs = unpadded_inputs(encoder, tokenizer.pad_token_id or 0)
    changed = inputs["input_ids"].clone()
    changed[0, -1] = inputs["input_ids"][0, 0]
    with torch.inference_mode():
        original, altered = (run(encoder, {**inputs, "input_ids": ids}).last for ids in (inputs["input_ids"], changed))
    difference = (original - altered)[:, :-1].norm(dim=-1) / original[:, :-1].norm(dim=-1)
    return bool((difference < _ROUNDING).all())


def has_mask_head(source: ModelSource) -> bool:
    """Check for a mask token and a masked-language-model head with trained weights."""
    return load_tokenizer(source).mask_token_id is not None and load_masked_lm(source) is not None


def is_large(source: ModelSource) -> bool:
    """Check that a model has at least as many blocks as BERT-large."""
    return bool(load_config(source).num_hidden_layers >= LARGE)


KINDS_OF_MODELS: Mapping[str, Kind] = {
    "decoder": Kind("a decoder, in which no token attends to a later one", is_decoder),
    "masked language model": Kind("a model with a trained masked-language-model head", has_mask_head),
    "large model": Kind(f"a model of {LARGE} blocks or more", is_large),
    "tuned model": Kind("a tuned model, whose start `--untuned` names", datum="untuned"),
}


def kinds_of(source: ModelSource, names: Collection[str], data: Collection[str] = ()) -> frozenset[str]:
    """Return the model's kinds among `names`; a model that cannot be read completely is of none.

    Only the kinds in `names` are checked, because that may load the model. `data` are the names of the data that the
    user supplies.
    """
    return frozenset(name for name in sorted(names) if _has(KINDS_OF_MODELS[name], source, data))


def _has(kind: Kind, source: ModelSource, data: Collection[str]) -> bool:
    if kind.has is None:
        return kind.datum in data
    try:
        return kind.has(source)
    except UserError:  # which the runs of this model will say, in the words of their commands
        return False


_LONGEST = 120


@dataclass(frozen=True)
class ClaimTest:
    """Measure of a claim with its arguments, and the criterion: the range of the value if the claim is right.

    `control` is the required range of the control, None without one. `criterion_of` has the criteria of models about
    which the paper makes a different statement. `kind` is the kind of models that an analogue is for, empty for all.
    """

    measure: str
    criterion: NumberRange
    control: NumberRange | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    criterion_of: Mapping[str, NumberRange] = field(default_factory=dict)
    kind: str = ""

    def of(self, model: str) -> ClaimTest:
        """Return the test of the claim on a model."""
        return replace(self, criterion=self.criterion_of.get(model, self.criterion))


@dataclass(frozen=True)
class Claim:
    """A paper's statement, and its test.

    Args:
        says: The statement, at most one line.
        where: Its place in the paper.
        published: The published value, in words.
        models: Models that it is about, by the names that `--model` takes.
        reading: The test on these models; None if this is not implemented.
        analogues: The tests on other models: the first for a model's kind is used; empty if there is none.
        lacking: Requirements for measuring the claim, or an analogue of it.
        values: The published value of each model, if it is on the same scale as the measured value.
    """

    id: int
    says: str
    where: str
    published: str
    models: tuple[str, ...]
    reading: ClaimTest | None
    analogues: tuple[ClaimTest, ...]
    lacking: str = ""
    values: Mapping[str, float] = field(default_factory=dict)

    def analogue(self, kinds: Collection[str] = ()) -> ClaimTest | None:
        """Return the test of the claim on another model of some kinds; None without one."""
        return next((analogue for analogue in self.analogues if not analogue.kind or analogue.kind in kinds), None)

    @property
    def kinds(self) -> list[str]:
        """The kinds of models that analogues are for."""
        return list(dict.fromkeys(analogue.kind for analogue in self.analogues if analogue.kind))


@dataclass(frozen=True)
class Paper:
    """A paper with its claims, in their order; `name` is the name that `reproduce` takes.

    `outliers` has the published outliers of each model: `minimum`, `maximum`, or both. `runs` has the command and the
    options of each run that measures read, by the run's name.
    """

    name: str
    title: str
    outliers: Mapping[str, Mapping[str, int]]
    runs: Mapping[str, Mapping[str, Any]]
    claims: Sequence[Claim]

    @property
    def models(self) -> list[str]:
        """The models that claims are about, in the order of their occurrence."""
        return list(dict.fromkeys(model for claim in self.claims for model in claim.models))


def papers() -> list[str]:
    """Return the names of the papers whose claims are known."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def read_paper(name: str, measures: Mapping[str, Any]) -> Paper:
    """Read the claims of a paper, with the known measures.

    Raises:
        UserError: If there is no such paper, or its file is invalid; all problems are named.
    """
    if name not in (known := papers()):
        raise UserError(f"`reproduce {name}`: papers are {', '.join(known)}{did_you_mean(name, known)}.")
    import yaml

    return paper_of(name, yaml.safe_load((_folder() / f"{name}.yaml").read_text(encoding="utf-8")), measures)


def _folder() -> Path:
    """Return the folder of the files: `conf/claims` in a checkout, otherwise the installed one."""
    package = Path(__file__).parents[2]
    if (package.parent / "setup.cfg").is_file():
        return package.parent / "conf" / "claims"
    if (installed := package / "builtin_claims").is_dir():
        return installed
    raise UserError(f"the claims of papers are not installed ({installed}); install the distribution again.")


def paper_of(name: str, content: Any, measures: Mapping[str, Any]) -> Paper:
    """Return the paper that the content of its file describes.

    Raises:
        UserError: If the content is invalid; all problems are named.
    """
    keys = ("title", "outliers", "runs", "claims")
    refuse([f"conf/claims/{name}.yaml: it {problem}" for problem in _unknown(content, keys, keys)])
    reader = _Reader(content["runs"], measures)
    claims = [claim for described in content["claims"] if (claim := reader.claim(described))]
    ids = [claim.id for claim in claims]
    problems = reader.problems + [f"claim {i} is there twice" for i in sorted({i for i in ids if ids.count(i) > 1})]
    before = {name: list(content["runs"])[:i] for i, name in enumerate(content["runs"])}
    problems += [
        f"the run {name} reads the run {other}, which does not stand before it among `runs`"
        for name, described in content["runs"].items()
        for other in runs_named(described)
        if other not in before[name]
    ]
    refuse([f"conf/claims/{name}.yaml: {problem}" for problem in problems])
    claims.sort(key=lambda claim: claim.id)
    return Paper(name, content["title"], content["outliers"] or {}, content["runs"], claims)


class _Reader:
    """Reader of the claims that a file describes, which notes their problems."""

    _KEYS = ("id", "says", "where", "published", "models", "value", "measure", "with", "criterion", "criterion_of",
             "control", "analogue", "lacking")  # fmt: skip
    _OF_READING = ("measure", "with", "criterion", "criterion_of", "control")

    def __init__(self, runs: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
        self.runs, self.measures = runs, measures
        self.name, self.problems = "", list[str]()

    def claim(self, described: Any) -> Claim | None:
        """Return a claim; None if its keys are wrong."""
        self.name = f"claim {described.get('id', '?')}" if isinstance(described, Mapping) else "a claim"
        if wrong := _unknown(described, self._KEYS, self._KEYS[:5]):
            self.problems += [f"{self.name} {problem}" for problem in wrong]
            return None
        says, lacking = described["says"], described.get("lacking", "")
        if "\n" in says or len(says) > _LONGEST:
            self._say(f"`says` is longer than a line of {_LONGEST} characters")
        reading = self._reading(described) if "measure" in described else None
        if reading is None and not lacking:
            self._say("it has neither a `measure` nor says what is `lacking`")
        other = described.get("analogue", {})
        if other == "none" and not lacking:
            self._say("it has no analogue and does not say what is `lacking`")
        others = [] if other == "none" else other if isinstance(other, list) else [other]
        analogues = filter(None, [self._analogue(analogue, described, reading is not None) for analogue in others])
        models = tuple(described["models"])
        value = described.get("value", {})
        values = dict(value) if isinstance(value, Mapping) else dict.fromkeys(models, value)
        for key, by_model in (("value", values), ("criterion_of", reading.criterion_of if reading else {})):
            if unknown := set(by_model) - set(models):
                self._say(f"`{key}` has {min(unknown)}, which is not among `models`")
        return Claim(
            described["id"], says, described["where"], str(described["published"]), models, reading, tuple(analogues),
            lacking, values,
        )  # fmt: skip

    def _analogue(self, other: Any, described: Mapping[str, Any], has_reading: bool) -> ClaimTest | None:
        """Return the test on other models; None if it is invalid, or neither it nor the claim names a measure."""
        if not isinstance(other, Mapping):
            self._say("`analogue` is neither `none` nor how it is measured")
            return None
        if wrong := _unknown(other, (*self._OF_READING, "kind"), ()):
            self.problems += [f"the analogue of {self.name} {problem}" for problem in wrong]
            return None
        kind = other.get("kind", "")
        if kind and kind not in KINDS_OF_MODELS:
            self._say(f"there is no kind of models {kind}; there are {', '.join(KINDS_OF_MODELS)}")
        if "measure" in other:  # whose control is another one as well
            return self._reading(other)
        settings = {key: described[key] for key in self._OF_READING if key in described}
        return self._reading({**settings, **other}) if has_reading else None

    def _reading(self, described: Mapping[str, Any]) -> ClaimTest | None:
        name = described["measure"]
        if name not in self.measures:
            self._say(f"there is no measure {name}{did_you_mean(name, self.measures)}")
            return None
        if missing := set(self.measures[name].runs) - set(self.runs):
            self._say(f"the measure {name} reads the run {min(missing)}, which is not among `runs`")
        arguments = described.get("with", {})
        if wrong := self.measures[name].problem_with(arguments):
            self._say(f"the measure {name} {wrong}")
        try:
            criterion = NumberRange.parse(str(described.get("criterion", "")))
            control = NumberRange.parse(str(described["control"])) if "control" in described else None
            of = {
                model: NumberRange.parse(str(criterion_text))
                for model, criterion_text in described.get("criterion_of", {}).items()
            }
        except ValueError as error:
            self._say(str(error))
            return None
        return ClaimTest(name, criterion, control, arguments, of, described.get("kind", ""))

    def _say(self, problem: str) -> None:
        self.problems.append(f"{self.name}: {problem}")


def _unknown(mapping: Any, known: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Return problems with the keys of a mapping, as ends of sentences."""
    if not isinstance(mapping, Mapping):
        return ["is no mapping"]
    problems = [f"has no `{key}`" for key in needed if key not in mapping]
    return problems + [f"has an unknown key `{key}`{did_you_mean(key, known)}" for key in mapping if key not in known]


def chosen_claims(flag_value: str | Sequence[Any] | int | None, paper: Paper) -> list[Claim]:
    """Return the claims that `--claims` names, such as `19-28,31`; all without it.

    Raises:
        UserError: If it is not of that form, or the paper has no such claim.
    """
    if flag_value is None or flag_value == "all":
        return list(paper.claims)
    parts = [
        str(part).strip()
        for part in (flag_value if isinstance(flag_value, list | tuple) else str(flag_value).split(","))
    ]
    known, selected = {claim.id: claim for claim in paper.claims}, set()
    for part in parts:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            raise UserError(f"`--claims {part}`: expected numbers of claims, such as 19-28,31.")
        ids = range(int(match[1]), int(match[2] or match[1]) + 1)
        if not ids or not {ids[0], ids[-1]} <= set(known):
            raise UserError(f"`--claims {part}`: {paper.name} has the claims {min(known)} to {max(known)}.")
        selected |= set(ids)
    return [claim for number, claim in known.items() if number in selected]
