// Sums over the ratings of every row: one read of each rating's partner. Header-free, for nvrtc; shapes.py sizes it.
//
//   GROUP      threads that share a rating: a part of a warp, or several warps
//   MOMENTS    numbers of a partner's line that a thread holds; a multiple of 4
//   TOLD       the same of what implicit features tell
//   SIGNED     how many of the last MOMENTS are summed with the labels as well
//   VALUES     MOMENTS + SIGNED + TOLD, rounded up to the groups of a warp
//   TASK       ratings of a task: a warp (or the warps of a group) takes one task
//   AHEAD      ratings of a group that are read together
//   WEIGHTED   whether ratings have weights
//
// Memory of a line: numbers 4(f·GROUP + t) … + 3 are registers 4f … 4f + 3 of thread t. All reads are 16 bytes wide.
typedef unsigned int u32;
typedef long long i64;
#define EVERYONE 0xffffffffu
#define WARPS ((GROUP + 31) / 32)
#define GROUPS (GROUP < 32 ? 32 / GROUP : 1)
#define THREADS (WARPS > 1 ? GROUP : 128)
#define WIDTH ((MOMENTS + TOLD) * GROUP)
#define SUMS (VALUES * GROUP)
#define KEPT (VALUES / GROUPS)
#define REPEATED 0x80000000u

// Registers `first` … `first + count − 1` of thread t, of a line
template <int FIRST, int COUNT>
__device__ __forceinline__ void read_line(const float* __restrict__ line, int t, float* __restrict__ out) {
  const float* base = line + FIRST * GROUP;
#pragma unroll
  for (int f = 0; f < COUNT / 4; f++) {
    const float4 x = __ldg((const float4*)base + f * GROUP + t);
    out[4 * f] = x.x; out[4 * f + 1] = x.y; out[4 * f + 2] = x.z; out[4 * f + 3] = x.w;
  }
  const float* rest = base + COUNT / 4 * 4 * GROUP;
  if (COUNT % 4 == 1) out[COUNT / 4 * 4] = __ldg(rest + t);
  if (COUNT % 4 == 2) {
    const float2 x = __ldg((const float2*)rest + t);
    out[COUNT / 4 * 4] = x.x; out[COUNT / 4 * 4 + 1] = x.y;
  }
}

// A sum over the threads of a group, which all of them get. `shared` has two places for every warp and value.
template <int COUNT>
__device__ __forceinline__ void group_sum(float* x, float* shared, int& turn) {
#pragma unroll
  for (int u = 0; u < COUNT; u++) {
#pragma unroll
    for (int bit = 1; bit < (GROUP < 32 ? GROUP : 32); bit <<= 1) x[u] += __shfl_xor_sync(EVERYONE, x[u], bit);
  }
#if GROUP > 32
  float* here = shared + turn * COUNT * WARPS;
  turn ^= 1;  // the next sum may begin while some warps still read this one
  if ((threadIdx.x & 31) == 0) {
#pragma unroll
    for (int u = 0; u < COUNT; u++) here[u * WARPS + (threadIdx.x >> 5)] = x[u];
  }
  __syncthreads();
#pragma unroll
  for (int u = 0; u < COUNT; u++) {
    x[u] = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) x[u] += here[u * WARPS + w];
  }
#endif
}

// 2τ(ξ) = tanh(ξ/2)/(2ξ) from ξ², a series where 1 − e^{−ξ} would lose digits; and 1 + e^{−ξ}
__device__ __forceinline__ float twice_tau(float square, float& xi, float& one_more) {
  const float x = fmaxf(square, 1e-20f), r = rsqrtf(x);
  xi = x * r;
  const float e = __expf(-xi);
  one_more = 1.f + e;
  const float near = 0.25f + x * (-1.f / 48 + x * (1.f / 480 + x * (-17.f / 80640 + x * (31.f / 1451520))));
  return x < 0.25f ? near : 0.5f * r * __fdividef(1.f - e, one_more);
}

// The groups of a warp add up: half of the values go to the other half of the warp, and so on. Each group keeps a part.
template <int HALF, int BIT> __device__ __forceinline__ void add_groups(float* values, int lane) {
  if constexpr (BIT >= GROUP) {
    const bool high = lane & BIT;
#pragma unroll
    for (int v = 0; v < HALF; v++) {
      const float keep = high ? values[v + HALF] : values[v], send = high ? values[v] : values[v + HALF];
      values[v] = keep + __shfl_xor_sync(EVERYONE, send, BIT);
    }
    add_groups<HALF / 2, BIT / 2>(values, lane);
  }
}

