// Sums over the ratings of every row. Each rating reads one line of the other side. No headers, for nvrtc; shapes.py defines
// the macros.
//
//   GROUP      threads that share a rating: a part of a warp, or several warps
//   MOMENTS    numbers of the line's moments that a thread holds; a multiple of 4
//   IMPLICIT   numbers of its implicit vectors that a thread holds
//   SIGNED     how many of the last MOMENTS are also summed with the labels
//   VALUES     sums of a thread: MOMENTS, SIGNED and IMPLICIT, each rounded up to 4, and all to 4 for every group
//   TASK       ratings of a task: a warp (or the warps of a group) takes one task
//   AHEAD      ratings of a group that are read together
//   WEIGHTED   whether ratings have weights
//
// In a line, and in the sums of a row, numbers 4(f·GROUP + t) … + 3 are registers 4f … 4f + 3 of thread t. All reads and
// writes are 16 bytes wide.
typedef unsigned int u32;
typedef long long i64;
#define EVERYONE 0xffffffffu
#define WARPS ((GROUP + 31) / 32)
#define GROUPS (GROUP < 32 ? 32 / GROUP : 1)
#define THREADS (WARPS > 1 ? GROUP : 128)
#define READ (MOMENTS + IMPLICIT)  // numbers of a line that a thread reads
#define WIDTH (READ * GROUP)
#define SUMS (VALUES * GROUP)
#define KEPT (VALUES / GROUPS)
#define REPEATED 0x80000000u

// Read registers FIRST … FIRST + COUNT − 1 of thread t from a line
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

// The sum over the threads of a group, in all of them. `shared` has two places for every warp and value.
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

// 2τ(ξ) = tanh(ξ/2)/(2ξ) from ξ², by a series where 1 − e^{−ξ} would lose digits; and 1 + e^{−ξ}
__device__ __forceinline__ float twice_tau(float square, float& xi, float& one_more) {
  const float x = fmaxf(square, 1e-20f), r = rsqrtf(x);
  xi = x * r;
  const float e = __expf(-xi);
  one_more = 1.f + e;
  const float near = 0.25f + x * (-1.f / 48 + x * (1.f / 480 + x * (-17.f / 80640 + x * (31.f / 1451520))));
  return x < 0.25f ? near : 0.5f * r * __fdividef(1.f - e, one_more);
}

// E σ'(u) for normal u with this mean and this E[u²], by the derivative of the moderated sigmoid
__device__ __forceinline__ float mean_slope(float square, float mean) {
  const float narrow = rsqrtf(1.f + 0.39269908f * fmaxf(square - mean * mean, 0.f)), q = __expf(-fabsf(narrow * mean));
  return __fdividef(narrow * q, (1.f + q) * (1.f + q));
}

// Add up the values of a warp's groups: each half of the warp sends half of its values to the other half, and so on. In the
// end each group has a part of the sums.
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

// What is summed over the ratings of a row:
//   LOGISTIC   2κτ(ξ_l)·w_l·moments, ½κ y_l w_l·(the last moments), and once per cell the implicit vectors
//   PRODUCT    y_l w_l·line: the product with the sign matrix
//   CURVATURE  κ E σ'(u_l)·w_l·moments, and all else as LOGISTIC
//   READS      the lines, as LOGISTIC reads them, with no other arithmetic: the lower limit of a half step's time
#define LOGISTIC 0
#define PRODUCT 1
#define READS 2
#define CURVATURE 3
#if MODE == LOGISTIC
#define ROW_READ MOMENTS  // numbers of the row's line that a thread reads
#elif MODE == CURVATURE
#define ROW_READ (MOMENTS + SIGNED)  // the row's means come last, in the places of the other side's last moments
#else
#define ROW_READ 0
#endif

