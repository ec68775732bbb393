// A published .trie file from anywhere: converted at once, and in two goes with what the first one
// left behind, damaged or not.
#include <algorithm>
#include <cstring>
#include <map>

#include "fuzz.h"
#include "ngram_cursor.h"
#include "ngram_format.h"
#include "trie_import.h"

namespace dart::fuzz {
namespace {

void convert(const TrieImportRequest& request) {
  const auto work = TrieImport::open(request);
  while (work->step()) {
  }
}

std::string canonical(const std::string& path) {
  const Trie trie(path);
  CanonicalText text(trie);
  std::string whole;
  for (std::string chunk = text.next_chunk(); !chunk.empty(); chunk = text.next_chunk()) {
    whole += chunk;
  }
  return whole;
}

// Changes a file that an import left, and has the journal agree with itself again.
void damage(const Folder& folder, const std::string& name, Choices& choices) {
  Bytes content = folder.read(name);
  if (content.size() < 16) return;
  const std::size_t words = content.size() / 8;
  std::uint64_t word = choices.among<std::uint64_t>({0, 1, 2, 1000, 1u << 31, ~0ull, 1ull << 60});
  if (choices.flag()) word += choices.byte();
  const std::size_t at = 256 * choices.byte() + choices.byte();
  std::memcpy(content.data() + 8 * (at % words), &word, sizeof word);
  if (name == "journal") {
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (std::size_t i = 0; i < 8 * (words - 1); ++i) hash = (hash ^ content[i]) * 0x100000001B3u;
    std::memcpy(content.data() + 8 * (words - 1), &hash, sizeof hash);
  }
  folder.write(name, content);
}

// The published layout of a random trie, and the choices for it.
Bytes make_trie(std::uint64_t order, std::size_t nodes, std::uint32_t vocab_size) {
  struct Node {
    std::int32_t token = 0;
    std::uint64_t parent = 0, depth = 0;
    std::map<std::int32_t, std::uint64_t> children;
  };
  std::vector<Node> trie(1);
  std::uint32_t state = static_cast<std::uint32_t>(order * 977 + nodes);
  const auto draw = [&state](std::size_t limit) {
    state = state * 1664525u + 1013904223u;
    return static_cast<std::size_t>(state >> 8) % limit;
  };
  for (std::size_t tries = 0; trie.size() < nodes && tries < 50 * nodes; ++tries) {
    const std::size_t parent = draw(trie.size());
    const auto token = static_cast<std::int32_t>(draw(vocab_size));
    if (trie[parent].depth == order || trie[parent].children.contains(token)) continue;
    trie[parent].children[token] = trie.size();
    trie.push_back({token, parent, trie[parent].depth + 1, {}});
  }
  Bytes content;
  const auto put = [&content](auto value) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&value);
    content.insert(content.end(), bytes, bytes + sizeof value);
  };
  put(order);
  put(static_cast<std::uint64_t>(trie.size()));
  for (const Node& node : trie) {
    put(node.token);
    put(node.parent);
    put(static_cast<std::int32_t>(trie.size() - node.depth));
    put(static_cast<std::uint64_t>(node.children.size()));
    for (const auto& [token, child] : node.children) {
      put(token);
      put(child);
    }
  }
  content.resize(content.size() + Choices::kBytes);
  return content;
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> found;
  for (std::uint64_t order = kMinOrder; order <= kMaxOrder; ++order) {
    for (const std::size_t nodes : {1, 3, 20, 70}) found.push_back(make_trie(order, nodes, 12));
  }
  for (const std::uint64_t order : {3, 4}) found.push_back(make_trie(order, 1200, 40));  // spills
  return found;
}

}  // namespace dart::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dart::fuzz;
  static const Folder folder;
  folder.clear();
  Choices choices({data, size});
  const auto vocab_size = choices.among<std::uint64_t>(
      {12, 40, 64, 1, 0, 1000, 12, 40, 64, 12, 40, dart::kMaxVocabSize + 1});
  const std::uint8_t way = choices.byte();
  const std::uint64_t cut = 256 * choices.byte() + choices.byte();
  std::uint8_t told[8];
  std::ranges::generate(told, [&choices] { return choices.byte(); });
  Choices damages(told);
  const auto content = choices.rest();
  folder.write("x.trie", content);
  const dart::TrieImportRequest request{.input = folder.path("x.trie"),
                                        .output = folder.path("x.ngram"),
                                        .folder = folder.path("."),
                                        .identity = "x",
                                        .vocab_size = vocab_size,
                                        .memory_bytes = 0};

  // A vocabulary that nobody limits takes 9 bytes a token, of the largest that the file names.
  const std::uint64_t dense = vocab_size == 0 ? 9 * dart::kMaxVocabSize : 9 * vocab_size;
  const bool accepted = [&] {
    Input input((std::uint64_t{1} << 20) + 2 * dense + 8 * content.size());
    const bool taken = folder.accepts([&] { convert(request); });
    input.done(taken);
    return taken;
  }();
  require(folder.bytes() < (1u << 18) + 3 * dense + 16 * content.size(), "disk beyond its bound");
  require(accepted == (std::ranges::count(folder.names(), "x.ngram") == 1),
          "an output where there should be none, or none where there should be one");
  std::string whole;
  if (accepted) {
    whole = canonical(request.output);  // throws where our own file is refused
    std::uint64_t nodes = 0;
    std::memcpy(&nodes, content.data() + 8, sizeof nodes);
    require(static_cast<std::uint64_t>(std::ranges::count(whole, '\n')) == nodes,
            "n-grams lost on the way");
  }
  if (way % 4 != 1) return 0;

  // Again: the first go ends early, by a file cut short, or after one step.
  folder.clear();
  if (way % 8 == 1) {
    folder.write("x.trie", content.first(std::min<std::size_t>(cut, content.size())));
    folder.accepts([&] { convert(request); });
    folder.write("x.trie", content);
  } else {
    folder.write("x.trie", content);
    folder.accepts([&] { dart::TrieImport::open(request)->step(); });
  }
  const bool damaged = way % 32 >= 16;
  if (damaged) damage(folder, damages.among({"journal", "runs", "parents", "paths"}), damages);
  if (folder.accepts([&] { convert(request); })) {
    const std::string resumed = canonical(request.output);
    require(damaged || resumed == whole, "a conversion that went on gives another file");
  } else {
    require(damaged || !accepted, "a conversion that went on fails");
  }
  return 0;
}
