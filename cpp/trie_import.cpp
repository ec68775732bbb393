#include "trie_import.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "errors.h"
#include "import_journal.h"
#include "ngram_writer.h"
#include "path_table.h"
#include "run_sorter.h"
#include "trie_reader.h"

namespace dart {
namespace {

constexpr std::uint64_t kNodeBytes = 24;                 // of a node without its child list
constexpr std::uint64_t kChildBytes = 12;                // of one entry of a child list
constexpr std::uint64_t kStep = std::uint64_t{1} << 14;  // nodes read, or n-grams merged

constexpr std::uint64_t kBatch = 64;  // nodes read ahead

// The edges of the trie are written twice, at the child and in the parent's list. Summing a hash
// of them over each kind tells, in one pass and any order, whether the two agree.
std::uint64_t edge_hash(std::uint64_t parent, std::int32_t token, std::uint64_t child) {
  std::uint64_t hash = (parent << 32) ^ child ^ (std::uint64_t(std::uint32_t(token)) << 17);
  for (const std::uint64_t factor : {0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu}) {
    hash = (hash ^ (hash >> 31)) * factor;
  }
  return hash ^ (hash >> 29);
}

bool has_bytes(const std::string& path, std::uint64_t bytes) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) >= bytes;
}

template <int Order>
class Importer final : public TrieImport {
 public:
  Importer(const TrieImportRequest& request, std::unique_ptr<TrieReader> reader,
           std::uint64_t nodes)
      : request_(request), reader_(std::move(reader)), nodes_(nodes) {
    auto journal = ImportJournal::load(journal_path(), request_.identity);
    const bool usable = journal && journal->fits(nodes, reader_->size()) &&
                        has_bytes(part("runs"), journal->run_ends.back() * sizeof(Row)) &&
                        (journal->nodes_read == nodes ||
                         (has_bytes(part("parents"), 1) && has_bytes(part("paths"), 1)));
    if (usable) state_ = *std::move(journal);
  }

  bool step() override {
    if (!sorter_) begin();
    if (state_.nodes_read < nodes_) {
      read_nodes();
      return true;
    }
    if (!writer_) begin_merge();
    return merge();
  }

  int order() const override { return Order; }
  std::uint64_t nodes() const override { return nodes_; }
  std::uint64_t read() const override { return state_.nodes_read; }
  std::uint64_t merged() const override { return merged_; }

 private:
  using Row = Record<Order>;
  using Paths = PathTable<Order - 1>;
  struct Node {
    std::int32_t token, count;
    std::uint64_t parent, children;
  };

  std::string part(const char* name) const { return request_.folder + "/" + name; }
  std::string journal_path() const { return part("journal"); }
  [[noreturn]] void refuse(const std::string& reason) const { refuse_trie(request_.input, reason); }
  [[noreturn]] void refuse_parts() const {
    throw DataError("the parts of an earlier conversion in " + request_.folder +
                    " are damaged: convert again, without them");
  }

  void begin() {
    const std::uint64_t records = state_.run_ends.empty() ? 0 : state_.run_ends.back();
    sorter_ = std::make_unique<RunSorter<Order>>(
        std::make_unique<ScratchFile>(part("runs"), records * sizeof(Row)), state_.run_ends,
        request_.memory_bytes);
    if (state_.nodes_read == nodes_) return;
    paths_ = std::make_unique<Paths>(request_.folder, nodes_);
    paths_->go_on_at(state_.nodes_read, state_.parents);
    if (state_.nodes_read > 0) reader_->seek(state_.offset);
  }

  void read_nodes() {
    const std::uint64_t end = std::min(nodes_, state_.nodes_read + kStep);
    while (state_.nodes_read < end) {
      if (sorter_->room() < kBatch) {  // between two nodes: a place to go on from
        sorter_->spill();
        save();
      }
      // In three rounds, because parents lie anywhere: what one round needs of them is on its way
      // from memory while the round before goes on.
      const std::uint64_t first = state_.nodes_read;
      const std::span<Node> batch = std::span(batch_).first(std::min(kBatch, end - first));
      for (std::size_t i = 0; i < batch.size(); ++i) {
        batch[i] = read_node(first + i);
        if (batch[i].parent < first) paths_->fetch_word(batch[i].parent);
      }
      for (const Node& node : batch) {
        if (node.parent < first) paths_->fetch_path(node.parent);
      }
      for (std::size_t i = 0; i < batch.size(); ++i) place(first + i, batch[i]);
      state_.nodes_read += batch.size();
    }
    if (end < nodes_) return;
    if (state_.edges_up != state_.edges_down) refuse("its child lists contradict its nodes");
    if (sorter_->in_memory()) return;  // not worth a journal
    sorter_->spill();
    save();
  }

  Node read_node(std::uint64_t number) {
    Node node;
    node.token = reader_->take<std::int32_t>();
    node.parent = reader_->take<std::uint64_t>();
    node.count = reader_->take<std::int32_t>();
    node.children = reader_->take<std::uint64_t>();
    if (node.children > reader_->rest() / kChildBytes) {
      fault(number, "claims " + std::to_string(node.children) +
                        " children, more than the file can hold (truncated?)");
    }
    for (std::uint64_t i = 0; i < node.children; ++i) {
      const auto token = reader_->take<std::int32_t>();
      state_.edges_down += edge_hash(number, token, reader_->take<std::uint64_t>());
    }
    return node;
  }

