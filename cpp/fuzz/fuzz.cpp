#include "fuzz.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "errors.h"
#include "ngram_builder.h"
#include "ngram_format.h"

// Of the sanitizers' allocator_interface.h, which g++ comes without.
extern "C" std::size_t __sanitizer_get_allocated_size(const volatile void* pointer);
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*,
                                                                           std::size_t),
                                                         void (*on_free)(const volatile void*));

namespace dart::fuzz {
namespace {

Tally own_tally;
std::int64_t live = 0, peak = 0;  // bytes on the heap

void count_malloc(const volatile void*, std::size_t size) {
  live += static_cast<std::int64_t>(size);
  peak = std::max(peak, live);
}

void count_free(const volatile void* pointer) {
  if (pointer != nullptr) {
    live -= static_cast<std::int64_t>(__sanitizer_get_allocated_size(pointer));
  }
}

void print_tally() {
  if (tally != &own_tally) return;
  std::fprintf(stderr, "accepted %llu refused %llu\n",
               static_cast<unsigned long long>(tally->accepted),
               static_cast<unsigned long long>(tally->refused));
}

}  // namespace

void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fault: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

Folder::Folder() {
  const char* const place = std::getenv("TMPDIR");
  path_ = std::string(place != nullptr ? place : "/tmp") + "/dart-fuzz-XXXXXX";
  require(::mkdtemp(path_.data()) != nullptr, "no folder to be had in TMPDIR");
}

Folder::~Folder() {
  clear();
  ::rmdir(path_.c_str());
}

void Folder::write(std::string_view name, std::span<const std::uint8_t> content) const {
  std::ofstream file(path(name), std::ios::binary);
  file.write(reinterpret_cast<const char*>(content.data()),
             static_cast<std::streamsize>(content.size()));
  require(file.good(), "the fuzzer's own folder is full");
}

Bytes Folder::read(std::string_view name) const {
  std::ifstream file(path(name), std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> Folder::names() const {
  std::vector<std::string> found;
  DIR* const folder = ::opendir(path_.c_str());
  require(folder != nullptr, "the fuzzer's own folder is gone");
  while (const dirent* entry = ::readdir(folder)) {
    if (const std::string name = entry->d_name; name != "." && name != "..") found.push_back(name);
  }
  ::closedir(folder);
  std::ranges::sort(found);
  return found;
}

std::uint64_t Folder::bytes() const {
  std::uint64_t total = 0;
  for (const std::string& name : names()) {
    struct stat status{};
    if (::stat(path(name).c_str(), &status) == 0) total += std::uint64_t(status.st_blocks) * 512;
  }
  return total;
}

void Folder::clear() const {
  for (const std::string& name : names()) ::unlink(path(name).c_str());
}

bool Folder::accepts(const std::function<void()>& use, bool named) const {
  std::string reason;
  try {
    use();
    return true;
  } catch (const DataError& error) {
    reason = error.what();
  } catch (const IoError& error) {
    reason = error.what();
  }
  require(reason.size() > 10, "a refusal without a reason");
  require(!named || reason.find(path_ + "/") != std::string::npos,
          "a refusal that names no file: " + reason);
  return false;
}

Input::Input(std::uint64_t bytes) : limit_(live + static_cast<std::int64_t>(bytes)) { peak = live; }

Input::~Input() {
  require(peak <= limit_, "memory beyond its bound: " + std::to_string(peak - limit_) + " bytes");
  ++(accepted_ ? tally->accepted : tally->refused);
}

Bytes small_ngram(int order, std::uint64_t vocab_size, int tokens, std::uint32_t salt) {
  const Folder folder;
  std::vector<std::int64_t> stream;
  for (std::uint32_t state = salt; static_cast<int>(stream.size()) < tokens;) {
    state = state * 1664525u + 1013904223u;
    stream.push_back(static_cast<std::int64_t>((state >> 16) % vocab_size));
  }
  const auto builder = NgramBuilder::make(folder.path("small"), order, vocab_size, {}, 0);
  builder->add(stream);
  builder->finish();
  return folder.read("small");
}

Bytes resealed(Bytes content, bool sized) {
  Header header;
  if (content.size() < sizeof header) return content;
  std::memcpy(&header, content.data(), sizeof header);
  if (sized && header.order >= kMinOrder && header.order <= kMaxOrder) {
    const std::uint64_t size = Layout(header).file_size;
    if (size < 4 * content.size()) {
      content.resize(size);
      header.file_size = size;
    }
  }
  header.checksum = header_checksum(header);
  std::memcpy(content.data(), &header, sizeof header);
  return content;
}

}  // namespace dart::fuzz

// Called once, by libFuzzer or by mutator.cpp. `--write-seeds FOLDER` writes them and ends.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace dart::fuzz;
  tally = &own_tally;
  __sanitizer_install_malloc_and_free_hooks(count_malloc, count_free);
  std::atexit(print_tally);
  if (*argc == 3 && std::string_view((*argv)[1]) == "--write-seeds") {
    int number = 0;
    for (const Bytes& seed : seeds()) {
      std::ofstream file((*argv)[2] + ("/seed-" + std::to_string(number++)), std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()),
                 static_cast<std::streamsize>(seed.size()));
    }
    std::_Exit(0);
  }
  return 0;
}
