// The two ways in which a file can fail us; bindings.cpp turns them into Python exceptions.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <utility>

namespace dart {

// The contents are damaged, foreign, or do not fit the request. Becomes ArenaError.
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The operating system said no. Becomes OSError (FileNotFoundError, ...) with the file's name.
struct IoError : std::runtime_error {
  IoError(int code, std::string path)
      : std::runtime_error("cannot use " + path), code(code), path(std::move(path)) {}
  int code;
  std::string path;
};

[[noreturn]] inline void throw_errno(const std::string& path) { throw IoError(errno, path); }

}  // namespace dart
