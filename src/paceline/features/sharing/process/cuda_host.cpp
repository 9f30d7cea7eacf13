// Memory of the host that GPUs can use at the host's own address: what a limit leaves no room for.
//
// For torch's CUDAPluggableAllocator. The driver is looked up when it is first needed, so this is
// compiled without CUDA's headers, and loads where there is no driver: then there is no memory.

#include <dlfcn.h>
#include <sys/types.h>

#include <cstddef>

namespace {

constexpr unsigned PORTABLE = 1, DEVICEMAP = 2;

template <typename Function>
Function find(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver ? reinterpret_cast<Function>(dlsym(driver, name)) : nullptr;
}

}  // namespace

extern "C" {

void* paceline_host_alloc(ssize_t size, int, void*) {
  static const auto alloc = find<int (*)(void**, size_t, unsigned)>("cuMemHostAlloc");
  void* found = nullptr;
  if (!alloc || alloc(&found, static_cast<size_t>(size), PORTABLE | DEVICEMAP) != 0) return nullptr;
  return found;
}

void paceline_host_free(void* at, size_t, int, void*) {
  static const auto free = find<int (*)(void*)>("cuMemFreeHost");
  if (free) free(at);
}
}
