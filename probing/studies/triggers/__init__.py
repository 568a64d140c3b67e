"""The study `triggers`: a few tokens that mislead a tuned model wherever they are put before a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from itertools import islice
from os import fspath
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import Folder, OneProcessOptions, OutputOptions, Source, option
from probing.errors import UserError
from probing.results import (
    NamedLayer,
    Row,
    Schema,
    Table,
    View,
    count,
    estimate,
    estimate_cells,
    estimated,
    listed,
    number,
    sign_of_interval,
    text,
    whole,
    without_nan,
)
from probing.runs import Result, Study, study_of
from probing.runs.call import Call, Measurements
from probing.runtime import quiet_libraries
from probing.runtime.progress import stage
from probing.statistics import few_sentences
from probing.tables.figures import Chart, Line, Panel, by_name

if TYPE_CHECKING:
    from torch import Tensor

    from probing.studies.finetune.training import Side, TestAnswers, TunedModel, TuningTask
    from probing.text import Corpus

NONE, SEARCHED, SHUFFLED, RANDOM, FREQUENT = "none", "searched", "shuffled", "random", "frequent"
# The triggers that are compared, with their labels in tables and figures.
CONDITIONS = {
    NONE: "no trigger",
    SEARCHED: "found by gradients",
    SHUFFLED: "found for shuffled labels",
    RANDOM: "random tokens",
    FREQUENT: "frequent tokens",
}

_CHECKPOINT = text("checkpoint", "The tuned model, as its folder is called; the search reads the first.")
_CONDITION = text(
    "condition", "Which triggers are put before the texts: none; searched, by gradients; shuffled, by the same search "
    "for labels that are exchanged at random; random, of tokens that are equally probable; frequent, of tokens that "
    "are as probable as in the training text.", labels=CONDITIONS,
)  # fmt: skip
TRIGGERS = Schema("triggers", "a row per tuned model and kind of trigger", (
    _CHECKPOINT, _CONDITION,
    whole("n_triggers", "Number of triggers of the kind, over which the numbers are means.", "triggers"),
    estimate("accuracy", "Accuracy on the half of the test part that the search does not read."),
    estimate("fall", "Accuracy without a trigger minus accuracy with it, paired.", form="+.3f"),
    estimate("lead", "Fall by the trigger that was found minus fall by these, paired.", "found minus these", "+.3f"),
    number("p_value", "Share of the triggers, with the one that was found, by which accuracy falls at least as much as "
           "by that one.", "p"),
))  # fmt: skip
TRIGGER_TEXTS = Schema("trigger_texts", "a row per tuned model and trigger", (
    _CHECKPOINT, _CONDITION, whole("draw", "Number of the trigger among those of its kind."),
    text("trigger", "The tokens as text.", may_be_empty=True),
    number("accuracy", "Accuracy with the trigger."),
    number("fall", "Accuracy without a trigger minus accuracy with it.", form="+.3f"),
    text("answer", "The class that is predicted most often.", may_be_empty=True),
    number("answer_share", "Share of the predictions that are this class.", "share of it", ".1%"),
    number("answer_without", "The same without a trigger.", form=".1%"),
))  # fmt: skip

SENTENCES = {
    "searched": 'With the trigger "{trigger}" before every text, accuracy is {accuracy}, without it {without:.3f}, a '
    "fall of {fall}: {verdict}.",
    "answer": "With it, {share:.1%} of the predictions are {answer}, without it {before:.1%}.",
    "compared": "By {condition} accuracy falls by {fall:.3f} on average, and by the trigger that was found {lead} "
    "more: {verdict}{p}.",
    "carries": "Of {others} with other seeds or orders, it misleads {n} more than random tokens do{names}.",
    "as_text": "Typed before the texts, the trigger gives the same tokens in {share:.1%} of them.",
}  # fmt: skip
_CALLED = {**CONDITIONS, SHUFFLED: "triggers found for shuffled labels"}
_MISLEADS = {True: "it misleads the model", False: "it is not shown to mislead the model more than random tokens do"}
_LEADS = {1: "a difference", -1: "a weaker trigger was found", 0: "no difference is shown"}


@dataclass(frozen=True)
class TriggersOptions(OutputOptions, OneProcessOptions):
    """Options of `triggers`."""

    run: Folder | None = None
    """Run of finetune whose model is to be misled, or one of its checkpoints; of a run, the first checkpoint that
    started from trained weights. Its other checkpoints of the same start show whether the trigger carries over."""
    corpus: Source | None = None
    """New place of the text, or pairs, of the run, if these have moved."""
    test_corpus: Source | None = None
    """New place of the text, or pairs, that the run was tested on."""
    length: int = option(3, at_least=1, at_most=20)
    """Number of tokens of a trigger."""
    candidates: int = option(20, at_least=1, at_most=10_000)
    """Number of tokens, the first by the gradient, that are tried at each position by passes through the model."""
    rounds: int = option(3, at_least=1, at_most=100)
    """Maximum number of times that each position is searched."""
    sentences: int = option(200, at_least=1)
    """Maximum number of sentences, or pairs, that the search reads; they are sampled from one half of the test part."""
    shuffles: int = option(3, at_least=0, at_most=100)
    """Number of searches for labels that are exchanged at random among these sentences."""
    draws: int = option(20, at_least=1, at_most=1000)
    """Number of random triggers, and of frequent triggers."""
    _: KW_ONLY
    name: str | None = None
    """Name of this run; default: CHECKPOINT-triggers-YYYYMMDD-HHMMSS."""


@command(TriggersOptions)
def triggers(options: TriggersOptions) -> Result:
    """Search for a few tokens that lower the accuracy of a tuned model when they are put before every text.

    They are found by gradients on one half of the test sentences, and reported on the other half, compared with other
    tokens and with the same search for shuffled labels.

    Returns:
        The results.
    """
    call = Call.of(study_of("triggers"), options)
    with quiet_libraries():
        attack, others, corpus = read_run(options, call)
        call.expect(2 + len(others))
        output = survey(attack, others, corpus, options)
        return call.write(attack.source, lambda _: output)


def read_run(options: TriggersOptions, call: Call) -> tuple[Attack, list[Any], Corpus]:
    """Return the tuned model with its test part, the other models of its run, and the corpus of the test part.

    Raises:
        UserError: If there is no run of `finetune`, its text has changed, or it predicts numbers.
    """
    if options.run is None:
        raise UserError("`triggers` misleads a tuned model: give a run of `finetune` as `--run runs/NAME`.")
    from probing.activations.extraction import forward_trainer
    from probing.downstream.labelled_pairs import text_of_tuned
    from probing.models import find_model
    from probing.runs.loading import OF_TUNED, TEXTS, checkpoint_name, read_as_tuned, tuned_of
    from probing.runs.places import task_of
    from probing.studies.finetune.training import labelled

    tuned = tuned_of(fspath(options.run), f"--run {options.run}")
    if tuned.predicts_numbers:
        raise UserError(f"`{tuned.flag_text}`: its models predict numbers; give one of classes.")
    defaults = dict.fromkeys(("model", *OF_TUNED, *TEXTS))
    config = defaults | {option: call.config[option] for option in TEXTS}
    read_as_tuned(tuned, config, defaults)
    source = find_model(config["model"])
    corpora, splits = text_of_tuned(tuned, config, call.say)
    task = labelled(source, corpora, splits, task_of(tuned), tuned.split_by, config["max_length"], call.say)
    if [str(label) for label in task.classes] != tuned.results["classes"]:
        raise UserError(f"`{tuned.flag_text}`: the text has other classes than its head; tune the model again.")
    halves = Halves.of(source, task, options, call.say)
    device = forward_trainer({"devices": 1, **(options.trainer or {})}, ()).strategy.root_device
    batch_tokens = tuned.config["tuning"]["batch_tokens"]
    attack = Attack.on(source, task, halves, batch_tokens, device)
    others = [
        find_model(str(path))
        for row in tuned.run.tunings.where(start=tuned.checkpoint.name.partition("-")[0])
        if (path := tuned.checkpoint.with_name(checkpoint_name(row))) != tuned.checkpoint and path.is_dir()
    ]
    return attack, others, corpora[-1]


@dataclass(frozen=True)
class Halves:
    """The test sentences that the search reads, and those that are reported; clusters of both differ.

    The first token of a text is at position `at` of its sentence.
    """

    search: Sequence[int]
    report: Sequence[int]
    at: int

    @classmethod
    def of(cls, source: Any, task: TuningTask, options: TriggersOptions, say: Any) -> Halves:
        """Divide the clusters of the test part at random; sentences without room for a trigger are left out.

        Raises:
            UserError: If there are fewer than two clusters.
        """
        from probing.interventions.pair_cosines import halves
        from probing.models import length_limits

        side, tokens = task.test, task.test.tokens
        longest = length_limits(source, task.tokenizer)[1]
        sentences = [i for i in side.sentences.tolist() if tokens.lengths[i] + options.length <= longest]
        if left_out := len(side.sentences) - len(sentences):
            say(f"{left_out} of {len(side.sentences)} test texts leave no room for {options.length} tokens: left out")
        cluster = side.examples.cluster_of_sentence()
        searched, reported = halves(sorted({int(cluster[i]) for i in sentences}), options.seed)  # type: ignore[arg-type]
        if not len(searched):
            raise UserError(
                f"`--run {options.run}`: {count(len(sentences), 'test text')} with room for a trigger cannot be "
                "divided into two halves; tune on more text."
            )
        first, second = (
            [i for i in sentences if cluster[i] in half] for half in map(set, (searched.tolist(), reported.tolist()))
        )
        sampled = Random(options.seed).sample(first, min(options.sentences, len(first)))
        added = tokens.added
        begins = Counter(int((~added[tokens.of_sentences(i, 1)]).argmax()) for i in sentences)
        return cls(sorted(sampled), second, begins.most_common(1)[0][0])


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that triggers are made of, by id: ordinary ones, which decoding and encoding leave unchanged."""

    tokenizer: Any
    ids: Sequence[int]

    @classmethod
    def of(cls, tokenizer: Any, n_rows: int) -> Vocabulary:
        """Return the tokens of a tokenizer for which the model has a vector, among the first `n_rows`."""
        from probing.text.tokens import is_visible

        special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        ids = [i for i in sorted(set(tokenizer.get_vocab().values()) - special) if i < n_rows]
        texts = tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
        encoded = tokenizer(texts, add_special_tokens=False).input_ids
        return cls(tokenizer, [i for i, read, again in zip(ids, texts, encoded, strict=True)
                               if again == [i] and is_visible(read)])  # fmt: skip

    def text(self, ids: Sequence[int]) -> str:
        """Return tokens as text."""
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip()

    def is_text(self, ids: Sequence[int]) -> bool:
        """Check that the text of some tokens gives these tokens."""
        return bool(self.tokenizer(self.text(ids), add_special_tokens=False).input_ids == [*ids])

    def draw(self, weights: Mapping[int, int], length: int, random: Random) -> list[int]:
        """Return a trigger of tokens that are drawn in proportion to their weights.

        Raises:
            UserError: If a thousand draws give no tokens that stay the same as text.
        """
        drawn = (random.choices([*weights], [*weights.values()], k=length) for _ in range(1000))
        if (trigger := next(filter(self.is_text, drawn), None)) is None:
            raise UserError(f"`--length {length}`: no such tokens stay the same as text; give fewer.")
        return trigger


