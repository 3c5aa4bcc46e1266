"""Creates figures without pyplot, so that no global state is read or changed, and writes them to files."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sparsefw.atomic_io import write_bytes

DPI = 160
COARSE_DPI = DPI * 3 // 4  # for figures of which there may be many
# Keep text as text, and write equal files for equal figures.
SVG_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "sparsefw", "text.usetex": False}


def new_figure(width: float, height: float, dpi: int = DPI) -> Figure:
    """Return an empty figure; sizes in inches."""
    figure = Figure(figsize=(width, height), dpi=dpi)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write stem.png, white and in the resolution of the figure, and stem.svg, transparent; return both paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + ending) for ending in (".png", ".svg")]
    with without_glyph_warnings():
        write_bytes(files[0], _as_png(figure))
        write_bytes(files[1], _as_svg(figure).encode())
    return files


@contextlib.contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """A block that may draw letters that the font lacks, as in 日本: the PNG has boxes for them, the SVG has them as text."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        yield


def _as_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    fast = {"compress_level": 2}  # the default level takes half as long again, for files that are hardly smaller
    figure.savefig(buffer, format="png", pil_kwargs=fast)
    return buffer.getvalue()


def _as_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(SVG_SETTINGS):
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    return buffer.getvalue()
