#!/usr/bin/env bash
# Feeds damaged and hostile inputs to whatever reads files: the C++ core, built for this with the
# address and undefined-behaviour sanitizers, and the readers of draft heads and recordings. Prints
# what came of them as a table; fails where anything crashed or hung.
#
#   bash launch/fuzz.sh [INPUTS [TARGET...]]      SEED=2 bash launch/fuzz.sh: other inputs
#
# INPUTS, a million if not given, are shared out over the targets of the core; those in Python, far
# slower, take a hundredth of a share each. CXX=clang++ has libFuzzer choose the inputs: it learns
# which ones reach new code, and ends a target at its first crash.
# FUZZ_FLAGS=-O0 builds sooner and runs slower; FUZZ_BUILD says where the build is kept.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

NATIVE=(ngram trie convert pruner)
FILES=(heads recordings)
CORE=(tree_pruner ngram_builder ngram_writer ngram_trie ngram_transform ngram_cursor output_file
  fuzz/fuzz fuzz/heap_file)
FLAGS=(-std=c++20 -g1 -Wall -Wextra -ffp-contract=off -D_GLIBCXX_ASSERTIONS
  -fsanitize=address,undefined -fno-sanitize-recover=all -Icpp)
GOLDEN=tests/golden/dart/trie # published files, the small ones of which are begun with

inputs=${1:-1000000}
seed=${SEED:-1}
[[ $inputs =~ ^[0-9]{1,12}$ ]] || die "INPUTS is $inputs; expected a whole number"
[[ $seed =~ ^[0-9]{1,9}$ ]] || die "SEED is $seed; expected a whole number"
share=$((inputs / ${#NATIVE[@]}))
targets=("${@:2}") native=() files=()
((${#targets[@]})) || targets=("${NATIVE[@]}" "${FILES[@]}")
for target in "${targets[@]}"; do
  case " ${NATIVE[*]} | ${FILES[*]} " in
    *" $target "*"|"*) native+=("$target") ;;
    *"|"*" $target "*) files+=("$target") ;;
    *) die "no target $target; there are: ${NATIVE[*]} ${FILES[*]}" ;;
  esac
done
read -ra compiler <<<"${CXX:-c++}"
read -ra more_flags <<<"${FUZZ_FLAGS:--O1}"
FLAGS+=("${more_flags[@]}")
built=${FUZZ_BUILD:-build/fuzz}

# Is it clang that compiles?
is_clang() { [[ $("${compiler[@]}" -dM -E -x c++ - </dev/null 2>/dev/null) == *__clang__* ]]; }

# probe FLAG...: can a program be built with these?
probe() {
  "${compiler[@]}" "${FLAGS[@]}" "$@" -x c++ - -o "$built/probe" 2>/dev/null
}

# build: the programs of the core's targets, in $built. What a crash left there stays.
build() {
  local target key units around=-fsanitize=fuzzer
  # The longest to compile comes first, and only where it is wanted.
  if [[ " ${native[*]} " == *" trie "* ]]; then CORE=(trie_import "${CORE[@]}" import_journal); fi
  units=("${CORE[@]}")
  for target in "${native[@]}"; do units+=("fuzz/${target}_target"); done
  if is_clang; then
    FLAGS+=(-fsanitize=fuzzer-no-link)
  else
    units+=(fuzz/mutator)
    around=$built/fuzz/mutator.o
  fi
  key=$({ cat cpp/*.cpp cpp/*.h cpp/fuzz/* && echo "${compiler[@]}" "${FLAGS[@]}" "${native[@]}"; } | cksum)
  [[ $(cat "$built/made-of" 2>/dev/null) != "$key" ]] || return 0
  rm -f "$built/made-of"
  mkdir -p "$built/fuzz"
  probe <<<'int main() {}' ||
    die "${compiler[*]} cannot build with the sanitizers; install g++ 12 or newer, or clang++"
  if is_clang; then
    probe -fsanitize=fuzzer <<<'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' ||
      die "${compiler[*]} comes without libFuzzer; install its runtime (with apt: libclang-rt-dev), or leave CXX to g++"
  fi
  say "building the core with the sanitizers, half a minute to two"
  printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -I{} \
    "${compiler[@]}" "${FLAGS[@]}" -c cpp/{}.cpp -o "$built/{}.o" || die "the build failed"
  for target in "${native[@]}"; do
    units=("${CORE[@]/#/$built/}" "$built/fuzz/${target}_target")
    "${compiler[@]}" "${FLAGS[@]}" "${units[@]/%/.o}" "$around" -o "$built/$target" ||
      die "the build failed"
  done
  echo "$key" >"$built/made-of"
}

# run_native TARGET: its figures on stdout, "inputs N accepted N refused N crashes N"; its reports
# on stderr.
run_native() {
  local program=$built/$1
  export ASAN_OPTIONS=max_allocation_size_mb=512:allocator_may_return_null=0
  if ! is_clang; then
    local corpus=()
    if [[ $1 == trie ]]; then corpus=(--corpus "$GOLDEN"); fi
    "$program" --inputs "$share" --seed "$seed" "${corpus[@]}"
    return
  fi
  local corpus=$TMPDIR/corpus log=$built/$1.log crashes=0 seed_file
  mkdir -p "$corpus"
  "$program" --write-seeds "$corpus"
  if [[ $1 == trie ]]; then
    while read -r seed_file; do # with what follows an input's content: the choices
      { cat "$seed_file" && head -c 16 /dev/zero; } >"$corpus/${seed_file##*/}"
    done < <(find "$GOLDEN" -type f -size -9)
  fi
  "$program" -runs="$share" -seed="$seed" -max_len=65536 -timeout=30 -verbosity=0 \
    -print_final_stats=1 -artifact_prefix="$built/$1-" "$corpus" 2>"$log" || crashes=1
  rm -r "$corpus"
  if ((crashes)); then
    grep -m 1 -A 25 -E 'ERROR: |^fault: |runtime error: ' "$log" >&2 || tail -n 40 "$log" >&2
    echo "all of it: $log; again: $program $(sed -n 's/.*Test unit written to //p' "$log")" >&2
  fi
  echo "inputs $(awk '/number_of_executed_units/ { print $2 }' "$log")" \
    "$(grep '^accepted' "$log" || echo accepted - refused -) crashes $crashes"
}

# run_files TARGET: the same of a target in Python.
run_files() {
  "$python" tests/fuzz_files.py "$1" --inputs "$((share / 100))" --seed "$seed"
}

# Where files are made and thrown away by the thousand: in memory if there is such a place.
if [[ -w /dev/shm ]]; then TMPDIR=/dev/shm; fi
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/fuzz-XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
if ((${#native[@]})); then build; fi
if ((${#files[@]})); then
  find_python
  python=$PYTHON
  if ! "$python" -c 'import torch, pytest, dart_core.heads' 2>/dev/null; then
    install_package
    alone dev add_test_tools
    python=$VENV_PYTHON
  fi
fi

failed=0
printf '%-12s %10s %10s %10s %8s\n' target inputs accepted refused crashes
for target in "${targets[@]}"; do
  if [[ " ${native[*]} " == *" $target "* ]]; then run=run_native; else run=run_files; fi
  figures=$("$run" "$target") || failed=1
  read -r _ tried _ accepted _ refused _ crashes <<<"$figures"
  [[ ${crashes:-} == 0 ]] || failed=1
  printf '%-12s %10s %10s %10s %8s\n' "$target" "${tried:--}" "${accepted:--}" "${refused:--}" "${crashes:--}"
done
exit "$failed"