def _table(module: TunedModel) -> Any:
    """Return the table of the vectors of tokens."""
    from probing.models.anatomy import word_table

    return word_table(module.model.base_model)


@dataclass
class Attack:
    """A tuned model, and the test sentences that triggers are searched and reported on.

    `n_passes` counts forward passes over either half; a backward pass counts as two.
    """

    source: Any
    task: TuningTask
    halves: Halves
    module: TunedModel
    n_passes: int = 0

    @classmethod
    def on(cls, source: Any, task: TuningTask, halves: Halves, batch_tokens: int, device: Any) -> Attack:
        """Load a checkpoint."""
        from probing.models.loading import load_tuned
        from probing.studies.finetune.tables import TuningOptions
        from probing.studies.finetune.training import TunedModel

        model = load_tuned(source, task.of)
        model.requires_grad_(False)
        module = TunedModel(model, TuningOptions(batch_tokens=batch_tokens), 0, 0).to(device)
        return cls(source, task, halves, module)

    def on_other(self, source: Any) -> Attack:
        """Load another checkpoint of the same run, for the same sentences."""
        return Attack.on(source, self.task, self.halves, self.module.recipe.batch_tokens, self.module.device)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens that triggers are made of."""
        return Vocabulary.of(self.task.tokenizer, len(_table(self.module).weight))

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return str(self.source.short_name)

    @cached_property
    def search(self) -> Side:
        """The test part with the targets of the half that is searched on."""
        return self.task.test.part(self.halves.search)

    @cached_property
    def report(self) -> Side:
        """The test part with the targets of the half that is reported on."""
        return self.task.test.part(self.halves.report)

    def answers(self, side: Side, trigger: Sequence[int]) -> TestAnswers:
        """Return the answers of the model with a trigger, which may be empty, before the texts."""
        self.n_passes += 1
        return self.module.answers(side, self.task.n_classes, trigger, self.halves.at)

    def gradient(self, side: Side, trigger: Sequence[int]) -> Tensor:
        """Return the gradient of the mean loss in the vectors of a trigger's tokens, shape (length, d_embedding)."""
        from probing.models.anatomy import hooks
        from probing.studies.finetune.training import losses

        vectors: list[Tensor] = []

        def note(table: Any, args: Any, output: Tensor) -> Tensor:
            vectors.append(output.detach().requires_grad_())
            return vectors[-1]

        self.n_passes += 3
        at, gradients, n = self.halves.at, [], 0
        with hooks([_table(self.module).register_forward_hook(note)]):
            for batch in side.batches(self.module.recipe.batch_tokens):
                moved = batch.with_tokens(trigger, at).to(self.module.device)
                losses(*self.module.outputs(moved)).sum().backward()
                (read,) = vectors
                gradients.append(read.grad[:, at : at + len(trigger)].sum(0))  # type: ignore[index]
                vectors.clear()
                n += batch.n
        return sum(gradients[1:], gradients[0]) / n

    def accuracy(self, side: Side, trigger: Sequence[int]) -> tuple[float, float]:
        """Return the number of right predictions, and minus the loss, which decides between equal numbers."""
        answers = self.answers(side, trigger)
        return float(answers.right.sum()), -float(answers.loss.sum())

    def best(self, side: Side, start: Sequence[int], candidates: int, rounds: int) -> list[int]:
        """Return the trigger with the lowest accuracy that a search by coordinates finds (Wallace et al. 2019).

        At each position in turn, the tokens that raise the loss most to first order, by the gradient in the vector of
        the present token (HotFlip), are tried by forward passes, and the best replaces it if accuracy falls. The search
        ends when no position changes.
        """
        trigger, least, unchanged = [*start], self.accuracy(side, start), 0
        ids, table = self.vocabulary.ids, _table(self.module).weight
        for position in [*range(len(start))] * rounds:
            if unchanged == len(start):
                break
            scores = table[[*ids]] @ self.gradient(side, trigger)[position]
            ranked = (ids[i] for i in scores.argsort(descending=True, stable=True).tolist())
            others = ([*trigger[:position], i, *trigger[position + 1 :]] for i in ranked if i != trigger[position])
            tried = islice(filter(self.vocabulary.is_text, others), candidates)
            accuracy, other = min(((self.accuracy(side, other), other) for other in tried), default=(least, trigger))
            unchanged += 1
            if accuracy < least:
                trigger, least, unchanged = other, accuracy, 0
        return trigger


