#!/usr/bin/env bash
# Draft heads for your own target (Llama- or Qwen3-class), from its name to measured heads:
#   bash launch/train_dart.sh --base-model-name-or-path Qwen/Qwen3-4B --minutes 600 --output heads
# The target writes text (questions: templates and its own, or --prompts FILE; or give the text:
# --data FILE), an n-gram is counted in it, the target's states along it are kept on disk, a DART and
# an EAGLE3 head are trained on them and measured. A second call goes on where the first one ended.
# --minutes is for text (two fifths of it) and heads together. Several GPUs share all of it, by
# `accelerate launch`, to which $ACCELERATE_ARGS go; more flags: the case below.
set -euo pipefail
here=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

from_here() { if [[ $1 == /* ]]; then printf '%s\n' "$1"; else printf '%s\n' "$here/$1"; fi; }

target=() data=() prompts=() exclude=()
minutes=120 conversations=20000 output=$here/heads heads="dart eagle3" holdout=64 cache_gib=20
draft_vocab_size=8192 order=3
while (($#)); do
  [[ $1 != -* || -n ${2:-} ]] || die "$1 needs a value"
  case $1 in
    --base-model-name-or-path) # a folder, or a name on the hub
      if [[ -e $(from_here "$2") ]]; then set -- "$1" "$(from_here "$2")" "${@:3}"; fi
      target=(--base-model-name-or-path "$2") ;;
    --data) data+=("$(from_here "$2")") ;;
    --prompts) prompts+=("$(from_here "$2")") ;;
    --exclude) exclude+=("$(from_here "$2")") ;; # evaluation prompts: kept out of the text
    --minutes) minutes=$2 ;;
    --conversations) conversations=$2 ;;
    --output) output=$(from_here "$2") ;;
    --heads) heads=$2 ;;
    --holdout) holdout=$2 ;;
    --cache-gib) cache_gib=$2 ;;
    --draft-vocab-size) draft_vocab_size=$2 ;;
    --order) order=$2 ;;
    *) die "unknown argument $1; known: --base-model-name-or-path, --data, --prompts, --exclude, --minutes, --conversations, --output, --heads \"dart eagle3\", --holdout, --cache-gib, --draft-vocab-size, --order" ;;
  esac
  shift 2
done
for path in "${data[@]}" "${prompts[@]}" "${exclude[@]}"; do
  [[ -e $path ]] || die "$path does not exist"
done
[[ $heads =~ ^(dart|eagle3)( (dart|eagle3))?$ ]] || die "--heads \"$heads\": expected dart, eagle3 or both"
[[ $minutes =~ ^[0-9]+([.][0-9]+)?$ ]] || die "--minutes $minutes: expected a number"
share() { awk -v all="$minutes" "BEGIN { print all * $1 }"; } # of --minutes
text_minutes=$(share 0.4)
head_minutes=$(share "(${#data[@]} > 0 ? 1 : 0.6) / $(wc -w <<<"$heads")")

find_python
install_package
dart_core() { "$VENV_PYTHON" -m dart_core "$@"; }
gpus=$("$VENV_PYTHON" -c 'import torch; print(torch.cuda.device_count())')
together() { # ARGUMENT...: a command of dart_core, by all GPUs together where there are several
  local launch=(--multi_gpu --num_processes "$gpus" --num_machines 1 --mixed_precision no --dynamo_backend no)
  # shellcheck disable=SC2206 # several arguments in one variable
  [[ -z ${ACCELERATE_ARGS:-} ]] || launch=($ACCELERATE_ARGS)
  if ((gpus > 1)) || [[ -n ${ACCELERATE_ARGS:-} ]]; then
    "$VENV_PYTHON" -m accelerate.commands.launch "${launch[@]}" --module dart_core "$@"
  else
    dart_core "$@"
  fi
}
excluded=() asked=() given=()
if ((${#exclude[@]})); then excluded=(--exclude "${exclude[@]}"); fi
if ((${#prompts[@]})); then asked=(--prompts "${prompts[@]}"); fi
if ((${#data[@]})); then given=(--data "${data[@]}"); fi

mkdir -p "$output"
say "the plan, for $output"
# shellcheck disable=SC2086 # one word a head
dart_core train plan "${target[@]}" "${given[@]}" "${asked[@]}" --conversations "$conversations" \
  --text-minutes "$text_minutes" --head-minutes "$head_minutes" --heads $heads \
  --cache-gib "$cache_gib" --draft-vocab-size "$draft_vocab_size" --output "$output"

if ((${#data[@]} == 0)); then
  say "1. text: the target writes conversations"
  writers=()
  trap 'kill "${writers[@]}" 2>/dev/null || true' EXIT
  parts=$((gpus > 1 ? gpus : 1))
  for ((part = 0; part < parts; part++)); do
    data+=("$output/text-$part.jsonl")
    write=(train data "${target[@]}" "${asked[@]}" "${excluded[@]}" --output "${data[part]}"
      --conversations $((conversations / parts)) --minutes "$text_minutes" --part "$part/$parts")
    if ((parts == 1)); then
      dart_core "${write[@]}"
    else
      dart_core "${write[@]}" --device "cuda:$part" 2>"$output/text-$part.log" &
      writers+=($!)
    fi
  done
  for writer in "${writers[@]}"; do wait "$writer" || die "writing text failed: see $output/text-*.log"; done
  trap - EXIT
fi

rules=(--data "${data[@]}" --holdout "$holdout" "${excluded[@]}")
text=("${target[@]}" "${rules[@]}" --cache "$output/features" --cache-gib "$cache_gib")
ngram=$output/$order-gram.ngram
say "2. n-gram of order $order"
dart_core train ngram "${target[@]}" "${rules[@]}" --order "$order" --output "$ngram"
say "3. the target's states along the text"
together train features "${text[@]}"
measure=()
for head in $heads; do
  say "4. the $head head; its curves: $output/$head/curves.html"
  with=()
  if [[ $head == dart ]]; then with=(--ngram-model-name-or-path "$ngram"); fi
  together train "$head" "${text[@]}" --minutes "$head_minutes" "${with[@]}" \
    --draft-vocab-size "$draft_vocab_size" --output "$output/$head"
  measure+=(--"$head"-model-name-or-path "$output/$head")
done
say "5. figures on the conversations kept apart, also of the heads before training"
dart_core train eval "${text[@]}" "${measure[@]}" --ngram-model-name-or-path "$ngram" \
  --budgets 16,60 --max-new-tokens 64 --passages $(((holdout + 1) / 2)) --json "$output/figures.json"
say "done; to race them: python -m app ${target[*]:---preset demo} ${measure[*]} --ngram-model-name-or-path $ngram"
