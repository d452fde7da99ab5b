"""The cache of compiled kernels is keyed on every file that a kernel is made of."""

import importlib
import shutil
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import onebit_spark
from onebit_spark.core.compiled import digest_of, kernel_modules, sources

PACKAGE = {
    "p": b"from p.report import show\n",
    "p.compiled": b"def jit(function): ...\n",
    "p.inner": b"from p.compiled import jit\n@jit\ndef inner(): ...\n",
    "p.outer": b"from p import compiled, scale\nfrom p.inner import inner\n@compiled.jit\ndef outer(): ...\n",
    "p.scale": b"from p.units import METRE\nSCALE = 3 * METRE\n",
    "p.units": b"import math\nMETRE = 1\n",
    "p.report": b"from p.outer import outer\ndef show(): ...\n",
}


def test_the_modules_with_kernels_and_what_these_import():
    assert kernel_modules(PACKAGE) == {"p.compiled", "p.inner", "p.outer", "p.scale", "p.units"}


@pytest.mark.parametrize("name", PACKAGE)
def test_an_edit_of_what_a_kernel_is_made_of_changes_the_key(name):
    edited = {**PACKAGE, name: PACKAGE[name] + b"# edited\n"}
    assert (digest_of(edited) != digest_of(PACKAGE)) is (name in kernel_modules(PACKAGE))


def test_the_compiler_may_be_renamed():
    """Its users name it otherwise then, and are found all the same: by ``jit``."""
    renamed = {
        name.replace("compiled", "compiler"): text.replace(b"compiled", b"compiler") for name, text in PACKAGE.items()
    }
    assert kernel_modules(renamed) == {"p.compiler", "p.inner", "p.outer", "p.scale", "p.units"}
    assert digest_of(renamed) != digest_of(PACKAGE)
    helper = {**renamed, "p.inner": renamed["p.inner"] + b"# edited\n"}
    assert digest_of(helper) != digest_of(renamed)


def test_no_kernel_of_the_package_is_missed():
    texts = {name: file.read_bytes() for name, file in sources(files("onebit_spark"), "onebit_spark")}
    covered = kernel_modules(texts)
    compiling = {
        kernel.py_func.__module__
        for name in texts
        if b"jit" in texts[name]
        for kernel in vars(importlib.import_module(name)).values()
        if isinstance(kernel, Dispatcher)
    }
    assert len(compiling) >= 8
    assert compiling <= covered
    assert len(covered) < len(texts) / 2  # an edit of a report does not compile everything again


def test_a_zip_has_the_key_of_the_folder(tmp_path):
    folder = Path(onebit_spark.__file__).parent
    archive = shutil.make_archive(str(tmp_path / "shipped"), "zip", folder.parent, folder.name)
    digests = [
        digest_of({name: file.read_bytes() for name, file in sources(place, "onebit_spark")})
        for place in (folder, zipfile.Path(archive, "onebit_spark/"))
    ]
    assert digests[0] == digests[1]
