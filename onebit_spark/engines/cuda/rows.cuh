// What the kernels on rows share: sizes, places of numbers, and the prior of a row. Header-free, for nvrtc; shapes.py
// sizes it.
//
//   SIZE       D, the free coordinates of a row: [b, L] with intercepts (FIXED = 1), L without (FIXED = 0)
//   SPREAD     whether a row keeps D standard deviations instead of a packed covariance
//   HINGE      whether the sums are those of the hinge loss
//   DOWN, ACROSS     threads that work on a row together: a part of a warp, or several warps
//   GROUP, MOMENTS, SIGNED, TOLD, WEIGHED, VALUES     as in sums.cu, whose lines and sums these kernels write and read
typedef unsigned int u32;
typedef long long i64;
#define RANK (SIZE - FIXED)
#define PACKED (SIZE * (SIZE + 1) / 2)
#define SCALE (SPREAD ? SIZE : PACKED)
#define WIDTH ((MOMENTS + TOLD + WEIGHED) * GROUP)
#define SUMS (VALUES * GROUP)
#define TRIANGLE(a, b) ((a) * ((a) + 1) / 2 + (b))
#define EVERYONE 0xffffffffu
// Implicit features: vectors of length RANK that a row has, [w r z d s q], and the first of them, which its partners read
// (core/implicit_features.py)
#define VECTORS 6
#define SENT 4

// Which entry (a, b), a ≥ b, of a packed triangle is number q
__device__ __forceinline__ void entry_of(int q, int& a, int& b) {
  a = (int)((sqrtf(8.f * q + 1.f) - 1.f) * 0.5f);
  while (TRIANGLE(a + 1, 0) <= q) a++;
  while (TRIANGLE(a, 0) > q) a--;
  b = q - TRIANGLE(a, 0);
}

// ---- places of sums ----------------------------------------------------------------------------------------------------

// The sum of number s of the moments is number s of a row's sums. Here is the signed sum of it
__device__ __forceinline__ int signed_moment(int s) { return s + SIGNED * GROUP; }
// The same of COUNT numbers per thread that are read apart, and whose values begin at FIRST: a thread that has fewer than
// four left has room for four
template <int COUNT, int FIRST> __device__ __forceinline__ int apart(int s) {
  const int rest = COUNT % 4 ? COUNT % 4 : 4, beyond = s - (COUNT - COUNT % 4) * GROUP;
  return FIRST * GROUP + (beyond < 0 ? s : s - beyond + 4 * (beyond / rest) + beyond % rest);
}
__device__ __forceinline__ int told_sum(int s) { return apart<TOLD, MOMENTS + SIGNED>(s); }
__device__ __forceinline__ int weighed_sum(int s) { return apart<WEIGHED, MOMENTS + SIGNED + (TOLD + 3) / 4 * 4>(s); }

// The coordinate of a partner [d, R, 1] (or [R, 1]) that stands beside coordinate a of a row
__device__ __forceinline__ int beside(int a) { return FIXED && a == 0 ? SIZE : a; }

// ---- threads of a row --------------------------------------------------------------------------------------------------

#define LANES (DOWN * ACROSS)
#define ROWS_PER_BLOCK (LANES > 32 ? 1 : 128 / LANES)
#define BLOCK (ROWS_PER_BLOCK * LANES)
#if LANES > 32
#define SYNC() __syncthreads()
#else
#define SYNC() __syncwarp()
#endif

// A sum over the threads of a row, which all of them get. All threads of the block must come here.
__device__ __forceinline__ double lane_sum(double x) {
#pragma unroll
  for (int bit = 1; bit < (LANES < 32 ? LANES : 32); bit <<= 1) x += __shfl_xor_sync(EVERYONE, x, bit);
#if LANES > 32
  __shared__ double parts[LANES / 32];
  __syncthreads();
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
  __syncthreads();
  x = 0.0;
  for (int w = 0; w < LANES / 32; w++) x += parts[w];
#endif
  return x;
}

// Three numbers of every row, added up by blocks: scalars[0 … 2][block]
__device__ __forceinline__ void add_up(double first, double second, double third, double* __restrict__ scalars) {
  __shared__ double of_rows[3][ROWS_PER_BLOCK];
  const int member = threadIdx.x / LANES;
  if (threadIdx.x % LANES == 0) { of_rows[0][member] = first; of_rows[1][member] = second; of_rows[2][member] = third; }
  __syncthreads();
  if (threadIdx.x < 3) {
    double s = 0.0;
    for (int k = 0; k < ROWS_PER_BLOCK; k++) s += of_rows[threadIdx.x][k];
    scalars[threadIdx.x * (i64)gridDim.x + blockIdx.x] = s;
  }
}

// ---- the prior of a row ------------------------------------------------------------------------------------------------

// N(p, G⁻¹): one p and one matrix G for all rows, or a mean and deviations for each. `explained` is added to p.
struct Prior {
  const double* mean;
  const double* precision;
  const float* own_mean;
  const float* own_deviation;
  const float* explained;

  __device__ __forceinline__ double mean_of(i64 i, int a) const {
    const double p = own_mean ? (double)own_mean[i * SIZE + a] : mean[a];
    return explained ? p + (double)explained[i * SIZE + a] : p;
  }
  __device__ __forceinline__ double precision_of(i64 i, int a, int b) const {
    if (!own_deviation) return precision[b * SIZE + a];
    const double s = (double)own_deviation[i * SIZE + a];
    return a == b ? 1.0 / (s * s) : 0.0;
  }
};

#if TOLD
// What implicit features add to the prior mean of factor k. The row's z, s and q are written.
__device__ __forceinline__ double tell(const float* __restrict__ sums, int k, double count, double ridge, float* implicit) {
  implicit[2 * RANK + k] = (float)(((double)sums[told_sum(RANK + k)] - ridge * (double)implicit[k]) / (count + ridge));
  implicit[4 * RANK + k] = (float)((double)sums[told_sum(2 * RANK + k)] / count);
  implicit[5 * RANK + k] = (float)((double)sums[told_sum(3 * RANK + k)] / count);
  return rsqrt(count) * (double)sums[told_sum(k)];
}
#endif

#if HINGE
#define SPREAD_FACTOR 0.7978845608028654  // c = √(2/π)
// w_a = κc Σ w_l s_ja, the slope of the objective in |x_a|; a partner's 1 has no deviation
__device__ __forceinline__ double slope_of_mean(const float* __restrict__ sums, int a) {
  return FIXED && a == 0 ? 0.0 : SPREAD_FACTOR * (double)sums[weighed_sum(a)];
}
// κc Σ w_l (|z_ja| + c s_ja), the slope in the deviation of x_a
__device__ __forceinline__ double slope_of_spread(const float* __restrict__ sums, int a) {
  return SPREAD_FACTOR * ((double)sums[weighed_sum(SIZE + a)] + slope_of_mean(sums, a));
}
#endif
