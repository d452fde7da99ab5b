// Work on the rows of a side, without their ratings. Header-free, for nvrtc; shapes.py sizes it.
//
//   SIZE       D, the free coordinates of a row: [b, L] with intercepts (FIXED = 1), L without (FIXED = 0)
//   SPREAD     whether a row keeps D standard deviations instead of a packed covariance
//   LANES      threads that solve a row: a part of a warp, or several warps; MAP_LANES those that map it
//   GROUP, MOMENTS, TOLD, SIGNED, VALUES     as in sums.cu, whose lines and sums these kernels write and read
typedef unsigned int u32;
typedef long long i64;
#define RANK (SIZE - FIXED)
#define PACKED (SIZE * (SIZE + 1) / 2)
#define SCALE (SPREAD ? SIZE : PACKED)
#define STRIDE (SIZE | 1)  // an odd stride: the lines of a column are in different banks
#define GROUPS (GROUP < 32 ? 32 / GROUP : 1)
#define WIDTH ((MOMENTS + TOLD) * GROUP)
#define SUMS (VALUES * GROUP)
#define KEPT (VALUES / GROUPS)
#define TRIANGLE(a, b) ((a) * ((a) + 1) / 2 + (b))

__device__ __forceinline__ float covariance(const float* __restrict__ scale, int a, int b) {
#if SPREAD
  return a == b ? scale[a] * scale[a] : 0.f;
#else
  return scale[a > b ? TRIANGLE(a, b) : TRIANGLE(b, a)];
#endif
}

// Which entry (a, b), a ≥ b, of a packed triangle is number q
__device__ __forceinline__ void entry_of(int q, int& a, int& b) {
  a = (int)((sqrtf(8.f * q + 1.f) - 1.f) * 0.5f);
  while (TRIANGLE(a + 1, 0) <= q) a++;
  while (TRIANGLE(a, 0) > q) a--;
  b = q - TRIANGLE(a, 0);
}

// ---- lines -----------------------------------------------------------------------------------------------------------

// A block makes the lines of LINES rows; a thread makes the same number of each.
#define LINES 64

