#!/usr/bin/env bash
# The page with recorded runs alone, for any laptop: no model, no torch, no compiler. Makes a small
# .venv-replay and serves http://localhost:30000. A folder of your own runs may come first:
#   bash launch/replay.sh my-runs --server-port 8000
set -euo pipefail
[[ ! -d ${1:-} ]] || set -- "$(CDPATH='' cd -- "$1" && pwd)" "${@:2}" # as seen from here
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

use_venv .venv-replay
SOURCES=(pyproject.toml)

make_replay() {
  check_disk "$VENV" 900 "the virtual environment"
  ensure_venv
  check_registry gradio
  say "installing Gradio, Plotly and numpy into $VENV (450 MB, a minute or two)"
  # shellcheck disable=SC2046 # one word a package
  pip_step replay $(requirements gradio plotly numpy markdown-it-py)
}

find_python
check_port "$@"
alone replay make_replay
say "serving the recorded runs; Ctrl-C ends it"
exec "$VENV_PYTHON" -m app --replay "$@"
