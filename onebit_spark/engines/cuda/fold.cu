// Sums of long lines of numbers, in a fixed order. No headers, for nvrtc.
typedef long long i64;

// out[line] = the sum of `count` numbers, for every line of a table
#define MOST_THREADS 1024
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
fold(const double* __restrict__ table, i64 count, double* __restrict__ out) {
  __shared__ double parts[MOST_THREADS];
  const double* line = table + blockIdx.x * count;
  double s = 0.0;
#pragma unroll 4
  for (i64 k = threadIdx.x; k < count; k += blockDim.x) s += line[k];
  parts[threadIdx.x] = s;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}
