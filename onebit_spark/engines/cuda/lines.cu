// Writes the lines that sums.cu reads: of the other side, and of the rows. GROUP, MOMENTS and IMPLICIT as in sums.cu.
#include "lanes.cuh"

#define WIDTH ((MOMENTS + IMPLICIT) * GROUP)

// Entry number q of a packed triangle is (a, b), a ≥ b
__device__ __forceinline__ void entry_of(int q, int& a, int& b) {
  a = (int)((sqrtf(8.f * q + 1.f) - 1.f) * 0.5f);
  while (TRIANGLE(a + 1, 0) <= q) a++;
  while (TRIANGLE(a, 0) > q) a--;
  b = q - TRIANGLE(a, 0);
}

__device__ __forceinline__ float covariance(const float* __restrict__ scale, int a, int b) {
#if SPREAD
  return a == b ? scale[a] * scale[a] : 0.f;
#else
  return scale[a > b ? TRIANGLE(a, b) : TRIANGLE(b, a)];
#endif
}

// A block writes the lines of LINES rows; a thread writes the same number of each line.
#define LINES 16

// [E[R Rᵀ] packed, E[R], 1, 0 …, implicit, 0 …] of every row R = [d, …] of the other side, and one line of zeros at the end.
extern "C" __global__ void fill_others(const float* __restrict__ location, const float* __restrict__ scale,
                                       const float* __restrict__ implicit, float* __restrict__ out, i64 n) {
  const i64 begin = blockIdx.x * (i64)LINES, end = begin + LINES < n + 1 ? begin + LINES : n + 1;
  for (int s = threadIdx.x; s < WIDTH; s += blockDim.x) {
    int a, b;
    entry_of(s, a, b);
    const int k = s - MOMENTS * GROUP;
    for (i64 j = begin; j < end; j++) {
      const float* x = location + j * SIZE;
      float value = 0.f;
      if (j < n) {
        if (a < SIZE) value = x[a] * x[b] + covariance(scale + j * SCALE, a, b);
        else if (a == SIZE) value = b < SIZE ? x[b] : 1.f;
        else if (IMPLICIT && k >= 0 && k < SENT * RANK) value = implicit[j * (VECTORS * RANK) + k];
      }
      out[j * WIDTH + s] = value;
    }
  }
}

// E[x xᵀ] of the row x = [1, L, b] (or [L, 0]) in the places of E[z zᵀ], off-diagonal entries doubled: the inner product of
// both lines is E[(x·z)²].
extern "C" __global__ void fill_rows(const float* __restrict__ location, const float* __restrict__ scale,
                                     float* __restrict__ out, i64 n) {
  const i64 begin = blockIdx.x * (i64)LINES, end = begin + LINES < n ? begin + LINES : n;
  for (int s = threadIdx.x; s < MOMENTS * GROUP; s += blockDim.x) {
    int a, b;
    entry_of(s, a, b);
    for (i64 i = begin; i < end; i++) {
      const float* x = location + i * SIZE;
      const float* v = scale + i * SCALE;
      float value = 0.f;
      if (a < SIZE && b >= FIXED) value = (a == b ? 1.f : 2.f) * (x[a] * x[b] + covariance(v, a, b));
#if FIXED
      else if (a < SIZE) value = a == 0 ? 1.f : 2.f * x[a];
      else if (a == SIZE && b < SIZE) value = b == 0 ? 2.f * x[0] : 2.f * (x[0] * x[b] + covariance(v, b, 0));
      else if (a == SIZE) value = x[0] * x[0] + covariance(v, 0, 0);
#endif
      out[i * (MOMENTS * GROUP) + s] = value;
    }
  }
}