def triggers_of(attack: Attack, options: TriggersOptions) -> dict[str, list[list[int]]]:
    """Return the triggers of each condition: searches for true and for shuffled labels, and draws of tokens."""
    from probing.runtime.trainer import seed_of

    ids, train, seed = attack.vocabulary.ids, attack.task.train, options.seed
    in_training = Counter(train.tokens.input_ids[train.n_targets[train.tokens.sentences] > 0].tolist())
    counts = {i: in_training[i] for i in ids if in_training[i]}
    weights = {RANDOM: dict.fromkeys(ids, 1), FREQUENT: counts or dict.fromkeys(ids, 1)}
    drawn = {
        condition: [
            attack.vocabulary.draw(of, options.length, Random(seed_of(seed, condition, draw)))
            for draw in range(options.draws)
        ]
        for condition, of in weights.items()
    }
    repeated = ([i] * options.length for i, _ in Counter(counts).most_common())
    start = next(filter(attack.vocabulary.is_text, repeated), drawn[FREQUENT][0])
    shuffled = (attack.search.with_shuffled_targets(seed_of(seed, draw)) for draw in range(options.shuffles))
    searched = []
    with stage("search for triggers", options.shuffles + 1) as advance:
        for side in (attack.search, *shuffled):
            searched.append(attack.best(side, start, options.candidates, options.rounds))
            advance(1)
    of_shuffled = {SHUFFLED: searched[1:]} if options.shuffles else {}
    return {NONE: [[]], SEARCHED: searched[:1], **of_shuffled, **drawn}


