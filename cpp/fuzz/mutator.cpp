// Runs a target without libFuzzer: seeded random changes of its seeds, nothing learnt on the way.
// Input n of a seed is always the same, so a fault is found again by its number.
//
//   TARGET [--inputs N] [--seed S] [--first N] [--corpus FOLDER]
//
// Prints "inputs N accepted N refused N crashes N"; the status is 1 where something crashed. Work
// is done by child processes: after a crash the next one goes on behind it.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace dart::fuzz {
namespace {

constexpr unsigned kSeconds = 30;           // for one input; more is a hang
constexpr std::size_t kLargestSeed = 4096;  // of a corpus folder
constexpr std::uint64_t kMostCrashes = 20;  // then it gives up
constexpr std::uint64_t kBatch = 1u << 14;  // inputs of one child

struct Shared {  // between the processes
  Tally tally;
  std::uint64_t next;
};

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t limit) { return random() % limit; }

// A number at the borders of what the readers expect, in 1, 2, 4 or 8 bytes.
void put_number(Bytes& input, Random& random) {
  constexpr std::uint64_t kNumbers[] = {0,
                                        1,
                                        2,
                                        8,
                                        9,
                                        63,
                                        64,
                                        65,
                                        255,
                                        0x7FFF,
                                        0xFFFF,
                                        std::uint64_t{1} << 22,
                                        0x7FFFFFFF,
                                        0x80000000,
                                        0xFFFFFFFF,
                                        std::uint64_t{1} << 32,
                                        std::uint64_t{1} << 60,
                                        0x7FFFFFFFFFFFFFFF,
                                        0x8000000000000000,
                                        0xFFFFFFFFFFFFFFFF,
                                        0x7FC000007F800000,
                                        0x3F8000003F800000};
  std::uint64_t number = kNumbers[below(random, std::size(kNumbers))];
  if (below(random, 3) == 0) number = input.size() + below(random, 5) - 2;
  if (below(random, 4) == 0) number += below(random, 3) - 1;
  const std::size_t width = std::min<std::size_t>(std::size_t{1} << below(random, 4), input.size());
  std::size_t at = below(random, input.size() - width + 1);
  if (below(random, 4) != 0) at = at / width * width;
  std::memcpy(input.data() + at, &number, width);
}

// Copies a stretch of the input over another place, or in there.
void copy_stretch(Bytes& input, Random& random) {
  const std::size_t from = below(random, input.size());
  const std::size_t length = 1 + below(random, std::min<std::size_t>(input.size() - from, 64));
  const Bytes stretch(input.begin() + from, input.begin() + from + length);
  const std::size_t to = below(random, input.size());
  if (below(random, 2) == 0) {
    input.insert(input.begin() + to, stretch.begin(), stretch.end());
  } else {
    std::copy_n(stretch.begin(), std::min(length, input.size() - to), input.begin() + to);
  }
}

void change(Bytes& input, const std::vector<Bytes>& corpus, Random& random) {
  if (input.empty()) input.push_back(0);
  const std::size_t at = below(random, input.size());
  switch (below(random, 12)) {
    case 0:
    case 1:
      input[at] ^= static_cast<std::uint8_t>(1u << below(random, 8));
      break;
    case 2:
    case 3:
      input[at] = static_cast<std::uint8_t>(random());
      break;
    case 4:
    case 5:
    case 6:
      put_number(input, random);
      break;
    case 7:
      copy_stretch(input, random);
      break;
    case 8:
      input.erase(
          input.begin() + at,
          input.begin() + at + 1 + below(random, std::min<std::size_t>(input.size() - at, 64)));
      break;
    case 9:
      if (below(random, 4) == 0) input.resize(at);
      break;
    case 10: {
      if (below(random, 4) != 0) break;
      const Bytes& other = corpus[below(random, corpus.size())];
      if (other.empty()) break;
      input.resize(at);
      input.insert(input.end(), other.begin() + below(random, other.size()), other.end());
      break;
    }
    default:
      input.push_back(static_cast<std::uint8_t>(random()));  // and so other choices
  }
}

