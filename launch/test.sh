#!/usr/bin/env bash
# Installs what the tests need and runs every test that needs no GPU, a file of tests to a core at a
# time. Arguments go to pytest: bash launch/test.sh -m "not slow and not browser"
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

has_chromium() {
  command -v chromium || command -v chromium-browser || command -v google-chrome
} >/dev/null

# Chromium by apt, where that may be done without asking; the browser tests skip where there is none.
ensure_chromium() {
  local -a root=()
  has_chromium && return
  if command -v apt-get >/dev/null; then
    if ((EUID != 0)); then root=(sudo -n); fi
    if ((EUID == 0)) || sudo -n true 2>/dev/null; then
      say "installing Chromium by apt-get (about 100 MB)"
      "${root[@]}" apt-get update -qq >/dev/null &&
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends \
          -y chromium >/dev/null || true
    fi
  fi
  has_chromium || say "no Chromium here and none could be installed: the browser tests will be skipped"
}

find_python
install_package
alone dev add_test_tools
ensure_chromium
say "running the tests"
# In the order of tests/conftest.py, not of how many tests a file has; with one worker more than cores,
# since what drives a browser or another process waits much.
workers=$("$VENV_PYTHON" -c 'import os; print(min(os.cpu_count() + 1, 4))')
exec "$VENV_PYTHON" -m pytest --numprocesses "$workers" --dist loadfile --no-loadscope-reorder "$@"
