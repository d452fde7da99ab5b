"""What the jobs refuse about the tables that they read, in the words of their flags, whoever has read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import TABLE_FORMATS, JobRequest
from onebit_spark.errors import RequestError
from onebit_spark.input.rating_checks import INTEGRAL, shown

OTHER_SEPARATORS = (";", "\t", "|")  # of CSV


def is_lake_table(request: JobRequest, name: str, lake: str) -> RequestError:
    """The input is a folder of a Delta, Iceberg or Hudi table."""
    path, flag = getattr(request, name), as_flag(name)
    return RequestError(
        f"{flag} {path} is of a table of {TABLE_FORMATS[lake]}, whose folder also has files that no longer count: "
        f"name the table of the catalog ({flag} catalog.database.table), or read the folder with --format {lake}"
    )


def no_columns(
    request: JobRequest, name: str, absent: Sequence[str], columns: Sequence[str], csv: bool
) -> RequestError:
    """The input lacks some columns."""
    cure = (
        "name them with --user-col, --item-col, --label-col, --weight-col"
        if hasattr(request, "user_col")
        else "rename them"
    )
    separator = next((sign for sign in OTHER_SEPARATORS if len(columns) == 1 and sign in columns[0]), None)
    if csv and separator is not None:
        cure = f"they look separated by {separator!r}: add --option 'sep={separator}'"
    elif csv:
        cure += "; a file without a header line needs --option header=false, and its columns are _c0, _c1, …"
    return RequestError(
        f"{as_flag(name)} {getattr(request, name)} has no column {', '.join(map(repr, absent))}; "
        f"its columns are {', '.join(map(_visible, columns)) or 'none'}: {cure}"
    )


def _visible(name: str) -> str:
    """In quotes, if blanks could be overlooked."""
    return name if name == name.strip() else repr(name)


def check_id_types(given: Mapping[str, str], expected: Mapping[str, str], name: str, csv: bool) -> None:
    """Refuse ids (column ─► type) of another type than in the fit. Integers of different widths are accepted."""
    problems = [
        f"column {column!r} of {as_flag(name)} is of type {given[column]}, but was {wanted} in the fit"
        for column, wanted in expected.items()
        if given[column] != wanted and not (given[column] in INTEGRAL and wanted in INTEGRAL)
    ]
    if problems:
        hint = " (CSV is read as text; --option inferSchema=true reads numbers)" if csv else ""
        raise RequestError("; ".join(problems) + f": cast it{hint}")


def check_pairs(counts: Mapping[str, int], examples: Mapping[str, Sequence[Sequence[object]]]) -> None:
    """Refuse pairs with absent ids: column ─► how many, and three of them."""
    problems = [
        f"{count:,} pairs with null or NaN in column {column!r}, such as {shown(examples[column])}"
        for column, count in counts.items()
        if count
    ]
    if problems:
        raise RequestError("; ".join(problems) + ": drop or fill them")


def nothing_held_out(share: float) -> str:
    return f"--holdout {share:g} holds no rating out: the data are too few to certify on. Choose a larger share"
