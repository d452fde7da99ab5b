// Sums over the rows of a side, in double precision and in a fixed order: block b adds up its share of the rows, and
// writes line b of `out`. Header-free, for nvrtc.
//
//   PAIRS      products that a thread of `gram` adds up: the square of the largest width over THREADS, rounded up
typedef long long i64;
#define THREADS 256
#define TILE 32

__device__ __forceinline__ double number(const float* first, const float* second, int stride, double lead, i64 i, int k) {
  if (lead >= 0.0) {
    if (k == 0) return lead;
    k--;
  }
  const i64 at = i * stride + k;
  return second ? (double)first[at] - (double)second[at] : (double)first[at];
}

// Σ_i c_i x_i y_iᵀ, over the rows with ratings where `pointers` are given; c_i = 1 where `counts` are not.
extern "C" __global__ void __launch_bounds__(THREADS)
gram(const i64* __restrict__ pointers, const int* __restrict__ counts, const float* __restrict__ x1,
     const float* __restrict__ x2, int x_stride, double x_lead, const float* __restrict__ y1,
     const float* __restrict__ y2, int y_stride, double y_lead, int width, double* __restrict__ out, int out_stride,
     i64 n) {
  extern __shared__ double tiles[];
  double* x = tiles;
  double* y = tiles + TILE * width;
  double sums[PAIRS];
#pragma unroll
  for (int p = 0; p < PAIRS; p++) sums[p] = 0.0;
  const i64 share = (n + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share;
  const i64 end = begin + share < n ? begin + share : n;
  for (i64 from = begin; from < end; from += TILE) {
    const int rows = end - from < TILE ? (int)(end - from) : TILE;
    for (int e = threadIdx.x; e < rows * width; e += THREADS) {
      const i64 i = from + e / width;
      const int k = e % width;
      const bool counted = !pointers || pointers[i + 1] > pointers[i];
      x[e] = counted ? number(x1, x2, x_stride, x_lead, i, k) * (counts ? (double)counts[i] : 1.0) : 0.0;
      y[e] = counted ? number(y1, y2, y_stride, y_lead, i, k) : 0.0;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      const int pair = threadIdx.x + p * THREADS;
      if (pair < width * width) {
        const double* a = x + pair / width;
        const double* b = y + pair % width;
        double s = 0.0;
        for (int r = 0; r < rows; r++) s += a[r * width] * b[r * width];
        sums[p] += s;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int p = 0; p < PAIRS; p++) {
    const int pair = threadIdx.x + p * THREADS;
    if (pair < width * width) out[blockIdx.x * (i64)out_stride + pair] = sums[p];
  }
}

// Σ_i of the lines of a table, of the rows with ratings; of the squares where `squared`
extern "C" __global__ void __launch_bounds__(THREADS)
column_sums(const i64* __restrict__ pointers, const float* __restrict__ table, int stride, int width, int squared,
            double* __restrict__ out, int out_stride, i64 n) {
  __shared__ double parts[THREADS];
  const i64 share = (n + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share;
  const i64 end = begin + share < n ? begin + share : n;
  const int side = width < THREADS ? THREADS / width : 1;  // rows that are read together
  for (int from = 0; from < width; from += THREADS) {
    const int k = from + (side > 1 ? (int)threadIdx.x % width : (int)threadIdx.x), r = side > 1 ? threadIdx.x / width : 0;
    double s = 0.0;
    if (k < width && r < side) {
      for (i64 i = begin + r; i < end; i += side) {
        if (pointers && pointers[i + 1] == pointers[i]) continue;
        const double v = (double)table[i * stride + k];
        s += squared ? v * v : v;
      }
    }
    parts[threadIdx.x] = s;
    __syncthreads();
    if (k < width && r == 0) {
      for (int other = 1; other < side; other++) s += parts[other * width + k];
      out[blockIdx.x * (i64)out_stride + k] = s;
    }
    __syncthreads();
  }
}
