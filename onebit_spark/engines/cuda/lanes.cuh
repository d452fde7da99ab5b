// Shared by all kernels on rows: sizes, and the threads of a row. No headers, for nvrtc; shapes.py defines the macros.
//
//   SIZE             D, the free coordinates of a row: [b, L] with intercepts (FIXED = 1), L without (FIXED = 0)
//   SPREAD           whether a row has D standard deviations instead of a packed covariance
//   DOWN, ACROSS     threads that work on a row together: a part of a warp, or several warps
typedef unsigned int u32;
typedef long long i64;
#define RANK (SIZE - FIXED)
#define PACKED (SIZE * (SIZE + 1) / 2)
#define SCALE (SPREAD ? SIZE : PACKED)
#define TRIANGLE(a, b) ((a) * ((a) + 1) / 2 + (b))
#define EVERYONE 0xffffffffu
// Implicit features (core/features.py): a row has the vectors [w r z d s q] of length RANK; the other side reads the
// first SENT of them.
#define VECTORS 6
#define SENT 4
#define LANES (DOWN * ACROSS)
#define ROWS_PER_BLOCK (LANES > 32 ? 1 : 128 / LANES)
#define BLOCK (ROWS_PER_BLOCK * LANES)
#if LANES > 32
#define SYNC() __syncthreads()
#else
#define SYNC() __syncwarp()
#endif

// The sum over the threads of a row, in all of them. All threads of the block must call it.
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

// Add up two numbers of every row by blocks: scalars[0 … 1][block]
__device__ __forceinline__ void add_up(double first, double second, double* __restrict__ scalars) {
  __shared__ double of_rows[2][ROWS_PER_BLOCK];
  const int member = threadIdx.x / LANES;
  if (threadIdx.x % LANES == 0) { of_rows[0][member] = first; of_rows[1][member] = second; }
  __syncthreads();
  if (threadIdx.x < 2) {
    double s = 0.0;
    for (int k = 0; k < ROWS_PER_BLOCK; k++) s += of_rows[threadIdx.x][k];
    scalars[threadIdx.x * (i64)gridDim.x + blockIdx.x] = s;
  }
}