def survey(attack: Attack, others: Sequence[Any], corpus: Corpus, options: TriggersOptions) -> Measurements:
    """Search for a trigger, and measure it on the other half, in this model and in others of the same run."""
    by_condition = triggers_of(attack, options)
    tables: dict[str, list[Row]] = {"triggers": [], "trigger_texts": []}
    texts = {condition: [*map(attack.vocabulary.text, of)] for condition, of in by_condition.items()}
    carried = {condition: by_condition[condition] for condition in (NONE, SEARCHED, RANDOM)}
    for source in (None, *others):
        model = attack if source is None else attack.on_other(source)
        with stage(f"accuracy with triggers: {model.name}"):
            answers = {
                condition: [model.answers(model.report, trigger) for trigger in of_condition]
                for condition, of_condition in (by_condition if source is None else carried).items()
            }
        tables["triggers"] += _condition_rows(model, answers)
        tables["trigger_texts"] += _text_rows(model, answers, texts)
    report = attack.report
    n_clusters = int((report.examples.clusters(report.n_targets) > 0).sum())
    unit = "text" if report.examples.documents is None else "document"
    results = {
        "model": {"name": attack.source.name, "fingerprint": attack.source.fingerprint()},
        "corpora": {"test": {"name": corpus.name, "fingerprint": corpus.fingerprint}},
        "n_texts": {"search": len(attack.halves.search), "report": len(attack.halves.report)},
        "n_candidates": len(attack.vocabulary.ids),
        "n_passes": attack.n_passes,
        "same_tokens_as_text": _retokenised_share(attack, corpus, by_condition[SEARCHED][0]),
        "intervals_over": {"unit": unit, "n": n_clusters},
    }
    return Measurements({name: [without_nan(row) for row in rows] for name, rows in tables.items()}, results)