// acc[row] = the sums. The sums of a row that several tasks share go to `partial`, which has two places per task: one for its
// first row, if that began before, and one for its last row, if that continues. Unless `data` is null, data[task] =
// κ Σ_l w_l [log(1 + e^{−ξ}) + ξ/2] over the ratings of a task.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sum_rows(const u32* __restrict__ codes, const float* __restrict__ weights, const i64* __restrict__ pointers,
         const int* __restrict__ first_rows, const float* __restrict__ row_lines, const float* __restrict__ other_lines,
         float* __restrict__ acc, float* __restrict__ partial, double* __restrict__ data, i64 n, int n_tasks, u32 no_column,
         float kappa) {
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
    float w[ROW_READ + 1], values[VALUES];
    float loss = 0.f, product = 1.f;  // Σ ξ/2 + log(1 + e^{−ξ}); `product` collects factors of some logarithms
    read_line<0, ROW_READ>(row_lines + (size_t)row * (ROW_READ * GROUP), t, w);
#pragma unroll
    for (int v = 0; v < VALUES; v++) values[v] = 0.f;
    const u32* here = codes + at;
    u32 next[AHEAD];
    const u32 none = no_column << 1 | REPEATED;
#pragma unroll
    for (int u = 0; u < AHEAD; u++) { const int e = GROUPS * u + g; next[u] = e < length ? __ldcs(here + e) : none; }
    for (int o = 0; o < length; o += GROUPS * AHEAD) {
      u32 code[AHEAD];
      float p[AHEAD][READ], x[AHEAD], weight[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        code[u] = next[u];
        const float* line = other_lines + (size_t)((code[u] & ~REPEATED) >> 1) * WIDTH;
        if (u == 0 || o + GROUPS * u < length) {
          read_line<0, MOMENTS>(line, t, p[u]);
          read_line<MOMENTS, IMPLICIT>(line, t, p[u] + MOMENTS);
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
#if ROW_READ
      float mean[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        float even = 0.f, odd = 0.f;
        mean[u] = 0.f;
        if (u == 0 || o + GROUPS * u < length) {
#pragma unroll
          for (int q = 0; q < MOMENTS; q += 2) {
            even += w[q] * p[u][q];
            odd += w[q + 1] * p[u][q + 1];
          }
#pragma unroll
          for (int q = MOMENTS; q < ROW_READ; q++) mean[u] += w[q] * p[u][q - SIGNED];
        }
        x[u] = even + odd;
      }
      group_sum<AHEAD>(x, shared, turn);
      if (MODE == CURVATURE) group_sum<AHEAD>(mean, shared, turn);
#endif
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        if (u == 0 || o + GROUPS * u < length) {
          const float sign = code[u] & 1 ? 1.f : -1.f;
#if ROW_READ
          float xi = 0.f, one_more = 1.f;
          const float bent = MODE == CURVATURE ? mean_slope(x[u], mean[u]) : twice_tau(x[u], xi, one_more);
          const float bend = kappa * weight[u] * bent, pull = 0.5f * sign * kappa * weight[u];
          if (data && o + GROUPS * u + g < length) {
#if WEIGHTED
            loss += weight[u] * (logf(one_more) + 0.5f * xi);
#else
            loss += 0.5f * xi;
            product *= one_more;
            if (product > 1e18f) { loss += logf(product); product = 1.f; }
#endif
          }
          const float once = code[u] & REPEATED ? 0.f : 1.f;
#pragma unroll
          for (int q = 0; q < MOMENTS; q++) values[q] += bend * p[u][q];
#pragma unroll
          for (int q = 0; q < SIGNED; q++) values[MOMENTS + q] += pull * p[u][MOMENTS - SIGNED + q];
#pragma unroll
          for (int q = 0; q < IMPLICIT; q++) values[MOMENTS + SIGNED + q] += once * p[u][MOMENTS + q];
#elif MODE == PRODUCT
#pragma unroll
          for (int q = 0; q < MOMENTS; q++) values[q] += sign * weight[u] * p[u][q];
#else
#pragma unroll
          for (int q = 0; q < MOMENTS; q++) values[q] += p[u][q];
#pragma unroll
          for (int q = 0; q < IMPLICIT; q++) values[MOMENTS + SIGNED + q] += p[u][MOMENTS + q];
#endif
        }
      }
    }
    const bool whole = row_begin >= begin && row_end <= end;
    float* to = whole ? acc + (size_t)row * SUMS : partial + (size_t)(2 * (i64)task + (row_begin < begin ? 0 : 1)) * SUMS;
    add_groups<VALUES / 2, 16>(values, lane);
#pragma unroll
    for (int f = 0; f < KEPT / 4; f++) {
      const float4 some = {values[4 * f], values[4 * f + 1], values[4 * f + 2], values[4 * f + 3]};
      __stcs((float4*)to + (g * (KEPT / 4) + f) * GROUP + t, some);
    }
    if (data) total += (double)loss + (double)logf(product);
    at = stop;
    if (stop < end) { row_begin = row_end; row++; row_end = pointers[row + 1]; }
  }
#if MODE == LOGISTIC
  if (data) {
#pragma unroll
    for (int bit = 16; bit >= GROUP; bit >>= 1) total += __shfl_xor_sync(EVERYONE, total, bit);
    if (lane == 0) data[task] = (double)kappa * total;
  }
#endif
}

// acc[row] of rows that few tasks share: the warp of a row's second task adds up the parts in the order of the tasks. Rows
// with more than MANY_TASKS tasks of ratings are left to `join_many`.
extern "C" __global__ void join_few(const int* __restrict__ first_rows, int n_tasks, const i64* __restrict__ pointers,
                                    const float* __restrict__ partial, float* __restrict__ acc) {
  const i64 next = ((blockIdx.x * (i64)blockDim.x + threadIdx.x) >> 5) + 1;
  const int lane = threadIdx.x & 31;
  if (next >= n_tasks) return;
  const int row = first_rows[next];
  const i64 first = pointers[row] / TASK, last = (pointers[row + 1] - 1) / TASK;
  if (pointers[row] == next * TASK || first != next - 1 || pointers[row + 1] - pointers[row] > MANY_TASKS * TASK) return;
  const float* begun = partial + (size_t)(2 * first + 1) * SUMS;
  const float* ended = partial + (size_t)(2 * last) * SUMS;
#pragma unroll 4
  for (int c = lane; c < SUMS; c += 32) {
    double s = (double)__ldcs(begun + c);
    const double rest = (double)__ldcs(ended + c);
    for (i64 task = first + 1; task < last; task++) s += (double)__ldcs(partial + (size_t)(2 * task) * SUMS + c);
    acc[(size_t)row * SUMS + c] = (float)(s + rest);
  }
}

// acc[row] of the other rows: eight warps add up a row's parts.
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
