"""MovieLens-100K (F. M. Harper and J. A. Konstan, 2015), read from disk or downloaded and checked.

The data may be used for research but not redistributed; none of it is part of this project.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import urllib.request
import zipfile
from pathlib import Path

import numpy as np

from onebit_spark.errors import RequestError
from paper.samples import Sample

URL = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
SHA256 = "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229"
GOOD = 3.5  # a rating above is positive, as in the paper

_MEMBER = "ml-100k/u.data"


def read_movielens(path: str | os.PathLike[str]) -> Sample:
    """The ratings of ``u.data`` (user, item, rating, time; tabs), or of the archive that
    holds it.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                content = archive.read(_MEMBER)
        else:
            content = Path(path).read_bytes()
        if not content.strip():
            raise ValueError("it is empty")
        table = np.loadtxt(io.BytesIO(content), dtype=np.int64, usecols=(0, 1, 2), ndmin=2)
    except (OSError, KeyError, ValueError) as error:
        raise RequestError(
            f"{path} cannot be read as MovieLens-100K: {error}; give its u.data (user, item, "
            "rating, time, "
            "separated by tabs) or ml-100k.zip"
        ) from error
    (users, rows), (items, cols) = (
        np.unique(table[:, side], return_inverse=True) for side in (0, 1)
    )
    labels = np.where(table[:, 2] > GOOD, 1, -1)
    return Sample.of(rows, cols, labels, (len(users), len(items)))


def download_movielens(
    folder: str | os.PathLike[str], url: str = URL, sha256: str = SHA256
) -> Path:
    """The archive in ``folder``, downloaded if necessary.

    Raises a RequestError if its checksum is wrong.
    """
    target = Path(folder) / "ml-100k.zip"
    if target.exists() and _digest(target) == sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as unfinished:
        fetched = Path(unfinished) / target.name
        try:
            with urllib.request.urlopen(url, timeout=60) as source, fetched.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        except (OSError, ValueError) as error:
            raise RequestError(
                f"{url} cannot be fetched: {error}; fetch it and pass --movielens PATH"
            ) from error
        found = _digest(fetched)
        if found != sha256:
            raise RequestError(
                f"what came from {url} is not MovieLens-100K: its SHA-256 is {found}, expected "
                f"{sha256}; "
                "try again, or fetch it by hand and pass --movielens PATH"
            )
        os.replace(fetched, target)
    return target


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