  void place(std::uint64_t number, const Node& node) {
    Row record;
    int length = 0;
    paths_->begin(number);
    if (number == 0) {
      state_.root_count = node.count;
    } else {
      length = find_path(number, node.token, node.parent, record);
      record.count = node.count;
      state_.edges_up += edge_hash(node.parent, node.token, number);
      ++state_.entries[length - 1];
      sorter_->push(record);
    }
    if (node.children == 0) return;
    if (length == Order) {
      fault(number, "has children, which lie deeper than the order " + std::to_string(Order));
    }
    typename Paths::Path path;
    std::copy_n(record.key.begin(), Order - 1, path.begin());
    paths_->add(number, path);
  }

  // Fills in the node's n-gram; returns its length.
  int find_path(std::uint64_t node, std::int32_t token, std::uint64_t parent, Row& record) {
    const std::uint64_t limit = request_.vocab_size != 0 ? request_.vocab_size : kMaxVocabSize;
    if (token < 0 || static_cast<std::uint64_t>(token) >= limit) {
      fault(node, "has token " + std::to_string(token) + ", outside the vocabulary of " +
                      std::to_string(limit));
    }
    if (parent >= node) fault(node, "comes before its parent " + std::to_string(parent));
    typename Paths::Path path;
    if (!paths_->find(parent, path)) {
      refuse("its child lists contradict its nodes: node " + std::to_string(parent) +
             " has no children, node " + std::to_string(node) + " calls it its parent");
    }
    std::ranges::copy(path, record.key.begin());
    const int length = record.length();
    record.key[length] = static_cast<std::uint32_t>(token) + 1;
    state_.largest_token = std::max<std::uint64_t>(state_.largest_token, record.key[length]);
    return length + 1;
  }

  [[noreturn]] void fault(std::uint64_t node, const std::string& what) const {
    refuse("node " + std::to_string(node) + " " + what);
  }

  void save() {
    state_.offset = reader_->offset();
    state_.parents = paths_->rows();
    state_.run_ends = sorter_->synced_ends();
    if (state_.nodes_read < nodes_) paths_->sync();
    state_.save(journal_path(), request_.identity);
  }

  void begin_merge() {
    paths_.reset();
    for (const char* name : {"parents", "paths"}) ::unlink(part(name).c_str());
    const std::uint64_t vocab_size = request_.vocab_size != 0
                                         ? request_.vocab_size
                                         : std::max<std::uint64_t>(1, state_.largest_token);
    writer_ = std::make_unique<TrieWriter>(request_.output, part("output"),
                                           std::span(state_.entries).first(Order), vocab_size);
    writer_->add(0, state_.root_count);
  }

  bool merge() {
    const bool more = sorter_->drain(
        [this](const Row& record) {
          const int depth = record.length();
          if (depth == 0) refuse_parts();
          const std::uint32_t token = record.key[depth - 1] - 1;
          if (writer_->depth() >= depth && writer_->path()[depth - 1] == token &&
              std::equal(record.key.begin(), record.key.begin() + depth - 1,
                         writer_->path().begin(),
                         [](std::uint32_t key, std::uint32_t open) { return key == open + 1; })) {
            refuse("one n-gram of " + std::to_string(depth) + " tokens is there twice");
          }
          if (!writer_->takes(depth, token)) refuse_parts();
          writer_->enter(depth, token, record.count);
          ++merged_;
        },
        kStep);
    if (more) return true;
    for (int depth = 1; depth <= Order; ++depth) {
      if (writer_->written(depth) != state_.entries[depth - 1]) refuse_parts();
    }
    writer_->finish();
    return false;
  }

  const TrieImportRequest request_;
  std::unique_ptr<TrieReader> reader_;
  std::uint64_t nodes_;
  ImportJournal state_;
  std::unique_ptr<RunSorter<Order>> sorter_;
  std::unique_ptr<Paths> paths_;
  std::array<Node, kBatch> batch_;
  std::unique_ptr<TrieWriter> writer_;
  std::uint64_t merged_ = 0;
};

}  // namespace

std::unique_ptr<TrieImport> TrieImport::open(const TrieImportRequest& request) {
  if (request.vocab_size > kMaxVocabSize) {
    throw DataError(request.input + " cannot be converted for a vocabulary of " +
                    std::to_string(request.vocab_size) + ", more than the " +
                    std::to_string(kMaxVocabSize) + " possible");
  }
  auto reader = std::make_unique<TrieReader>(request.input);
  const auto order = reader->take<std::uint64_t>();
  const auto nodes = reader->take<std::uint64_t>();
  if (order < kMinOrder || order > kMaxOrder) {
    refuse_trie(request.input, "its order reads " + std::to_string(order) + ", expected " +
                                   std::to_string(kMinOrder) + " to " + std::to_string(kMaxOrder));
  }
  if (nodes < 1 || nodes > kMaxEntries || nodes > reader->rest() / kNodeBytes) {
    refuse_trie(request.input, "it claims " + std::to_string(nodes) + " nodes, but has " +
                                   std::to_string(reader->size()) + " bytes (truncated?)");
  }
  return with_order(static_cast<int>(order), [&](auto width) -> std::unique_ptr<TrieImport> {
    return std::make_unique<Importer<width()>>(request, std::move(reader), nodes);
  });
}

}  // namespace dart
