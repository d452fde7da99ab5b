// Enough of CUDA to run a kernel on the CPU, one block after the other: every thread is a fiber, and barriers and
// shuffles wait for the threads that take part in them. For tests; cudaoncpu.py puts a kernel file behind it.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <functional>
#include <map>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct Index { unsigned x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct double2 { double x, y; };
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace host {
struct Fiber { ucontext_t context; std::vector<char> stack; bool done; };
struct Barrier { int count = 0, generation = 0; };
static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static int current;
static std::map<std::pair<int, unsigned>, Barrier> barriers;  // by warp (−1: the block) and mask
static std::vector<double> slots;                             // of shuffles
static std::vector<char> shared;
static std::function<void()> body;

static void wait_for_others() {
  const int me = current;
  swapcontext(&fibers[me].context, &scheduler);
}
static void sync(int warp, unsigned mask, int expected) {
  Barrier& barrier = barriers[{warp, mask}];
  const int generation = barrier.generation;
  if (++barrier.count == expected) { barrier.count = 0; barrier.generation++; }
  else while (barrier.generation == generation) wait_for_others();
}
static void run_one() {
  body();
  fibers[current].done = true;
  swapcontext(&fibers[current].context, &scheduler);
}
static void launch(Index grid, unsigned block, size_t shared_bytes, std::function<void()> kernel) {
  body = kernel;
  gridDim = grid; blockDim = {block, 1};
  shared.assign(shared_bytes + 64, 0);
  slots.assign(block, 0.0);
  for (unsigned b = 0; b < grid.x * grid.y; b++) {
    barriers.clear();
    fibers.assign(block, Fiber());
    for (unsigned t = 0; t < block; t++) {
      Fiber& fiber = fibers[t];
      fiber.done = false;
      fiber.stack.resize(1 << 16);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = &scheduler;
      makecontext(&fiber.context, run_one, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (unsigned t = 0; t < block; t++) {
        if (fibers[t].done) continue;
        left = true;
        current = (int)t;
        threadIdx = {t, 0}; blockIdx = {b % grid.x, b / grid.x};
        swapcontext(&scheduler, &fibers[t].context);
      }
    }
  }
}
}  // namespace host

inline void __syncthreads() { host::sync(-1, 0, (int)blockDim.x); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  host::sync(host::current / 32, mask, __builtin_popcount(mask));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bit) {
  const int me = host::current;
  static_assert(sizeof(T) <= sizeof(double), "");
  memcpy(&host::slots[me], &value, sizeof(T));
  __syncwarp(mask);
  T got;
  memcpy(&got, &host::slots[me ^ bit], sizeof(T));
  __syncwarp(mask);
  return got;
}
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcs(T* p, T v) { *p = v; }
template <class T> void atomicAdd(T* p, T v) { *p += v; }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline void sincospi(double x, double* s, double* c) { *s = sin(M_PI * x); *c = cos(M_PI * x); }
inline double normcdfinv(double u) {  // bisection: a test has time
  double low = -40, high = 40;
  for (int i = 0; i < 200; i++) { const double x = (low + high) / 2; (erfc(-x / sqrt(2.0)) / 2 < u ? low : high) = x; }
  return low;
}
