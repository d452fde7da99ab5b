"""Origin: the files that rows come from, and what is done to them. This module imports no Spark."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

BY_ARROW = "arrow-"


@dataclass(frozen=True)
class Origin:
    """What rows are made of. Those of the same origin are the same."""

    # Digest of all that is done to the files: Spark's analysed plan, or BY_ARROW and what Arrow's readers were told.
    query: str
    # URI ─► length in bytes, and time of the last change in milliseconds, as they are now.
    files: dict[str, tuple[int, int]]

    @classmethod
    def by_arrow(cls, files: dict[str, tuple[int, int]], *told: object) -> Origin:
        """Of files that Arrow reads; ``told`` is what it was told of them."""
        return cls(BY_ARROW + hashlib.sha256("\n".join(map(str, told)).encode()).hexdigest()[:32], files)

    def is_comparable(self, now: Origin) -> bool:
        """Whether the same reader has told of both. Otherwise only the rows themselves can be compared."""
        return self.query.startswith(BY_ARROW) == now.query.startswith(BY_ARROW)

    def differences(self, now: Origin) -> list[str]:
        """In words, what another origin has that this one had not."""
        words = []
        gone, new = sorted(self.files.keys() - now.files.keys()), sorted(now.files.keys() - self.files.keys())
        both = sorted(self.files.keys() & now.files.keys())
        changed = [name for name in both if tuple(self.files[name]) != tuple(now.files[name])]
        for names, what in ((changed, "changed"), (new, "new"), (gone, "gone")):
            if len(names) == 1:
                words.append(f"a file of the source is {what}, {names[0]}")
            elif names:
                words.append(f"{len(names):,} files of the source are {what}, such as {names[0]}")
        if not words and self.query != now.query:
            words.append("the query that makes the ratings of the source's files is another")
        return words
