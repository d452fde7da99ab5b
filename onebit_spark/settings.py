"""The settings of a fit.

Each is declared once, as a field of a frozen dataclass: its type, default, help and check.

    rank: int = setting(10, "largest number of factors", check=at_least(1))
          ─►  --rank and the key `rank` (cli/flags.py), the Param `rank` (spark/params.py),
              the report, and the parameter in the documentation of the class (``documented``)

``FitConfig`` is the model, ``Labels`` the input, ``Terms`` the certificates; ``Execution`` does not
change the result. A problem is a field and a text. Each front end names the field in its own way:
``--likelihood-weight``, ``likelihoodWeight``. This module imports neither numpy nor numba, so that
the command line answers at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from textwrap import wrap
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from onebit_spark.registry import names_in

SAME = ""  # the front end's own spelling of the field's name
WIDTH = 120  # of a line of source

T = TypeVar("T")

Who = Literal["user", "item"]


class Problem(NamedTuple):
    field: str  # name of the field
    # The problem, as the words after the name. ``{other}`` in it stands for the name of a second
    # field.
    text: str
    other: str | None = None  # the second field

    def in_words(self, names: Mapping[str, str]) -> str:
        """The problem as one sentence.

        ``names`` are the names that a front end gives to the fields.
        """
        text = self.text
        if self.other is not None:
            text = text.replace("{other}", names.get(self.other, self.other))
        return f"{names.get(self.field, self.field)} {text}"

    def __str__(self) -> str:
        return self.in_words({})


class Check(NamedTuple):
    words: str  # what follows "must" in an error message
    holds: Callable[[Any], bool]  # whether a value satisfies the condition


@dataclass(frozen=True)
class Setting:
    name: str  # name of the field
    hint: Any  # its type, as it was declared
    kind: type  # str, int, float or bool
    optional: bool  # whether None is allowed
    words: tuple[str, ...]  # words that are allowed besides numbers, such as "auto"
    default: Any  # default value
    help: str  # Help text. Other fields are named in braces.
    choices: tuple[str, ...]  # the allowed values, if they are listed
    check: Check | None  # condition on the value
    see: str  # the sections of docs/MATH.md about it
    key: str | None  # Its flag and config key, with underscores. None: it has none.
    param: str | None  # Its Param. None: it has none.
    group: str  # where --help shows its flag, if not with the others of its table

    def problem(self, value: object) -> Problem | None:
        if self.check is None or (self.optional and value is None) or self.check.holds(value):
            return None
        if isinstance(value, str) and value in self.words:
            return None
        return Problem(self.name, f"must {self.demand}, not {value!r}")

    @property
    def demand(self) -> str:
        """What follows "must" in an error message."""
        return " or ".join([self.check.words if self.check else "", *self.words])

    def described(self, names: Mapping[str, str]) -> str:
        return self.help.format_map(names)

    def documented(self, name: str, names: Mapping[str, str]) -> list[str]:
        """Its lines in a docstring: name, type, and the help text as a sentence."""
        kind = (
            f"{{{', '.join(map(repr, self.choices))}}}".replace("'", '"')
            if self.choices
            else self.kind.__name__
        )
        kind += "".join(f' or "{word}"' for word in self.words) + (
            ", optional" if self.optional else ""
        )
        return documented_parameter(
            name, kind, self.described(names) + (f". See {self.see}" if self.see else "")
        )


def setting(
    default: Any,
    help: str,
    *,
    check: Check | None = None,
    choices: Iterable[str] = (),
    see: str = "",
    key: str | None = SAME,
    param: str | None = SAME,
    group: str = "",
) -> Any:
    """Declare a setting: see ``Setting``. By default ``key`` and ``param`` follow from the name of
    the field.
    """
    allowed = tuple(choices)
    if allowed:
        check = Check(
            f"be one of {', '.join(allowed)}",
            lambda value: isinstance(value, str) and value in allowed,
        )
    about = {
        "help": help,
        "choices": allowed,
        "check": check,
        "see": see,
        "key": key,
        "param": param,
        "group": group,
    }
    return field(default=default, metadata=about)


@cache
def declared(table: type) -> dict[str, Setting]:
    hints = get_type_hints(table)
    settings = {}
    for item in fields(table):
        declaration = dict(item.metadata)
        hint = hints[item.name]
        for front_end, spelling in (("key", item.name), ("param", camel(item.name))):
            declaration[front_end] = (
                spelling if declaration[front_end] == SAME else declaration[front_end]
            )
        kinds = get_args(hint) or (hint,)
        kind = next(kind for kind in kinds if kind is not NoneType)
        optional = NoneType in kinds
        settings[item.name] = Setting(
            item.name, hint, kind, optional, words_in(hint), item.default, **declaration
        )
    return settings


def documented(table: type[T]) -> type[T]:
    """The class with a section ``Parameters`` in its docstring, made of its settings."""
    known: type = table
    table.__doc__ = (
        "\n    ".join([f"{(table.__doc__ or '').rstrip()}\n", *parameter_section(declared(known))])
        + "\n"
    )
    return table


def parameter_section(settings: Mapping[str, Setting]) -> list[str]:
    names = {name: f"``{name}``" for name in settings}
    lines = [line for name, item in settings.items() for line in item.documented(name, names)]
    return ["Parameters", "----------", *lines]


def documented_parameter(name: str, kind: str, text: str) -> list[str]:
    """The lines of a parameter in a docstring. ``text`` becomes a sentence."""
    sentence = (text[0].upper() if text[0].isascii() else text[0]) + text[1:] + "."
    return [
        f"{name} : {kind}",
        *wrap(sentence, WIDTH - 8, initial_indent="    ", subsequent_indent="    "),
    ]


def words_in(hint: Any) -> tuple[str, ...]:
    return tuple(
        word for part in get_args(hint) if get_origin(part) is Literal for word in get_args(part)
    )


class Settings:
    def problems(self) -> list[Problem]:
        table: type = type(self)
        problems = (item.problem(getattr(self, name)) for name, item in declared(table).items())
        return [problem for problem in problems if problem is not None]


def param_names(table: type) -> dict[str, str]:
    """Field name ─► name of its Param, for the settings that have one."""
    return {name: item.param for name, item in declared(table).items() if item.param is not None}


def camel(name: str) -> str:
    """likelihood_weight ─► likelihoodWeight"""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


# ---- checks ------------------------------------------------------------------------------------


def at_least(lowest: int) -> Check:
    return Check(
        f"be an integer of at least {lowest}", lambda value: is_integer(value) and value >= lowest
    )


def is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


POSITIVE = Check(
    "be a positive finite number", lambda value: is_number(value) and 0 < value < math.inf
)
FINITE = Check("be a finite number", lambda value: is_number(value) and math.isfinite(value))
NOT_NEGATIVE = Check(
    "be a finite number, 0 or above", lambda value: is_number(value) and 0 <= value < math.inf
)
SHARE = Check("lie strictly between 0 and 1", lambda value: is_number(value) and 0 < value < 1)
YES_OR_NO = Check("be True or False", lambda value: isinstance(value, bool))


# ---- what is fitted ----------------------------------------------------------------------------

AUTO = "auto"
START_NAMES = ("spectral", "random")  # the keys of spectral.STARTS
SOLVERS = ("mm", "gradient")
COVARIANCES = ("full", "diagonal")
PRECISIONS = ("float32", "float64")
# They determine the form of a posterior.
FORM_SETTINGS = ("loss", "rank", "intercepts", "covariance", "implicit_features")

LARGEST_SEED = 2**63 - 1  # a signed 64-bit integer: what Spark and the kernels take
SEED = Check(
    "be an integer from 0 to 2^63 − 1",
    lambda value: is_integer(value) and 0 <= value <= LARGEST_SEED,
)

PLANNED_RANK = 32  # what memory is planned for while the number of factors is still to be chosen


@documented
@dataclass(frozen=True, kw_only=True)
class FitConfig(Settings):
    """What to fit.

    Where None is allowed, it stands for a default that depends on the loss or on the data. The
    sections are those of docs/MATH.md.
    """

    loss: str = setting(
        "logistic", "loss of a rating", choices=names_in("core/losses"), see="§3, §4"
    )
    prior: str = setting(
        "inverse-gamma", "prior of the factors' scales", choices=names_in("core/priors"), see="§5"
    )
    rank: int | Literal["auto"] = setting(
        "auto",
        "number of factors, K; auto: chosen by the loss of a tenth of the ratings. Unneeded "
        "factors shrink to 0",
        check=at_least(1),
        see="§14",
    )
    max_rank: int = setting(64, "largest {rank} that auto chooses", check=at_least(1), see="§14")
    likelihood_weight: float | Literal["auto"] | None = setting(
        None,
        "κ = λ/n, the weight of one rating; auto: chosen by the loss of a tenth of the ratings "
        "(default: auto for the "
        "logistic loss, 2 for the hinge)",
        check=POSITIVE,
        see="§1.3, §14",
    )
    alpha: float | None = setting(
        None,
        "α of the prior (default: a tenth of the number of users and items with ratings)",
        check=POSITIVE,
        see="§7.5",
    )
    beta: float | None = setting(
        None,
        "β of the prior, a rate for gamma, a scale for inverse-gamma (default: from α, so that γ "
        "is near 0.3)",
        check=POSITIVE,
        see="§7.5",
    )
    intercepts: bool = setting(
        True,
        "fit an intercept for each user and each item (default: yes)",
        check=YES_OR_NO,
        see="§6",
        param="fitIntercept",
    )
    implicit_features: bool = setting(
        True,
        "let the prior mean of a user depend on which items the user rated, and that of an item "
        "on its users; left out "
        "where they do not lower the loss of a tenth of the ratings (default: yes)",
        check=YES_OR_NO,
        see="§13",
    )
    solver: str = setting(
        "mm",
        "solver of the means; gradient is for the hinge loss only",
        choices=SOLVERS,
        see="§3.3, §3.4",
    )
    start: str = setting(
        "spectral",
        "where the fit starts; random is for tests",
        choices=START_NAMES,
        see="§7.1",
        key=None,
        param=None,
    )
    covariance: str = setting(
        "full",
        "what the logistic loss keeps of a row's posterior covariance, D×D numbers or D variances",
        choices=COVARIANCES,
        see="§4.2, §4.3",
    )
    max_iter: int = setting(100, "largest number of iterations", check=at_least(1))
    tol: float = setting(
        1e-5,
        "stop when objective and scores change by less than this share; 0: never, so that "
        "{max_iter} ends the fit, or "
        "the tenth of the ratings that chooses the settings",
        check=NOT_NEGATIVE,
        see="§7.4",
    )
    seed: int = setting(0, "seed of the start and of the certificates' draws", check=SEED)
    precision: str = setting(
        "float32",
        "how factors are stored; sums are always float64",
        choices=PRECISIONS,
        key=None,
        param=None,
    )

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if not problems and self.solver == "gradient" and self.loss != "hinge":
            problems.append(
                Problem(
                    "solver",
                    f"'gradient' belongs to the hinge loss; the {self.loss} update is exact",
                )
            )
        return problems

    @property
    def factors(self) -> int:
        """K. While it is still to be chosen, a number to plan with."""
        return min(PLANNED_RANK, self.max_rank) if isinstance(self.rank, str) else self.rank

    @property
    def dimension(self) -> int:
        """D, the free coordinates of a row: K factors and, with intercepts, one more (§6.1)."""
        return self.factors + int(self.intercepts)


@documented
@dataclass(frozen=True, kw_only=True)
class Labels(Settings):
    """Where the labels are, and what they mean."""

    label_col: str = setting(
        "label", "column of the labels: −1/1, 0/1, boolean, or a number with {threshold}"
    )
    rating_col: str | None = setting(
        None, "ALS's name for {label_col}; set only one of the two", key=None
    )
    threshold: float | None = setting(
        None, "labels strictly greater are positive, the others negative", check=FINITE
    )
    weight_col: str | None = setting(
        None,
        "column of weights: a rating of weight 2 counts like two, one of weight 0 is left out "
        "(default: all weigh 1)",
        see="§16",
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Terms(Settings):
    """What must be decided before the fit, so that its certificates hold (docs/MATH.md, §9.5)."""

    delta: float = setting(
        0.05, "a certificate holds with probability 1 − δ", check=SHARE, see="§9"
    )
    grid: int = setting(
        1,
        "number of settings that are compared on these ratings; each is certified at δ/grid",
        check=at_least(1),
        see="§9.5",
        key="certificate_grid",
        param="certificateGrid",
    )


# ---- how it is run -----------------------------------------------------------------------------

DEVICES = ("cpu", "cuda")
RARE = "rare"
RESUMING = "resuming"  # groups of --help
EXCHANGES = ("auto", "driver", "broadcast", "mixed", "shuffle")


@documented
@dataclass(frozen=True, kw_only=True)
class Execution(Settings):
    """How a fit is run. The fit itself depends on none of these."""

    row_blocks: int | None = setting(
        None,
        "blocks of users (default: by size and cores)",
        check=at_least(1),
        param="numUserBlocks",
        group=RARE,
    )
    col_blocks: int | None = setting(
        None,
        "blocks of items (default: by size and cores)",
        check=at_least(1),
        param="numItemBlocks",
        group=RARE,
    )
    exchange: str = setting(
        "auto",
        "where the ratings are fitted: on the driver, or in blocks on the executors, which "
        "receive the factors by "
        "broadcast, by shuffle, or one side in each way (mixed); auto: by the numbers of ratings "
        "and ids",
        choices=EXCHANGES,
    )
    device: str = setting(
        "cpu",
        "the driver fits on its cores (cpu) or on its GPU (cuda), which needs {exchange}=driver "
        "and CuPy",
        choices=DEVICES,
    )
    driver_ratings: int | None = setting(
        None,
        "most ratings that {exchange}=auto fits on the driver (default: by its memory, and at "
        "most 20 million on a "
        "cluster); 0: none",
        check=at_least(0),
        group=RARE,
    )
    work_dir: str | None = setting(
        None,
        "folder that all executors can reach, for the files of {exchange}=shuffle and mixed; the "
        "jobs set it",
        key=None,
        param=None,
    )
    checkpoint_dir: str | None = setting(
        None, "folder for checkpoints, from which a killed fit can continue", group=RESUMING
    )
    checkpoint_interval: int = setting(
        10, "iterations between two checkpoints", check=at_least(1), group=RARE
    )
    resume: bool = setting(
        False,
        "continue from a checkpoint in {checkpoint_dir}, if there is one",
        check=YES_OR_NO,
        group=RESUMING,
    )

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.resume and not self.checkpoint_dir:
            problems.append(
                Problem(
                    "resume",
                    "needs {other}: where is the checkpoint to resume from?",
                    other="checkpoint_dir",
                )
            )
        return problems


# ---- GPUs --------------------------------------------------------------------------------------

CUDA_MOST_RANK = 64  # factors that the kernels of a GPU are made for
CUDA_LOSS = "logistic"  # the loss that they are made for


def device_problems(config: FitConfig, execution: Execution) -> list[Problem]:
    if execution.device != "cuda":
        return []
    problems = []
    if execution.exchange not in ("auto", "driver"):
        problems.append(
            Problem(
                "device",
                f"'cuda' needs {{other}}=driver, not {execution.exchange}",
                other="exchange",
            )
        )
    largest = config.max_rank if isinstance(config.rank, str) else config.rank
    if largest > CUDA_MOST_RANK:
        problems.append(
            Problem(
                "device", f"'cuda' fits up to {CUDA_MOST_RANK} factors, not {largest}: choose 'cpu'"
            )
        )
    if config.loss != CUDA_LOSS:
        problems.append(
            Problem("device", f"'cuda' fits the {CUDA_LOSS} loss, not {config.loss}: choose 'cpu'")
        )
    if config.precision != "float32":
        problems.append(
            Problem(
                "device", f"'cuda' keeps factors as float32, not {config.precision}: choose 'cpu'"
            )
        )
    lacking = no_device()
    return problems if lacking is None else [*problems, Problem("device", f"'cuda' {lacking}")]


@cache
def no_device() -> str | None:
    """What this machine lacks for a fit on a GPU, in words; None if it lacks nothing."""
    try:
        import cupy
    except ImportError:
        return (
            "needs CuPy, which is not installed: pip install '.[gpu]' in a clone of "
            "onebit_spark, or choose 'cpu'"
        )
    try:
        gpus = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # the driver is missing, or too old
        return f"finds no GPU ({error}): choose 'cpu'"
    return None if gpus else "finds no GPU: choose 'cpu'"


# ---- cores and memory --------------------------------------------------------------------------

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_cores() -> int:
    """The cores that this process may use: its affinity, and the quota of its container."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _cpu_quota()
    return cores if quota is None else max(1, min(cores, round(quota)))


def available_memory() -> int:
    """Bytes that this process can still take: the machine's free memory, or what its container
    leaves of it.
    """
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # not Linux: all of it
    with suppress(OSError, StopIteration):
        line = next(
            line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:")
        )
        free = int(line.split()[1]) * 1024
    limit = _container_memory()
    return free if limit is None else max(0, min(free, limit))


def _cpu_quota() -> float | None:
    """Cores of the container (cgroup version 2, then 1), or None without a quota."""
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        limit, span = (
            int((CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
        )
        return limit / span if limit > 0 else None
    return None


def _container_memory() -> int | None:
    """Bytes that the container leaves (cgroup version 2, then 1), or None without a limit.

    Its file cache is free.
    """
    for folder, limit, used, cached in (
        (CGROUP, "memory.max", "memory.current", "inactive_file"),
        (
            CGROUP / "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        with suppress(OSError, ValueError):  # the word "max" is no number: no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return left + sum(int(value) for name, value in lines if name == cached)
    return None