__device__ __forceinline__ int task_number() {
  return WARPS > 1 ? (int)blockIdx.x : (int)((blockIdx.x * (i64)THREADS + threadIdx.x) >> 5);
}

// acc[row] = Σ_l of the row's ratings, of what MODE says. A row that several tasks share goes to `partial`, two places
// per task: its first row, if that began before, and its last, if that goes on.
//   MODE 0   2κτ(ξ_l)·w_l·moments, ½κ y_l w_l·(the last moments), and once per cell what implicit features tell
//   MODE 1   y_l w_l·line: the product with the sign matrix
//   MODE 2   the same reads as MODE 0 and no arithmetic but a sum: the ceiling of a half step
// If asked for, data[task] = κ Σ_l w_l [log(1 + e^{−ξ}) + ξ/2] over the ratings of a task.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sum_rows(const u32* __restrict__ codes, const float* __restrict__ weights, const i64* __restrict__ pointers,
         const int* __restrict__ first_rows, const float* __restrict__ own, const float* __restrict__ partners,
         float* __restrict__ acc, float* __restrict__ partial, double* __restrict__ data, i64 n, int n_tasks, u32 nobody, float kappa) {
#if GROUP > 32
  __shared__ float shared[2 * AHEAD * WARPS];
#else
  float* shared = 0;
#endif
  int turn = 0;
  const int task = task_number();
  if (task >= n_tasks) return;
  const int lane = WARPS > 1 ? (int)threadIdx.x : (int)(threadIdx.x & 31);
  const int t = lane % GROUP, g = lane / GROUP;
  const i64 begin = (i64)task * TASK, end = begin + TASK < n ? begin + TASK : n;
  i64 at = begin;
  int row = first_rows[task];
  i64 row_begin = pointers[row], row_end = pointers[row + 1];
  double total = 0.0;
  while (at < end) {
    if (row_end <= at) { row_begin = row_end; row++; row_end = pointers[row + 1]; continue; }
    const i64 stop = row_end < end ? row_end : end;
    const int length = (int)(stop - at);
    float w[MOMENTS], values[VALUES];
    float softplus = 0.f, product = 1.f;  // Σ ξ/2 + log(1 + e^{−ξ}); of some logarithms only the product yet
#if MODE == 0
    read_line<0, MOMENTS>(own + (size_t)row * (MOMENTS * GROUP), t, w);
#endif
#pragma unroll
    for (int v = 0; v < VALUES; v++) values[v] = 0.f;
    const u32* here = codes + at;
    u32 next[AHEAD];
    const u32 none = nobody << 1 | REPEATED;
#pragma unroll
    for (int u = 0; u < AHEAD; u++) { const int e = GROUPS * u + g; next[u] = e < length ? __ldcs(here + e) : none; }
    for (int o = 0; o < length; o += GROUPS * AHEAD) {
      u32 code[AHEAD];
      float p[AHEAD][MOMENTS + TOLD], x[AHEAD], weight[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        code[u] = next[u];
        const float* line = partners + (size_t)((code[u] & ~REPEATED) >> 1) * WIDTH;
        if (u == 0 || o + GROUPS * u < length) {
          read_line<0, MOMENTS>(line, t, p[u]);
          read_line<MOMENTS, TOLD>(line, t, p[u] + MOMENTS);
        }
        weight[u] = 1.f;
#if WEIGHTED
        const int e = o + GROUPS * u + g;
        weight[u] = e < length ? __ldcs(weights + at + e) : 0.f;
#endif
      }
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        const int e = o + GROUPS * (AHEAD + u) + g;
        next[u] = e < length ? __ldcs(here + e) : none;
      }
#if MODE == 0
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        float even = 0.f, odd = 0.f;
        if (u == 0 || o + GROUPS * u < length) {
#pragma unroll
          for (int q = 0; q < MOMENTS; q += 2) { even += w[q] * p[u][q]; odd += w[q + 1] * p[u][q + 1]; }
        }
        x[u] = even + odd;
      }
      group_sum<AHEAD>(x, shared, turn);
#endif
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        if (u == 0 || o + GROUPS * u < length) {
#if MODE == 0
          float xi, one_more;
          const float bend = kappa * weight[u] * twice_tau(x[u], xi, one_more);
          if (data && o + GROUPS * u + g < length) {
#if WEIGHTED
            softplus += weight[u] * (logf(one_more) + 0.5f * xi);
#else
            softplus += 0.5f * xi;
            product *= one_more;
            if (product > 1e18f) { softplus += logf(product); product = 1.f; }
#endif
          }
          const float pull = (code[u] & 1 ? 0.5f : -0.5f) * kappa * weight[u];
          const float once = code[u] & REPEATED ? 0.f : 1.f;
#pragma unroll
          for (int q = 0; q < MOMENTS; q++) values[q] += bend * p[u][q];
#pragma unroll
          for (int q = 0; q < SIGNED; q++) values[MOMENTS + q] += pull * p[u][MOMENTS - SIGNED + q];
#pragma unroll
          for (int q = 0; q < TOLD; q++) values[MOMENTS + SIGNED + q] += once * p[u][MOMENTS + q];
#elif MODE == 1
          const float sign = (code[u] & 1 ? 1.f : -1.f) * weight[u];
#pragma unroll
          for (int q = 0; q < MOMENTS; q++) values[q] += sign * p[u][q];
#else
#pragma unroll
          for (int q = 0; q < MOMENTS; q++) values[q] += p[u][q];
#pragma unroll
          for (int q = 0; q < TOLD; q++) values[MOMENTS + SIGNED + q] += p[u][MOMENTS + q];
#endif
        }
      }
    }
    add_groups<VALUES / 2, 16>(values, lane);
    const bool whole = row_begin >= begin && row_end <= end;
    float* to = whole ? acc + (size_t)row * SUMS : partial + (size_t)(2 * (i64)task + (row_begin < begin ? 0 : 1)) * SUMS;
