// What Python sees of the core. The package wraps it: see dart_core/ngram.py and pruner.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "errors.h"
#include "ngram_builder.h"
#include "ngram_cursor.h"
#include "ngram_transform.h"
#include "ngram_trie.h"
#include "rms_norm.h"
#include "row_gemm.h"
#include "tree_pruner.h"
#include "trie_import.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace dart {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;
template <typename T>
using Buffer = py::array_t<T, py::array::c_style>;  // written by us: never a converted copy

template <typename T>
std::span<const T> flat(const py::array_t<T, py::array::c_style | py::array::forcecast>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

template <typename T>
T* room(Buffer<T>& array, py::ssize_t size) {
  if (array.size() < size) {
    throw DataError("an output array has room for " + std::to_string(array.size()) + ", needed " +
                    std::to_string(size));
  }
  return array.mutable_data();
}

template <typename T>
py::array_t<T> to_array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

Fingerprint to_fingerprint(const py::bytes& bytes) {
  const auto view = static_cast<std::string_view>(bytes);
  Fingerprint fingerprint{};
  if (!view.empty() && view.size() != fingerprint.size()) {
    throw DataError("a tokenizer fingerprint has 32 bytes or none, got " +
                    std::to_string(view.size()));
  }
  std::memcpy(fingerprint.data(), view.data(), view.size());
  return fingerprint;
}

void bind_errors(py::module_& m) {
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const DataError& failure) {
      py::set_error(py::module_::import("dart_core.errors").attr("ArenaError"), failure.what());
    } catch (const IoError& failure) {
      errno = failure.code;
      PyErr_SetFromErrnoWithFilename(PyExc_OSError, failure.path.c_str());
    }
  });
  m.attr("MAX_VOCAB_SIZE") = kMaxVocabSize;
}

void bind_trie(py::module_& m) {
  py::class_<Trie, std::shared_ptr<Trie>>(m, "Trie")
      .def(py::init<const std::string&>(), "path"_a)
      .def("prefetch", &Trie::prefetch)
      .def_property_readonly("order", &Trie::order)
      .def_property_readonly("vocab_size", [](const Trie& t) { return t.header().vocab_size; })
      .def_property_readonly("root_total", [](const Trie& t) { return t.header().root_total; })
      .def_property_readonly("fingerprint",
                             [](const Trie& t) {
                               const Fingerprint& f = t.header().fingerprint;
                               return py::bytes(reinterpret_cast<const char*>(f.data()), f.size());
                             })
      .def_property_readonly("entries",
                             [](const Trie& t) {
                               const auto* entries = t.header().entries;
                               return std::vector<std::uint64_t>(entries, entries + t.order());
                             })
      .def(
          "query",
          [](const Trie& trie, const Array<std::int64_t>& context,
             const Array<std::int64_t>& tokens) {
            py::array_t<float> probabilities(tokens.size());
            py::array_t<std::int32_t> matched(tokens.size());
            float* const p = probabilities.mutable_data();
            std::int32_t* const n = matched.mutable_data();
            {
              const py::gil_scoped_release release;
              trie.query(flat(context), flat(tokens), p, n);
            }
            return py::make_tuple(std::move(probabilities), std::move(matched));
          },
          "context"_a, "tokens"_a);

  // Holds its trie, since the cursor points into it.
  struct Text {
    std::shared_ptr<const Trie> trie;
    CanonicalText text;
  };
  py::class_<Text>(m, "CanonicalText")
      .def(py::init([](std::shared_ptr<Trie> trie) {
             return std::make_unique<Text>(Text{trie, CanonicalText(*trie)});
           }),
           "trie"_a)
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", [](Text& self) {
        std::string chunk;
        {
          const py::gil_scoped_release release;
          chunk = self.text.next_chunk();
        }
        if (chunk.empty()) throw py::stop_iteration();
        return py::bytes(chunk);
      });
}

