"""A simulated libcuda of one file in C: the calls that our clients make, with the arguments that cuda.h gives them.

Its "device" memory is the process's own, and it carries out our three kernels by name, at the ends of what they would
write. A process is under MPS where its pipe directory exists. The environment makes it fail: FAIL (cuInit's error),
HANG, HANG_LATER (at a synchronisation), OLD (no attribute 133), LIMIT_MIB (what may be allocated), WRONG (results),
NO_COMPILER.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef uint64_t ptr; typedef uint32_t u32;
static int kinds[] = {1, 2, 3}, context, module; static double queued_us;
int cuInit(unsigned f) { if (getenv("HANG")) pause(); return getenv("FAIL") ? atoi(getenv("FAIL")) : 0; }
int cuDeviceGet(int *d, int o) { *d = 7; return o ? 101 : 0; }
int cuCtxCreate_v2(void **c, unsigned f, int d) { *c = &context; return d == 7 ? 0 : 101; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = (size_t)1534 << 20; *t = (size_t)143155 << 20; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) {
  const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
  if (d != 7 || (a == 133 && getenv("OLD"))) return 1;
  *v = a == 133 ? !pipe || !access(pipe, F_OK) : 132; return 0; }
int cuGetErrorName(int c, const char **s) { *s = c == 805 ? "CUDA_ERROR_MPS_CONNECTION_FAILED" : "OTHER"; return 0; }
int cuMemAlloc_v2(ptr *p, size_t n) {
  if (getenv("LIMIT_MIB") && n >> 20 > strtoull(getenv("LIMIT_MIB"), 0, 10)) return 2;
  *p = (ptr)(uintptr_t)malloc(n); return *p ? 0 : 2; }
int cuMemFree_v2(ptr p) { free((void *)(uintptr_t)p); return 0; }
int cuMemcpyDtoH_v2(void *to, ptr from, size_t n) { memcpy(to, (void *)(uintptr_t)from, n); return 0; }
int cuModuleLoadData(void **m, const void *image) {
  if (getenv("NO_COMPILER")) return 221;
  *m = &module; return strncmp(image, ".version 6.0\n.target sm_50\n", 27) ? 218 : 0; }
int cuModuleGetFunction(void **f, void *m, const char *name) {
  if (m != &module) return 400;
  int k = !strcmp(name, "fill") ? 0 : !strcmp(name, "chain") ? 1 : !strcmp(name, "triad") ? 2 : -1;
  if (k < 0) return 500;
  *f = &kinds[k]; return 0; }
static u32 chained(u32 x, u32 a, u32 c, uint64_t n) { while (n--) x = x * a + c; return x; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **p, void **extra) {
  u32 all = gx * bx, kind = *(int *)f, bad = getenv("WRONG") != 0;
  if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra) return 1;
  u32 *out = (u32 *)(uintptr_t) * (ptr *)p[0];
  if (kind == 1) {
    u32 a = *(u32 *)p[1], b = *(u32 *)p[2], n = *(u32 *)p[3];
    if (n > all) n = all;
    for (u32 i = 0; i < n; i++) if (i < 4096 || i + 4096 >= n) out[i] = i * a + b + bad;
  } else if (kind == 2) {
    u32 a = *(u32 *)p[1], c = *(u32 *)p[2], loops = *(u32 *)p[3];
    for (u32 i = 0; i < all; i++) if (i < 4 || i + 4 >= all) out[i] = chained(i, a, c, 4ull * loops) + bad;
    queued_us += loops / 50.0;
  } else {
    u32 *x = (u32 *)(uintptr_t) * (ptr *)p[1], *y = (u32 *)(uintptr_t) * (ptr *)p[2], a = *(u32 *)p[3];
    uint64_t n = 4ull * *(u32 *)p[4];
    for (uint64_t i = 0; i < n; i++) { if (i == 64 && n > 128) i = n - 64; out[i] = a * x[i] + y[i] + bad; }
    queued_us += 50;
  }
  return 0; }
int cuCtxSynchronize(void) {
  if (getenv("HANG_LATER")) pause();
  usleep(queued_us > 20000 ? 20000 : (unsigned)queued_us); queued_us = 0; return 0; }
"""


def build(folder: Path) -> Path:
    """The folder with the library, for LD_LIBRARY_PATH."""
    (folder / "cuda.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "cuda.c"], check=True)
    return folder
