// Kernels on posteriors of rows that do not need their ratings. MAP_LANES threads map a row.
#include "lanes.cuh"

#define STRIDE (SIZE | 1)  // odd, so that the entries of a column are in different banks

// Set rows without ratings to their prior: its mean plus `explained`, and its line of scales
extern "C" __global__ void fill_unrated(const i64* __restrict__ pointers, const float* __restrict__ mean,
                                        const float* __restrict__ explained, const float* __restrict__ line,
                                        float* __restrict__ location, float* __restrict__ scale, float* __restrict__ implicit,
                                        i64 n) {
  for (i64 i = blockIdx.x; i < n; i += gridDim.x) {
    if (pointers[i + 1] > pointers[i]) continue;
    for (int k = threadIdx.x; k < SIZE; k += blockDim.x)
      location[i * SIZE + k] = mean[k] + (explained ? explained[i * SIZE + k] : 0.f);
    for (int k = threadIdx.x; k < SCALE; k += blockDim.x) scale[i * SCALE + k] = line[k];
    if (implicit)
      for (int k = threadIdx.x; k < VECTORS * RANK; k += blockDim.x) implicit[i * (VECTORS * RANK) + k] = 0.f;
  }
}

// ---- roots of covariances ----------------------------------------------------------------------------------------------

// C with V = C Cᵀ of every row, packed; a pivot that is negative by rounding becomes 0. Deviations are copied. (No
// __restrict__ on shared memory: the compiler could keep numbers in registers over a barrier.)
extern "C" __global__ void __launch_bounds__(BLOCK)
roots(const float* __restrict__ scale, double* __restrict__ out, i64 n) {
  const int member = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const i64 i = blockIdx.x * (i64)ROWS_PER_BLOCK + member;
#if SPREAD
  if (i < n)
    for (int a = lane; a < SIZE; a += LANES) out[i * SIZE + a] = (double)scale[i * SIZE + a];
#else
  extern __shared__ double room[];
  double* m = room + member * (SIZE * STRIDE);
  for (int a = 0; a < SIZE; a++)
    for (int b = lane; b <= a; b += LANES) m[a * STRIDE + b] = i < n ? (double)scale[i * PACKED + TRIANGLE(a, b)] : 0.0;
  SYNC();
  for (int j = 0; j < SIZE; j++) {
    for (int a = j + lane; a < SIZE; a += LANES)
      for (int k = 0; k < j; k++) m[a * STRIDE + j] -= m[a * STRIDE + k] * m[j * STRIDE + k];
    SYNC();
    const double pivot = m[j * STRIDE + j], root = pivot > 0.0 ? rsqrt(pivot) : 0.0;
    SYNC();
    for (int a = j + lane; a < SIZE; a += LANES) m[a * STRIDE + j] *= root;
    SYNC();
  }
  if (i < n)
    for (int a = 0; a < SIZE; a++)
      for (int b = lane; b <= a; b += LANES) out[i * PACKED + TRIANGLE(a, b)] = m[a * STRIDE + b];
#endif
}

// ---- one affine map of every row -----------------------------------------------------------------------------------------

