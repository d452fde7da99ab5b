"""A progress bar by tqdm, if it is installed (the extra "progress"). Otherwise a terminal gets lines, as a log does."""

from __future__ import annotations

from typing import Any, TextIO

try:
    from tqdm import tqdm
except ModuleNotFoundError:
    tqdm = None


def bar(total: int, name: str, stream: TextIO, form: str) -> Any:
    """A bar on the stream. None if the stream is not a terminal, or if tqdm is not installed."""
    if tqdm is None or not stream.isatty():
        return None
    return tqdm(total=total, desc=name, file=stream, bar_format=form, mininterval=0)