Bytes input_of(std::uint64_t seed, std::uint64_t number, const std::vector<Bytes>& corpus) {
  std::seed_seq sequence{seed, seed >> 32, number, number >> 32};
  Random random(sequence);
  Bytes input = corpus[below(random, corpus.size())];
  if (number < corpus.size()) return corpus[number];  // each once as it is
  if (below(random, 2) == 0) {                        // the target's choices stand at the end
    for (std::size_t i = input.size() - std::min(input.size(), Choices::kBytes); i < input.size();
         ++i) {
      if (below(random, 2) == 0) input[i] = static_cast<std::uint8_t>(random());
    }
  }
  for (std::size_t changes = 1 + below(random, 6); changes > 0; --changes) {
    change(input, corpus, random);
  }
  return input;
}

[[noreturn]] void work(Shared& shared, std::uint64_t seed, std::uint64_t end,
                       const std::vector<Bytes>& corpus) {
  while (shared.next < end) {
    ::alarm(kSeconds);
    const Bytes input = input_of(seed, shared.next, corpus);
    LLVMFuzzerTestOneInput(input.data(), input.size());
    ++shared.next;
  }
  std::exit(0);  // what is still on the heap is looked for now
}

int run(std::uint64_t inputs, std::uint64_t seed, std::uint64_t first,
        const std::vector<Bytes>& corpus) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "no memory to share with child processes");
  Shared& shared = *new (memory) Shared{{}, first};
  tally = &shared.tally;
  const std::uint64_t end = first + inputs;
  std::uint64_t crashes = 0;
  while (shared.next < end && crashes < kMostCrashes) {
    const std::uint64_t batch = std::min(end, shared.next + kBatch);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    require(child >= 0, "no child process to be had");
    if (child == 0) work(shared, seed, batch, corpus);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status == 0) continue;
    ++crashes;
    const bool hang = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    std::fprintf(stderr, "%s at input %llu of seed %llu (--first %llu --inputs 1 --seed %llu)\n",
                 hang ? "hang" : "crash", static_cast<unsigned long long>(shared.next),
                 static_cast<unsigned long long>(seed),
                 static_cast<unsigned long long>(shared.next),
                 static_cast<unsigned long long>(seed));
    ++shared.next;
  }
  std::printf("inputs %llu accepted %llu refused %llu crashes %llu\n",
              static_cast<unsigned long long>(shared.next - first),
              static_cast<unsigned long long>(shared.tally.accepted),
              static_cast<unsigned long long>(shared.tally.refused),
              static_cast<unsigned long long>(crashes));
  return crashes == 0 ? 0 : 1;
}

void add_files(const char* folder, std::vector<Bytes>& corpus) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.file_size() <= kLargestSeed) paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    Bytes content(std::istreambuf_iterator<char>(file), {});
    content.resize(content.size() + Choices::kBytes);
    corpus.push_back(std::move(content));
  }
}

}  // namespace
}  // namespace dart::fuzz

int main(int argc, char** argv) {
  using namespace dart::fuzz;
  LLVMFuzzerInitialize(&argc, &argv);
  std::uint64_t inputs = 10'000, seed = 1, first = 0;
  std::vector<Bytes> corpus = seeds();
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--corpus") {
      add_files(value, corpus);
    } else if (name == "--inputs" || name == "--seed" || name == "--first") {
      (name == "--inputs" ? inputs
       : name == "--seed" ? seed
                          : first) = std::strtoull(value, nullptr, 10);
    } else {
      std::fprintf(stderr, "%s [--inputs N] [--seed S] [--first N] [--corpus FOLDER]\n", argv[0]);
      return 2;
    }
  }
  return run(inputs, seed, first, corpus);
}
