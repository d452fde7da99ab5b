"""tqdm's progress bar, where it is installed (the extra "progress"); elsewhere a terminal sees the lines of a log."""

from __future__ import annotations

from typing import Any, TextIO

try:
    from tqdm import tqdm
except ModuleNotFoundError:
    tqdm = None


def bar(total: int, name: str, stream: TextIO, form: str) -> Any:
    """A bar on the stream, or None: the stream is no terminal, or there is no tqdm."""
    if tqdm is None or not stream.isatty():
        return None
    return tqdm(total=total, desc=name, file=stream, bar_format=form, mininterval=0)
