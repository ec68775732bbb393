// Converts a trie file of the published library into an n-gram file, without loss.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace dart {

struct TrieImportRequest {
  std::string input;
  std::string output;
  std::string folder;            // for parts, which must be there; nobody else uses it meanwhile
  std::string identity;          // of the input: parts made for another one are not taken up
  std::uint64_t vocab_size = 0;  // 0: the largest token plus one
  std::uint64_t memory_bytes = 0;
};

// The published layout, little-endian, no magic and no padding: u64 order, u64 node count, then per
// node i32 token, u64 parent, i32 count, u64 children, children x (i32 token, u64 node). Node 0 is
// the root and a parent's number is below its children's.
//
// One pass over the file gives sorted runs of n-grams, a merge of these the output. Memory is
// bounded by `memory_bytes` and some megabytes. On disk, in `folder`, lie meanwhile: the runs,
// 4 * (order + 1) bytes a node, and while the file is read 4 * (order - 1) bytes for each node that
// has children and a quarter of a byte for each node; then the output before it gets its name.
//
// Whenever a run is written, what is needed to go on from there is too, and survives any end of the
// process. Whoever opens the import again with the same request goes on from the last run, or with
// the merge from its beginning.
class TrieImport {
 public:
  // Checks the input's header; writes nothing yet.
  static std::unique_ptr<TrieImport> open(const TrieImportRequest& request);

  virtual ~TrieImport() = default;

  // Does the next bit of the work: some milliseconds, or seconds where a run is sorted. False when
  // the output is in place.
  virtual bool step() = 0;

  virtual int order() const = 0;
  virtual std::uint64_t nodes() const = 0;   // the root included
  virtual std::uint64_t read() const = 0;    // nodes, so far
  virtual std::uint64_t merged() const = 0;  // n-grams, so far
};

}  // namespace dart
