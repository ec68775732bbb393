#!/usr/bin/env bash
# From a fresh clone to the page: makes .venv, installs, fetches the demo's target model and serves
# http://localhost:30000. No GPU and no model hub needed. Arguments go to the page and win over the
# preset: bash launch/demo.sh --server-port 8000
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

find_python
check_port "$@"
from_users_folder "$@"
set -- "${ARGUMENTS[@]}"
check_demo_disk
install_package
say "the demo's target model, SmolLM2-135M-Instruct"
"$VENV_PYTHON" -m dart_core.demo_target
say "loading the models and serving the page; Ctrl-C ends it"
# float32: every panel shows the very same text.
exec "$VENV_PYTHON" -m app --preset demo --compare-eagle3 --dtype float32 "$@"
