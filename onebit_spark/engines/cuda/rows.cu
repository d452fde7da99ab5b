// Work on the rows of a side, without their ratings: lines, roots and maps. MAP_LANES threads map a row.
#include "rows.cuh"

#define STRIDE (SIZE | 1)  // an odd stride: the lines of a column are in different banks

__device__ __forceinline__ float covariance(const float* __restrict__ scale, int a, int b) {
#if SPREAD
  return a == b ? scale[a] * scale[a] : 0.f;
#else
  return scale[a > b ? TRIANGLE(a, b) : TRIANGLE(b, a)];
#endif
}

// ---- lines -----------------------------------------------------------------------------------------------------------

// A block makes the lines of LINES rows; a thread makes the same number of each.
#define LINES 16

// [E[R Rᵀ] packed, E[R], 1, 0 …, implicit, 0 …] of every partner R = [d, …]; one more line of zeros is for nobody. For the
// hinge loss [R Rᵀ packed, R, 1, 0 …, implicit, 0 …, deviations, |R| with 1 in the place of |d|, 0 …].
extern "C" __global__ void fill_partners(const float* __restrict__ location, const float* __restrict__ scale,
                                         const float* __restrict__ implicit, float* __restrict__ out, i64 n) {
  const i64 begin = blockIdx.x * (i64)LINES, end = begin + LINES < n + 1 ? begin + LINES : n + 1;
  for (int s = threadIdx.x; s < WIDTH; s += blockDim.x) {
    int a, b;
    entry_of(s, a, b);
    const int k = s - MOMENTS * GROUP, w = k - TOLD * GROUP;
    for (i64 j = begin; j < end; j++) {
      const float* x = location + j * SIZE;
      float value = 0.f;
      if (j < n) {
        if (a < SIZE) value = x[a] * x[b] + (HINGE ? 0.f : covariance(scale + j * SCALE, a, b));
        else if (a == SIZE) value = b < SIZE ? x[b] : 1.f;
        else if (TOLD && k >= 0 && k < SENT * RANK) value = implicit[j * (VECTORS * RANK) + k];
        else if (WEIGHED && w >= 0 && w < SIZE) value = scale[j * SCALE + w];
        else if (WEIGHED && w >= SIZE && w < 2 * SIZE) value = FIXED && w == SIZE ? 1.f : fabsf(x[w - SIZE]);
      }
      out[j * WIDTH + s] = value;
    }
  }
}

// E[x xᵀ] of the row [1, L, b] (or [L, 0]) where a partner has E[z zᵀ], off-diagonal entries doubled: their product is
// E[(x·z)²].
extern "C" __global__ void fill_own(const float* __restrict__ location, const float* __restrict__ scale,
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
// ---- roots of covariances ----------------------------------------------------------------------------------------------

// C with V = C Cᵀ of every row, packed; a pivot that is negative by rounding becomes 0. Spreads as they are. (No __restrict__
// on what several threads share: it would allow the compiler to keep numbers over a barrier.)
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

// x ─► xT + t, V ─► TᵀVT (or s ─► s·|T|), and what a row tells: w, z and d by T', that of the other side, r, s and q by T
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
    double moved[PASSES], told[VECTORS][PASSES];
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
            told[v][c] = 0.0;
            for (int j = 0; j < RANK; j++) told[v][c] += (double)mine[v * RANK + j] * through[(j + FIXED) * SIZE + k + FIXED];
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
          for (int v = 0; v < VECTORS; v++) mine[v * RANK + k] = (float)told[v][c];
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

// x ─► x + yC and y₂ ─► yC, where x is vector `value` of a row, and y = [y₁ y₂] are `directions` and the next (ToldMap)
extern "C" __global__ void __launch_bounds__(MAP_ROWS * MAP_LANES)
move_told(float* implicit, const double* __restrict__ matrix, int value, int directions, i64 n) {
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
