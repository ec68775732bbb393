#!/usr/bin/env bash
# Qwen3-4B with its published draft heads on http://localhost:30000.
# Arguments go to the page and win: bash launch/qwen3_4b.sh --ngram full --no-compare-eagle3
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

launch_preset qwen3-4b "$@"
