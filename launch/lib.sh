# shellcheck shell=bash
# Sourced by the launch scripts; takes them to the root of the clone. Checks before any long work, and
# the virtual environment with the package in it. Every failure is one line on stderr and exit 1.

unset CDPATH PYTHONSAFEPATH # cd would go elsewhere, and python -m not find the package
cd "${BASH_SOURCE[0]%/*}/.."

SOURCES=(pyproject.toml cpp/CMakeLists.txt cpp/*.cpp cpp/*.h) # what the install is made from
VENV_MB=2500       # room for .venv with a CPU build of torch (1.5 GB), unpacking included
VENV_CUDA_MB=10000 # the same with a CUDA build
PIP_QUICK=(--timeout 10 --retries 1 --disable-pip-version-check)

# use_venv FOLDER: the virtual environment that all the rest is about.
use_venv() {
  VENV=$1
  VENV_PYTHON=$VENV/bin/python
  INSTALL_LOG=$VENV/install.log
}
use_venv .venv

say() { printf '== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Sets PYTHON: the first Python >= 3.11 found, or the one the user's PYTHON names.
find_python() {
  local candidate wanted=("${PYTHON:-}" python3 python3.13 python3.12 python3.11 python)
  [[ -z ${PYTHON:-} ]] || wanted=("$PYTHON")
  for candidate in "${wanted[@]}"; do
    if [[ -n $candidate ]] &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      PYTHON=$candidate
      return
    fi
  done
  die "no Python 3.11 or newer found (tried:${wanted[*]/#/ }); install one, or name it: PYTHON=/path/to/python3"
}

# check_port "$@": the port that the page will take, from --server-port, GRADIO_SERVER_PORT or 30000.
check_port() {
  local port=${GRADIO_SERVER_PORT:-30000} previous="" argument
  for argument in "$@"; do
    [[ $previous == --server-port ]] && port=$argument
    [[ $argument == --server-port=* ]] && port=${argument#*=}
    [[ $argument == --help || $argument == -h ]] && return
    previous=$argument
  done
  if ! [[ $port =~ ^[0-9]{1,5}$ ]] || ((10#$port < 1 || 10#$port > 65535)); then
    die "--server-port $port: expected a number from 1 to 65535"
  fi
  "$PYTHON" - "$port" <<'PY' || refuse_port "$port" $?
import socket, sys
with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("127.0.0.1", int(sys.argv[1])))
    except PermissionError:
        sys.exit(2)
    except OSError:
        sys.exit(1)
PY
}

# refuse_port PORT STATUS: what check_port's look at it ended with.
refuse_port() {
  (($2 != 2)) || die "port $1 needs more rights than this user has; choose one above 1023: --server-port 30000"
  die "port $1 is taken, perhaps by an earlier demo; choose another: --server-port $((10#$1 + 1))"
}

# check_disk FOLDER MB WHAT: is there room where FOLDER is, or will be?
check_disk() {
  local folder=$1 free_mb
  while [[ ! -e $folder ]]; do folder=$(dirname "$folder"); done
  free_mb=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1024) }')
  ((free_mb >= $2)) || die "$3 needs $2 MB of disk at $1, which has $free_mb MB free"
}

# The demo's target is fetched after the install; its room is looked for before.
check_demo_disk() {
  local need folder
  read -r need folder < <("$PYTHON" -c 'from dart_core.demo_target import demo_disk; print(*demo_disk())' 2>/dev/null) ||
    die "no folder to keep the demo's target model in; set DART_ARENA_CACHE to one"
  check_disk "$folder" "$((need / 1000000))" "the demo's target model"
}

# A C++20 compiler and Python's headers: what building the extension takes.
check_compiler() {
  local compiler=${CXX:-} candidate headers
  for candidate in c++ g++ clang++; do
    [[ -n $compiler ]] || compiler=$(command -v "$candidate" || true)
  done
  [[ -n $compiler ]] || die "no C++ compiler found (tried c++, g++, clang++); install one, e.g. the package g++"
  # shellcheck disable=SC2086 # CXX may hold a wrapper and a compiler
  $compiler -std=c++20 -fsyntax-only -x c++ - <<<'#include <span>' 2>/dev/null ||
    die "$compiler cannot compile C++20; install a newer one, or name it: CXX=/path/to/g++"
  headers=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [[ -f $headers/Python.h ]] || die "$PYTHON has no C headers ($headers/Python.h); install them, e.g. the package python3-dev"
}

# What the installed package was built from; a moved clone counts as another.
source_key() {
  { cat "${SOURCES[@]}" && pwd; } | cksum
}

is_done() { # NAME: was pip_step NAME done, for these very sources?
  [[ ! -e $VENV/.unfinished && -x $VENV_PYTHON ]] &&
    [[ $(cat "$VENV/.done-$1" 2>/dev/null) == "$(source_key)" ]]
}

# pip_step NAME PIP-ARGUMENT...: install, show the big downloads, remember that it is done.
# A kill or Ctrl-C leaves .unfinished behind: pip may then hold half a package for a whole one.
pip_step() {
  local name=$1 started=$SECONDS
  shift
  mkdir -p "$VENV/tmp"
  touch "$VENV/.unfinished"
  trap 'echo "interrupted: the same command starts $VENV afresh" >&2; exit 130' INT
  # /tmp may be small, and the disk check looked at this one.
  if ! TMPDIR=$PWD/$VENV/tmp "$VENV_PYTHON" -m pip install --disable-pip-version-check "$@" 2>&1 |
    tee -a "$INSTALL_LOG" | show_progress; then
    rm -f "$VENV/.unfinished"
    die "pip install $* failed: $(grep -i 'error' "$INSTALL_LOG" | tail -n 1 || true) (all of it: $INSTALL_LOG)"
  fi
  trap - INT
  rm -rf "$VENV/.unfinished" "$VENV/tmp"
  source_key >"$VENV/.done-$name"
  say "installed in $((SECONDS - started)) s"
}

show_progress() {
  local line
  while IFS= read -r line; do
    case $line in
      *Downloading*\([0-9][0-9]*.[0-9]*MB\)* | *Downloading*GB\)* | Building*wheel* | Installing*)
        line=${line#"${line%%[! ]*}"}
        printf '   %s\n' "${line%%: *}" ;;
    esac
  done
}

# Makes .venv, or starts it afresh where it is broken or half installed.
ensure_venv() {
  if [[ -e $VENV/.unfinished ]]; then
    say "the last install was cut short: starting $VENV afresh"
    rm -rf "$VENV"
  elif [[ -e $VENV ]] && ! "$VENV_PYTHON" -c '' 2>/dev/null; then
    say "$VENV has no working Python: starting it afresh"
    rm -rf "$VENV"
  fi
  if [[ ! -e $VENV ]]; then
    mkdir "$VENV"
    touch "$VENV/.unfinished"
    "$PYTHON" -m venv "$VENV" >"$INSTALL_LOG" 2>&1 ||
      die "$PYTHON cannot make a virtual environment; install its venv module, e.g. the package python3-venv"
    rm "$VENV/.unfinished"
  fi
  "$VENV_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$VENV holds a Python older than 3.11; remove that folder and run this again"
  "$VENV_PYTHON" -m pip --version >/dev/null 2>&1 || # uv's environments come without pip
    "$VENV_PYTHON" -m ensurepip >>"$INSTALL_LOG" 2>&1 ||
    die "$VENV has no pip and no ensurepip; remove that folder, or install pip into it"
}

# requirements NAME...: what pyproject.toml asks of these packages, one a line.
requirements() {
  "$VENV_PYTHON" - "$@" <<'PY'
import re, sys, tomllib
with open("pyproject.toml", "rb") as file:
    lines = tomllib.load(file)["project"]["dependencies"]
known = {re.match(r"[\w.-]+", line)[0]: line for line in lines}
print(*(known[name] for name in sys.argv[1:]), sep="\n")
PY
}

# check_registry PACKAGE: does a registry answer?
check_registry() {
  local answer
  answer=$("$VENV_PYTHON" -m pip "${PIP_QUICK[@]}" index versions "$1" 2>&1) ||
    die "no package registry answers ($(tail -n 1 <<<"$answer")); check the network or pip's settings"
}

# Will the torch that pip picks fit? pip decides, so pip is asked.
check_torch() {
  local torch answer
  torch=$(requirements torch)
  answer=$("$VENV_PYTHON" -m pip install "${PIP_QUICK[@]}" --quiet --dry-run --ignore-installed \
    --no-deps --report - "$torch" 2>>"$INSTALL_LOG") ||
    die "pip finds no $torch for $("$VENV_PYTHON" --version) on this machine (see $INSTALL_LOG)"
  if "$VENV_PYTHON" -c '
import json, sys
metadata = json.load(sys.stdin)["install"][0]["metadata"]
sys.exit(not any(need.startswith("nvidia-") for need in metadata.get("requires_dist", [])))
' <<<"$answer"; then
    say "torch comes as its CUDA build, a download of about 3 GB (README: how to take the CPU build)"
    check_disk "$VENV" "$VENV_CUDA_MB" "the virtual environment with torch's CUDA build"
  fi
}

# alone NAME COMMAND: has COMMAND make what is_done NAME then finds. One launcher at a time: a second
# one would take the half-made environment of the first for a broken one.
alone() {
  local lock=""
  is_done "$1" && return
  if command -v flock >/dev/null; then
    exec {lock}<.
    flock --nonblock "$lock" || {
      say "another launcher is installing here: waiting for it"
      flock "$lock"
    }
  fi
  is_done "$1" || "$2"
  [[ -z $lock ]] || exec {lock}<&- # what is started later must not hold it
}

# install_package: .venv with the package and what it needs; a second call finds it done.
install_package() { alone package make_package; }

make_package() {
  check_compiler
  check_disk "$VENV" "$VENV_MB" "the virtual environment"
  ensure_venv
  check_registry scikit-build-core
  check_torch
  say "installing the package and its dependencies into $VENV (1.5 GB with a CPU torch, some minutes)"
  pip_step package --editable .
}

# With NAME dev: what tests, fuzzers and mutants need beside the package.
add_test_tools() {
  say "installing the test tools"
  pip_step pip --upgrade 'pip>=25.1' # the first pip that knows dependency groups
  pip_step dev --group dev
}

# The published app ---------------------------------------------------------------------------------

# What may be set by the environment: DART_ARENA_DTYPE=float16 is --dtype float16. Flags win.
SETTABLE=(BASE_MODEL_NAME_OR_PATH DART_MODEL_NAME_OR_PATH EAGLE3_MODEL_NAME_OR_PATH
  NGRAM_MODEL_NAME_OR_PATH SOURCE NGRAM TEMPLATE_NAME DEVICE DEVICE_MAP DTYPE MAX_NEW_TOKENS
  MAX_LENGTH TREE_BUDGET)

# Sets FROM_ENVIRONMENT: the flags that the environment asks for.
read_environment() {
  local name variable flag
  FROM_ENVIRONMENT=()
  for name in "${SETTABLE[@]}"; do
    variable=DART_ARENA_$name
    [[ -n ${!variable:-} ]] || continue
    flag=${name,,}
    FROM_ENVIRONMENT+=("--${flag//_/-}" "${!variable}")
    say "$variable=${!variable}: as --${flag//_/-}"
  done
  case ${DART_ARENA_COMPARE_EAGLE3:-} in
    "" | 1 | true) ;;
    0 | false) FROM_ENVIRONMENT+=(--no-compare-eagle3) ;;
    *) die "DART_ARENA_COMPARE_EAGLE3=$DART_ARENA_COMPARE_EAGLE3: expected 1 or 0" ;;
  esac
}

# Sets ARGUMENTS: "$@", with paths as seen from where the user stands.
from_users_folder() {
  local argument previous="" flag value
  ARGUMENTS=()
  for argument in "$@"; do
    flag=$previous value=$argument
    if [[ $argument == --*=* ]]; then flag=${argument%%=*} value=${argument#*=}; fi
    case $flag in
      --*-name-or-path | --prompts | --replay | --output)
        # What is to be written need not be there; the rest may also be an id, or of the clone.
        if [[ -n $value && $value != [-/]* ]] &&
          [[ $flag == --output || (! -e $value && -e $OLDPWD/$value) ]]; then
          argument=${argument%"$value"}$OLDPWD/$value
        fi ;;
    esac
    ARGUMENTS+=("$argument")
    previous=$argument
  done
}

# The package modelscope, where the last --source asks for it.
ensure_source() {
  local argument previous="" source=hub
  for argument in "$@"; do
    [[ $previous == --source ]] && source=$argument
    [[ $argument == --source=* ]] && source=${argument#*=}
    previous=$argument
  done
  [[ $source == modelscope ]] || return 0
  "$VENV_PYTHON" -c 'import modelscope' 2>/dev/null || alone modelscope add_modelscope
}

add_modelscope() {
  say "installing the package modelscope"
  pip_step modelscope --editable '.[modelscope]'
}

# launch_preset PRESET "$@": the page on port 30000, or with --api a server, as the published
# scripts start it: DART and EAGLE3 side by side, the small n-gram, long answers. What the
# environment says wins over that, and the user's flags over both.
launch_preset() {
  local preset=$1
  shift
  find_python
  check_port "$@"
  read_environment
  from_users_folder "${FROM_ENVIRONMENT[@]}" "$@"
  set -- "${ARGUMENTS[@]}"
  install_package
  ensure_source "$@"
  say "preset $preset; Ctrl-C ends it"
  exec "$VENV_PYTHON" -m app --preset "$preset" --compare-eagle3 --ngram small \
    --max-new-tokens 5120 --max-length 6400 "$@"
}
