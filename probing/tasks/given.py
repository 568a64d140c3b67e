"""What is held fixed while a probe's neurons are judged, because the labels may go with it (`--given`)."""

from __future__ import annotations

from dataclasses import dataclass

from probing.corpus import Corpus
from probing.errors import UserError
from probing.tasks.base import SentenceTask, TokenTask, predicts_numbers
from probing.tasks.loading import installed, is_own, load_task
from probing.tasks.values import unit_of

# What stands for the token itself.
TOKEN = "token"


@dataclass(frozen=True)
class HeldFixed:
    """What is held fixed.

    Args:
        typed: The option's value: `token`, the name of a task, `FILE.py:CLASS`, or the name of a column of the corpus.
        task: The task whose labels are held fixed; None for the token itself and for columns.
    """

    typed: str
    task: TokenTask | None = None

    @classmethod
    def of(cls, typed: str | None) -> HeldFixed | None:
        """Return what an option's value stands for; None without one.

        Raises:
            UserError: If it is a task that cannot be loaded.
        """
        if typed is None:
            return None
        if typed not in installed() and not is_own(typed):
            return cls(typed)
        try:
            return cls(typed, load_task(typed))
        except UserError as error:
            raise UserError(str(error).replace("`--task ", "`--given ")) from None

    def task_in(self, corpus: Corpus, of: TokenTask) -> TokenTask | None:
        """Return the task whose labels are held fixed in a corpus; None for the token itself.

        Args:
            corpus: The corpus, whose columns may be named.
            of: The task that is probed.

        Raises:
            UserError: If there is no such task or column, it gives numbers, or it is of tokens and the probed task of
                sentences.
        """
        typed, of_sentences = f"`--given {self.typed}`", isinstance(of, SentenceTask)
        if self.typed == TOKEN:
            if of_sentences:
                raise UserError(f"{typed}: the task labels sentences, which have many; give a label of sentences.")
            return None
        task = self.task
        if task is None and self.typed in corpus.columns:
            task = load_task("column", {"column": self.typed})
        elif task is None and self.typed in corpus.sentence_columns:
            task = load_task("sentence_label", {"column": self.typed})
        if task is None:
            columns = sorted({*corpus.columns, *corpus.sentence_columns})
            raise UserError(
                f"{typed} is neither token, nor a task ({', '.join(sorted(installed()))}, FILE.py:CLASS), nor a column "
                f"of `{corpus.name}`, which has {', '.join(columns) or 'none'}."
            )
        if predicts_numbers(task):
            raise UserError(f"{typed}: of its numbers hardly two are equal; give a task of classes.")
        if of_sentences and unit_of(task) == "token":
            raise UserError(f"{typed}: it labels tokens, and the probed task sentences; give a label of sentences.")
        return task
