// Checks which pages of a result get huge pages. Catches advice outside the result or on resident
// memory, a number of mappings that grows from call to call, and errors that are not ignored.
// Usage: check_huge_pages [emulated]: qemu ignores the advice, so its effect is not checked there.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "core/huge_pages.h"

namespace jaxkern {
namespace {

int g_failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  ++g_failures;
  std::printf("check_huge_pages: %s\n", what);
}

// A mapping that starts at a huge page, in private memory or of a file.
class Mapping {
 public:
  explicit Mapping(size_t pages, int file = -1) : bytes_((pages + 1) * kHugePage) {
    const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, file, 0);
    if (base_ == MAP_FAILED) std::abort();
    const uintptr_t begin = reinterpret_cast<uintptr_t>(base_);
    data_ = static_cast<char*>(base_) + (kHugePage - begin % kHugePage) % kHugePage;
  }
  ~Mapping() { munmap(base_, bytes_); }
  char* page(double number) const { return data_ + static_cast<size_t>(number * kHugePage); }

 private:
  size_t bytes_;
  void* base_;
  char* data_;
};

int mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line)) ++count;
  return count;
}

// True if the mapping of an address was advised to use huge pages ("hg").
bool advised(const char* address) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(smaps, line)) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      inside = begin <= reinterpret_cast<uintptr_t>(address) &&
               reinterpret_cast<uintptr_t>(address) < end;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

void check_which_pages() {
  {
    const Mapping m(6);
    advise_huge_pages(m.page(0) + 64, 4 * kHugePage);  // ends inside page 4
    expect(!advised(m.page(0)) && !advised(m.page(.99)), "the page of the start was advised");
    expect(advised(m.page(1)) && advised(m.page(3.99)), "a whole page was not advised");
    expect(!advised(m.page(4)), "the page of the end was advised");
  }
  {
    const Mapping m(4);
    advise_huge_pages(m.page(0), 2 * kHugePage);  // exactly
    expect(advised(m.page(0)) && advised(m.page(1.99)), "an aligned result was not advised");
    expect(!advised(m.page(2)), "the page after an aligned result was advised");
  }
  const Mapping m(4);
  const int before = mappings();
  advise_huge_pages(m.page(0) + 64, 2 * kHugePage - 65);  // one byte less than a whole page
  advise_huge_pages(m.page(0), kHugePage - 1);
  advise_huge_pages(m.page(0), 0);
  expect(mappings() == before, "a result without a whole page was advised");
  // Resident pages: all of them, or the first ones of a heap that has grown.
  std::memset(m.page(0), 1, 2 * kHugePage);
  advise_huge_pages(m.page(0), 2 * kHugePage);
  expect(!advised(m.page(0)) && mappings() == before, "memory in use was advised");
  advise_huge_pages(m.page(0), 4 * kHugePage);
  expect(advised(m.page(3)), "the fresh end of a result was not advised");
}

void check_mappings_stay_few() {
  constexpr int kPages = 32;
  const Mapping heap(kPages);
  const int before = mappings();
  uint64_t state = 1;
  const auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int i = 0; i < 2000; ++i) {
    const uint64_t begin = draw(kPages - 2) * kHugePage + draw(kHugePage);
    const uint64_t bytes = draw(kPages * kHugePage - begin);
    advise_huge_pages(heap.page(0) + begin, bytes);
    // Write and release pages, like an allocator that trims.
    if (bytes > 0) heap.page(0)[begin] = 1;
    if (i % 50 == 0) madvise(heap.page(draw(kPages)), kHugePage, MADV_DONTNEED);
  }
  expect(mappings() <= before + kPages, "mappings grow with the number of calls");
}

void check_refusals() {
  advise_huge_pages(nullptr, 0);
  advise_huge_pages(reinterpret_cast<void*>(64), 8 * kHugePage);  // nothing is mapped there
  char name[] = "/tmp/check_huge_pages_XXXXXX";
  const int file = mkstemp(name);
  if (file < 0 || unlink(name) != 0 || ftruncate(file, 4 * kHugePage) != 0) std::abort();
  const Mapping m(3, file);
  m.page(0)[0] = 'a';
  advise_huge_pages(m.page(0), 2 * kHugePage);
  expect(m.page(0)[0] == 'a' && m.page(1)[0] == 0, "a file's mapping was changed");
  close(file);
}

}  // namespace
}  // namespace jaxkern

int main(int argc, char** argv) {
  using namespace jaxkern;
  const bool emulated = argc > 1 && std::strcmp(argv[1], "emulated") == 0;
  if (std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good()) {
    if (!emulated) check_which_pages();
    check_mappings_stay_few();
  }
  check_refusals();
  std::printf("check_huge_pages: %s\n", g_failures ? "FAILED" : "passed");
  return g_failures != 0;
}