#pragma unroll
    for (int v = 0; v < KEPT; v++) __stcs(to + v * (GROUPS * GROUP) + lane, values[v]);
    if (data) total += (double)softplus + (double)logf(product);
    at = stop;
    if (stop < end) { row_begin = row_end; row++; row_end = pointers[row + 1]; }
  }
#if MODE == 0
  if (data) {
#pragma unroll
    for (int bit = 16; bit >= GROUP; bit >>= 1) total += __shfl_xor_sync(EVERYONE, total, bit);
    if (lane == 0) data[task] = (double)kappa * total;
  }
#endif
}

// acc[row] of the rows that few tasks share: a warp adds up their places in the order of the tasks.
extern "C" __global__ void join_few(const int* __restrict__ rows, int n_rows, const i64* __restrict__ pointers,
                                    const float* __restrict__ partial, float* __restrict__ acc) {
  const int k = (int)((blockIdx.x * (i64)blockDim.x + threadIdx.x) >> 5), lane = threadIdx.x & 31;
  if (k >= n_rows) return;
  const int row = rows[k];
  const i64 first = pointers[row] / TASK, last = (pointers[row + 1] - 1) / TASK;
  for (int c = lane; c < SUMS; c += 32) {
    double s = 0.0;
    for (i64 task = first; task <= last; task++) s += __ldcs(partial + (size_t)(2 * task + (task == first)) * SUMS + c);
    acc[(size_t)row * SUMS + c] = (float)s;
  }
}

// The same for rows that many tasks share: eight parts of the tasks at a time.
#define PARTS 8
extern "C" __global__ void __launch_bounds__(32 * PARTS)
join_many(const int* __restrict__ rows, const i64* __restrict__ pointers, const float* __restrict__ partial,
          float* __restrict__ acc) {
  __shared__ double parts[PARTS][32];
  const int row = rows[blockIdx.x], lane = threadIdx.x & 31, part = threadIdx.x >> 5;
  const i64 first = pointers[row] / TASK, last = (pointers[row + 1] - 1) / TASK;
  for (int from = 0; from < SUMS; from += 32) {
    const int c = from + lane;
    double s = 0.0;
    if (c < SUMS) {
#pragma unroll 4
      for (i64 task = first + part; task <= last; task += PARTS)
        s += __ldcs(partial + (size_t)(2 * task + (task == first)) * SUMS + c);
    }
    parts[part][lane] = s;
    __syncthreads();
    if (part == 0 && c < SUMS) {
#pragma unroll
      for (int i = 1; i < PARTS; i++) s += parts[i][lane];
      acc[(size_t)row * SUMS + c] = (float)s;
    }
    __syncthreads();
  }
}
