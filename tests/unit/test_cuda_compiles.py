"""NVIDIA's compiler takes all kernels, and no number of theirs leaves the registers. It needs no GPU."""

import ctypes
import ctypes.util
import importlib.util
import re
from pathlib import Path

import pytest

from onebit_spark.engines.cuda.device import OPTIONS, plain_text
from onebit_spark.engines.cuda.shapes import (
    MODE_LOGISTIC,
    MODE_PRODUCT,
    MODE_READS,
    RATING_MACROS,
    LineShape,
    Shape,
)

SHAPES = {
    "ten": Shape(11, 1, True),
    "thirty-two": Shape(33, 1, True),
    "sixty-four": Shape(65, 1, True),
    "spreads": Shape(20, 0, False, True),
}


def _library():
    """Of the package nvidia-cuda-nvrtc, or of the system."""
    package = importlib.util.find_spec("nvidia")
    folders = [] if package is None else map(Path, package.submodule_search_locations or ())
    found = sorted(file for folder in folders for file in folder.rglob("libnvrtc.so.*"))
    name = str(found[0]) if found else ctypes.util.find_library("nvrtc")
    return None if name is None else ctypes.CDLL(name)


NVRTC = _library()
pytestmark = pytest.mark.skipif(NVRTC is None, reason="needs NVIDIA's compiler: pip install nvidia-cuda-nvrtc")


def compiled(source, macros):
    """What the assembler says of every kernel; an AssertionError with the compiler's words if it refuses."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = plain_text(source, sorted(macros.items())).encode()
    assert NVRTC.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None) == 0
    options = [option.encode() for option in (*OPTIONS, "-arch=sm_90", "-ftz=true", "--ptxas-options=-v")]
    failed = NVRTC.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetProgramLog(program, log)
    NVRTC.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, log.value.decode()
    return log.value.decode()


def spilled(told):
    return [int(number) for number in re.findall(r"(\d+) bytes spill stores", told)]


@pytest.mark.parametrize("source", ["ratings", "fold"])
def test_kernels_of_ratings(source):
    assert not any(spilled(compiled(source, RATING_MACROS if source == "ratings" else {})))


@pytest.mark.parametrize("source", ["lines", "solve", "maps", "totals", "pairs", "draws"])
@pytest.mark.parametrize("name", SHAPES)
def test_kernels_of_rows(name, source):
    shape = SHAPES[name]
    macros = {"maps": shape.map_macros, "totals": shape.total_macros, "pairs": shape.pair_macros}
    macros["draws"] = shape.pair_macros
    told = spilled(compiled(source, macros.get(source, shape.row_macros)))
    assert told
    if source != "draws":  # a thread draws a whole row: it may be too long for its registers
        assert max(told) <= 16


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_sums(name, ahead):
    shape, product = SHAPES[name], LineShape.of_columns(SHAPES[name].rank + 6)
    for mode, line in {MODE_LOGISTIC: shape.line, MODE_PRODUCT: product, MODE_READS: shape.line}.items():
        assert max(spilled(compiled("sums", line.sum_macros(True, mode, not ahead)))) <= 16
