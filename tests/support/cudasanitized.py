"""The GPU's kernels in a program of their own, compiled by nvcc, under compute-sanitizer: it does
not watch CuPy's.

    export ONEBIT_SANITIZER=racecheck PYTHONPATH=.:tests
    python -m pytest tests/unit/test_cuda.py --confcutdir tests/unit

runs the tests of the kernels so, on a machine with a GPU and CUDA's toolkit; memcheck, initcheck
and synccheck as well.
"""

from __future__ import annotations

import re
import struct
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from onebit_spark.engines.cuda.device import text_of

KERNEL = re.compile(
    r'extern "C" __global__ void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\('
)
NOTHING = -1
NUMBER = -2  # in the place of an array's length
MAIN = """
#include <cstdio>
#include <cstring>
#include <vector>
static void must(cudaError_t e) { if (e != cudaSuccess) { printf("%s\\n", cudaGetErrorString(e)); exit(1); } }
int main(int, char** given) {
  FILE* file = fopen(given[2], "r+b");
  int sizes[5];  // grid, block, shared memory, arguments
  if (fread(sizes, 4, 5, file) != 5) return 1;
  std::vector<void*> values(sizes[4]), pointers;
  std::vector<long> lengths(sizes[4]), places(sizes[4]);
  for (int k = 0; k < sizes[4]; k++) {
    if (fread(&lengths[k], 8, 1, file) != 1) return 1;
    if (lengths[k] == -2 && fread(&values[k], 8, 1, file) != 1) return 1;
    places[k] = ftell(file);
    if (lengths[k] < 0) continue;
    std::vector<char> bytes(lengths[k]);
    if (fread(bytes.data(), 1, bytes.size(), file) != bytes.size()) return 1;
    must(cudaMalloc(&values[k], bytes.size()));
    must(cudaMemcpy(values[k], bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  for (void*& value : values) pointers.push_back(&value);
  const void* kernel = 0;
  CHOOSE
  if (sizes[3] > 48 * 1024) must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizes[3]));
  must(cudaLaunchKernel(kernel, dim3(sizes[0], sizes[1]), dim3(sizes[2]), pointers.data(), sizes[3], 0));
  must(cudaDeviceSynchronize());
  for (int k = 0; k < sizes[4]; k++) {
    if (lengths[k] < 0) continue;
    std::vector<char> bytes(lengths[k]);
    must(cudaMemcpy(bytes.data(), values[k], bytes.size(), cudaMemcpyDeviceToHost));
    fseek(file, places[k], SEEK_SET);
    fwrite(bytes.data(), 1, bytes.size(), file);
  }
  fclose(file);
}
"""


@cache
def _program(source: str, macros: tuple[tuple[str, int], ...]) -> Path:
    text = text_of(source)
    chosen = "\n  ".join(
        f'if (!strcmp(given[1], "{name}")) kernel = (void*){name};' for name in KERNEL.findall(text)
    )
    folder = Path(mkdtemp(prefix="onebit-cuda-"))
    code = folder / "kernels.cu"
    program = folder / "kernels"
    code.write_text(text + MAIN.replace("CHOOSE", chosen), encoding="utf-8")
    options = [f"-D{name}={value}" for name, value in macros]
    subprocess.run(
        [
            "nvcc",
            "-std=c++17",
            "-arch=native",
            "-lineinfo",
            *options,
            str(code),
            "-o",
            str(program),
        ],
        check=True,
    )
    return program


def run(
    tool: str,
    source: str,
    name: str,
    macros: dict[str, int],
    grid: tuple[int, int],
    block: int,
    arguments,
    shared,
):
    """As ``cudaoncpu.run``, on the device. What the tool finds is an error."""
    program = _program(source, tuple(sorted(macros.items())))
    data = struct.pack("5i", *grid, block, shared, len(arguments))
    places = {}
    for k, argument in enumerate(arguments):
        if argument is None:
            data += struct.pack("q", NOTHING)
        elif isinstance(argument, np.ndarray):
            data += struct.pack("q", argument.nbytes)
            places[k] = len(data)
            data += argument.tobytes()
        else:
            data += struct.pack("q", NUMBER) + argument.tobytes().ljust(8, b"\0")
    file = program.with_name("arguments")
    file.write_bytes(data)
    command = [
        "compute-sanitizer",
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        str(program),
        name,
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    data = file.read_bytes()
    for k, begin in places.items():
        array = arguments[k]
        array[...] = np.frombuffer(data, array.dtype, array.size, begin).reshape(array.shape)
