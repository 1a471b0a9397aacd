# Sourced by the scripts of this folder: where we are, and which of several compilers this machine has.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"

say() { printf '== %s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# first_of NAME...: the first that is installed, or nothing.
first_of() {
  local name
  for name in "$@"; do
    if command -v "$name" > /dev/null; then
      printf '%s\n' "$name"
      return
    fi
  done
}

# configure_and_build DIR "TARGET..." -DOPTION...: the target "all" is everything.
configure_and_build() {
  local dir="$1" targets
  read -r -a targets <<< "$2"
  shift 2
  mkdir -p "$dir"
  if ! cmake -G Ninja -S . -B "$dir" "$@" > "$dir/configure.log" 2>&1; then
    cat "$dir/configure.log" >&2
    die "cannot configure $dir (script/setup installs what is missing)"
  fi
  cmake --build "$dir" --target "${targets[@]}"
}
