#include "import_journal.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "errors.h"
#include "mapped_file.h"
#include "output_file.h"

namespace dart {
namespace {

constexpr std::uint64_t kJournalVersion = 1;
constexpr std::size_t kFixedWords = 9 + kMaxOrder;  // version, identity, seven numbers, entries

std::uint64_t hash(std::string_view bytes) {
  std::uint64_t value = 0xCBF29CE484222325u;
  for (const char byte : bytes) {
    value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  }
  return value;
}

std::uint64_t hash(const std::vector<std::uint64_t>& words) {
  return hash({reinterpret_cast<const char*>(words.data()), words.size() * sizeof(words[0])});
}

}  // namespace

void ImportJournal::save(const std::string& path, const std::string& identity) const {
  std::vector<std::uint64_t> words{kJournalVersion, hash(identity), nodes_read,
                                   offset,          parents,        edges_up,
                                   edges_down,      largest_token,  std::uint64_t(root_count)};
  words.insert(words.end(), entries.begin(), entries.end());
  words.insert(words.end(), run_ends.begin(), run_ends.end());
  words.push_back(hash(words));
  AtomicFile file(path, path + ".new");
  file.write_at(0, words.data(), words.size() * sizeof(words[0]));
  file.commit();
}

bool ImportJournal::fits(std::uint64_t nodes, std::uint64_t bytes) const {
  if (nodes_read < 1 || nodes_read > nodes || offset > bytes || parents > nodes_read ||
      largest_token > kMaxVocabSize || run_ends.empty() || run_ends.back() != nodes_read - 1 ||
      !std::ranges::is_sorted(run_ends)) {
    return false;
  }
  std::uint64_t records = 0;
  for (const std::uint64_t level : entries) {
    if (level > nodes) return false;
    records += level;
  }
  return records == nodes_read - 1;
}

std::optional<ImportJournal> ImportJournal::load(const std::string& path,
                                                 const std::string& identity) {
  std::vector<std::uint64_t> words;
  try {
    const MappedFile file(path);
    words.resize(file.size() / sizeof(words[0]));
    if (file.size() % sizeof(words[0]) != 0 || words.size() <= kFixedWords) return std::nullopt;
    std::memcpy(words.data(), file.data(), file.size());
  } catch (const IoError&) {
    return std::nullopt;
  }
  const std::uint64_t checksum = words.back();
  words.pop_back();
  if (hash(words) != checksum || words[0] != kJournalVersion || words[1] != hash(identity)) {
    return std::nullopt;
  }
  ImportJournal journal;
  journal.nodes_read = words[2];
  journal.offset = words[3];
  journal.parents = words[4];
  journal.edges_up = words[5];
  journal.edges_down = words[6];
  journal.largest_token = words[7];
  journal.root_count = static_cast<std::int64_t>(words[8]);
  std::copy_n(words.begin() + 9, kMaxOrder, journal.entries.begin());
  journal.run_ends.assign(words.begin() + kFixedWords, words.end());
  return journal;
}

}  // namespace dart
