#!/usr/bin/env bash
# Qwen3-32B with its published draft heads on http://localhost:30000.
# Several GPUs share the target where one is too small.
# Arguments go to the page and win: bash launch/qwen3_32b.sh --ngram full --no-compare-eagle3
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

launch_preset qwen3-32b "$@"
