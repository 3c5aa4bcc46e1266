"""A section of a report: the record from which its part of the page, the data of that part and its files are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from matplotlib.figure import Figure

from sparsefw.plotting.charts import Chart, HeatMap
from sparsefw.report.contents import Contents, Results, Task, TaskContents
from sparsefw.report.tables import Table


class SectionSubject(Protocol):
    """What a section is about.

    task      None where it is about all tasks
    address   the prefix of its sections' addresses in the page; empty where it is about all tasks
    """

    @property
    def task(self) -> Task | None: ...

    @property
    def address(self) -> str: ...


Subject = TypeVar("Subject", bound=SectionSubject)


def each_comparison(contents: Contents) -> list[Results]:
    """Return the results of every kind and form of removal of every task."""
    return [results for task in contents.tasks for results in task.results]


def each_task(contents: Contents) -> list[TaskContents]:
    """Return the contents of every task."""
    return list(contents.tasks)


def all_runs(contents: Contents) -> list[Contents]:
    """Return the one subject of sections that are about all runs."""
    return [contents]


def task_title(title: str) -> Callable[[TaskContents], str]:
    """Return a title that also names the task where there are several."""

    def titled(contents: TaskContents) -> str:
        return title if contents.task.alone else f"{title}: {contents.task.title}"

    return titled


def _always(subject: Any) -> bool:
    return True


def _none(subject: Any) -> tuple[()]:
    return ()


def _no_explorer(subject: Any) -> None:
    return None


@dataclass(frozen=True)
class ReportSection(Generic[Subject]):
    """A section that a report may have.

    name       in addresses of the page
    title      in the list of sections, and above the section
    subjects   a report has one such section for every subject
    present    whether a subject has any content
    html       the content, given the names that its charts have in the page
    charts     drawn by the page's script
    explorer   data of its slider, None where it has none
    files      tables and figures to export, each with the stem of its files
    heading    a sentence above the section, in place of the title
    address    in the page, if it is not the subject's address and the name
    """

    name: str
    title: Callable[[Subject], str]
    subjects: Callable[[Contents], Sequence[Subject]]
    html: Callable[[Subject, Sequence[str]], str]
    present: Callable[[Subject], bool] = _always
    charts: Callable[[Subject], Sequence[Chart | HeatMap]] = _none
    explorer: Callable[[Subject], Mapping[str, Any] | None] = _no_explorer
    files: Callable[[Subject], Iterable[tuple[str, Table | Figure]]] = _none
    heading: Callable[[Subject], str] | None = None
    address: Callable[[Subject], str] | None = None

    def address_of(self, subject: Subject) -> str:
        """Return the address, in the page, of the section about this subject."""
        if self.address is not None:
            return self.address(subject)
        return "-".join(filter(None, (subject.address, self.name)))