// x ─► xT + t, V ─► TᵀVT (or s ─► s·|T|). Of the implicit vectors, T' of the other side maps w, z and d, and T maps r, s, q.
#define MAP_ROWS (MAP_LANES > 32 ? 1 : 128 / MAP_LANES)
#define PASSES ((SIZE + MAP_LANES - 1) / MAP_LANES)
extern "C" __global__ void __launch_bounds__(MAP_ROWS * MAP_LANES)
map_rows(float* location, float* scale, float* implicit,
         const double* __restrict__ matrix, const double* __restrict__ shift, const double* __restrict__ other, i64 n) {
  extern __shared__ float squares[];
  const int member = threadIdx.x / MAP_LANES, lane = threadIdx.x % MAP_LANES;
  float* by = squares;                                                // T
  float* v = squares + (1 + 2 * member) * (SIZE * STRIDE);            // V, then TᵀVT
  float* half = v + SIZE * STRIDE;                                    // VT
  for (int e = threadIdx.x; e < SIZE * SIZE; e += MAP_ROWS * MAP_LANES) by[e / SIZE * STRIDE + e % SIZE] = (float)matrix[e];
  for (i64 base = blockIdx.x * (i64)MAP_ROWS; base < n; base += gridDim.x * (i64)MAP_ROWS) {
    const i64 i = base + member;
    const bool here = i < n;
    double moved[PASSES], mapped[VECTORS][PASSES];
#if SPREAD
    double spread[PASSES];
#endif
    float* mine = implicit + i * (VECTORS * RANK);
    if (here) {
#pragma unroll
      for (int c = 0; c < PASSES; c++) {
        const int k = lane + c * MAP_LANES;
        if (k < SIZE) {
          moved[c] = shift[k];
#if SPREAD
          spread[c] = 0.0;
#endif
          for (int j = 0; j < SIZE; j++) {
            moved[c] += (double)location[i * SIZE + j] * matrix[j * SIZE + k];
#if SPREAD
            spread[c] += (double)scale[i * SIZE + j] * fabs(matrix[j * SIZE + k]);
#endif
          }
        }
        if (implicit && k < RANK) {
#pragma unroll
          for (int v = 0; v < VECTORS; v++) {
            const double* through = v == 0 || v == 2 || v == 3 ? other : matrix;
            mapped[v][c] = 0.0;
            for (int j = 0; j < RANK; j++) mapped[v][c] += (double)mine[v * RANK + j] * through[(j + FIXED) * SIZE + k + FIXED];
          }
        }
      }
#if !SPREAD
      for (int a = 0; a < SIZE; a++)
        for (int b = lane; b <= a; b += MAP_LANES)
          v[a * STRIDE + b] = v[b * STRIDE + a] = scale[i * PACKED + TRIANGLE(a, b)];
#endif
    }
    __syncthreads();
    if (here) {
#pragma unroll
      for (int c = 0; c < PASSES; c++) {
        const int k = lane + c * MAP_LANES;
        if (k < SIZE) {
          location[i * SIZE + k] = (float)moved[c];
#if SPREAD
          scale[i * SIZE + k] = (float)spread[c];
#else
          for (int a = 0; a < SIZE; a++) {
            float s = 0.f;
            for (int b = 0; b < SIZE; b++) s += v[a * STRIDE + b] * by[b * STRIDE + k];
            half[a * STRIDE + k] = s;
          }
#endif
        }
        if (implicit && k < RANK) {
#pragma unroll
          for (int v = 0; v < VECTORS; v++) mine[v * RANK + k] = (float)mapped[v][c];
        }
      }
    }
#if !SPREAD
    __syncthreads();
    if (here)
      for (int a = 0; a < SIZE; a++)
        for (int b = lane; b <= a; b += MAP_LANES) {
          float s = 0.f;
          for (int j = 0; j < SIZE; j++) s += by[j * STRIDE + a] * half[j * STRIDE + b];
          scale[i * PACKED + TRIANGLE(a, b)] = s;
        }
#endif
    __syncthreads();
  }
}

// ---- a step of the implicit weights --------------------------------------------------------------------------------------

// x ─► x + yC and y₂ ─► yC, where x is vector `value` of a row and y = [y₁ y₂] are vectors `directions` and `directions` + 1
// (ImplicitMove)
extern "C" __global__ void __launch_bounds__(MAP_ROWS * MAP_LANES)
move_implicit(float* implicit, const double* __restrict__ matrix, int value, int directions, i64 n) {
  const int member = threadIdx.x / MAP_LANES, lane = threadIdx.x % MAP_LANES;
  for (i64 base = blockIdx.x * (i64)MAP_ROWS; base < n; base += gridDim.x * (i64)MAP_ROWS) {
    const bool here = base + member < n;
    float* mine = implicit + (base + member) * (VECTORS * RANK);
    double step[PASSES];
#pragma unroll
    for (int c = 0; c < PASSES; c++) {
      const int k = lane + c * MAP_LANES;
      step[c] = 0.0;
      if (here && k < RANK)
        for (int j = 0; j < 2 * RANK; j++) step[c] += (double)mine[directions * RANK + j] * matrix[j * RANK + k];
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < PASSES; c++) {
      const int k = lane + c * MAP_LANES;
      if (here && k < RANK) {
        float& x = mine[value * RANK + k];
        x = (float)((double)x + step[c]);
        mine[(directions + 1) * RANK + k] = (float)step[c];
      }
    }
    __syncthreads();
  }
}
