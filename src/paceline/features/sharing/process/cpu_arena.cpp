// The memory of a "device" that is a set of cores: an arena with a limit, and the host's behind it.
//
// Both are the same RAM: which arena a block counts for stands in its header. All counts are
// atomic, and nothing takes a lock, so a process may fork at any time.
#include <atomic>
#include <cstdint>

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/alignment.h>

namespace {

struct alignas(c10::gAlignment) Header {
  int64_t bytes;
  bool on_device;
};
static_assert(sizeof(Header) == c10::gAlignment);

std::atomic<int64_t> limit{INT64_MAX};
std::atomic<int64_t> device_bytes{0}, peak_bytes{0}, host_bytes{0}, spilled_bytes{0};
c10::Allocator* before = nullptr;  // torch's own, which has the memory

bool take_room(int64_t bytes) {
  int64_t used = device_bytes.load();
  do {
    if (bytes > limit.load() - used) return false;
  } while (!device_bytes.compare_exchange_weak(used, used + bytes));
  used += bytes;
  int64_t peak = peak_bytes.load();
  while (peak < used && !peak_bytes.compare_exchange_weak(peak, used)) {
  }
  return true;
}

Header* header_of(void* data) {
  return static_cast<Header*>(data) - 1;
}

void release(void* data) {
  if (data == nullptr) return;
  Header* header = header_of(data);
  (header->on_device ? device_bytes : host_bytes) -= header->bytes;
  before->raw_deallocate(header);
}

struct Arena final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      auto* header = static_cast<Header*>(before->raw_allocate(bytes + sizeof(Header)));
      header->bytes = static_cast<int64_t>(bytes);
      header->on_device = take_room(header->bytes);
      if (!header->on_device) {
        host_bytes += header->bytes;
        spilled_bytes += header->bytes;
      }
      data = header + 1;
    }
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

}  // namespace

extern "C" {

void paceline_install() {
  if (before != nullptr) return;
  before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(new Arena(), UINT8_MAX);
}

// Returns the limit in effect: tensors that are there stay.
int64_t paceline_set_limit(int64_t bytes) {
  limit = bytes;
  int64_t used = device_bytes.load();
  return used > bytes ? used : bytes;
}

// Writes bytes on the device, the most since the look before, bytes on the host, bytes spilled.
void paceline_look(int64_t* found) {
  found[0] = device_bytes.load();
  found[1] = peak_bytes.exchange(found[0]);
  found[2] = host_bytes.load();
  found[3] = spilled_bytes.exchange(0);
}

// Has a storage count for the device, if it is one of ours, spilled, and there is room.
int64_t paceline_take_home(const c10::StorageImpl* storage) {
  const c10::DataPtr& held = storage->data_ptr();
  if (held.get_deleter() != &release || held.get() == nullptr) return 0;
  Header* header = header_of(held.get());
  if (header->on_device || !take_room(header->bytes)) return 0;
  header->on_device = true;
  host_bytes -= header->bytes;
  return header->bytes;
}
}
