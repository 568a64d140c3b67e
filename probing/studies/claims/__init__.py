"""The study `reproduce`: claims of papers, their measurements, and the verdicts."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import Options, Wandb, WandbOptions, defaults
from probing.errors import UserError
from probing.results import (
    Child,
    Column,
    Html,
    Schema,
    Table,
    cells_table,
    count,
    element,
    ends,
    number,
    table,
    text,
    whole,
)
from probing.runs import Result, SectionPlace, Study, study_of
from probing.runs.call import Call, Measurements
from probing.runs.folder import RunFolder
from probing.runs.loading import load_run
from probing.runtime import quiet_libraries, terminal
from probing.runtime.processes import interrupt_behind
from probing.runtime.progress import BRIEF, Cost, expect
from probing.studies.claims.claim import NumberRange, Paper, chosen_claims, papers, read_paper
from probing.text import load_corpus

Row = Mapping[str, Any]

VERDICTS = ("confirmed", "not confirmed", "unclear", "analogue", "not testable here")

NOT_TESTABLE = "not testable here"


def short_number(value: float) -> str:
    """Format a number with as many decimals as are informative."""
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"


def value_text(row: Row) -> str:
    """Format the measured value with its interval, if it has one."""
    if "measured" not in row:
        return ""
    between = ends(row)
    has_width = between is not None and between[0] != between[1]
    return short_number(row["measured"]) + (
        f" ({short_number(between[0])} to {short_number(between[1])})" if between and has_width else ""
    )


def control(row: Row) -> str:
    """Format the control with its range, if there are any."""
    value = short_number(row["control"]) if "control" in row else ""
    return value + (f" ({row['control_criterion']})" if "control_criterion" in row else "")


def outcome(row: Row) -> str:
    """Return the verdict; for an analogue, also whether the criterion is met."""
    met_texts = {"yes": "criterion met", "no": "criterion not met", "unclear": "unclear"}
    return row["verdict"] + (f": {met_texts[row['met']]}" if row["verdict"] == "analogue" else "")


SENTENCES = {
    "verdicts": "{title}: of {verdicts}, {counts}.",
    "analogues": "{model} is none of the paper's models, so nothing follows for the paper: of {analogues}, {met} meet "
    "the criterion and {not_met} do not; unclear: {unclear}.",
    "figure": "{model}: the measured value (dot, with its interval), the range in which it is by the claim (band), and "
    "the published value (tick) if it is on the same scale. Below each claim, the commands that repeat it.",
}
_LACKING = "Claims that are not testable here, by what they need", ("needs", "models", "claims")


def tables(rows: Table) -> list[Any]:
    """Return the tables of the terminal: the measured claims, and the other claims by their needs."""
    claim_tables = [_claims_table(model, of_model) for model, of_model in rows.by("model").items()]
    all_tables = [*claim_tables, cells_table(*_LACKING, by_lack(rows), words=_LACKING[1])]
    return [table for table in all_tables if table.row_count]


def _claims_table(model: str, rows: Table) -> Any:
    rows = rows.where(lambda row: "measured" in row)
    is_other = bool(rows.where(verdict="analogue"))
    title = "none of the paper's models: analogues, and whether they meet the criterion" if is_other else "verdicts"
    headings = ("id", "claim", "measured", "by the claim", "control", "met" if is_other else "verdict")
    cells = (
        (str(row["id"]), row["claim"], value_text(row), row["criterion"], control(row),
         row["met" if is_other else "verdict"])
        for row in rows
    )  # fmt: skip
    return cells_table(f"{model}, {title}", headings, cells, words=headings)


def plan_tables(planned: Any) -> list[Any]:
    """Return the planned runs of each model, and the models without runs, of a `ClaimsPlan`, as rich tables."""
    from probing.runtime.terminal import plain_table

    to_run = planned.to_run
    total, size = sum(run.seconds for run in to_run), planned.n_bytes
    runs = plain_table(
        f"{count(len(to_run), 'run')} to make: about {_minutes(total)} with nothing else on this machine, and "
        f"{size / 1e9:.2f} GB of activations added to the cache"
    )
    for heading in ("model", "run", "is there", "about"):
        runs.add_column(heading, overflow="fold")
    for model, needs in planned.models.items():
        for run in needs:
            status = f"needs {run.need.lacking}" if run.need.lacking else str(run.folder or "to be made")
            runs.add_row(model, run.need.line, status, _minutes(run.seconds) if run in to_run else "")
    missing = plain_table("Models of which nothing is run")
    for heading in ("model", "needs"):
        missing.add_column(heading, overflow="fold")
    for model, why in planned.lacking.items():
        missing.add_row(model, why)
    return [table for table in (runs, missing) if table.row_count]


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min" if seconds else "0 min"


def conclusions(rows: Table, title: str) -> list[str]:
    """Return the number of claims with each verdict, in a sentence for each kind of models."""
    verdict_rows, lines = rows.where(lambda row: row["verdict"] != "analogue"), []
    if verdict_rows:
        by_verdict = verdict_rows.by("verdict")
        counts = ", ".join(f"{len(by_verdict[verdict])} {verdict}" for verdict in VERDICTS if verdict in by_verdict)
        verdicts = count(len(verdict_rows), "verdict")
        lines.append(SENTENCES["verdicts"].format(title=title, verdicts=verdicts, counts=counts))
    for model, of_model in rows.where(verdict="analogue").by("model").items():
        met, not_met, unclear = (len(of_model.where(met=met)) for met in ("yes", "no", "unclear"))
        lines.append(SENTENCES["analogues"].format(
            model=model, analogues=count(len(of_model), "analogue"), met=met, not_met=not_met, unclear=unclear
        ))  # fmt: skip
    return lines


def markdown(rows: Sequence[Row], title: str) -> str:
    """Return the table as Markdown."""
    head = (
        "id",
        "claim",
        "where",
        "model",
        "published",
        "measured (95% interval)",
        "by the claim",
        "control",
        "verdict",
    )
    lines = [head, ("---",) * len(head), *_cells(rows)]
    return f"{title}\n\n" + "".join(f"| {' | '.join(map(_plain, cells))} |\n" for cells in lines)


def _cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        verdict = outcome(row) + (f": {row['lacking']}" if row.get("lacking") else "")
        yield (
            str(row["id"]), row["claim"], row["where"], row["model"], row["published"], value_text(row),
            row.get("criterion", ""), control(row), verdict,
        )  # fmt: skip


def _plain(text: str) -> str:
    return text.replace("|", "\\|")


def by_lack(rows: Table) -> list[list[str]]:
    """Return each missing requirement, with the models and the numbers of the claims that are not testable without."""
    lacking = rows.where(verdict=NOT_TESTABLE).by("lacking").items()
    return [[needs, ", ".join(of.values("model")), ranges(of.values("id"))] for needs, of in lacking]


def ranges(numbers: Sequence[int]) -> str:
    """Format numbers in the form of `--claims`, such as 1-3, 5."""
    intervals: list[list[int]] = []
    for claim_id in sorted(numbers):
        if intervals and claim_id == intervals[-1][1] + 1:
            intervals[-1][1] = claim_id
        else:
            intervals.append([claim_id, claim_id])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in intervals)


CLAIMS = Schema("claims", "a row per claim and model", (
    whole("id", "Number of the claim."),
    text("claim", "What is claimed."),
    text("where", "Where in the paper.", may_be_empty=True),
    text("published", "What the paper reports."),
    text("model", "The model."),
    Column("measured", float, "What was measured; low, high: its 95% interval.", form=".3f", interval=""),
    number("control", "The same of the control."),
    text("verdict", "confirmed, not confirmed, unclear, not testable here or analogue."),
    text("command", "Command that repeats the measurement."),
    text("met", "Of an analogue: whether it meets the criterion, yes, no or unclear."),
    text("measure", "Name of the measure."),
    text("criterion", "Range in which the claim holds."),
    text("control_criterion", "Range of the control in which it holds."),
    text("neurons", "Neurons that it is about."),
    text("lacking", "What is lacking where it cannot be tested."),
    number("published_value", "Published value, where it is on the scale of what is measured."),
))  # fmt: skip

WIDTH, HEIGHT = 180, 22

INSET = 6

# The share of the axis that lies beyond the outermost point on either side.
_BEYOND = 0.08


def range_axis(
    value: float, interval: Sequence[float], expected: Sequence[float], other: float | None, title: str
) -> Html:  # fmt: skip
    """Return the axis: a band for the expected range, a bar and a dot for the value, a tick for the other value.

    `expected` has infinite ends where the range has none; `title` describes the axis to readers who do not see it.
    """
    finite = [end for end in expected if math.isfinite(end)]
    points = [value, *interval, *finite, *([other] if other is not None else [])]
    low, high = min(points), max(points)
    beyond = _BEYOND * (high - low) or abs(low) or 1.0
    low, high = low - beyond, high + beyond

    def x(point: float) -> float:
        return round(INSET + (WIDTH - 2 * INSET) * (min(max(point, low), high) - low) / (high - low), 2)

    band_start, band_end = (x(end) for end in expected)
    middle = HEIGHT / 2
    tick = element("path", d=f"M{x(other):g} 3V{HEIGHT - 3}", class_="typical") if other is not None else None
    return element(
        "svg",
        element("title", title),
        element("path", d=f"M{INSET} {middle:g}H{WIDTH - INSET}", class_="grid"),
        element("rect", x=band_start, y=4, width=max(band_end - band_start, 2.0), height=HEIGHT - 8, class_="expected"),
        element("path", d=f"M{x(interval[0]):g} {middle:g}H{x(interval[1]):g}", class_="line"),
        element("circle", cx=x(value), cy=middle, r=3.5, class_="dot"),
        tick,
        class_="range-axis", role="img", viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT,
    )  # fmt: skip


def claims_section(result: Result, anchor: str) -> Html:
    """Return the sentences, a table of each model's claims, and the needs of the others."""
    rows = result.claims
    tested = rows.where(lambda row: row["verdict"] != NOT_TESTABLE)
    return element(
        "section",
        element("h2", result.study.heading(result)),
        *(element("p", sentence) for sentence in conclusions(rows, result.results["title"])),
        *(_of_model(model, of_model) for model, of_model in tested.by("model").items()),
        _missing(rows),
        id=anchor,
    )