def _condition_rows(attack: Attack, answers: Mapping[str, Sequence[TestAnswers]]) -> Iterator[Row]:
    """Yield a row per condition; intervals are over the clusters of the texts, and over draws of triggers."""
    from probing.statistics import accuracy_interval, difference_interval, widened
    from probing.statistics.chance import rank_p

    clusters = attack.report.examples.clusters
    n = clusters(attack.report.n_targets).astype("int64")
    right = {condition: [clusters(of.right) for of in draws] for condition, draws in answers.items()}
    (without,), (searched,) = right[NONE], right[SEARCHED]

    def cells(name: str, by_draw: Sequence[Any], interval: Any, least: float) -> Row:
        values = [float(sums.sum() / n.sum()) for sums in by_draw]
        mean = sum(values) / len(values)
        low, high = widened(mean, interval(sum(by_draw) / len(by_draw), n), values)
        return estimate_cells(name, mean, (max(low, least), min(high, 1.0)))

    for condition, draws in right.items():
        row = {"checkpoint": attack.name, "condition": condition, "n_triggers": len(draws) if condition != NONE else 0}
        row |= cells("accuracy", draws, accuracy_interval, 0.0)
        if condition != NONE:
            row |= cells("fall", [without - sums for sums in draws], difference_interval, -1.0)
        if condition not in (NONE, SEARCHED):
            row |= cells("lead", [sums - searched for sums in draws], difference_interval, -1.0)
        if condition in (RANDOM, FREQUENT):
            row["p_value"] = rank_p(-float(searched.sum()), [-float(sums.sum()) for sums in draws])
        yield row


def _text_rows(
    attack: Attack, answers: Mapping[str, Sequence[TestAnswers]], triggers: Mapping[str, Sequence[str]]
) -> Iterator[Row]:
    """Yield a row per trigger, with the class that is predicted most often."""
    n, without = int(attack.report.n_targets.sum()), answers[NONE][0]
    for condition, draws in answers.items():
        for draw, (of, trigger) in enumerate(zip(draws, triggers[condition], strict=True)):
            right, predicted = float(of.right.sum()), of.confusion.sum(0)
            answer = int(predicted.argmax())
            yield {
                "checkpoint": attack.name, "condition": condition, "draw": draw,
                "trigger": trigger, "accuracy": right / n,
                "fall": (float(without.right.sum()) - right) / n,
                "answer": str(attack.task.classes[answer]), "answer_share": float(predicted[answer]) / n,
                "answer_without": float(without.confusion.sum(0)[answer]) / n,
            }  # fmt: skip