void bind_files(py::module_& m) {
  py::class_<NgramBuilder>(m, "NgramBuilder")
      .def(py::init([](const std::string& path, int order, std::uint64_t vocab_size,
                       const py::bytes& fingerprint, std::uint64_t memory_bytes) {
             return NgramBuilder::make(path, order, vocab_size, to_fingerprint(fingerprint),
                                       memory_bytes);
           }),
           "path"_a, "order"_a, "vocab_size"_a, "fingerprint"_a, "memory_bytes"_a)
      .def(
          "add",
          [](NgramBuilder& builder, const Array<std::int64_t>& tokens) {
            const auto view = flat(tokens);
            const py::gil_scoped_release release;
            builder.add(view);
          },
          "tokens"_a)
      .def("finish", &NgramBuilder::finish, py::call_guard<py::gil_scoped_release>());

  m.def("merge_ngrams", &merge_ngrams, "inputs"_a, "output"_a,
        py::call_guard<py::gil_scoped_release>());
  m.def("reduce_ngram", &reduce_ngram, "input"_a, "threshold"_a, "output"_a,
        py::call_guard<py::gil_scoped_release>());
  py::class_<TrieImport>(m, "TrieImport")
      .def(py::init([](const std::string& input, const std::string& output,
                       const std::string& folder, const std::string& identity,
                       std::uint64_t vocab_size, std::uint64_t memory_bytes) {
             return TrieImport::open({input, output, folder, identity, vocab_size, memory_bytes});
           }),
           "input"_a, "output"_a, py::kw_only(), "folder"_a, "identity"_a, "vocab_size"_a,
           "memory_bytes"_a)
      .def("step", &TrieImport::step, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("order", &TrieImport::order)
      .def_property_readonly("nodes", &TrieImport::nodes)
      .def_property_readonly("read", &TrieImport::read)
      .def_property_readonly("merged", &TrieImport::merged);
}

py::object search(TreePruner& pruner, const Array<std::int64_t>& tokens,
                  const Array<float>& probabilities, const Array<std::int32_t>& counts,
                  const Array<std::int64_t>& context, int budget, Buffer<std::int64_t> out_tokens,
                  Buffer<std::int32_t> out_parents, Buffer<float> out_scores,
                  Buffer<float> out_probabilities, Buffer<float> out_ngram, bool candidates) {
  const bool same_shape = tokens.ndim() == 2 && probabilities.ndim() == 2 &&
                          tokens.shape(0) == probabilities.shape(0) &&
                          tokens.shape(1) == probabilities.shape(1);
  if (!same_shape || counts.size() != tokens.shape(0)) {
    throw DataError("tokens and probabilities must be [levels, k] alike and counts [levels]");
  }
  PrunerInput input;
  input.tokens = tokens.data();
  input.probabilities = probabilities.data();
  input.counts = counts.data();
  input.levels = static_cast<int>(tokens.shape(0));
  input.width = static_cast<int>(tokens.shape(1));
  input.context = flat(context);
  input.budget = budget;
  const py::ssize_t size = static_cast<py::ssize_t>(std::max(budget, 0)) + 1;
  const PrunerOutput output{room(out_tokens, size), room(out_parents, size), room(out_scores, size),
                            room(out_probabilities, size), room(out_ngram, size)};
  PrunerPool pool;
  int nodes = 0;
  {
    const py::gil_scoped_release release;
    nodes = pruner.search(input, output, candidates ? &pool : nullptr);
  }
  if (!candidates) return py::int_(nodes);
  return py::make_tuple(nodes, to_array(pool.tokens), to_array(pool.parents), to_array(pool.scores),
                        to_array(pool.nodes));
}

void bind_pruner(py::module_& m) {
  py::class_<TreePruner>(m, "TreePruner")
      .def(py::init([](std::shared_ptr<Trie> trie, int levels, int beam, float ngram_weight,
                       std::vector<float> level_weights, std::vector<float> logit_weights,
                       std::vector<std::int64_t> eos_tokens) {
             return std::make_unique<TreePruner>(
                 std::move(trie),
                 PrunerSettings{levels, beam, ngram_weight, std::move(level_weights),
                                std::move(logit_weights), std::move(eos_tokens)});
           }),
           "trie"_a.none(true), py::kw_only(), "levels"_a, "beam"_a, "ngram_weight"_a,
           "level_weights"_a, "logit_weights"_a, "eos_tokens"_a)
      .def("search", &search, "tokens"_a, "probabilities"_a, "counts"_a, "context"_a, "budget"_a,
           "out_tokens"_a.noconvert(), "out_parents"_a.noconvert(), "out_scores"_a.noconvert(),
           "out_probabilities"_a.noconvert(), "out_ngram"_a.noconvert(), "candidates"_a = false);
}

// Addresses, for torch's tensors are not seen here: dart_core/packing.py vouches for them.
void multiply(const RowMatrix& matrix, std::uintptr_t inputs, std::int64_t rows,
              std::uintptr_t bias, std::uintptr_t outputs, int threads) {
  const py::gil_scoped_release release;
  matrix.multiply(reinterpret_cast<const float*>(inputs), rows,
                  reinterpret_cast<const float*>(bias), reinterpret_cast<float*>(outputs), threads);
}

void norm(std::uintptr_t inputs, std::uintptr_t weight, float epsilon, std::int64_t rows,
          std::int64_t size, std::uintptr_t outputs) {
  const py::gil_scoped_release release;
  rms_norm(reinterpret_cast<const float*>(inputs), reinterpret_cast<const float*>(weight), epsilon,
           rows, size, reinterpret_cast<float*>(outputs));
}

void bind_layers(py::module_& m) {
  m.def("rms_norm", &norm, "inputs"_a, "weight"_a, "epsilon"_a, "rows"_a, "size"_a, "outputs"_a);
  py::class_<RowMatrix>(m, "RowMatrix")
      .def(py::init([](const Array<float>& weights) {
             if (weights.ndim() != 2 || weights.size() == 0) {
               throw DataError("a weight matrix has two dimensions and is not empty");
             }
             return std::make_unique<RowMatrix>(weights.data(), weights.shape(0), weights.shape(1));
           }),
           "weights"_a)
      .def_static("runs_here", &RowMatrix::runs_here)
      .def_property_readonly("bytes", &RowMatrix::bytes)
      .def("multiply", &multiply, "inputs"_a, "rows"_a, "bias"_a, "outputs"_a, "threads"_a)
      .def("unpack", [](const RowMatrix& matrix) {
        py::array_t<float> weights({matrix.columns(), matrix.depth()});
        matrix.unpack(weights.mutable_data());
        return weights;
      });
}

}  // namespace
}  // namespace dart

PYBIND11_MODULE(_core, m) {
  m.doc() =
      "Native core: n-gram files, the draft tree's pruner, layers of the CPU. Private to "
      "dart_core.";
  m.attr("INTERFACE") = 3;  // as dart_core/_native.py expects it: raise both with what is bound
  dart::bind_errors(m);
  dart::bind_trie(m);
  dart::bind_files(m);
  dart::bind_pruner(m);
  dart::bind_layers(m);
}