def _of_model(model: str, rows: Sequence[Row]) -> Html:
    head = ["id", "claim", "verdict", "", "measured", "by the claim", "published", "control"]
    body: list[list[Child]] = []
    for row in rows:
        after = (value_text(row), row["criterion"], row["published"], control(row))
        body.append([row["id"], _claim(row), _narrow(outcome(row)), _axis(row), *map(_narrow, after)])
    return element("figure", element("figcaption", SENTENCES["figure"].format(model=model)), table(head, body))


def _claim(row: Row) -> Html:
    commands = [element("pre", element("code", line)) for line in str(row.get("command", "")).split(" && ") if line]
    about = f"{row['where']}; neurons {row['neurons']}" if "neurons" in row else row["where"]
    folded = element("details", element("summary", about), *commands) if commands else element("small", about)
    return element("div", row["claim"], folded, class_="claim")


def _narrow(text: str) -> Html:
    return element("div", text, class_="said")


def _axis(row: Row) -> Child:
    criterion = NumberRange.parse(row["criterion"])
    published = row.get("published_value")
    published_text = f", published {published:g}" if published is not None else ""
    title = f"measured {value_text(row)}, by the claim {row['criterion']}{published_text}"
    return range_axis(
        row["measured"],
        ends(row) or (row["measured"], row["measured"]),
        (criterion.low, criterion.high),
        published,
        title,
    )