def _retokenised_share(attack: Attack, corpus: Corpus, trigger: Sequence[int]) -> float:
    """Return the share of the reported texts that give the same tokens if the trigger is typed before them."""
    from probing.text.tokens import tokenize, tokenize_pairs

    tokens, at, tokenizer = attack.task.test.tokens, attack.halves.at, attack.task.tokenizer
    before = f"{attack.vocabulary.text(trigger)} "
    some = corpus.subset([*attack.halves.report])
    texts, longest = [f"{before}{sentence}" for sentence in some.sentences], int(tokens.lengths.max()) + len(trigger)
    if some.seconds is None:
        as_text = tokenize(tokenizer, texts, longest)
    else:
        as_text = tokenize_pairs(tokenizer, texts, [begin + len(before) for begin in some.seconds], longest)
    same = 0
    for j, i in enumerate(attack.halves.report):
        ids = tokens.input_ids[tokens.of_sentences(i, 1)].tolist()
        same += [*ids[:at], *trigger, *ids[at:]] == as_text.input_ids[as_text.of_sentences(j, 1)].tolist()
    return same / len(attack.halves.report)


class Triggers(Study):
    """Tokens that mislead a tuned model."""

    name, kind, title = "triggers", "triggers", "Triggers"
    function = "probing.studies.triggers:triggers"
    schemas = TRIGGERS, TRIGGER_TEXTS
    page = "training.md#triggers"
    files: ClassVar[Mapping[str, str]] = {"figures/triggers": "Accuracy with each kind of trigger."}
    views = (
        View(TRIGGERS, ("condition", "n_triggers", "accuracy*", "fall*", "lead*", "p_value"),
             "{checkpoint}: accuracy with tokens before every text", "checkpoint"),
        View(TRIGGER_TEXTS, ("checkpoint", "condition", "trigger", "accuracy", "answer", "answer_share"),
             "triggers that were searched for", "", {"condition": (NONE, SEARCHED, SHUFFLED)}),
    )  # fmt: skip

    def charts(self, result: Result) -> list[Chart]:
        """Return the accuracy with each kind of trigger, a mark for each tuned model."""
        shown = [condition for condition in CONDITIONS if result.triggers.where(condition=condition)]
        places = {condition: NamedLayer(i, CONDITIONS[condition]) for i, condition in enumerate(shown)}
        lines = [
            replace(Line.of([row | {"place": places[row["condition"]]} for row in rows], "accuracy", checkpoint,
                            x="place"), kind="marks")
            for checkpoint, rows in result.triggers.by("checkpoint").items()
        ]  # fmt: skip
        title, axis = "accuracy with tokens before every text (bars: 95% intervals)", by_name("trigger", "trigger")
        return [Chart("triggers", title, [Panel(lines)], "accuracy", (0, 1), x=axis)]

    def conclusions(self, result: Result) -> list[str]:
        """Return the fall of accuracy compared with other triggers, what is predicted, and where it carries over."""
        return list(_conclusions(result))


def _conclusions(result: Result) -> Iterator[str]:
    models = result.triggers.by("checkpoint")
    (attacked, rows), *others = models.items()
    (searched,), (without,) = rows.where(condition=SEARCHED), rows.where(condition=NONE)
    texts = result.trigger_texts.where(checkpoint=attacked)
    (trigger,) = texts.where(condition=SEARCHED)
    yield SENTENCES["searched"].format(
        trigger=trigger["trigger"], accuracy=estimated(searched, "accuracy"), without=without["accuracy"],
        fall=estimated(searched, "fall", "+.3f"), verdict=_MISLEADS[_is_misled(rows)],
    )  # fmt: skip
    yield SENTENCES["answer"].format(
        share=trigger["answer_share"], answer=trigger["answer"], before=trigger["answer_without"]
    )
    for row in rows.where(lambda row: "lead" in row):
        p = f" (p = {row['p_value']:.2g}, among {row['n_triggers']})" if "p_value" in row else ""
        yield SENTENCES["compared"].format(
            condition=_CALLED[row["condition"]], fall=row["fall"],
            lead=estimated(row, "lead", "+.3f"), verdict=_LEADS[sign_of_interval(row, "lead")], p=p,
        )  # fmt: skip
    if others:
        misled = [name for name, of in others if _is_misled(of)]
        names = f": {listed(misled)}" if misled else ""
        yield SENTENCES["carries"].format(n=len(misled), others=count(len(others), "model"), names=names)
    if (share := result.results["same_tokens_as_text"]) < 1:
        yield SENTENCES["as_text"].format(share=share)
    over = result.results["intervals_over"]
    if few := few_sentences(over["n"], f"reported {over['unit']}"):
        yield few


def _is_misled(rows: Table) -> bool:
    """Check that accuracy falls by the trigger that was found, and more than by random ones."""
    (searched,), (random,) = rows.where(condition=SEARCHED), rows.where(condition=RANDOM)
    return sign_of_interval(searched, "fall") > 0 and sign_of_interval(random, "lead") > 0


STUDY = Triggers()
