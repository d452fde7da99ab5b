// Enough of CUDA to run a kernel on the CPU, one block after the other: every thread is a fiber, and barriers and
// shuffles wait for the threads that take part in them. For tests; cudaoncpu.py puts a kernel file behind it.
// Without the standard library of C++, which takes five times as long to compile as a kernel.
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

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
const int MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / 32, MOST_MASKS = 64, STACK = 1 << 16;
struct Fiber { ucontext_t first; jmp_buf here; char* stack; bool begun, done; };  // it goes on from here
struct Barrier { unsigned mask; int expected, count, generation; };  // expected = 0: none has arrived
static jmp_buf scheduler;
static Fiber fibers[MOST_THREADS];
static int current;
static Barrier barriers[1 + MOST_WARPS][MOST_MASKS];  // of the block, then by warp
static double slots[MOST_THREADS];                    // of shuffles
static char* shared;
static void (*body)(void*);
static void* kernel;

static void wait_for_others() {
  if (!_setjmp(fibers[current].here)) _longjmp(scheduler, 1);
}
static void go_on(Fiber& fiber) {  // swapcontext would ask the kernel about signals, every time
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.here, 1);
  fiber.begun = true;
  setcontext(&fiber.first);
}
static void sync(int warp, unsigned mask, int expected) {
  Barrier* barrier = barriers[1 + warp];
  while (barrier->expected && barrier->mask != mask) barrier++;
  if (barrier - barriers[1 + warp] >= MOST_MASKS - 1) abort();
  barrier->mask = mask; barrier->expected = expected;
  const int generation = barrier->generation;
  if (++barrier->count == expected) { barrier->count = 0; barrier->generation++; }
  else while (barrier->generation == generation) wait_for_others();
}
static void run_one() {
  body(kernel);
  fibers[current].done = true;
  _longjmp(scheduler, 1);
}
static void run_blocks(Index grid, unsigned block, size_t shared_bytes) {
  if (block > MOST_THREADS) abort();
  gridDim = grid; blockDim = {block, 1};
  shared = (char*)calloc(shared_bytes + 64, 1);
  for (unsigned b = 0; b < grid.x * grid.y; b++) {
    memset(barriers, 0, sizeof barriers);
    for (unsigned t = 0; t < block; t++) {
      Fiber& fiber = fibers[t];
      fiber.begun = fiber.done = false;
      if (!fiber.stack) fiber.stack = (char*)malloc(STACK);
      getcontext(&fiber.first);
      fiber.first.uc_stack.ss_sp = fiber.stack;
      fiber.first.uc_stack.ss_size = STACK;
      makecontext(&fiber.first, run_one, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (unsigned t = 0; t < block; t++) {
        if (fibers[t].done) continue;
        left = true;
        current = (int)t;
        threadIdx = {t, 0}; blockIdx = {b % grid.x, b / grid.x};
        go_on(fibers[t]);
      }
    }
  }
  free(shared);
}
template <class Kernel> void launch(Index grid, unsigned block, size_t shared_bytes, Kernel called) {
  body = [](void* it) { (*(Kernel*)it)(); };
  kernel = &called;
  run_blocks(grid, block, shared_bytes);
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
template <class T> T __shfl_sync(unsigned mask, T value, int from) {
  return __shfl_xor_sync(mask, value, (host::current & 31) ^ from);
}
inline unsigned __ballot_sync(unsigned mask, bool said) {
  const int warp = host::current / 32 * 32;
  host::slots[host::current] = said;
  __syncwarp(mask);
  unsigned out = 0;
  for (int lane = 0; lane < 32; lane++) out |= (mask >> lane & 1u) && host::slots[warp + lane] != 0.0 ? 1u << lane : 0u;
  __syncwarp(mask);
  return out;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, sizeof y); return y; }
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
