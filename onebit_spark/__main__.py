"""The jobs of an installed package: ``onebit-spark fit …`` or ``python -m onebit_spark fit …``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from onebit_spark import __version__

JOBS = {
    "fit": "fit a model to ratings",
    "predict": "predict user-item pairs, or recommend items to every user",
    "positions": "write where users stand, and the slopes of items, with error bars",
    "evaluate": "measure a model on ratings that it has not seen; also certify it",
}
USAGE = "usage: onebit-spark {fit,predict,positions,evaluate} [flags]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job that the first argument names; the others are its flags."""
    job, *flags = (sys.argv[1:] if argv is None else argv) or [""]
    if job in ("-h", "--help"):
        lines = (f"  {name:<10} {what}" for name, what in JOBS.items())
        print(USAGE, "", *lines, "", "onebit-spark JOB --help lists the flags of a job.", sep="\n")
        return 0
    if job == "--version":
        print(f"onebit_spark {__version__}")
        return 0
    if job == "reproduce":
        print(
            "error: reproduce is jobs/reproduce.py in a checkout: python jobs/reproduce.py --help",
            file=sys.stderr,
        )
        return 2
    if job not in JOBS:
        print(
            f"error: name the job first, {', '.join(JOBS)}, not {job!r}; {USAGE}", file=sys.stderr
        )
        return 2
    from onebit_spark import cli

    return int(getattr(cli, job)(flags, name=f"onebit-spark {job}", runtime="auto"))


def command() -> int:
    """The command ``onebit-spark``. Ctrl-C while modules are imported ends it as it ends a job."""
    try:
        return main()
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(command())
