"""A section of a report: the one record from which its page, the data in that page and the exported files are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from matplotlib.figure import Figure

from sparsefw.plotting.charts import Chart, HeatMap
from sparsefw.report.contents import Contents, Results, Task, TaskContents
from sparsefw.report.tables import Table


class SectionSubject(Protocol):
    """Require of what a section is about that it tells where its sections and their files belong.

    task      None where it is about all of them
    address   what addresses in the page begin with, nothing where it is about all tasks
    """

    @property
    def task(self) -> Task | None: ...

    @property
    def address(self) -> str: ...


Subject = TypeVar("Subject", bound=SectionSubject)


def each_comparison(contents: Contents) -> list[Results]:
    """List every kind and form of removal of every task."""
    return [results for task in contents.tasks for results in task.results]


def each_task(contents: Contents) -> list[TaskContents]:
    """List every task."""
    return list(contents.tasks)


def all_runs(contents: Contents) -> list[Contents]:
    """List the one subject of sections that are about all runs."""
    return [contents]


def task_title(title: str) -> Callable[[TaskContents], str]:
    """Make a title that names the task, too, where there are several."""

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
class Section(Generic[Subject]):
    """Describe one section that a report may have.

    name       what it is called in addresses of the page
    title      what it is called in the list of sections, and above it
    subjects   what it is made of: a report has one such section for every subject
    present    whether there is anything to tell about a subject
    html       what stands in it, given the names that its charts have in the page
    charts     what is drawn in it, from data in the page
    explorer   data of its slider, None where it has none
    files      tables and figures to export, each behind the stem of its files
    heading    what stands above it, if not the title: a sentence
    address    where in the page it is, if not at its name, behind the address of the subject
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
        """Tell where in the page the section about this subject is."""
        if self.address is not None:
            return self.address(subject)
        return "-".join(filter(None, (subject.address, self.name)))