// [E[R Rᵀ] packed, E[R], 1, 0 …, implicit, 0 …] of every partner R = [d, …]; one more line of zeros is for nobody.
extern "C" __global__ void fill_partners(const float* __restrict__ location, const float* __restrict__ scale,
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
        else if (TOLD && k >= 0 && k < 2 * RANK) value = implicit[j * (2 * RANK) + k];
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

// ---- the update of a row -----------------------------------------------------------------------------------------------

// Where value v of thread t is in the sums of a row
__device__ __forceinline__ int place(int t, int v) { return v % KEPT * (GROUPS * GROUP) + v / KEPT * GROUP + t; }
// Where the sum of number s of the moments is; the signed sum of it; and the sum of number s of what is told
__device__ __forceinline__ int moment(int s) { return place(s / 4 % GROUP, s / (4 * GROUP) * 4 + s % 4); }
__device__ __forceinline__ int signed_moment(int s) {
  return place(s / 4 % GROUP, SIGNED + s / (4 * GROUP) * 4 + s % 4);
}
__device__ __forceinline__ int told_sum(int s) {
  const int whole = TOLD / 4 * 4, rest = TOLD % 4 ? TOLD % 4 : 1;
  if (s < whole * GROUP) return place(s / 4 % GROUP, MOMENTS + SIGNED + s / (4 * GROUP) * 4 + s % 4);
  s -= whole * GROUP;
  return place(s / rest, MOMENTS + SIGNED + whole + s % rest);
}

#define ROWS_PER_BLOCK (LANES > 32 ? 1 : 128 / LANES)
#define BLOCK (ROWS_PER_BLOCK * LANES)
#if LANES > 32
#define SYNC() __syncthreads()
#else
#define SYNC() __syncwarp(lanes)
#endif

__device__ __forceinline__ double lane_sum(double x, double* room, u32 lanes, int lane) {
#pragma unroll
  for (int bit = 1; bit < (LANES < 32 ? LANES : 32); bit <<= 1) x += __shfl_xor_sync(lanes, x, bit);
#if LANES > 32
  __syncthreads();
  if ((lane & 31) == 0) room[lane >> 5] = x;
  __syncthreads();
  x = 0.0;
  for (int w = 0; w < LANES / 32; w++) x += room[w];
#endif
  return x;
}

// m: A in the lower triangle of a square with lines of STRIDE numbers. Becomes C with A = C Cᵀ, 1/C_ii on the diagonal.
// (No __restrict__ on what several threads share: it would allow the compiler to keep numbers over a barrier.)
__device__ __forceinline__ void cholesky(double* m, int lane, u32 lanes) {
  for (int j = 0; j < SIZE; j++) {
    for (int i = j + lane; i < SIZE; i += LANES) {
      double s = m[i * STRIDE + j], r = 0.0;
      int k = 0;
      for (; k + 1 < j; k += 2) {
        s -= m[i * STRIDE + k] * m[j * STRIDE + k];
        r -= m[i * STRIDE + k + 1] * m[j * STRIDE + k + 1];
      }
      if (k < j) s -= m[i * STRIDE + k] * m[j * STRIDE + k];
      m[i * STRIDE + j] = s + r;
    }
    SYNC();
    const double pivot = m[j * STRIDE + j], root = pivot > 0.0 ? rsqrt(pivot) : 0.0;
    SYNC();
    for (int i = j + lane; i < SIZE; i += LANES) m[i * STRIDE + j] = i == j ? root : m[i * STRIDE + j] * root;
    SYNC();
  }
}

// b ─► (C Cᵀ)⁻¹ b
__device__ __forceinline__ void solve_with(const double* m, double* b, int lane, u32 lanes) {
  for (int j = 0; j < SIZE; j++) {
    const double v = b[j] * m[j * STRIDE + j];
    SYNC();
    for (int i = j + lane; i < SIZE; i += LANES) b[i] = i == j ? v : b[i] - m[i * STRIDE + j] * v;
    SYNC();
  }
  for (int j = SIZE - 1; j >= 0; j--) {
    const double v = b[j] * m[j * STRIDE + j];
    SYNC();
    for (int i = lane; i <= j; i += LANES) b[i] = i == j ? v : b[i] - m[j * STRIDE + i] * v;
    SYNC();
  }
}

// C⁻¹, transposed, into the upper triangle: a thread makes a column. The diagonal is that of C already.
__device__ __forceinline__ void invert(double* m, int lane, u32 lanes) {
  for (int j = lane; j < SIZE; j += LANES) {
    for (int i = j + 1; i < SIZE; i++) {
      double s = 0.0;
      for (int k = j; k < i; k++) s -= m[i * STRIDE + k] * m[j * STRIDE + k];
      m[j * STRIDE + i] = s * m[i * STRIDE + i];
    }
  }
  SYNC();
}

// x ~ N(A⁻¹ b, A⁻¹) of every row with ratings, from its sums. The prior is N(p, G⁻¹): one p and one matrix G for all rows,
// or `own_mean` and `own_deviation` of each; `explained` and what is told are added to p. `told` and `location` are written anew, `scale` and
// `implicit` in place. scalars[0 … 2][block]: Σ ½ log det V (or Σ log s), Σ g((x − p)² + var) − 1 − log g with g the
// diagonal of G, and Σ ½κ y E[u] of all ratings.
extern "C" __global__ void __launch_bounds__(BLOCK)
solve(const float* __restrict__ acc, const i64* __restrict__ pointers, const int* __restrict__ distinct,
      const double* __restrict__ prior_mean, const double* __restrict__ prior_precision,
      const float* __restrict__ own_mean, const float* __restrict__ own_deviation, const float* __restrict__ explained,
      const float* __restrict__ old, float* __restrict__ location, float* __restrict__ scale,
      float* __restrict__ implicit, float* __restrict__ told, double* __restrict__ scalars, i64 n, double relaxation,
      double ridge, double share) {
  extern __shared__ double room[];
  __shared__ double sums_of[3][ROWS_PER_BLOCK];
  const int member = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const u32 lanes = LANES >= 32 ? 0xffffffffu : ((1u << (LANES & 31)) - 1u) << (threadIdx.x % 32 / LANES * LANES);
  const i64 i = blockIdx.x * (i64)ROWS_PER_BLOCK + member;
  const bool rated = i < n && pointers[i + 1] > pointers[i];
  double log_volume = 0.0, distance = 0.0, linear = 0.0;
  if (rated) {
    double* m = room + member * (SIZE * STRIDE + 4 * SIZE);
    double* b = m + SIZE * STRIDE;       // the right-hand side, then the solution
    double* pull = b + SIZE;             // ½κ Σ y E[z], in the order of the row
    double* mean = pull + SIZE;          // p
    double* precision = mean + SIZE;     // g
    const float* sums = acc + i * SUMS;
    const double count = distinct ? (double)distinct[i] : 1.0, root = rsqrt(count);
    for (int a = lane; a < SIZE; a += LANES) {
      double p = own_mean ? (double)own_mean[i * SIZE + a] : prior_mean[a];
      const double s = own_deviation ? (double)own_deviation[i * SIZE + a] : 1.0;
      const double g = own_deviation ? 1.0 / (s * s) : prior_precision[a * SIZE + a];
      if (explained) p += (double)explained[i * SIZE + a];
#if TOLD
      if (a >= FIXED) {
        const int k = a - FIXED;
        const double mine = root * (double)sums[told_sum(k)];
        told[i * RANK + k] = (float)mine;
        p += mine;
        const double w = (double)implicit[i * (2 * RANK) + k];
        const double step = ((double)sums[told_sum(RANK + k)] - ridge * w) / (count / share + ridge);
        implicit[i * (2 * RANK) + k] = (float)(w + relaxation * step);
      }
#endif
      mean[a] = p;
      precision[a] = g;
      const double signed_sum = (double)sums[signed_moment(PACKED + (FIXED && a == 0 ? SIZE : a))];
      pull[a] = signed_sum;
      b[a] = signed_sum;
#if FIXED
      b[a] -= (double)sums[moment(a == 0 ? PACKED : TRIANGLE(a, 0))];
#endif
      for (int c = 0; c <= a; c++) {
        const int s_of = !FIXED || c > 0 ? TRIANGLE(a, c) : a == 0 ? TRIANGLE(SIZE, SIZE) : PACKED + a;
        const double joint = a == c ? g : own_deviation ? 0.0 : prior_precision[a * SIZE + c];
        m[a * STRIDE + c] = (double)sums[moment(s_of)] + joint;
      }
#if SPREAD
      scale[i * SIZE + a] = (float)rsqrt(m[a * STRIDE + a]);
#endif
    }
    SYNC();
    for (int a = lane; a < SIZE; a += LANES) {
      if (own_deviation) b[a] += precision[a] * mean[a];
      else
        for (int c = 0; c < SIZE; c++) b[a] += prior_precision[a * SIZE + c] * mean[c];
    }
    SYNC();
    cholesky(m, lane, lanes);
    solve_with(m, b, lane, lanes);
#if SPREAD
    for (int a = lane; a < SIZE; a += LANES) log_volume += log((double)scale[i * SIZE + a]);
#else
    for (int a = lane; a < SIZE; a += LANES) log_volume += log(m[a * STRIDE + a]);
    invert(m, lane, lanes);
    for (int a = 0; a < SIZE; a++) {
      for (int c = lane; c <= a; c += LANES) {
        double s = 0.0, r = 0.0;
        int k = a;
        for (; k + 1 < SIZE; k += 2) {
          s += m[a * STRIDE + k] * m[c * STRIDE + k];
          r += m[a * STRIDE + k + 1] * m[c * STRIDE + k + 1];
        }
        if (k < SIZE) s += m[a * STRIDE + k] * m[c * STRIDE + k];
        scale[i * PACKED + TRIANGLE(a, c)] = (float)(s + r);
        if (a == c) {
          const double v = (double)(float)(s + r);
          distance += precision[a] * v - 1.0 - log(precision[a]);
        }
      }
    }
#endif
    for (int a = lane; a < SIZE; a += LANES) {
      const double x0 = (double)old[i * SIZE + a];
      const float x = (float)(x0 + relaxation * (b[a] - x0));
      location[i * SIZE + a] = x;
      const double shift = (double)x - mean[a];
      distance += precision[a] * shift * shift;
      linear += pull[a] * (double)x;
#if SPREAD
      const double s = (double)scale[i * SIZE + a];
      distance += precision[a] * s * s - 1.0 - log(precision[a]);
#endif
#if FIXED
      if (a == 0) linear += (double)sums[signed_moment(PACKED)];
#endif
#if TOLD
      if (a >= FIXED) implicit[i * (2 * RANK) + RANK + a - FIXED] = (float)(shift * root);
#endif
    }
    log_volume = lane_sum(log_volume, m, lanes, lane);
    distance = lane_sum(distance, m, lanes, lane);
    linear = lane_sum(linear, m, lanes, lane);
  } else if (i < n) {
    for (int a = lane; a < SIZE; a += LANES) {
      location[i * SIZE + a] = old[i * SIZE + a];
#if TOLD
      if (a >= FIXED) told[i * RANK + a - FIXED] = 0.f;
#endif
    }
  }
  if (lane == 0) { sums_of[0][member] = log_volume; sums_of[1][member] = distance; sums_of[2][member] = linear; }
  __syncthreads();
  if (threadIdx.x < 3) {
    double s = 0.0;
    for (int k = 0; k < ROWS_PER_BLOCK; k++) s += sums_of[threadIdx.x][k];
    scalars[threadIdx.x * (i64)gridDim.x + blockIdx.x] = s;
  }
}

#if SIZE <= 12
// The same with a thread per row, which has the whole system in its registers: for few coordinates it is much faster.
// A block reads the sums of its rows together, and writes their covariances together.
#define SMALL 64
extern "C" __global__ void __launch_bounds__(SMALL)
solve_small(const float* __restrict__ acc, const i64* __restrict__ pointers, const int* __restrict__ distinct,
            const double* __restrict__ prior_mean, const double* __restrict__ prior_precision,
            const float* __restrict__ own_mean, const float* __restrict__ own_deviation,
            const float* __restrict__ explained, const float* __restrict__ old, float* __restrict__ location,
            float* __restrict__ scale, float* __restrict__ implicit, float* __restrict__ told,
            double* __restrict__ scalars, i64 n, double relaxation, double ridge, double share) {
  extern __shared__ float staged[];
  __shared__ double sums_of[3][SMALL];
  __shared__ bool updated[SMALL];
  const i64 base = blockIdx.x * (i64)SMALL;
  const int rows = n - base < SMALL ? (int)(n - base) : SMALL, me = threadIdx.x;
  for (int e = me; e < rows * SUMS; e += SMALL) staged[e / SUMS * (SUMS + 1) + e % SUMS] = acc[base * SUMS + e];
  __syncthreads();
  const i64 i = base + me;
  const bool rated = me < rows && pointers[i + 1] > pointers[i];
  double log_volume = 0.0, distance = 0.0, linear = 0.0;
  updated[me] = rated;
  if (rated) {
    float* sums = staged + me * (SUMS + 1);
    const double count = distinct ? (double)distinct[i] : 1.0, root = rsqrt(count);
    double m[PACKED], x[SIZE];
    const auto mean = [&](int a) {  // p and g are read again where they are needed: registers are scarce
      double p = own_mean ? (double)own_mean[i * SIZE + a] : prior_mean[a];
      if (explained) p += (double)explained[i * SIZE + a];
      return TOLD && a >= FIXED ? p + root * (double)sums[told_sum(a - FIXED)] : p;
    };
    const auto precision = [&](int a) {
      const double s = own_deviation ? (double)own_deviation[i * SIZE + a] : 1.0;
      return own_deviation ? 1.0 / (s * s) : prior_precision[a * SIZE + a];
    };
#if TOLD
#pragma unroll
    for (int k = 0; k < RANK; k++) {
      told[i * RANK + k] = (float)(root * (double)sums[told_sum(k)]);
      const double w = (double)implicit[i * (2 * RANK) + k];
      const double step = ((double)sums[told_sum(RANK + k)] - ridge * w) / (count / share + ridge);
      implicit[i * (2 * RANK) + k] = (float)(w + relaxation * step);
    }
#endif
#pragma unroll
    for (int a = 0; a < SIZE; a++) {
      x[a] = (double)sums[signed_moment(PACKED + (FIXED && a == 0 ? SIZE : a))];
#if FIXED
      x[a] -= (double)sums[moment(a == 0 ? PACKED : TRIANGLE(a, 0))];
#endif
#pragma unroll
      for (int c = 0; c < SIZE; c++) {
        const double joint = a == c ? precision(a) : own_deviation ? 0.0 : prior_precision[a * SIZE + c];
        x[a] += joint * mean(c);
        if (c <= a) {
          const int s_of = !FIXED || c > 0 ? TRIANGLE(a, c) : a == 0 ? TRIANGLE(SIZE, SIZE) : PACKED + a;
          m[TRIANGLE(a, c)] = (double)sums[moment(s_of)] + joint;
        }
      }
    }
#if SPREAD
    float deviation[SIZE];
    log_volume = 0.0;
#pragma unroll
    for (int a = 0; a < SIZE; a++) {
      deviation[a] = (float)rsqrt(m[TRIANGLE(a, a)]);
      log_volume += log((double)deviation[a]);
    }
#endif
    // C with A = C Cᵀ, 1/C_ii on the diagonal
#pragma unroll
    for (int j = 0; j < SIZE; j++) {
#pragma unroll
      for (int a = j; a < SIZE; a++) {
        double s = m[TRIANGLE(a, j)];
#pragma unroll
        for (int k = 0; k < j; k++) s -= m[TRIANGLE(a, k)] * m[TRIANGLE(j, k)];
        m[TRIANGLE(a, j)] = a == j ? rsqrt(s) : s * m[TRIANGLE(j, j)];
      }
    }
#pragma unroll
    for (int a = 0; a < SIZE; a++) {
#pragma unroll
      for (int k = 0; k < a; k++) x[a] -= m[TRIANGLE(a, k)] * x[k];
      x[a] *= m[TRIANGLE(a, a)];
    }
#pragma unroll
    for (int a = SIZE - 1; a >= 0; a--) {
#pragma unroll
      for (int k = a + 1; k < SIZE; k++) x[a] -= m[TRIANGLE(k, a)] * x[k];
      x[a] *= m[TRIANGLE(a, a)];
    }
#pragma unroll
    for (int a = 0; a < SIZE; a++) {
      const double x0 = (double)old[i * SIZE + a];
      const float moved = (float)(x0 + relaxation * (x[a] - x0));
      location[i * SIZE + a] = moved;
      const double shift = (double)moved - mean(a), g = precision(a);
      distance += g * shift * shift - 1.0 - log(g);
      linear += (double)sums[signed_moment(PACKED + (FIXED && a == 0 ? SIZE : a))] * (double)moved;
#if TOLD
      if (a >= FIXED) implicit[i * (2 * RANK) + RANK + a - FIXED] = (float)(shift * root);
#endif
    }
#if FIXED
    linear += (double)sums[signed_moment(PACKED)];
#endif
#if SPREAD
#pragma unroll
    for (int a = 0; a < SIZE; a++) {
      distance += precision(a) * (double)deviation[a] * (double)deviation[a];
      sums[a] = deviation[a];
    }
#else
    double volume = 1.0;
#pragma unroll
    for (int a = 0; a < SIZE; a++) volume *= m[TRIANGLE(a, a)];
    log_volume = log(volume);
    // C⁻¹ in its place, column by column, and V = C⁻ᵀC⁻¹
#pragma unroll
    for (int j = 0; j < SIZE; j++) {
#pragma unroll
      for (int a = j + 1; a < SIZE; a++) {
        double s = 0.0;
#pragma unroll
        for (int k = j; k < a; k++) s -= m[TRIANGLE(a, k)] * m[TRIANGLE(k, j)];
        m[TRIANGLE(a, j)] = s * m[TRIANGLE(a, a)];
      }
    }
#pragma unroll
    for (int a = 0; a < SIZE; a++) {
#pragma unroll
      for (int c = 0; c <= a; c++) {
        double s = 0.0;
#pragma unroll
        for (int k = a; k < SIZE; k++) s += m[TRIANGLE(k, a)] * m[TRIANGLE(k, c)];
        sums[TRIANGLE(a, c)] = (float)s;
        if (a == c) distance += precision(a) * (double)(float)s;
      }
    }
#endif
  } else if (me < rows) {
    for (int a = 0; a < SIZE; a++) {
      location[i * SIZE + a] = old[i * SIZE + a];
#if TOLD
      if (a >= FIXED) told[i * RANK + a - FIXED] = 0.f;
#endif
    }
  }
  sums_of[0][me] = log_volume; sums_of[1][me] = distance; sums_of[2][me] = linear;
  __syncthreads();
  for (int e = me; e < rows * SCALE; e += SMALL)
    if (updated[e / SCALE]) scale[base * SCALE + e] = staged[e / SCALE * (SUMS + 1) + e % SCALE];
  if (me < 3) {
    double s = 0.0;
    for (int k = 0; k < SMALL; k++) s += sums_of[me][k];
    scalars[me * (i64)gridDim.x + blockIdx.x] = s;
  }
}
#endif

// C with V = C Cᵀ of every row, packed; a pivot that is negative by rounding becomes 0. Spreads as they are.
extern "C" __global__ void __launch_bounds__(BLOCK)
roots(const float* __restrict__ scale, double* __restrict__ out, i64 n) {
  extern __shared__ double room[];
  const int member = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const u32 lanes = LANES >= 32 ? 0xffffffffu : ((1u << (LANES & 31)) - 1u) << (threadIdx.x % 32 / LANES * LANES);
  const i64 i = blockIdx.x * (i64)ROWS_PER_BLOCK + member;
  if (i >= n) return;
#if SPREAD
  for (int a = lane; a < SIZE; a += LANES) out[i * SIZE + a] = (double)scale[i * SIZE + a];
#else
  double* m = room + member * (SIZE * STRIDE);
  for (int a = 0; a < SIZE; a++)
    for (int b = lane; b <= a; b += LANES) m[a * STRIDE + b] = (double)scale[i * PACKED + TRIANGLE(a, b)];
  SYNC();
  cholesky(m, lane, lanes);
  for (int a = 0; a < SIZE; a++)
    for (int b = lane; b <= a; b += LANES) {
      const double c = m[a * STRIDE + b];
      out[i * PACKED + TRIANGLE(a, b)] = a > b ? c : c > 0.0 ? 1.0 / c : 0.0;
    }
#endif
}

// ---- one affine map of every row -----------------------------------------------------------------------------------------

// x ─► xT + t, V ─► TᵀVT (or s ─► s·|T|), and what a row tells: [w·T', r·T], T' that of the other side
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
    double moved[PASSES], weight[PASSES], residual[PASSES];
#if SPREAD
    double spread[PASSES];
#endif
    float* mine = implicit + i * (2 * RANK);
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
          weight[c] = residual[c] = 0.0;
          for (int j = 0; j < RANK; j++) {
            weight[c] += (double)mine[j] * other[(j + FIXED) * SIZE + k + FIXED];
            residual[c] += (double)mine[RANK + j] * matrix[(j + FIXED) * SIZE + k + FIXED];
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
        if (implicit && k < RANK) { mine[k] = (float)weight[c]; mine[RANK + k] = (float)residual[c]; }
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