def _missing(rows: Table) -> Html | None:
    title, headings = _LACKING
    return element("figure", element("figcaption", title), table(headings, body)) if (body := by_lack(rows)) else None


def claims_output(rows: Sequence[Mapping[str, Any]], paper: Paper, used: Mapping[str, Any]) -> Measurements:
    """Return the output of the claims; `used` has the folders of the runs that were read, by model and name."""

    def write(folder: Path) -> list[Path]:
        path = folder / "claims.md"
        path.write_text(markdown(rows, paper.title), encoding="utf-8")
        return [path]

    results = {"paper": paper.name, "title": paper.title, "runs": dict(used)}
    return Measurements({"claims": rows}, results, write=write)


# The options that name data which files of claims ask for.
DATA = (
    "other_corpus", "third_corpus", "wic", "sts", "static", "labels", "pairs", "roles", "untuned", "cloze", "facts",
    "spans",
)  # fmt: skip


@dataclass(frozen=True)
class ReproduceOptions(Options):
    """Options of `reproduce`."""

    paper: str | None = None
    """The paper: bertology, kovaleva2019, luo2021 or shi2022; may be given without --paper."""
    models: str | list[str] | None = None
    """Models to measure: aliases, hub ids or local folders, as for --model; NAME=FOLDER identifies a folder as a
    model of the paper, such as bert=FOLDER; pretrain-tiny and pretrain-base are encoders that the command trains,
    with and without position embeddings. Default: the built-in model and the paper's models on this machine; other
    models of the paper are downloaded if you name them. For other models, the table says analogue and gives no
    verdict on the paper."""
    claims: int | str | list[int | str] = "all"
    """Numbers of the claims, such as 19-28,31; default: all."""
    corpus: str = "builtin"
    other_corpus: str | None = None
    """Another text, given like --corpus, for claims about held-out text and about several texts."""
    third_corpus: str | None = None
    """A third text, for claims about several texts."""
    wic: str | None = None
    """Folder of the WiC data set, for claims about word senses, as in `wic`."""
    sts: str | None = None
    """Folder with STS12 to STS16, STS-B and SICK, for claims about similarity, as in `sts`."""
    static: str | None = None
    """File of word vectors in GloVe's format, for claims about static vectors."""
    labels: str | None = None
    """Labelled sentences, such as SST-2, for claims about supervised tasks and tuned models: a table, a .jsonl file or
    a data set, as in `fit --task sentence_label`. By default, models are tuned to predict the position of a token from
    the end of its sentence."""
    pairs: str | None = None
    """File of sentence pairs, for claims about heads that read two sentences, as in `attention`."""
    roles: str | None = None
    """Role links, for claims about semantic roles, as in `attention`; default: the subjects and objects of a
    treebank."""
    untuned: str | None = None
    """Pretrained model from which the models were fine-tuned, for claims about the effects of fine-tuning, as --against
    in `attention`; by default, the command tunes the models."""
    cloze: str | None = None
    """File of word pairs at a mask, for claims about negation and agreement, as in `cloze`; default: the forty built-in
    pairs."""
    facts: str | None = None
    """File of facts in LAMA's layout, for claims about facts, as in `cloze`."""
    spans: str | None = None
    """File of labelled spans, such as semantic roles, for claims about spans, as in `fit --task spans`."""
    dry_run: bool = False
    """Only list the required runs and which of them exist, with an estimate of time and disk space."""
    _: KW_ONLY
    runs: str = "runs"
    """Folder of runs. Existing runs with the same settings are used, and missing runs are added."""
    name: str | None = None
    """Name of the table's folder; default: PAPER-YYYYMMDD-HHMMSS."""
    cache: str | None = None
    quiet: bool = False
    verbose: bool = False
    wandb: Wandb = WandbOptions()


@command(ReproduceOptions)
def reproduce(options: ReproduceOptions) -> Result | None:
    """Measure the claims of a paper on available models, and give a verdict on each claim.

    Returns:
        The table of claims; None for a dry run.
    """
    from probing.studies.claims.measures import MEASURES
    from probing.studies.claims.planning import UserInputs, split_models

    paper = _checked(options.paper, options.corpus, *(getattr(options, name) for name in DATA))
    selected = chosen_claims(options.claims, of := read_paper(paper, MEASURES))
    call = Call.of(study_of("reproduce"), options)
    call, config = replace(call, wandb=replace(call.wandb, group=call.wandb.group or paper)), call.config
    text, named = load_corpus(options.corpus), None if options.models is None else split_models(options.models)
    with quiet_libraries():
        from probing.studies.claims.planning import rows_of
        from probing.studies.claims.session import carry_out, plan

        inputs = UserInputs(options.corpus, {name: config[name] for name in DATA} | {"size": None})
        commands = {described["command"] for described in of.runs.values()} | {"pretrain"}
        command_defaults = {name: defaults(study_of(name).command) for name in commands}
        planned = plan(
            of, selected, named, inputs, text, command_defaults, call.place, call.cached if options.dry_run else None
        )
        if options.dry_run:
            terminal.show(*plan_tables(planned))
            return None
        common = {
            "runs": options.runs, "cache": str(call.cached), "quiet": options.quiet,
            "wandb": replace(call.wandb, name=None),
        }  # fmt: skip
        expect([*(Cost("run", run.seconds) if run.seconds else None for run in planned.to_run), BRIEF])
        with _continuable(call.place):
            model_runs, folders = carry_out(planned, partial(_make, common), load_run, call.say)
        call.watch.end("run")
        rows = rows_of(selected, model_runs, of)
        config["models"] = list(planned.models)
        folder = RunFolder(call.place, options.name, paper, figures=False)
        return call.write_into(folder, lambda _: claims_output(rows, of, folders))


def _checked(paper: str | None, *texts: str | None) -> str:
    """Return the name of the paper; refuse none, and texts that several runs could not read."""
    if not paper:
        raise UserError(f"`reproduce` takes a paper: {', '.join(papers())}.")
    if "-" in texts:
        raise UserError("`-`: several runs read the text, and standard input can be read only once; give a file.")
    return paper


@contextlib.contextmanager
def _continuable(place: Path) -> Iterator[None]:
    """Add to an interrupt a message on how to continue."""
    try:
        yield
    except BaseException as error:
        if interrupt := interrupt_behind(error):
            message = f"finished runs are in {place}, and the same command goes on with the others"
            raise type(interrupt)("; ".join([*map(str, interrupt.args), message])) from None
        raise


def _make(common: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> Path:
    """Run a command without printing its tables, and return the folder of the run."""
    function = study_of(name).command
    known_options = defaults(function)
    with contextlib.redirect_stdout(io.StringIO()):
        result = function(
            **{**{option: value for option, value in common.items() if option in known_options}, **options}
        )
    folder: Path = result.folder
    return folder


class Reproduce(Study):
    """The study of a paper's claims, measured on the models at hand."""

    name, kind, title = "reproduce", "reproduction of a paper", "Claims of a paper"
    function = "probing.studies.claims:reproduce"
    schemas = (CLAIMS,)
    page = "papers.md"
    artifact = "reproduction"
    files: ClassVar[Mapping[str, str]] = {
        "claims.md": "The table as text.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the claims."""
        return tables(result.claims)

    def conclusions(self, result: Result) -> list[str]:
        """Return the number of claims with each verdict."""
        return conclusions(result.claims, result.results["title"])

    def about(self, result: Result) -> str:
        """Return the title of a page."""
        return f"claims of {result.results['paper']}"

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return a row for each claim, with the published and the measured value on one axis."""
        return claims_section(result, place.anchor)


STUDY = Reproduce()
